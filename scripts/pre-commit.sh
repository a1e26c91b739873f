#!/usr/bin/env bash
#
# What git runs before a commit, once `make hooks` has installed it: format and
# lint of the files that are staged, as they are staged, in a few seconds.
#
#   scripts/pre-commit.sh             checks; fails when something is wrong
#   scripts/pre-commit.sh --install   makes it the repository's hook
#
# `git commit --no-verify` goes past it.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"

if [ "${1:-}" = --install ]; then
    hook=$(git rev-parse --git-path hooks)/pre-commit
    mkdir -p "$(dirname "$hook")"
    if [ -e "$hook" ] && ! grep -q 'scripts/pre-commit\.sh' "$hook"; then
        echo "error: $hook is there already and not ours; call" \
            "scripts/pre-commit.sh from it" >&2
        exit 1
    fi
    cat >"$hook" <<'HOOK'
#!/bin/sh
# Written by `make hooks`.  A branch from before the script has no checks.
[ ! -x scripts/pre-commit.sh ] || exec scripts/pre-commit.sh
HOOK
    chmod +x "$hook"
    echo "$hook checks what is staged (git commit --no-verify goes past it)"
    exit
fi

# The index as a tree of its own: what is not staged is not committed either.
GIT_DIR=$(git rev-parse --absolute-git-dir)
# `git commit FILE` has an index of its own.
GIT_INDEX_FILE=$(realpath -m "${GIT_INDEX_FILE:-$GIT_DIR/index}")
GIT_WORK_TREE=$(mktemp -d)
trap 'rm -rf "$GIT_WORK_TREE"' EXIT
unset GIT_PREFIX
export GIT_DIR GIT_INDEX_FILE GIT_WORK_TREE
git checkout-index -a --prefix="$GIT_WORK_TREE/"
"$GIT_WORK_TREE/scripts/lint.sh" --staged
