'use strict';
//
// Turns of conversations that come back, for tests of prefixes that are kept outside
// the KV pool (engine/files.test.js, engine/host.test.js): what is asked, and what is
// compared of an answer.

const assert = require('node:assert/strict');
const { post } = require('./http');
const { story } = require('./prompts');
const { GPU } = require('./same');

// n stories, others for each i.
const long = (i, n) => Array.from({ length: n }, (_, k) => story(i + 7 * k))
  .join(' ');

// Text and tokens of an answer.  `more`: other fields of the request.
async function ask(to, messages, more = {}) {
  const r = await post(`${to.url}/v1/chat/completions`, {
    model: 'pocket', messages, max_tokens: 24, temperature: 0, ...more });
  assert.equal(r.status, 200, r.text);
  const body = r.json();
  return { text: body.choices[0].message.content,
    prompt: body.usage.prompt_tokens,
    cached: body.usage.prompt_tokens_details.cached_tokens };
}

// What must be the same again.  A GPU's sums may differ by what else is in a batch.
const told = (a) => (GPU ? { ...a, text: '' } : a);

module.exports = { long, ask, told };
