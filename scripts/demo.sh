#!/usr/bin/env bash
#
# A real conversation with the shipped model, through NGINX, as it streams: a fact
# from a document that is long enough for the KV cache to be compressed, a story,
# and a tool called.  Expects `make up` to have run.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

# One chat request; the answer is printed as it comes.
chat() { # user's words, max_tokens
    local status
    jq -n --arg text "$1" --argjson max "$2" '{
        model: "pocket", stream: true, temperature: 0, max_tokens: $max,
        stream_options: {include_usage: true},
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

# What the last answer took, as its usage says.
memory() {
    sed -n 's/^data: \({.*\)/\1/p' "$RUN/demo.sse" \
        | jq -rs --arg policy "$(sed -n 's/^kv_policy //p' "$RUN/engine.conf")" '
            def mib: . / 1048576 * 10 | round / 10 | tostring + " MiB";
            map(.usage // empty)[-1] | "  \(.total_tokens) tokens: "
                + (.kv_cache | "\(.bytes | mib) of KV cache instead of "
                    + "\(.fp16_bytes | mib) at 16 bits (ratio \(.ratio), ")
                + "\($policy))"'
}

logbook=$(cat "$ROOT/scripts/demo.txt")
price='How much does the clay clock from Ashstow cost?'
story='Tell me a story about a fox named Tobin and a silver key.'
lamp='How much does the brass lamp cost in Ashford?'

printf '\n%sYou:%s (a logbook of %s words: scripts/demo.txt) %s\n' \
    "$BOLD" "$PLAIN" "$(wc -w <"$ROOT/scripts/demo.txt")" "$price"
printf '%sPocket:%s ' "$BOLD" "$PLAIN"
chat "$logbook

Question: $price" 60
memory

printf '\n%sYou:%s %s\n' "$BOLD" "$PLAIN" "$story"
printf '%sPocket:%s ' "$BOLD" "$PLAIN"
chat "$story" 400

# A tool, and what the model makes of its result.
tools='[{"type": "function", "function": {"name": "find_price",
    "description": "Finds what an item costs in a town.", "parameters": {
        "type": "object", "properties": {"item": {"type": "string"},
            "town": {"type": "string"}}, "required": ["item", "town"]}}}]'
result='{"price": 42}'

ask() { # messages
    jq -n --argjson messages "$1" --argjson tools "$tools" '{model: "pocket",
        temperature: 0, messages: $messages, tools: $tools}' \
        | curl -sS --fail-with-body "$URL/v1/chat/completions" \
            -H 'Content-Type: application/json' -d @- \
        | jq -c '.choices[0].message'
}

printf '\n%sYou:%s %s\n' "$BOLD" "$PLAIN" "$lamp"
messages=$(jq -nc --arg text "$lamp" '[{role: "user", content: $text}]')
call=$(ask "$messages") || fail "the demo's call of a tool failed: $call"
printf '%sPocket calls:%s %s\n' "$BOLD" "$PLAIN" "$(jq -r \
    '.tool_calls[].function | "\(.name)(\(.arguments))"' <<<"$call")"
printf '%sfind_price:%s %s\n' "$BOLD" "$PLAIN" "$result"
answer=$(ask "$(jq -c --argjson call "$call" --arg result "$result" '. + [$call,
    {role: "tool", tool_call_id: $call.tool_calls[0].id, content: $result}]' \
    <<<"$messages")") || fail "the demo's answer failed: $answer"
printf '%sPocket:%s %s\n' "$BOLD" "$PLAIN" "$(jq -r .content <<<"$answer")"

cat <<END

${BOLD}It is running.${PLAIN}
  page      $URL/   (a chat, and the KV cache of its conversation)
  dashboard $URL/dashboard/
  API       $URL/v1   (OpenAI's and Anthropic's: chat/completions, responses, messages, ..)
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
