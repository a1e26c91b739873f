#!/usr/bin/env bash
#
# Installs what is built: DESTDIR (a package's root, empty: this system) and
# PREFIX (/usr for packages, /usr/local by default).  Configuration goes to
# /etc/tokenring and is never overwritten: a new one is put beside it.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

DESTDIR=${DESTDIR:-}
PREFIX=${PREFIX:-/usr/local}
bindir=$PREFIX/bin
docdir=$PREFIX/share/doc/tokenring
datadir=$PREFIX/share/tokenring
modules=${NGINX_MODULES:-/usr/lib/nginx/modules}
units=/lib/systemd/system
[ "$PREFIX" = /usr ] || units=/etc/systemd/system

cd "$ROOT"

put() { # mode, directory, file...
    local mode=$1 to=$DESTDIR$2
    shift 2
    install -d -m 755 "$to"
    install -m "$mode" "$@" "$to/"
}

# A file with @bindir@ and the like filled in.
fill() { # source, target
    install -d -m 755 "$(dirname "$DESTDIR$2")"
    sed -e "s|@bindir@|$bindir|g" -e "s|@docdir@|$docdir|g" \
        -e "s|/usr/share/tokenring|$datadir|g" "$1" >"$DESTDIR$2"
    chmod 644 "$DESTDIR$2"
}

# What an administrator may have changed stays.
configure() { # source, target
    if [ -e "$DESTDIR$2" ]; then
        fill "$1" "$2.new"
        if cmp -s "$DESTDIR$2" "$DESTDIR$2.new"; then
            rm "$DESTDIR$2.new"
        else
            echo "$2 was kept; the new one is $2.new"
        fi
    else
        fill "$1" "$2"
    fi
}

put 755 "$bindir" "$BUILD/bin/tokenring-engine" "$BUILD/bin/tokenring"
# What `backend cuda` loads, where `make cuda` made it.
if [ -e "$BUILD/lib/libtokenring_cuda.so" ]; then
    put 755 "$PREFIX/lib/tokenring" "$BUILD/lib/libtokenring_cuda.so"
fi
put 644 "$modules" "$MODULE"
install -d -m 755 "$DESTDIR/usr/share/nginx/modules-available"
echo "load_module modules/ngx_http_tokenring_module.so;" \
    >"$DESTDIR/usr/share/nginx/modules-available/mod-http-tokenring.conf"

configure conf/engine.conf /etc/tokenring/engine.conf
configure conf/tokenring.conf /etc/tokenring/tokenring.conf
configure conf/nginx.conf /etc/tokenring/nginx.conf

fill conf/systemd/tokenring-engine.service "$units/tokenring-engine.service"
fill conf/systemd/tokenring-engine@.service \
    "$units/tokenring-engine@.service"
fill conf/systemd/tokenring.sysusers /usr/lib/sysusers.d/tokenring.conf

put 644 "$datadir/models/pocket" models/pocket/*.json \
    models/pocket/*.safetensors models/pocket/README.md
put 644 "$datadir/dashboard" dashboard/*.html dashboard/*.css dashboard/*.js \
    dashboard/*.svg
put 644 "$datadir/dashboard/vendor" dashboard/vendor/*
put 644 "$docdir/prometheus" conf/prometheus/*
for dir in dashboards provisioning/datasources provisioning/dashboards; do
    put 644 "$docdir/grafana/$dir" "conf/grafana/$dir"/*
done
put 644 "$docdir" README.md CHANGELOG.md LICENSE
put 644 "$docdir/docs" docs/*.md docs/*.png docs/*.svg
put 644 "$PREFIX/include/tokenring" include/tokenring/*.h

if [ -z "$DESTDIR" ]; then
    cat <<END
Installed below $PREFIX.  Next, as root:
  systemd-sysusers                       # makes the user tokenring
  systemctl daemon-reload
  systemctl enable --now tokenring-engine
  ln -s ../modules-available/mod-http-tokenring.conf \\
      /etc/nginx/modules-enabled/50-mod-http-tokenring.conf
  ln -s /etc/tokenring/tokenring.conf /etc/nginx/conf.d/
  systemctl restart nginx
END
fi
