#!/usr/bin/env bash
#
# Stops what `make up` started, if it runs: NGINX first, so that nobody is
# turned away by a missing engine, then the engine.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

stopped=
if [ -n "$NGINX" ] && pid=$(running "$RUN/nginx.pid" "$NGINX"); then
    stop NGINX "$pid" TERM 10
    stopped="NGINX"
fi
if pid=$(running "$RUN/engine.pid" "$ENGINE"); then
    stop engine "$pid" TERM 40
    stopped="${stopped:+$stopped and }the engine"
fi
rm -f "$RUN"/*.pid "$RUN/engine.sock" "$RUN/engine/engine.sock"

if [ -n "$stopped" ]; then
    echo "Stopped $stopped."
else
    echo "Nothing was running."
fi
