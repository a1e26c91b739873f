#!/bin/sh
# make test-schemas: our grammars against references that nobody here wrote.
#
#   suite.js      JSON-Schema-Test-Suite, drafts 2020-12 and 7 (SUITE=DIR)
#   walks.js      random answers, checked by ajv and Python's jsonschema, over
#                 the schemas of SCHEMAS=DIR (jsonschemabench); left out without
#   xgrammar.js   masks equal those of XGrammar (npm; XGRAMMAR=DIR of the
#                 package)
set -eu
cd "$(dirname "$0")"
build=$(pwd)/../../build/schemas
mkdir -p "$build"
if [ -z "${SUITE:-}" ]; then
    SUITE=$build/JSON-Schema-Test-Suite
    [ -d "$SUITE/tests" ] || git clone --quiet --depth 1 \
        https://github.com/json-schema-org/JSON-Schema-Test-Suite "$SUITE"
fi
if [ -z "${XGRAMMAR:-}" ]; then
    XGRAMMAR=$build/node_modules/@mlc-ai/web-xgrammar
    [ -d "$XGRAMMAR" ] || npm install --silent --no-audit --no-fund \
        --prefix "$build" @mlc-ai/web-xgrammar@0.1.27 >/dev/null
fi
export SUITE XGRAMMAR
echo "JSON-Schema-Test-Suite"
node suite.js
echo "XGrammar"
node xgrammar.js
if [ -n "${SCHEMAS:-}" ]; then
    echo "ajv and jsonschema"
    node walks.js
else
    echo "ajv and jsonschema: SCHEMAS=DIR is not given"
fi
