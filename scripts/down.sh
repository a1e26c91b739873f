#!/usr/bin/env bash
#
# Stops what `make up` started, if it runs: NGINX first, so that nobody is
# turned away by a missing engine, then the engine, then its Redis.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

stop_watching
stopped=
if [ -n "$NGINX" ] && pid=$(running "$RUN/nginx.pid" "$NGINX"); then
    stop NGINX "$pid" TERM 10
    stopped="NGINX"
fi
for n in 1 2 3 4 5 6 7 8; do
    if pid=$(running "$(state "$n" pid)" "$ENGINE"); then
        stop engine "$pid" TERM 40
        stopped="${stopped:+$stopped, }engine $n"
    fi
    rm -f "$(engine_socket "$n")"
done
redis=$(PATH=$PATH:/usr/sbin command -v redis-server || true)
if [ -n "$redis" ] && pid=$(running "$RUN/redis.pid" "$redis"); then
    stop Redis "$pid" TERM 10
    stopped="${stopped:+$stopped, }Redis"
fi
rm -f "$RUN"/*.pid "$RUN/engine.sock" \
    "$RUN/redis/redis.sock"

if [ -n "$stopped" ]; then
    echo "Stopped $stopped."
else
    echo "Nothing was running."
fi
