#!/usr/bin/env bash
#
# Kills an engine of `make up ENGINES=2` when the page asks for it, and starts
# it again a little later, so that one sees streams go on at the other.
#
#   scripts/engines/watch.sh [COMMAND..]   (setpriv .., before each engine)
#
# NGINX tells by a line in engines-stop.log, which it writes only where
# scripts/engines/stop.conf lets a request through.  Run by scripts/up.sh, in a
# session of its own.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"

AWAY=${AWAY:-5} # seconds
as=("$@")

again() { # number of the engine
    local pid

    pid=$(running "$(state "$1" pid)" "$ENGINE") || return 0
    kill -KILL "$pid" || return 0
    gone "$pid" 5 || true
    sleep "$AWAY"
    launch "$1" "${as[@]}"
}

while IFS= read -r line; do
    case "$line" in
        /engines/[1-8]/stop) n=${line#/engines/} && again "${n%/stop}" & ;;
    esac
done < <(tail -n0 -F --pid=$$ "$RUN/engines-stop.log" 2>/dev/null)
