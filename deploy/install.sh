#!/bin/sh
# Installs what `make` needs into a virtual environment; `make` calls it. Each failure is one sentence that says what to do,
# and the text of the failed program is in a file.
#
# Usage: deploy/install.sh PYTHON VENV serve|dev
set -u
python=$1 venv=$2 what=$3
bin=$venv/bin

refuse() {
    echo "install: $1" >&2
    exit 1
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null
}

version_of() {
    "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2> /dev/null || echo "that does not run"
}

# Another Python of this machine that would do, as the end of a sentence.
other_python() {
    for name in python3.14 python3.13 python3.12 python3.11; do
        if is_new_enough "$name"; then
            echo "this machine has one: make $what PYTHON=$(command -v "$name")"
            return
        fi
    done
    echo "install one, and name it if it is not \`python3\`: make $what PYTHON=python3.11"
}

check_python() {
    command -v "$python" > /dev/null || refuse "there is no \`$python\`, and Python 3.11 or later is needed; $(other_python)"
    is_new_enough "$python" ||
        refuse "\`$python\` is Python $(version_of "$python"), and 3.11 or later is needed; $(other_python)"
}

# Makes the environment, or mends one that was half made: without pip, or with a Python that is gone or too old.
make_environment() {
    is_new_enough "$bin/python" || {
        check_python
        "$python" -m venv --clear "$venv" > "$log" 2>&1 || no_venv
    }
    "$bin/python" -m pip --version > /dev/null 2>&1 || "$bin/python" -m ensurepip --default-pip > "$log" 2>&1 || no_venv
    # The pip that comes with a Python is as old as it is, and takes a third longer for the rest.
    [ "$what" = dev ] || run_pip --no-deps --no-compile --require-hashes -r deploy/pip.lock
}

no_venv() {
    grep -q 'No space left' "$log" && refuse "the disk is full ($log)"
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    refuse "Python $version has no venv or no pip; on Debian and Ubuntu: apt install python$version-venv; then again: make $what (it said: $log)"
}

# The address of the package index, without a password.
index_url() {
    found=${PIP_INDEX_URL:-$("$bin/python" -m pip config get global.index-url 2> /dev/null)}
    echo "${found:-https://pypi.org/simple}" | sed 's#//[^/@]*@#//#'
}

run_pip() {
    "$bin/python" -m pip install --disable-pip-version-check --quiet "$@" > "$log" 2>&1 && return
    if grep -qE 'NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError|NameResolution|Temporary failure|SSLError|\(from versions: none\)' "$log"; then
        refuse "the package index $(index_url) cannot be reached: is there a network, or a proxy to name in https_proxy? Then again: make $what (pip said: $log)"
    elif grep -q 'No space left' "$log"; then
        refuse "the disk is full ($log)"
    elif grep -q 'DO NOT MATCH THE HASHES' "$log"; then
        refuse "a package is not the one of the lock file: was a download cut, or does the index have another? (pip said: $log)"
    fi
    refuse "pip failed, and its last line is: $(tail -n 1 "$log") (all of it: $log)"
}

log=$(mktemp)
export PIP_RETRIES="${PIP_RETRIES:-3}"
make_environment
echo "Installing into $venv, which takes a minute ..."
case $what in
    serve)
        run_pip --require-hashes -r deploy/requirements.lock
        run_pip --no-deps --no-build-isolation --editable .
        ;;
    dev)
        run_pip --no-deps --no-compile --require-hashes -r deploy/requirements-dev.lock
        ;;
esac
rm -f "$log"
