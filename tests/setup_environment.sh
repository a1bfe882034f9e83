#!/bin/bash
# setup_environment.sh EXTRAS [PIP'S OPTIONS]: make .venv with hpcml (editable) and these extras of pyproject.toml. Wants python3 >= 3.11;
# installs python3-venv where a Debian or Ubuntu lacks it and this runs as root. The packages are those of tests/versions-PYTHON.txt where
# there is one for this Python, unless NEWEST is set.
set -euo pipefail
extras=${1:?which extras?}
python=${PYTHON:-python3}
if [ -z "$python" ] || ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "hpcml needs Python 3.11 or newer (PYTHON=$python). Name one: make PYTHON=/path/to/python3 demo." >&2; exit 65
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing python3-venv …"
    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends python3-venv >/dev/null
  else
    echo "This Python cannot make environments ($python). Install python3-venv, or name another: make PYTHON=…." >&2; exit 65
  fi
fi
versions=tests/versions-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])').txt
if [ -z "${NEWEST:-}" ] && [ -f "$versions" ]; then set -- "$@" --constraint "$versions"; fi
[ -x .venv/bin/python ] || "$python" -m venv .venv
echo "installing into .venv (some minutes the first time) …"
.venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check "${@:2}" --editable ".[$extras]"
