#!/bin/sh
# Collects the whole stack for a GPU machine that has nothing of it: NGINX, our
# module, engine, command line, CUDA library, and for the end-to-end suite
# Node.js, Redis and what its tests need of npm.
#
#   tests/gpu/stack_bundle.sh [DIR]    (build/stack; B=DIR is where things were
#                                      built, CUDA=FILE the CUDA library)
#
# After `make all cuda fake-engine build/tests/libtokenring_soft.so`, and `make
# deps` for the suite.  DIR is laid out as build/ is.  There are two archives,
# since the second is three times the first: DIR.tar.xz is enough for `http`,
# DIR-e2e.tar.xz beside it adds what `e2e` needs.  There, in the repository's root:
#
#   for f in build/stack*.tar.xz; do tar -xJf $f -C build; done
#   tests/gpu/stack.sh build/stack
set -eu
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/bundle_lib.sh"
B=${B:-build}
out=${1:-$B/stack}
nginx=${TR_NGINX:-/usr/sbin/nginx}
rm -rf "$out" "$out.tar.xz" "$out-e2e.tar.xz"
mkdir -p "$out/bin" "$out/lib" "$out/module" "$out/sbin"

cp "$B/bin/tokenring-engine" "$B/bin/tokenring" "$out/bin"
cp "$B/module/ngx_http_tokenring_module.so" "$out/module"
cp "${CUDA:-$B/lib/libtokenring_cuda.so}" "$out/lib"
cp "$nginx" "$out/sbin/nginx.bin"
git rev-parse --short=12 HEAD >"$out/commit"
strip "$out"/bin/*
strip -g "$out"/module/*
libraries "$out" "$out"/bin/* "$out"/sbin/nginx.bin "$out"/module/*
reference_blas "$out"
# On a binary upgrade nginx starts argv[0] without LD_LIBRARY_PATH.
cat >"$out/sbin/nginx" <<'END'
#!/bin/bash
here=$(dirname "$(readlink -f "$0")")
export LD_LIBRARY_PATH=${here%/*}/lib
exec -a "$0" "$here/nginx.bin" "$@"
END
chmod +x "$out/sbin/nginx"
find "$out" ! -type d | sed "s|^$out/||" | sort >"$out.first"

mkdir -p "$out/tests" "$out/tools" "$out/node_modules"
cp "$B/tests/fake_engine" "$B/tests/libtokenring_soft.so" "$out/tests"
cp "$(node -p process.execPath)" "$out/tools/node"
cp "$(command -v redis-server)" "$out/bin"
# with our libraries in the way that machine's openssl may not start
cp "$(command -v openssl)" "$(command -v make)" /etc/ssl/openssl.cnf "$out/tools"
cp -r tests/e2e/node_modules/openai "$out/node_modules"
find "$out/node_modules" -type f ! -name '*.js' ! -name package.json -delete
rm -rf "$out"/node_modules/openai/src
strip "$out"/tests/* "$out/tools/node" "$out/bin/redis-server"
libraries "$out" "$out/tools/node" "$out/tools/openssl" "$out/bin/redis-server"
find "$out" ! -type d | sed "s|^$out/||" | sort >"$out.all"

comm -13 "$out.first" "$out.all" >"$out.second"
du -sh "$out"
# shellcheck disable=SC2046 # none of these names has a blank
{
    pack "$out.tar.xz" "$out" $(cat "$out.first")
    pack "$out-e2e.tar.xz" "$out" $(cat "$out.second")
}
rm -f "$out.first" "$out.second" "$out.all"
