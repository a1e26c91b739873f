#!/usr/bin/env bash
#
# Stops what `make up` started, if it runs: NGINX first, so that nobody is
# turned away by a missing engine, then the engine, then its Redis.
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
    stopped="${stopped:+$stopped, }the engine"
fi
redis=$(PATH=$PATH:/usr/sbin command -v redis-server || true)
if [ -n "$redis" ] && pid=$(running "$RUN/redis.pid" "$redis"); then
    stop Redis "$pid" TERM 10
    stopped="${stopped:+$stopped, }Redis"
fi
rm -f "$RUN"/*.pid "$RUN/engine.sock" "$RUN/engine/engine.sock" \
    "$RUN/redis/redis.sock"

if [ -n "$stopped" ]; then
    echo "Stopped $stopped."
else
    echo "Nothing was running."
fi
