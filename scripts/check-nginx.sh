#!/bin/sh
#
# Does the Tokenring module fit NGINX?  A module is built for one NGINX, and
# another one does not start with it.  `make install` puts this script into
# PREFIX/lib/tokenring, since no package says it for a module built by hand:
#
#   check-nginx            tries the NGINX that is installed
#   check-nginx --apt      reads names of packages that apt is about to install;
#                          fails, so that nothing is installed, when NGINX is
#                          among them and would not start afterwards
set -eu

module=@module@
abi=@abi@

# Only where the configuration loads it is anything at stake.
is_used() {
    grep -RqsE '^[[:space:]]*load_module[[:space:]].*ngx_http_tokenring_module' \
        /etc/nginx
}

check_package() { # file
    new=$(dpkg-deb -f "$1" Provides | tr ',' '\n' \
        | sed -n 's/^ *\(nginx-abi-[^ ]*\).*/\1/p' | head -n 1)
    if [ -z "$new" ] || [ "$new" = "$abi" ]; then
        return 0
    fi
    cat >&2 <<END

The NGINX that is about to be installed ($new) does not start with
the Tokenring module, which was built for another one ($abi):
  $module
Nothing is installed.  To go on:
  1. remove from /etc/nginx what loads and uses the module, and check with
     nginx -t && systemctl reload nginx
  2. upgrade, nginx-dev too
  3. in the source tree: make clean && make install; then load it again

END
    return 1
}

if [ "${1:-}" = --apt ]; then
    bad=0
    while read -r file; do
        case "${file##*/}" in
            nginx*.deb) ! is_used || check_package "$file" || bad=1 ;;
        esac
    done
    exit $bad
fi

conf=$(mktemp)
trap 'rm -f "$conf"' EXIT
printf 'load_module %s;\npid /dev/null;\nevents {}\n' "$module" >"$conf"
if why=$(PATH=$PATH:/usr/sbin nginx -t -q -e stderr -c "$conf" 2>&1); then
    echo "NGINX can load $module"
else
    cat >&2 <<END
NGINX cannot load $module:
$why
If NGINX was upgraded, build the module again: make clean && make install
END
    exit 1
fi
