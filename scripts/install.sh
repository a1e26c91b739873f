#!/usr/bin/env bash
#
# Installs what is built: DESTDIR (a package's root, empty: this system) and
# PREFIX (/usr for packages, /usr/local by default).  Configuration goes to
# /etc/tokenring and is never overwritten: a new one is put beside it.
# scripts/uninstall.sh removes it again.
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

list=$datadir/installed-files # for uninstall.sh

cd "$ROOT"
install -d -m 755 "$DESTDIR$datadir"
: >"$DESTDIR$list"

put() { # mode, directory, file...
    local mode=$1 to=$DESTDIR$2
    shift 2
    install -d -m 755 "$to"
    install -m "$mode" "$@" "$to/"
    printf '%s\n' "${@##*/}" | sed "s|^|${to#"$DESTDIR"}/|" >>"$DESTDIR$list"
}

# A file with @bindir@ and the like filled in.
fill() { # source, target
    install -d -m 755 "$(dirname "$DESTDIR$2")"
    sed -e "s|@bindir@|$bindir|g" -e "s|@docdir@|$docdir|g" \
        -e "s|/usr/share/tokenring|$datadir|g" "$1" >"$DESTDIR$2"
    chmod 644 "$DESTDIR$2"
    case "$2" in /etc/tokenring/*) ;; *) echo "$2" >>"$DESTDIR$list" ;; esac
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
    for unit in tokenring-engine.service tokenring-engine@.service; do
        fill conf/systemd/tokenring-engine-gpu.conf "$units/$unit.d/gpu.conf"
    done
fi
# What the programs write from their own tables.
written() { # target, command...
    local to=$1
    shift
    install -d -m 755 "$(dirname "$DESTDIR$to")"
    "$BUILD/bin/$1" "${@:2}" >"$DESTDIR$to"
    chmod 644 "$DESTDIR$to"
    echo "$to" >>"$DESTDIR$list"
}

man=$PREFIX/share/man
written "$man/man8/tokenring-engine.8" tokenring-engine --man
written "$man/man1/tokenring.1" tokenring man
for command in $("$BUILD/bin/tokenring" --help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
    written "$man/man1/tokenring-$command.1" tokenring man "$command"
done
zsh=$PREFIX/share/zsh/site-functions
[ "$PREFIX" != /usr ] || zsh=/usr/share/zsh/vendor-completions
written "$PREFIX/share/bash-completion/completions/tokenring" \
    tokenring completion bash
written "$zsh/_tokenring" tokenring completion zsh
written "$PREFIX/share/fish/vendor_completions.d/tokenring.fish" \
    tokenring completion fish

put 644 "$modules" "$MODULE"
available=/usr/share/nginx/modules-available/mod-http-tokenring.conf
install -d -m 755 "$DESTDIR${available%/*}"
echo "load_module modules/ngx_http_tokenring_module.so;" >"$DESTDIR$available"
echo "$available" >>"$DESTDIR$list"

# Debian's NGINX has a name for what its modules must have been built for.  apt
# is told to ask us before it installs one with another name; what our package
# depends on does the same.
abi=$(sed -n 's/^nginx:abi=//p' \
    "${NGINX_DEV:-/usr/share/nginx/src}/debian/libnginx-mod.abisubstvars" \
    2>/dev/null || true)
check=$PREFIX/lib/tokenring/check-nginx
fill scripts/check-nginx.sh "$check"
sed -i -e "s|@module@|$modules/ngx_http_tokenring_module.so|" \
    -e "s|@abi@|$abi|" "$DESTDIR$check"
chmod 755 "$DESTDIR$check"
hook=/etc/apt/apt.conf.d/90tokenring
if [ -z "$DESTDIR" ] && [ -n "$abi" ] && [ -d "${hook%/*}" ]; then
    cat >"$hook" <<END
// Tokenring's module, installed from source, must fit NGINX.
DPkg::Pre-Install-Pkgs { "[ ! -x $check ] || $check --apt"; };
END
    echo "$hook" >>"$list"
fi

configure conf/engine.conf /etc/tokenring/engine.conf
configure conf/tokenring.conf /etc/tokenring/tokenring.conf
configure conf/nginx.conf /etc/tokenring/nginx.conf

fill conf/systemd/tokenring-engine.service "$units/tokenring-engine.service"
fill conf/systemd/tokenring-engine@.service \
    "$units/tokenring-engine@.service"
fill conf/systemd/tokenring-engine@.socket "$units/tokenring-engine@.socket"
fill conf/systemd/tokenring.sysusers /usr/lib/sysusers.d/tokenring.conf

put 644 "$datadir/models/pocket" models/pocket/*.json \
    models/pocket/*.safetensors models/pocket/README.md
put 644 "$datadir/page" page/*.html page/*.css page/*.js page/*.svg
put 644 "$datadir/dashboard" dashboard/*.html dashboard/*.css dashboard/*.js \
    dashboard/*.svg
put 644 "$datadir/dashboard/vendor" dashboard/vendor/*
put 644 "$docdir/prometheus" conf/prometheus/*
for dir in dashboards provisioning/datasources provisioning/dashboards; do
    put 644 "$docdir/grafana/$dir" "conf/grafana/$dir"/*
done
put 644 "$docdir" README.md CHANGELOG.md SECURITY.md LICENSE
put 644 "$docdir/docs" docs/*.md docs/*.png docs/*.svg
put 644 "$PREFIX/include/tokenring" include/tokenring/*.h

echo "$list" >>"$DESTDIR$list"

if [ -z "$DESTDIR" ]; then
    cat <<END
Installed below $PREFIX.  Next, as root:
  systemd-sysusers                       # makes the user tokenring
  systemctl daemon-reload
  systemctl enable --now tokenring-engine
  ln -s $available \\
      /etc/nginx/modules-enabled/50-mod-http-tokenring.conf
  ln -s /etc/tokenring/tokenring.conf /etc/nginx/conf.d/
  nginx -t && systemctl reload nginx
END
fi
