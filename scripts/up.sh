#!/usr/bin/env bash
#
# Starts the engine and NGINX from this source tree and waits until they are
# healthy.  What runs already and is current is left alone; what was rebuilt
# since is restarted.  PORT=8080, MODEL=models/pocket, state in build/run or
# where make was given PREFIX=.  A Redis of its own keeps what outlives a
# connection, at a socket in the state directory: REDIS=HOST:PORT is another one,
# REDIS=none does without.  POLICY=diffkv, of the KV cache; requests may choose full,
# diffkv and uniform as well.  ENGINES=2 (to 8) engines, where streams survive the
# loss of theirs, and the page at / stops one to show it.  Called by root, the
# engine runs as ENGINE_USER=nobody (or tokenring, where packages have made that
# user), and as root only with ALLOW_ROOT=1.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

MODEL=${MODEL:-models/pocket}
WAIT=${WAIT:-60}
REDIS=${REDIS:-own}
REDIS_SERVER=$(PATH=$PATH:/usr/sbin command -v redis-server || true)
POLICY=${POLICY:-diffkv}
ENGINES=${ENGINES:-1}

[ -x "$ENGINE" ] || fail "$ENGINE is not built: run make"
[ -f "$MODULE" ] || fail "$MODULE is not built: run make module"
[ -n "$NGINX" ] || fail "there is no nginx: run make deps"
case "$MODEL" in /*) ;; *) MODEL=$ROOT/$MODEL ;; esac
[ -f "$MODEL/config.json" ] || fail "MODEL=$MODEL is not a model directory"
case "$REDIS" in *[!A-Za-z0-9.:/_-]*) fail "REDIS=$REDIS is not HOST:PORT" ;; esac
if [ "$REDIS" = own ] && [ -z "$REDIS_SERVER" ]; then
    step "There is no redis-server (make deps): answers cannot be resumed, and" \
        "the dashboard shows this NGINX alone."
    REDIS=none
fi
case "$POLICY" in *[!A-Za-z0-9.:=,/+_-]*) fail "POLICY=$POLICY is not a KV policy" ;; esac
case "$ENGINES" in [1-8]) ;; *) fail "ENGINES=$ENGINES is not 1 to 8" ;; esac
case "$PORT" in '' | *[!0-9]*) fail "PORT=$PORT is not a number" ;; esac

# --- users
# Called by root, workers run as www-data and the engine as a user with no rights
# at all, in the group of www-data so that both meet at the socket.  It owns
# nothing here but the socket's directory.
as=()
if [ "$(id -u)" -eq 0 ]; then
    engine_user=${ENGINE_USER:-$(id -un tokenring 2>/dev/null || echo nobody)}
    id "$engine_user" >/dev/null 2>&1 \
        || fail "ENGINE_USER=$engine_user: there is no such user"
    as=(setpriv --no-new-privs "--reuid=$engine_user" --regid=www-data
        --clear-groups)
fi

# A tree that only root can reach (a clone in /root): what others need is copied to
# where they can.
move_out() {
    local to

    to=/run/tokenring-$(printf %s "$BUILD" | cksum | cut -d' ' -f1)
    install -d -m 0755 "$to" "$to/bin" "$to/models"
    if [ ! -L "$BUILD/run" ]; then
        "$ROOT/scripts/down.sh" >/dev/null # of a time when it was reached
        rm -rf "$BUILD/run"
    fi
    ln -sfn "$to" "$BUILD/run"
    RUN=$to
    ENGINE=$to/bin/tokenring-engine
    cmp -s "$BUILD/bin/tokenring-engine" "$ENGINE" \
        || install "$BUILD/bin/tokenring-engine" "$ENGINE.new"
    [ ! -f "$ENGINE.new" ] || mv "$ENGINE.new" "$ENGINE"
    if [ "$MODEL" = "$ROOT/models/pocket" ]; then
        cp -Ru "$MODEL" "$to/models"
        chmod -R u=rwX,go=rX "$to/models/pocket"
        MODEL=$to/models/pocket
    fi
}

reached() { # file or directory, by the engine's user
    [ ${#as[@]} -eq 0 ] || "${as[@]}" test -x "$1" 2>/dev/null
}

mkdir -p "$RUN"
if [ -L "$BUILD/run" ] && reached "$BUILD/bin/tokenring-engine"; then
    "$ROOT/scripts/down.sh" # it could not be reached, and now it can
    case "$RUN" in /run/tokenring-[0-9]*) rm -rf "$RUN" ;; esac
    rm "$BUILD/run"
    RUN=$BUILD/run ENGINE=$BUILD/bin/tokenring-engine
    mkdir -p "$RUN"
fi
if { ! reached "$BUILD/bin/tokenring-engine" || ! reached "$RUN"; } \
    && [ "${ALLOW_ROOT:-0}" != 1 ]
then
    [ -z "${TR_RUN:-}" ] || fail "only root can reach $ROOT or $RUN: move them," \
        "to /srv for instance, or set ALLOW_ROOT=1 to run the engine as root"
    move_out
    step "Only root can reach $ROOT: what runs is in $RUN"
fi
mkdir -p "$RUN/temp" "$RUN/engine" "$RUN/redis"

# Where engine and workers find it; empty: nowhere.
case "$REDIS" in
    own) redis_at=unix:$RUN/redis/redis.sock ;;
    none) redis_at= ;;
    *) redis_at=$REDIS ;;
esac

# The engine's settings are the shipped ones but for the paths; several share the
# cores.
write_engine_conf() { # number, mode of its socket
    local policy others='' cores

    for policy in full diffkv uniform; do
        [ "$policy" = "$POLICY" ] || others="$others${others:+ }$policy"
    done
    cores=$(($(nproc) / ENGINES))
    cat >"$(state "$1" conf).new" <<CONF
# Written by scripts/up.sh; conf/engine.conf explains every setting.
name main${1#1}
model $MODEL
socket $(engine_socket "$1")
socket_mode $2
kv_policy $POLICY
kv_policies "$others"
${redis_at:+redis $redis_at}
CONF
    [ "$ENGINES" -eq 1 ] \
        || echo "threads $((cores > 0 ? cores : 1))" >>"$(state "$1" conf).new"
}

# conf/nginx.conf and conf/tokenring.conf, as shipped, moved into build/run.
write_nginx_conf() {
    {
        echo "# Written by scripts/up.sh from conf/nginx.conf and" \
            "conf/tokenring.conf."
        echo "load_module $MODULE;"
        sed -e '/^load_module/d' \
            -e "s|^user .*|$1|" \
            -e "s|/run/nginx.pid|$RUN/nginx.pid|" \
            -e "s|/var/log/nginx/|$RUN/nginx-|g" \
            -e "s|/etc/tokenring/tokenring.conf|$RUN/tokenring.conf|" \
            -e "s|/var/lib/nginx/|$RUN/temp/|g" \
            "$ROOT/conf/nginx.conf"
    } >"$RUN/nginx.conf.new"
    {
        [ "$ENGINES" -eq 1 ] || cat "$ROOT/scripts/engines/stop.conf"
        sed -e "s|/run/tokenring/main.sock|$RUN/engine/engine.sock|" \
            -e "s|listen 127.0.0.1:8080|listen 127.0.0.1:$PORT|" \
            -e "s|/usr/share/tokenring/dashboard|$RUN/dashboard|" \
            -e "s|/usr/share/tokenring/page|$RUN/page|" \
            -e "s|/var/log/nginx/|$RUN/nginx-|g" \
            ${redis_at:+-e "s|#  *tokenring_redis 127.0.0.1:6379;|tokenring_redis $redis_at;|"} \
            ${redis_at:+-e "s|#  *tokenring_resumable on;|tokenring_resumable on;|"} \
            "$ROOT/conf/tokenring.conf" | if [ "$ENGINES" -eq 1 ]; then
                cat
            else
                several_engines
            fi
    } >"$RUN/tokenring.conf"
}

# The shipped configuration with the other engines behind the name, streams that
# move, and what the page's buttons ask.
several_engines() {
    local n

    for n in $(seq 2 "$ENGINES"); do
        echo "tokenring_engine main unix:$(engine_socket "$n");"
    done >"$RUN/engines.conf"
    for n in $(seq "$ENGINES"); do
        cat <<CONF
    location = /engines/$n/stop {
        access_log $RUN/engines-stop.log engines_stop if=\$engines_stop;
        if (\$engines_stop = "") { return 403; }
        return 204;
    }
CONF
    done >"$RUN/engines-stop.conf"
    sed -e "/^tokenring_engine main /r $RUN/engines.conf" \
        -e "s|^\( *\)tokenring_pass main;|&\n\1tokenring_migrate 3;|" \
        -e "/^server {/r $RUN/engines-stop.conf"
}

# The pages' files where the workers can read them: a checkout may be closed.
for page in page dashboard; do
    rm -rf "${RUN:?}/$page"
    cp -RL "$ROOT/$page" "$RUN/$page"
    chmod -R u=rwX,go=rX "$RUN/$page"
done
if [ "$ENGINES" -gt 1 ]; then
    install -m 0644 "$ROOT"/scripts/engines/engines.{js,css} "$RUN/page"
    sed -i -e 's|^</head>|<link rel="stylesheet" href="engines.css">\
<script type="module" src="engines.js"></script>\
&|' "$RUN/page/index.html"
fi

user="" mode=0600
if [ ${#as[@]} -gt 0 ]; then
    user="user root;"
    if ! reached "$ENGINE" || ! reached "$RUN"; then
        step "ALLOW_ROOT=1: the engine and NGINX's workers run as root."
        as=() engine_user=root
    elif ! "${as[@]}" test -r "$MODEL/config.json"; then
        fail "the user $engine_user cannot read MODEL=$MODEL: make it readable," \
            "or set ENGINE_USER= to a user who can read it"
    else
        user="user www-data;" mode=0660
    fi
    chown "$engine_user:www-data" "$RUN/engine" "$RUN/redis"
fi
chmod 0750 "$RUN/engine" "$RUN/redis"
# Where people look for it.
ln -sfn engine/engine.sock "$RUN/engine.sock"

show_logs() {
    for n in $(seq "$ENGINES"); do
        last_words "the engine's log" "$(state "$n" log)"
    done
    last_words "nginx's error log" "$RUN/nginx-error.log"
    last_words "Redis's log" "$RUN/redis.log"
}

port_is_taken() {
    (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null
}

# --- Redis
own_redis() { # mode of its socket
    cat >"$RUN/redis.conf" <<CONF
# Written by scripts/up.sh.
port 0
unixsocket $RUN/redis/redis.sock
unixsocketperm ${1#0}
dir $RUN/redis
save ""
appendonly no
maxmemory 256mb
maxmemory-policy volatile-ttl
CONF
    rm -f "$RUN/redis/redis.sock"
    setsid "${as[@]}" "$REDIS_SERVER" "$RUN/redis.conf" </dev/null \
        >"$RUN/redis.log" 2>&1 &
    redis=$!
    echo "$redis" >"$RUN/redis.pid"
    tries=$((WAIT * 20))
    until [ -S "$RUN/redis/redis.sock" ]; do
        tries=$((tries - 1))
        if ! kill -0 "$redis" 2>/dev/null || [ $tries -le 0 ]; then
            show_logs
            fail "Redis did not start; REDIS=none does without"
        fi
        sleep 0.05
    done
}

if [ "$REDIS" = own ] && ! running "$RUN/redis.pid" "$REDIS_SERVER" >/dev/null
then
    own_redis "$mode"
fi

# --- engines
stop_watching
# Those of an earlier call that had more.
for n in $(seq $((ENGINES + 1)) 8); do
    if pid=$(running "$(state "$n" pid)" "$ENGINE"); then
        stop "engine $n" "$pid" TERM 40
    fi
    rm -f "$(state "$n" pid)" "$(engine_socket "$n")"
done

# Left alone where it runs and is current.
start_engine() { # number
    local conf pid
    conf=$(state "$1" conf)

    if pid=$(running "$(state "$1" pid)" "$ENGINE"); then
        if cmp -s "$conf" "$conf.new" && [ ! "$ENGINE" -nt "$conf" ]; then
            rm -f "$conf.new"
            return
        fi
        step "Restarting the engine (pid $pid): it was rebuilt or reconfigured"
        stop engine "$pid" TERM 40
    fi
    mv "$conf.new" "$conf"
    launch "$1" "${as[@]}"
}

# It opens its socket when it is ready.
await_engine() { # number
    local tries=$((WAIT * 20)) pid
    pid=$(cat "$(state "$1" pid)")

    until [ -S "$(engine_socket "$1")" ]; do
        tries=$((tries - 1))
        if ! kill -0 "$pid" 2>/dev/null; then
            show_logs
            fail "the engine stopped while it was starting"
        fi
        if [ $tries -le 0 ]; then
            show_logs
            kill "$pid" 2>/dev/null || true
            fail "the engine was not ready within $WAIT s"
        fi
        sleep 0.05
    done
}

for n in $(seq "$ENGINES"); do
    write_engine_conf "$n" "$mode"
    start_engine "$n"
done
for n in $(seq "$ENGINES"); do
    await_engine "$n"
done

# --- nginx
write_nginx_conf "$user"
# With -e, since NGINX opens its built-in error log before it reads another.
nginx_args=(-p "$RUN" -c "$RUN/nginx.conf" -e "$RUN/nginx-error.log")
if pid=$(running "$RUN/nginx.pid" "$NGINX"); then
    if [ "$MODULE" -nt "$RUN/nginx.conf" ]; then
        step "Restarting NGINX (pid $pid): the module was rebuilt"
        stop NGINX "$pid" QUIT 10
        pid=
    fi
else
    pid=
fi
mv "$RUN/nginx.conf.new" "$RUN/nginx.conf"
if [ -n "$pid" ]; then
    "$NGINX" -q "${nginx_args[@]}" -s reload 2>"$RUN/nginx.out" \
        || { cat "$RUN/nginx.out" >&2; fail "nginx refused to reload"; }
else
    if port_is_taken; then
        fail "port $PORT is taken by another program: PORT=8081 make up," \
            "for instance"
    fi
    : >"$RUN/nginx-error.log"
    if ! setsid "$NGINX" -q "${nginx_args[@]}" </dev/null \
        >"$RUN/nginx.out" 2>&1
    then
        cat "$RUN/nginx.out" >&2
        fail "nginx refused to start"
    fi
fi

if [ "$ENGINES" -gt 1 ]; then
    setsid "$ROOT/scripts/engines/watch.sh" "${as[@]}" </dev/null >/dev/null 2>&1 &
    echo $! >"$RUN/watch.pid"
fi

# One of an earlier call that is not wanted any more.
if [ "$REDIS" != own ] && [ -n "$REDIS_SERVER" ] \
    && pid=$(running "$RUN/redis.pid" "$REDIS_SERVER")
then
    stop Redis "$pid" TERM 10
    rm -f "$RUN/redis.pid"
fi

# --- health
tries=$((WAIT * 10))
until curl -fsS -m 2 "$URL/health" 2>&1 | tee "$RUN/health.out" \
    | grep -q "\"ready\":${ENGINES}[},]"
do
    tries=$((tries - 1))
    if [ $tries -le 0 ]; then
        show_logs
        cat "$RUN/health.out" >&2
        fail "$URL/health was not healthy within $WAIT s"
    fi
    sleep 0.1
done

echo "Tokenring is up: $URL/  (logs and state in ${RUN#"$ROOT"/})"
