"""The page's share of a Jupyter run: a small JupyterLab extension that saves all documents before the session ends."""

from __future__ import annotations

import json
from pathlib import Path

NAME = "hpcml-session"
# A module federation container by hand (jupyterlab, "prebuilt extensions"): no build, and nothing shared but the app.
SCRIPT = """\
(() => {
  const plugin = {
    id: 'hpcml-session:plugin',
    description: 'Saves all documents before the run ends, and says that it ends.',
    autoStart: true,
    activate: app => {
      const {wsUrl, token, appendToken} = app.serviceManager.serverSettings;
      const url = new URL('hpcml/session', wsUrl);
      if (appendToken && token) url.searchParams.set('token', token);
      let line = null, told = '';
      const say = (message, type, actions) =>
        app.commands.execute('apputils:notify', {message, type, options: {autoClose: false, actions}});
      app.commands.addCommand('hpcml-session:stay', {
        label: 'Go on with this session', execute: () => line.send('stay')
      });
      const save = async () => {
        if (app.commands.hasCommand('docmanager:save-all')) await app.commands.execute('docmanager:save-all');
        const unsaved = [...app.shell.widgets('main')].filter(widget => widget.context?.model?.dirty);
        await Promise.all(unsaved.map(widget => widget.context.save()));
      };
      const heed = async ({state, words}) => {
        const stay = [{label: 'Go on', commandId: 'hpcml-session:stay', args: {}}];
        if (words && words !== told) say(words, 'warning', state === 'idle' ? stay : []);
        told = words;
        if (state === 'running') return;
        try {
          await save();
        } catch (error) {
          say('Not all documents could be saved: ' + error, 'error', []);
          return;
        }
        if (state === 'ending') line.send('saved');
      };
      const follow = () => {
        line = new WebSocket(url);
        line.onmessage = message => heed(JSON.parse(message.data));
        line.onclose = () => setTimeout(follow, 5000);
      };
      app.restored.then(follow);
    }
  };
  (window._JUPYTERLAB = window._JUPYTERLAB || {})['hpcml-session'] = {
    init: () => {},
    get: () => Promise.resolve(() => ({__esModule: true, default: plugin}))
  };
})();
"""


def write(folder: Path) -> None:
    """Write the extension where JupyterLab is told to look for more."""
    static = folder / NAME / "static"
    static.mkdir(parents=True, mode=0o700)
    (static / "remoteEntry.js").write_text(SCRIPT)
    build = {"load": "static/remoteEntry.js", "extension": "./extension"}
    lab = {"extension": True, "_build": build}
    package = {"name": NAME, "version": "1.0.0", "description": "Part of hpcml.", "jupyterlab": lab}
    (folder / NAME / "package.json").write_text(json.dumps(package))
