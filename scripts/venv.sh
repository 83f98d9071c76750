#!/bin/sh
# Usage: venv.sh DIRECTORY EXTRAS STAMP...
# Create the virtual environment DIRECTORY with the first Python >= 3.11 found ($PYTHON is tried
# first) and install the project and papers/ into it, editable, with the comma-separated EXTRAS; with "dev" among
# them the dependency group "torch" too, where its build can be had. Each STAMP is a file that says for which
# dependencies this was done: nothing is installed where the first of them says those of today.
# $FLOWER, such as 1.41, puts that version of Flower in the place of the newest, without what it
# depends on. $COMPILE = no leaves modules to be compiled when they are first imported.
set -eu

venv=$1
extras=$2
shift 2
names="python3.13 python3.12 python3.11 python3 python"

# A name on PATH proves nothing (a version manager's shim may refuse to run), so run it.
works() { "$@" >/dev/null 2>&1; }
recent() { works "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; }

# uv does not read pip's settings: hand over the ones that decide whether it can install at all.
if [ -n "${PIP_INDEX_URL:-}" ]; then
    export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-${UV_INDEX_URL:-$PIP_INDEX_URL}}"
fi
if [ -n "${PIP_FIND_LINKS:-}" ]; then
    export UV_FIND_LINKS="${UV_FIND_LINKS:-$(echo "$PIP_FIND_LINKS" | tr ' ' ',')}"
fi
if [ -n "${PIP_CERT:-}" ]; then
    export SSL_CERT_FILE="${SSL_CERT_FILE:-$PIP_CERT}"
fi

uv=
if works uv --version; then uv=uv; fi

if ! recent "$venv/bin/python"; then
    python=
    for name in ${PYTHON:-} $names; do
        if recent "$name" && { [ -n "$uv" ] || works "$name" -c 'import ensurepip, venv'; }; then
            python=$("$name" -c 'import sys; print(sys.executable)')
            break
        fi
    done
    if [ -z "$python" ]; then
        echo "privet needs Python >= 3.11 with the venv module; tried ${PYTHON:+$PYTHON }$names" >&2
        exit 1
    fi
    echo "Creating $venv with $python"
    rm -rf "$venv"
    if [ -z "$uv" ] || ! "$uv" venv --quiet --no-project --python "$python" "$venv"; then
        "$python" -m venv "$venv"
    fi
fi

dependencies=$("$venv/bin/python" "$(dirname "$0")/dependencies.py")
stamp() {
    for file in "$@"; do echo "$dependencies" > "$file"; done
    exit 0
}
if [ "$(cat "$1" 2>/dev/null)" = "$dependencies" ]; then stamp "$@"; fi
rm -f "$venv"/.installed-*
# uv's environments have no pip: `pip install`, which the pages and `privet new` print, would be another Python's.
pip_there() {
    works "$venv/bin/python" -m pip --version || "$venv/bin/python" -m ensurepip --default-pip >/dev/null
}

if [ -z "$uv" ]; then
    if works "$venv/bin/uv" --version || "$venv/bin/python" -m pip install --quiet uv; then
        uv=$venv/bin/uv
    fi
fi

echo "Installing flwr-privet[$extras] into $venv"
# Compiling once here spares every process of the first run from compiling what it imports.
compile=--compile-bytecode
if [ "${COMPILE:-yes}" = no ]; then compile=; fi
with_uv() {
    [ -n "$uv" ] && "$uv" pip install --quiet --python "$venv/bin/python" $compile "$@"
}
finish() {
    pip_there 2>/dev/null || with_uv pip || echo "no pip in $venv: install with uv pip install" >&2
    if [ -n "${FLOWER:-}" ]; then
        with_uv --no-deps "flwr==$FLOWER.*" ||
            { pip_there && "$venv/bin/python" -m pip install --quiet --no-deps "flwr==$FLOWER.*"; }
    fi
    stamp "$@"
}
# On Linux the CPU build, by its name: the plain wheel brings gigabytes of GPU libraries.
torch=
if [ "$(uname -s)" = Linux ]; then torch="torch==2.13.0+cpu"; fi
case ",$extras," in *,dev,*)
    if why=$(with_uv -e ".[$extras]" -e papers $torch --group torch 2>&1); then finish "$@"; fi
    echo "$why" >&2
    echo "goes on without the group torch: the tests of PyTorch will be skipped" >&2
esac
if with_uv -e ".[$extras]" -e papers; then finish "$@"; fi
echo "uv could not install, trying pip, which takes longer" >&2
pip_there
"$venv/bin/python" -m pip install --quiet -e ".[$extras]" -e papers
finish "$@"
