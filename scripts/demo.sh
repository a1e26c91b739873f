#!/usr/bin/env bash
#
# A real conversation with the shipped model, through NGINX, as it streams:
# a story, and a fact from a short document.  Expects `make up` to have run.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

# One chat request; the answer is printed as it comes.
chat() { # user's words, max_tokens
    local status
    jq -n --arg text "$1" --argjson max "$2" '{
        model: "pocket", stream: true, temperature: 0, max_tokens: $max,
        messages: [{role: "user", content: $text}]
    }' | curl -sSN --fail-with-body "$URL/v1/chat/completions" \
        -H 'Content-Type: application/json' -d @- \
        | tee "$RUN/demo.sse" \
        | sed -un 's/^data: \({.*\)/\1/p' \
        | jq --unbuffered -rj '.choices[0].delta.content // empty' \
        || status=$?
    echo
    if [ -n "${status:-}" ] || ! grep -q '^data: \[DONE\]' "$RUN/demo.sse"; then
        cat "$RUN/demo.sse" >&2
        fail "the demo's request failed"
    fi
}

story='Tell me a story about a fox named Tobin and a silver key.'
document='Here are some notes.

Notes

[Mon] The amber key from Penholm costs 793 crowns.
[Tue] The train to Wesford leaves at 17:51.
[Wed] The yellow hammer is stored on shelf C67.
[Thu] Hilda and Juno walked to the harbour together.
[Fri] The password for the red library is breeze-lagoon-78.'
question='Where is the yellow hammer stored?'

printf '\n%sYou:%s %s\n' "$BOLD" "$PLAIN" "$story"
printf '%sPocket:%s ' "$BOLD" "$PLAIN"
chat "$story" 400

printf '\n%sYou:%s %s\n\n%s\n' "$BOLD" "$PLAIN" "$document" \
    "Use the notes to answer: $question"
printf '%sPocket:%s ' "$BOLD" "$PLAIN"
chat "$document

Use the notes to answer: $question" 60

cat <<END

${BOLD}It is running.${PLAIN}
  API       $URL/v1   (OpenAI: chat/completions, completions, models)
  health    $URL/health
  metrics   $URL/metrics
  logs      ${RUN#"$ROOT"/}/

${BOLD}Try${PLAIN}
  curl -N $URL/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model":"pocket","stream":true,"messages":[{"role":"user","content":"Hello!"}]}'
  ${BUILD#"$ROOT"/}/bin/tokenring chat --engine ${RUN#"$ROOT"/}/engine.sock

${BOLD}Stop${PLAIN}
  make down${TR_RUN:+ PREFIX=$TR_RUN}
END
