#!/usr/bin/env bash
#
# Builds an nginx source tree with our module.
#
#   scripts/build-nginx.sh SOURCE OUT static|dynamic [plain|sanitize]
#
# SOURCE is any nginx from 1.22 on, a release or a checkout; it is copied, not
# touched.  OUT gets nginx and, when dynamic, ngx_http_tokenring_module.so;
# a second run compiles only what has changed.
#
# sanitize: AddressSanitizer, and every pool allocation a malloc of its own
# (NGX_DEBUG_PALLOC), so that an overrun inside a pool is seen.  Our sources
# also get UndefinedBehaviorSanitizer; nginx's own do not, since they pass NULL
# with a length of 0 to memcpy from the first line on.  Reports go to
# OUT/reports, also those of workers under another user and of a binary that
# was started by an upgrade: nginx empties its environment, so the options are
# compiled in.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

usage="usage: $0 SOURCE OUT static|dynamic [plain|sanitize]"
source=${1:?$usage} out=${2:?$usage} link=${3:?$usage} kind=${4:-plain}
case "$link" in static | dynamic) ;; *) fail "$usage" ;; esac
case "$kind" in plain | sanitize) ;; *) fail "$usage" ;; esac

[ -f "$source/src/core/nginx.h" ] || fail "$source is no nginx source tree:" \
    "there is no src/core/nginx.h"
version=$(sed -n 's/^#define NGINX_VERSION *"\(.*\)"/\1/p' \
    "$source/src/core/nginx.h")
case "$version" in
    1.2[2-9].* | 1.[3-9][0-9].*) ;;
    *) fail "$source is nginx $version, the module needs 1.22 or newer" ;;
esac

mkdir -p "$out"
out=$(cd "$out" && pwd)
source=$(cd "$source" && pwd)
tree=$out/src
cc=${CC:-gcc}
cc_opt="-O2 -g" ld_opt=""
if [ "$kind" = sanitize ]; then
    mkdir -p "$out/reports"
    chmod 1777 "$out/reports"
    cat >"$out/options.c" <<OPTIONS
/* Written by scripts/build-nginx.sh. */
const char *__asan_default_options(void);
const char *__ubsan_default_options(void);
const char *__lsan_default_options(void);
const char *__lsan_default_suppressions(void);

const char *
__asan_default_options(void)
{
    return "log_path=$out/reports/asan:abort_on_error=0:exitcode=99:"
           "detect_stack_use_after_return=1:strict_string_checks=1:"
           "detect_leaks=1";
}

const char *
__ubsan_default_options(void)
{
    return "log_path=$out/reports/ubsan:print_stacktrace=1";
}

const char *
__lsan_default_options(void)
{
    return "print_suppressions=0";
}

/* What nginx leaves behind when it exits: compiled regexes of its
 * configuration, and a worker's array of connections and events. */
const char *
__lsan_default_suppressions(void)
{
    return "leak:ngx_regex_malloc\\n"
           "leak:ngx_event_process_init\\n";
}
OPTIONS
    # shellcheck disable=SC2086 # it may be "ccache gcc"
    $cc -O1 -c "$out/options.c" -o "$out/options.o"
    cat >"$out/cc" <<WRAPPER
#!/bin/sh
# Written by scripts/build-nginx.sh: our sources get one sanitizer more.
# The source is the last word; include paths of ours are in every command.
for source; do :; done
case "\$source" in
    "$ROOT/ngx_module/"*) exec $cc "\$@" -fsanitize=undefined \\
        -fno-sanitize-recover=undefined ;;
esac
exec $cc "\$@"
WRAPPER
    chmod +x "$out/cc"
    cc=$out/cc
    cc_opt="-O1 -g -fsanitize=address -fno-omit-frame-pointer"
    cc_opt="$cc_opt -DNGX_DEBUG_PALLOC=1"
    ld_opt="-fsanitize=address,undefined $out/options.o"
fi
case "$link" in
    static) add="--add-module=$ROOT" ;;
    dynamic) add="--with-compat --add-dynamic-module=$ROOT" ;;
esac

# Configure again when anything that configure looks at is another.
key="$version $link $kind $cc_opt $(cat "$ROOT/config") $source"
key="$key $(cat "$out/options.c" 2>/dev/null || true)"
if [ ! -x "$tree/objs/nginx" ] || [ "$(cat "$out/key" 2>/dev/null)" != "$key" ]
then
    step "nginx $version, module $link, $kind: configure"
    rm -rf "$tree"
    mkdir -p "$tree"
    tar -C "$source" --exclude=.git --exclude=.hg --exclude=./objs \
        --exclude=./debian -cf - . | tar -C "$tree" -xf -
    configure=./configure
    [ -x "$tree/configure" ] || configure=auto/configure
    # shellcheck disable=SC2086 # two options in one string
    if ! (cd "$tree" && $configure --prefix="$out/prefix" \
        --with-cc="$cc" --with-cc-opt="$cc_opt" \
        --with-ld-opt="$ld_opt" --with-debug --with-threads \
        --with-http_ssl_module \
        --with-http_v2_module --with-http_realip_module \
        --with-http_auth_request_module --with-http_stub_status_module \
        $add) >"$out/configure.log" 2>&1
    then
        tail -n 20 "$out/configure.log" >&2
        fail "configure failed, see $out/configure.log"
    fi
fi

step "nginx $version, module $link, $kind: make"
if ! make -C "$tree" -j"${JOBS:-2}" >"$out/make.log" 2>&1; then
    grep -E -A5 'error|Error' "$out/make.log" | head -n 40 >&2 || true
    fail "make failed, see $out/make.log"
fi
printf '%s' "$key" >"$out/key"
cp -f "$tree/objs/nginx" "$out/nginx"
if [ "$link" = dynamic ]; then
    cp -f "$tree"/objs/ngx_http_tokenring_module.so "$out/"
fi
