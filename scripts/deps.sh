#!/usr/bin/env bash
#
# Installs what Tokenring needs from Debian 12's own packages, and nothing that
# is there already.  Says what and why before it does anything.
#
#   scripts/deps.sh build      compile and run (make up, make demo)
#   scripts/deps.sh test       and what the tests use (make test)
#   scripts/deps.sh lint       and what make lint uses
#   scripts/deps.sh sanitize   and what the sanitizer builds of nginx use
#   scripts/deps.sh package    and what runs another Debian's nginx here
#   scripts/deps.sh engine     run a built engine, and no more (images)
#   scripts/deps.sh nginx      run NGINX with a built module, and no more
#   scripts/deps.sh cuda       compile, with what nvcc needs beside itself
#   scripts/deps.sh deb        and what makes Debian packages (make deb)
#   scripts/deps.sh test-deb   and what make test-deb tries them in
#   scripts/deps.sh images     and what make test-images builds them with
#
# No service is started by this: Debian's nginx package would take port 80 the
# moment it is installed, which nobody asked for.
set -euo pipefail

# What each package is for.  "command:NAME" as the first word means that any
# NAME in the PATH will do, wherever it came from.
build_packages() {
    cat <<'LIST'
gcc                       compiles the engine, the module and the command line
libc6-dev                 C library headers
make                      runs the Makefile
libopenblas-openmp-dev    matrix products on a CPU without AVX2
libpcre2-dev              regular expressions of tokenizers
libutf8proc-dev           Unicode normalisation of tokenizers
libjansson-dev            strict JSON in the engine
libcurl4-openssl-dev      tokenring bench over HTTP
libedit-dev               line editing in tokenring chat
libhiredis-dev            what engine and module tell Redis
nginx                     the web server that the module is loaded into
nginx-dev                 its headers and configure script, for the module
redis-server              keeps what outlives a connection (make up)   command:redis-server
curl                      health checks and the demo   command:curl
jq                        shows the demo's stream   command:jq
LIST
}

test_packages() {
    cat <<'LIST'
libcmocka-dev             unit tests
nodejs                    end-to-end tests (node:test)   command:node
npm                       clients that the tests use, pinned   command:npm
python3-jinja2            what chat templates are compared with
ca-certificates           certificates that npm trusts
openssl                   a certificate for the HTTP/2 tests   command:openssl
prometheus                promtool, which checks /metrics   command:promtool
chromium                  looks at the dashboard   command:chromium
LIST
}

# What runs a built engine, and what runs NGINX with a built module: images.
engine_packages() {
    cat <<'LIST'
libopenblas0-openmp       matrix products on a CPU without AVX2
libpcre2-8-0              regular expressions of tokenizers
libutf8proc2              Unicode normalisation of tokenizers
libjansson4               strict JSON in the engine
libcurl4                  tokenring bench over HTTP
libedit2                  line editing in tokenring chat
libhiredis0.14            what the engine tells Redis
LIST
}

nginx_packages() {
    cat <<'LIST'
nginx                     the web server that the module is loaded into
libhiredis0.14            what the module asks Redis
curl                      health checks   command:curl
LIST
}

cuda_packages() {
    cat <<'LIST'
g++                       what nvcc compiles host code with
LIST
}

images_packages() {
    cat <<'LIST'
debootstrap               clean roots to build images in
docker-compose            what compose.yaml is for, without a daemon   command:docker-compose
LIST
}

deb_packages() {
    cat <<'LIST'
dpkg-dev                  builds packages
debhelper                 what debian/rules calls
LIST
}

test_deb_packages() {
    cat <<'LIST'
lintian                   finds what is wrong with packages
debootstrap               clean roots to install them in
systemd-container         starts such a root as a system
nodejs                    the test itself   command:node
LIST
}

lint_packages() {
    cat <<'LIST'
clang-format              the C style   command:clang-format
cppcheck                  static analysis   command:cppcheck
shellcheck                shell scripts   command:shellcheck
LIST
}

sanitize_packages() {
    cat <<'LIST'
dpkg-dev                  unpacks Debian's nginx source   command:dpkg-source
patch                     applies its patches   command:patch
LIST
}

package_packages() {
    cat <<'LIST'
patchelf                  lets a newer Debian's nginx run here   command:patchelf
LIST
}

is_there() { # package, command (may be empty)
    if [ -n "$2" ] && command -v "$2" >/dev/null 2>&1; then
        return 0
    fi
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

case "${1:-}" in
    build) list=$(build_packages) ;;
    test) list=$(build_packages; test_packages) ;;
    lint) list=$(lint_packages) ;;
    engine) list=$(engine_packages) ;;
    nginx) list=$(nginx_packages) ;;
    cuda) list=$(build_packages; cuda_packages) ;;
    deb) list=$(build_packages; deb_packages) ;;
    test-deb) list=$(build_packages; deb_packages; test_deb_packages) ;;
    images) list=$(images_packages) ;;
    sanitize) list=$(build_packages; test_packages; sanitize_packages) ;;
    package) list=$(build_packages; test_packages; package_packages) ;;
    *)
        echo "usage: $0 build|test|lint|sanitize|package|engine|nginx|cuda|deb|\
test-deb|images" >&2
        exit 2
        ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "This is not a Debian system, so nothing is installed for you."
    echo "Needed, by their Debian names:"
    sed 's/ *command:.*//; s/^/  /' <<<"$list"
    exit 0
fi

missing=()
said=
while read -r package why; do
    program=
    case "$why" in *command:*) program=${why##*command:} ;; esac
    if is_there "$package" "$program"; then
        continue
    fi
    if [ -z "$said" ]; then
        echo "Tokenring needs these Debian packages, which are missing:"
        said=1
    fi
    printf '  %-24s %s\n' "$package" "${why%   command:*}"
    missing+=("$package")
done <<<"$list"

if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi

root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "You are not root and there is no sudo. As root, run:" >&2
        echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
    root=(sudo)
fi

# While this file exists and exits 101, no package may start its service
# (deb-systemd-invoke and invoke-rc.d ask it).  One that was there stays.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap '"${root[@]}" rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' | "${root[@]}" tee "$policy" >/dev/null
    "${root[@]}" chmod 755 "$policy"
fi

echo "Installing with apt-get${root:+, through sudo} (no service is started)."
log=$(mktemp)
apt() {
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq \
        -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 "$@" >"$log" 2>&1
}
if ! { apt update && apt install -y --no-install-recommends "${missing[@]}"; }
then
    echo "apt-get failed; its last words:" >&2
    tail -n 20 "$log" >&2
    rm -f "$log"
    exit 1
fi
rm -f "$log"

# What we installed does not come up at the next boot either.
for service in nginx prometheus redis-server; do
    case " ${missing[*]} " in
        *" $service "*)
            if command -v systemctl >/dev/null; then
                "${root[@]}" systemctl disable --quiet "$service" \
                    >/dev/null 2>&1 || true
            fi
            echo "$service: its system service was neither started nor" \
                "enabled (systemctl enable --now $service does that)."
            ;;
    esac
done
