#!/bin/sh
# What `make setup` runs: finds a Python, installs the system packages that are missing (as root, with apt) or says how to,
# and hands over to tools/setup.py. Shell, because a bare machine may have no Python yet; everything else is there.
#
# PYTHON=/path/to/python3.x names the Python to use; without it, the first that works is taken, or one that is faster.
# GPU=1 or GPU=0 chooses the environment, NCCL=0 leaves NCCL out of it; see setup.py. TF=2.21 chooses TensorFlow's version.
# OPS=0 leaves out the fused ops, and Bazel with them. What is not given is as in the last set-up.
# CHROMIUM=1 adds Chromium, in which a test looks at the reports of tftrain.bench.
set -eu
cd "$(dirname "$0")/.."

say() { printf '[setup] %s\n' "$*"; }
fail() { printf '[setup] error: %s\n' "$*" >&2; exit 1; }

# Prints "VERSION venv MICROSECONDS" or "VERSION no-venv MICROSECONDS" for a working Python of a supported version, nothing
# for any other. Running it is the only test worth anything: a version manager's shim exists for versions that do not start,
# and no setting says how fast a build is. The microseconds are those of a short loop of calls, the least of several times.
probe() {
    "$1" -c '
import importlib.util, sys, timeit
class Point:
    def __init__(self, x):
        self.x = x
    def plus(self, y, **names):
        return self.x + y
def loop():
    for i in range(3000):
        Point(i).plus(i, name=str(i))
if (3, 10) <= sys.version_info[:2] <= (3, 13):
    complete = importlib.util.find_spec("ensurepip") and importlib.util.find_spec("venv")
    seconds = min(timeit.repeat(loop, number=1, repeat=400))
    print("%d.%d" % sys.version_info[:2], "venv" if complete else "no-venv", round(seconds * 1e6))
' 2>/dev/null </dev/null || true
}

# Sets `python` to the first complete Python, or to one that is at least 1.25 times as fast, as a build with profile-guided
# optimization beside one without is. Where there is none, sets `incomplete` to the version of the first that lacks only its
# venv module.
find_python() {
    python='' incomplete='' first_time='' best_time=''
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10 /usr/bin/python3}; do
        found=$(probe "$candidate")
        time=${found##* }
        case $found in
            *" venv "*)
                if [ -z "$python" ]; then
                    python=$candidate first=$candidate first_time=$time best_time=$time
                elif [ $((time * 125)) -lt $((first_time * 100)) ] && [ "$time" -lt "$best_time" ]; then
                    python=$candidate best_time=$time
                fi ;;
            *" no-venv "*) incomplete=${incomplete:-${found%% *}} ;;
        esac
    done
    if [ -n "$python" ] && [ "$python" != "$first" ]; then
        tenths=$((first_time * 10 / best_time))
        say "taking $python: it runs Python code $((tenths / 10)).$((tenths % 10)) times as fast as $first (PYTHON=$first takes that)"
    fi
}

# Installs packages with apt, or stops with the command that does.
install_packages() {
    command -v apt-get >/dev/null || fail "missing on this machine: $*. Install what these Debian packages hold, then run this again."
    if [ "$(id -u)" -ne 0 ]; then
        fail "missing system packages (OPS=0 needs no Bazel). Run: sudo apt-get update && sudo apt-get install -y --no-install-recommends $*"
    fi
    say "installing system packages: $*"
    mkdir -p build/setup
    log=build/setup/apt.log
    # Two set-ups at once wait for each other rather than fail on apt's lock.
    if ! { DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 update &&
        DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "$@"; } \
        >"$log" 2>&1 </dev/null; then
        tail -n 20 "$log" >&2
        fail "apt-get could not install: $*. The whole log: $log"
    fi
}

# An environment that works needs no search, so that a second run is quick.
if [ -z "${PYTHON:-}" ] && [ -n "$(probe .venv/bin/python)" ]; then
    python=.venv/bin/python
    missing=''
else
    find_python
    missing=''
    if [ -z "$python" ]; then
        if [ -n "$incomplete" ]; then
            missing="python$incomplete-venv"
        elif [ -n "${PYTHON:-}" ]; then
            fail "PYTHON=$PYTHON is not a working Python 3.10 to 3.13."
        else
            missing="python3 python3-venv"
        fi
    fi
fi
# A GPU environment that was made without the fused ops stays without them.
if [ "${GPU:-1}" = 1 ] && grep -qsx gpu .venv/setup/kind && grep -qsw ops .venv/setup/without; then
    OPS=${OPS:-0}
fi
command -v c++ >/dev/null || command -v g++ >/dev/null || missing="$missing g++"
if [ "${OPS:-1}" != 0 ]; then
    command -v bazelisk >/dev/null || command -v bazel >/dev/null || missing="$missing bazel-bootstrap"
    [ -d /usr/src/googletest ] || missing="$missing googletest"
fi
if [ "${CHROMIUM:-0}" = 1 ]; then
    command -v chromium >/dev/null || missing="$missing chromium"
fi

# Some tests make hosts of network namespaces, and are left out without these packages. Only as root in a container: on
# another machine, the package would start an SSH server.
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null && [ ! -d /run/systemd/system ]; then
    command -v sshd >/dev/null || [ -x /usr/sbin/sshd ] || missing="$missing openssh-server openssh-client"
    command -v ip >/dev/null || missing="$missing iproute2"
fi

if [ -n "$missing" ]; then
    # shellcheck disable=SC2086  # a list of words
    install_packages $missing
    [ -n "$python" ] || find_python
    [ -n "$python" ] || fail "no Python 3.10 to 3.13 with its venv module after installing:$missing. Name one with PYTHON=/path/to/python3.x"
fi

exec "$python" tools/setup.py ${TF:+--tf="$TF"} ${OPS:+--ops="$OPS"} ${NCCL:+--nccl="$NCCL"} ${GPU:+--gpu="$GPU"} ${PYTHON:+--recreate-for-other-python}
