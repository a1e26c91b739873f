# shellcheck shell=bash
#
# Packages of another Debian release, without a change to this system: a private
# list of sources and private caches, and apt checks the archive's signature as
# it always does.  DEBIAN_MIRROR names another archive.  Sourced after lib.sh.

# Is it a release's name, and is there what its archive is checked with?
debian_check() { # release
    case "$1" in
        *[!a-z0-9-]*) fail "\"$1\" is no Debian release name" ;;
    esac
    [ -r /usr/share/keyrings/debian-archive-keyring.gpg ] || fail \
        "no debian-archive-keyring: is this a Debian system?"
}

# Reads the release's list of packages into DIR, which is the caller's to remove.
debian_open() { # deb|deb-src, release, dir
    local key=/usr/share/keyrings/debian-archive-keyring.gpg

    mkdir -p "$3"/{lists,cache/archives}/partial
    echo "$1 [signed-by=$key]" \
        "${DEBIAN_MIRROR:-http://deb.debian.org/debian} $2 main" \
        >"$3/sources.list"
    debian_apt "$3" update
}

# apt-get over these lists; what it says goes to stderr.
debian_apt() { # dir, arguments..
    local dir=$1

    shift
    apt-get -qq -o Dir::Etc::SourceList="$dir/sources.list" \
        -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::lists="$dir/lists" \
        -o Dir::State::status=/dev/null \
        -o Dir::Cache="$dir/cache" \
        -o APT::Sandbox::User="$(id -un)" "$@" >&2
}
