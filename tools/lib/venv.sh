# Sourced by tools/quickstart and tools/test: makes .venv and keeps it in step with constraints.txt and pyproject.toml.
# shellcheck shell=bash

# ensure_python: a Python 3.11 or newer that can make virtual environments, in $PYTHON.
ensure_python() {
    PYTHON=${PYTHON:-$(command -v python3 || true)}
    if [ -n "$PYTHON" ] && "$PYTHON" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        return
    fi
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "Installing python3 and python3-venv" >&2
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3 python3-venv; } >&2
        PYTHON=/usr/bin/python3
        return
    fi
    echo "slurmtrain needs Python 3.11 or newer with the venv module: install it, or name one with PYTHON=/path/to/python3" >&2
    exit 2
}

# ensure_venv EXTRAS: .venv holds the package and these extras; nothing is asked of a registry when nothing has changed.
ensure_venv() {
    local extras=$1 stamp=.venv/.installed-$1 want
    want=$(cat constraints.txt pyproject.toml setup.cfg | sha256sum)" $PWD"
    if [ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && .venv/bin/python -c 'import slurmtrain' 2>/dev/null; then
        return
    fi
    ensure_python
    if [ ! -x .venv/bin/python ] || ! .venv/bin/python -c 'import sys' 2>/dev/null || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        rm -rf .venv
        echo "Creating .venv" >&2
        "$PYTHON" -m venv .venv
    fi
    echo "Installing slurmtrain[$extras] into .venv under constraints.txt (a minute or two the first time)" >&2
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-warn-script-location \
        -c constraints.txt -e ".[$extras]" >&2
    echo "$want" > "$stamp"
}
