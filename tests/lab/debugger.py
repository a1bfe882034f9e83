"""What a test runs where an editor's debugger would be: it speaks debugpy's protocol (DAP) with the machine's own Python."""

from __future__ import annotations

# Waits until the program stops, prints the function and a value there, and lets it go on. Arguments: port, expression.
ATTACH = r"""
import json, socket, sys, time
deadline = time.monotonic() + 60
while True:
    try:
        stream = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 60).makefile("rwb")
        break
    except OSError:
        if time.monotonic() > deadline: raise
        time.sleep(0.1)
def ask(command, **arguments):
    data = json.dumps({"seq": 1, "type": "request", "command": command, "arguments": arguments}).encode()
    stream.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
    stream.flush()
def hear(kind, name):
    while True:
        headers = dict(line.split(b": ") for line in iter(lambda: stream.readline().strip(), b""))
        message = json.loads(stream.read(int(headers[b"Content-Length"])))
        if message["type"] == kind and message.get("event", message.get("command")) == name: return message.get("body")
ask("initialize", adapterID="test", clientID="test", pathFormat="path")
hear("response", "initialize")
ask("attach", justMyCode=False)
hear("event", "initialized")
ask("configurationDone")
thread = hear("event", "stopped")["threadId"]
ask("stackTrace", threadId=thread)
frame = hear("response", "stackTrace")["stackFrames"][0]
ask("evaluate", expression=sys.argv[2], frameId=frame["id"])
print(frame["name"], hear("response", "evaluate")["result"], flush=True)
ask("continue", threadId=thread)
hear("response", "continue")
ask("disconnect", terminateDebuggee=False)
"""
