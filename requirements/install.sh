#!/usr/bin/env bash
# Creates .venv with the locked packages and this project, or does nothing when that is done already.
# The stamp names the lock, pyproject.toml and the interpreter: a change of any installs again.
# PYTHON=/path/to/python3.X chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
lock=requirements/lock.txt

# The locked packages need Python 3.11 or newer, numpy 1.26 has no wheels after 3.12. Triton's
# Python backend links libpython, which must be there as a shared library.
fits='
import ctypes.util, os, sys, sysconfig
version = sys.version_info[:2]
name = "libpython%d.%d.so.1.0" % version
shared = os.path.exists(os.path.join(sysconfig.get_config_var("LIBDIR") or "", name))
shared = shared or ctypes.util.find_library("python%d.%d" % version) is not None
problems = []
if version not in ((3, 11), (3, 12)):
    problems.append("is Python %d.%d, not 3.11 or 3.12" % version)
if not shared:
    problems.append("has no shared %s (Debian: apt-get install libpython%d.%d)" % (name, *version))
try:
    import ensurepip, venv
except ImportError:
    problems.append("has no venv (Debian: apt-get install python%d.%d-venv)" % version)
print("; ".join(problems))
sys.exit(bool(problems))
'

choose_python() {
  local candidate path reason
  for candidate in ${PYTHON:-python3 python3.12 python3.11 /usr/bin/python3}; do
    path=$(command -v "$candidate") || continue
    if reason=$("$path" -c "$fits" 2>/dev/null); then
      echo "$path"
      return
    fi
    [ -z "$reason" ] || echo "setup: $path $reason" >&2
  done
  echo "setup: no usable Python 3.11 or 3.12 here; name one with PYTHON=..." >&2
  return 1
}

stamp_of() {
  { "$1" -c 'import sys; print(sys.version)'; cat "$lock" pyproject.toml; } | sha256sum | cut -c1-32
}

if [ -x .venv/bin/python ] && [ -f ".venv/stamp-$(stamp_of .venv/bin/python)" ]; then
  exit 0
fi
if [ "$(uname -s)-$(uname -m)" != Linux-x86_64 ]; then
  echo "setup: the server wheel is for Linux x86-64, this is $(uname -s) $(uname -m)" >&2
  exit 1
fi
if ! { [ -x .venv/bin/python ] && .venv/bin/python -c "$fits" >/dev/null; }; then
  python=$(choose_python)
  echo "setup: creating .venv with $python ($("$python" --version))"
  rm -rf .venv
  "$python" -m venv .venv
fi
rm -f .venv/stamp-*
echo "setup: installing $(grep -c '==' "$lock") locked packages"
.venv/bin/pip install --quiet --quiet --disable-pip-version-check -r "$lock"
.venv/bin/pip install --quiet --quiet --disable-pip-version-check --no-deps -e .
touch ".venv/stamp-$(stamp_of .venv/bin/python)"
echo "setup: ready, .venv/bin/h3 --help"
