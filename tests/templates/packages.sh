#!/bin/sh
# Installs the packages whose templates are compared (package-lock.json pins
# them).  Without the registry they are left out, and it is said so.
cd "$(dirname "$0")" || exit 1
if cmp -s package-lock.json node_modules/.installed; then
    exit 0
fi
if npm ci --silent --no-progress >/dev/null 2>&1; then
    cp package-lock.json node_modules/.installed
else
    rm -rf node_modules
    echo "templates: npm's registry was not reached, its templates are left out"
fi
