#!/usr/bin/env bash
# Writes requirements/lock.txt: what pip resolves today for pyproject.toml with all extras, on the
# interpreter of .venv, without local version suffixes. Run by `make lock`.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-lock
rm -rf "$venv"
.venv/bin/python -m venv "$venv"
"$venv/bin/pip" install --quiet --quiet --disable-pip-version-check -e '.[server,dev]'
{
  sed -n '/^#/p' requirements/lock.txt
  "$venv/bin/pip" freeze --exclude-editable | sed -E 's/\+[a-z0-9.]+$//' | LC_ALL=C sort -f
} > requirements/lock.new
mv requirements/lock.new requirements/lock.txt
rm -rf "$venv"
