#!/bin/bash
# try_release.sh: build the wheel and the source distribution into dist/. Install each as README says, into an empty environment, and run
# README's first script with it, outside the checkout and in an empty home. It needs a package index.
set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf dist
.venv/bin/python -m hatchling build -d dist
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
mkdir "$top/home" "$top/work"
.venv/bin/python -c 'from tests.doc_blocks import *; print(next(b.text for b in split(ROOT / "README.md")[0] if b.run and "file" in b.run))' >"$top/work/first.py"
for archive in "$PWD"/dist/hpcml-*; do
  echo "trying $(basename "$archive") …"
  .venv/bin/python -m venv --clear "$top/env"
  "$top/env/bin/pip" install --quiet --disable-pip-version-check "$archive[array]"
  (cd "$top/work" && env -i HOME="$top/home" PATH=/usr/bin:/bin "$top/env/bin/hpcml" submit --site local --wait first.py)
done
ls -l dist
