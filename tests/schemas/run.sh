#!/bin/sh
# make test-schemas: our grammars against references that nobody here wrote.
#
#   suite.js   JSON-Schema-Test-Suite, drafts 2020-12 and 7
set -eu
cd "$(dirname "$0")"
if [ -z "${SUITE:-}" ]; then
    SUITE=$(pwd)/../../build/schemas/JSON-Schema-Test-Suite
    [ -d "$SUITE/tests" ] || git clone --quiet --depth 1 \
        https://github.com/json-schema-org/JSON-Schema-Test-Suite "$SUITE"
fi
export SUITE
echo "JSON-Schema-Test-Suite"
node suite.js
