#!/usr/bin/env bash
#
# How long a new user waits: seconds from `git clone` to the first token that
# `make demo` serves, everything compiled (no ccache), Debian's packages installed
# before.  Clones what is committed here into a directory that goes away again.
#
#   make bench-first-token
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
port=$(node -e 'const s = require("net").createServer().listen(0, "127.0.0.1",
    () => { console.log(s.address().port); s.close(); })')
demo=

cleanup() {
    [ -z "$demo" ] || kill "$demo" 2>/dev/null || true
    [ ! -f "$work/clone/Makefile" ] \
        || make -C "$work/clone" -s down PREFIX="$work/state" >/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

chmod 755 "$work" # the engine of root runs as another user
echo "load before: $(cut -d' ' -f1 /proc/loadavg), cores: $(nproc)"
start=$(date +%s%N)
git clone -q "file://$root" "$work/clone"
(cd "$work/clone" && exec make -s demo PREFIX="$work/state" PORT="$port" CCACHE= \
    CC=gcc) >"$work/demo.log" 2>&1 &
demo=$!

until curl -sf -m 5 "http://127.0.0.1:$port/v1/completions" \
    -H 'Content-Type: application/json' \
    -d '{"prompt": "a", "max_tokens": 1}' >"$work/answer" 2>/dev/null
do
    if ! kill -0 "$demo" 2>/dev/null; then
        cat "$work/demo.log" >&2
        exit 1
    fi
    sleep 0.1
done
end=$(date +%s%N)

wait "$demo" || { cat "$work/demo.log" >&2; exit 1; }
demo=
jq -e '.choices[0].text' "$work/answer" >/dev/null
echo "clone to first token: $(((end - start) / 1000000)) ms"
echo "demo over after: $((($(date +%s%N) - start) / 1000000)) ms"
