#!/usr/bin/env bash
#
# Removes what `make install` installed, with the same PREFIX= and DESTDIR=:
# scripts/install.sh left a list.  /etc/tokenring and the user tokenring stay.
# While NGINX has the module loaded, or would load it, nothing is removed: it
# would not start again.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

DESTDIR=${DESTDIR:-}
PREFIX=${PREFIX:-/usr/local}
list=$DESTDIR$PREFIX/share/tokenring/installed-files

[ -r "$list" ] || fail "there is no $list: was it installed with another PREFIX=?"
module=$(grep -m 1 '/ngx_http_tokenring_module\.so$' "$list")

# Those of containers are another system's.
processes() {
    local pid

    for pid in /proc/[0-9]*; do
        if [ "$pid/root" -ef / ]; then
            echo "${pid#/proc/}"
        fi
    done
}

refuse_while_loaded() {
    local pid files

    for pid in $(processes); do
        case "$({ tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null)" in
            'nginx: master'*)
                grep -qsF "$module" "/proc/$pid/maps" || continue
                fail "the running NGINX (pid $pid) has loaded $module:" \
                    "remove what loads and uses it from its configuration," \
                    "then: nginx -t && systemctl reload nginx"
                ;;
        esac
    done
    files=$(grep -RlsE \
        '^[[:space:]]*load_module[[:space:]].*ngx_http_tokenring_module' \
        /etc/nginx) || true
    [ -z "$files" ] || fail "NGINX would not start again: $module is loaded by" \
        "${files//$'\n'/, }"
}

refuse_while_running() {
    local pid

    for pid in $(processes); do
        if [ "$(readlink "/proc/$pid/exe" || true)" = \
            "$PREFIX/bin/tokenring-engine" ]
        then
            fail "an engine runs (pid $pid):" \
                "systemctl disable --now tokenring-engine"
        fi
    done
}

if [ -z "$DESTDIR" ]; then
    refuse_while_loaded
    refuse_while_running
fi

while IFS= read -r file; do
    rm -f "$DESTDIR$file"
    # Our directories go when they are empty, others' never.
    dir=${file%/*}
    while [[ $dir == *tokenring* ]] && rmdir "$DESTDIR$dir" 2>/dev/null; do
        dir=${dir%/*}
    done
done <"$list"

if [ -z "$DESTDIR" ]; then
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
    fi
    echo "Removed.  /etc/tokenring and the user tokenring are left."
fi
