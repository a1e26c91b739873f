# shellcheck shell=bash
# shellcheck disable=SC2034 # the variables are for those who source this
#
# What the scripts share: where things are, how they speak, and how to tell
# that a process from a pid file is still the one that was started.
#
# Everything that runs from a source tree keeps its state under build/run:
# engine.conf, nginx.conf, engine.sock (a link into engine/, which belongs to the
# engine's user), *.pid, *.log.  Where only root can reach the tree, build/run is a
# link to a directory in /run, which has the engine, too.  Sourced, not run.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BUILD=${B:-build}
case "$BUILD" in /*) ;; *) BUILD=$ROOT/$BUILD ;; esac
RUN=${TR_RUN:-$BUILD/run}
[ ! -L "$RUN" ] || RUN=$(readlink -f "$RUN")
PORT=${PORT:-8080}
ENGINE=$BUILD/bin/tokenring-engine
[ ! -x "$RUN/bin/tokenring-engine" ] || ENGINE=$RUN/bin/tokenring-engine
NGINX=${TR_NGINX:-}
MODULE=${TR_MODULE:-$BUILD/module/ngx_http_tokenring_module.so}
URL=http://127.0.0.1:$PORT

if [ -z "$NGINX" ]; then
    # /usr/sbin is not in everybody's PATH.
    NGINX=$(PATH=$PATH:/usr/sbin command -v nginx || true)
fi

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    BOLD=$(printf '\033[1m') PLAIN=$(printf '\033[0m')
else
    BOLD='' PLAIN=''
fi

step() {
    printf '%s==>%s %s\n' "$BOLD" "$PLAIN" "$*"
}

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# The pid in FILE when that process lives and runs PROGRAM, else nothing.
# PROGRAM is a path; a binary that was rebuilt meanwhile counts as the same.
running() { # file, program
    local pid exe

    pid=$(cat "$1" 2>/dev/null || true)
    case "$pid" in '' | *[!0-9]*) return 1 ;; esac
    exe=$(readlink "/proc/$pid/exe" 2>/dev/null || true)
    # Of an engine without core dumps, only root may see which file it runs;
    # its command line is open to all.
    if [ -z "$exe" ]; then
        IFS= read -r -d '' exe 2>/dev/null <"/proc/$pid/cmdline" || true
        exe=$(readlink -f "$exe" || true)
    fi
    [ "${exe% (deleted)}" = "$(readlink -f "$2")" ] || return 1
    echo "$pid"
}

# Waits until PID is gone, SECONDS at most.
gone() { # pid, seconds
    local tries=$(($2 * 20))

    while kill -0 "$1" 2>/dev/null; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.05
    done
}

# SIGTERM or what is asked for, and SIGKILL when that does not help.
stop() { # name, pid, signal, seconds
    kill -s "$3" "$2" 2>/dev/null || return 0
    if ! gone "$2" "$4"; then
        echo "$1 (pid $2) did not stop within $4 s and is killed" >&2
        kill -KILL "$2" 2>/dev/null || true
        gone "$2" 5 || true
    fi
}

# Where the N-th engine of `make up` keeps a file: engine.pid, engine2.pid, ..
state() { # number, ending
    echo "$RUN/engine${1#1}.$2"
}

engine_socket() { # number
    echo "$RUN/engine/engine${1#1}.sock"
}

# Starts the N-th engine, by COMMAND (setpriv ..) where there is one.
launch() { # number, command..
    local n=$1

    shift
    # A socket that a killed one left says nothing of this one.
    rm -f "$(engine_socket "$n")"
    setsid "$@" "$ENGINE" -c "$(state "$n" conf)" </dev/null \
        >"$(state "$n" log)" 2>&1 &
    echo $! >"$(state "$n" pid)"
}

# The pid of scripts/engines/watch.sh, where it runs.
watching() {
    local pid

    pid=$(cat "$RUN/watch.pid" 2>/dev/null || true)
    case "$pid" in '' | *[!0-9]*) return 1 ;; esac
    tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" \
        | grep -qF "$ROOT/scripts/engines/watch.sh" || return 1
    echo "$pid"
}

# With what it began and has not ended: an engine that it would start later.
stop_watching() {
    local pid

    if pid=$(watching); then
        kill -TERM -- "-$pid" 2>/dev/null || true
        gone "$pid" 5 || true
    fi
    rm -f "$RUN/watch.pid"
}

last_words() { # title, file
    [ -s "$2" ] || return 0
    printf -- '--- last lines of %s (%s)\n' "$1" "$2" >&2
    tail -n 15 "$2" >&2
}
