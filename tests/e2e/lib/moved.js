'use strict';
//
// Requests of all kinds, for tests in which they move from engine to engine, and
// what a client has of them: on the CPU with kv_policy full the same, byte for
// byte, whatever happens to engines.

const assert = require('node:assert/strict');
const { post, stream } = require('./http');
const { story } = require('./prompts');

// Requests of all kinds, the i-th of them; every one is long enough to be met.
function ask(i, tokens) {
  const text = { model: 'pocket', prompt: `${story(i)} `, max_tokens: tokens,
    ignore_eos: true, temperature: 0.9, seed: 1000 + i };
  const chat = { model: 'pocket', messages: [{ role: 'user',
    content: story(i) }], max_tokens: tokens, ignore_eos: true, temperature: 1,
    seed: 77 + i };
  return [
    ['completions', text],
    ['completions', { ...text, n: 3 }],
    ['completions', { ...text, temperature: 0, repetition_penalty: 1.2,
      presence_penalty: 0.5 }],
    ['completions', { ...text, stop: ['the', 'zzzz'], min_tokens: 60 }],
    ['completions', { ...text, logprobs: 3 }],
    ['completions', { ...text, echo: true, n: 2 }],
    ['chat/completions', chat],
    ['chat/completions', { ...chat, n: 2, logprobs: true, top_logprobs: 2 }],
  ][i % 8];
}

// The cache's figures are those of the last engine.
const counts = ({ prompt_tokens: prompt, completion_tokens: completion }) =>
  ({ prompt, completion });

// What a client has of a stream, whatever the borders of its events.
function gathered(s) {
  const choices = [];
  let usage = null;
  for (const event of s.events) {
    if (event.usage) usage = counts(event.usage);
    for (const c of event.choices || []) {
      const at = choices[c.index] = choices[c.index]
        || { text: '', logprobs: [], reasons: [] };
      at.text += c.text || (c.delta && c.delta.content) || '';
      if (c.logprobs) {
        at.logprobs.push(...(c.logprobs.content
          || c.logprobs.tokens.map((t, k) =>
            [t, c.logprobs.token_logprobs[k]])));
      }
      if (c.finish_reason) at.reasons.push(c.finish_reason);
    }
  }
  return { choices, usage };
}

async function run(stack, i, streamed, tokens = 160) {
  const [path, body] = ask(i, tokens);
  const url = `${stack.url}/v1/${path}`;
  if (!streamed) {
    const r = await post(url, body);
    assert.equal(r.status, 200, `${i}: ${r.text}`);
    const answer = r.json();
    return { choices: answer.choices, usage: counts(answer.usage) };
  }
  const s = stream(url, { ...body, stream: true,
    stream_options: { include_usage: true } });
  await s.finished;
  assert.ok(s.done, `${i}: ${s.raw.slice(-600)}`);
  return gathered(s);
}

module.exports = { ask, counts, gathered, run };
