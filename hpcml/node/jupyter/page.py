"""The page's share of a Jupyter run: a small JupyterLab extension that saves all documents before the session ends."""

from __future__ import annotations

import json
from pathlib import Path

NAME = "hpcml-session"
# A module federation container by hand (jupyterlab, "prebuilt extensions"): no build, and nothing shared but the app.
SCRIPT = """\
(() => {
  const page = Math.random().toString(36).slice(2);
  const pause = seconds => new Promise(done => setTimeout(done, 1000 * seconds));
  const cookie = name => (document.cookie.match('(?:^|; )' + name + '=([^;]*)') || [])[1] || '';
  const plugin = {
    id: 'hpcml-session:plugin',
    description: 'Saves all documents before the run ends, and says that it ends.',
    autoStart: true,
    activate: app => {
      const {baseUrl, token} = app.serviceManager.serverSettings;
      const url = new URL('hpcml/session', new URL(baseUrl, location.href));
      const ask = async (query, body) => {
        const headers = {'X-XSRFToken': cookie('_xsrf'), ...(token ? {Authorization: 'token ' + token} : {})};
        const options = body ? {method: 'POST', body: JSON.stringify({page, ...body})} : {};
        const answer = await fetch(url + query, {credentials: 'same-origin', cache: 'no-store', headers, ...options});
        if (!answer.ok) throw new Error(answer.statusText);
        return answer.json();
      };
      const say = (message, type, actions) =>
        app.commands.execute('apputils:notify', {message, type, options: {autoClose: false, actions}});
      app.commands.addCommand('hpcml-session:stay', {
        label: 'Go on with this session', execute: () => ask('', {stay: true})
      });
      const save = async () => {
        if (app.commands.hasCommand('docmanager:save-all')) await app.commands.execute('docmanager:save-all');
        const unsaved = [...app.shell.widgets('main')].filter(widget => widget.context?.model?.dirty);
        await Promise.all(unsaved.map(widget => widget.context.save()));
      };
      const heed = async news => {
        if (news.state === 'running') return;
        const stay = [{label: 'Go on', commandId: 'hpcml-session:stay', args: {}}];
        say(news.words, 'warning', news.state === 'idle' ? stay : []);
        try {
          await save();
        } catch (error) {
          say('Not all documents could be saved: ' + error, 'error', []);
          return;
        }
        if (news.state === 'ending') await ask('', {saved: true});
      };
      const follow = async () => {
        for (let seen = -1; ; ) {
          try {
            const news = await ask('?page=' + page + '&seen=' + seen);
            if (news.number !== seen) {
              seen = news.number;
              await heed(news);
            }
          } catch (error) {
            await pause(5);
          }
        }
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
    package = {
        "name": NAME,
        "version": "1.0.0",
        "description": "Part of hpcml.",
        "jupyterlab": {"extension": True, "_build": build},
    }
    (folder / NAME / "package.json").write_text(json.dumps(package))
