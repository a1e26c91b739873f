#!/usr/bin/env bash
#
# Changes the shipped NGINX configuration for a container: no user to change to,
# logs where the container engine collects them, writes only to /tmp and
# /var/lib/nginx, and the port open to the container's network.
#
#   docker/nginx-conf.sh DIR    rewrites DIR/nginx.conf and DIR/tokenring.conf
set -euo pipefail

dir=$1

# An expression that no longer matches would leave a default behind that fails
# only when the container runs.
change() { # file, sed expression, what must be there then
    sed -i -e "$2" "$dir/$1"
    grep -q -- "$3" "$dir/$1" || {
        echo "$0: $1: no line has become \"$3\"" >&2
        exit 1
    }
}

sed -i -e '/^user /d' "$dir/nginx.conf"
change nginx.conf 's|^pid .*|pid /tmp/nginx.pid;|' '^pid /tmp/'
change nginx.conf 's|^error_log .*|error_log /dev/stderr notice;|' \
    '^error_log /dev/stderr'
change tokenring.conf 's|access_log /var/log/nginx/[^ ]* tokenring;|access_log /dev/stdout tokenring;|' \
    'access_log /dev/stdout tokenring;'
change tokenring.conf 's|listen 127\.0\.0\.1:8080;|listen 8080;|' \
    'listen 8080;'

# Viewers of the dashboard come through the bridge.
change tokenring.conf \
    's|^\( *\)allow ::1;|&\n\1allow 10.0.0.0/8;\n\1allow 172.16.0.0/12;\n\1allow 192.168.0.0/16;|' \
    'allow 172.16.0.0/12;'

# The Redis of compose.yaml; TOKENRING_REDIS=off is an image without.
redis=${TOKENRING_REDIS:-redis:6379}
change tokenring.conf \
    "s|^tokenring_engine main .*|&\ntokenring_redis $redis;|" \
    "^tokenring_redis $redis;"
