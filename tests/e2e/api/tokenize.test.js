'use strict';
//
// /v1/tokenize, /v1/detokenize and /v1/chat/completions/render: what they say is
// what the other endpoints do.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { Stack } = require('../lib/stack');
const { post } = require('../lib/http');

let stack;

before(async () => {
  stack = await Stack.start({ engine: { backend: 'null', null_rate: 5000,
    max_model_len: 32768 } });
});

after(async () => { if (stack) await stack.stop(); });

const ask = async (path, body, status = 200) => {
  const r = await post(`${stack.url}/v1/${path}`, body);
  assert.equal(r.status, status, r.text);
  return r.json();
};
const messages = [{ role: 'system', content: 'Be brief.' },
  { role: 'user', content: 'Hé 😀 "x"?' }];

test('a prompt, there and back', async () => {
  for (const prompt of ['Once upon a time', 'é 😀 \u0000\n', 'x'.repeat(3)]) {
    const r = await ask('tokenize', { prompt, add_special_tokens: false });
    assert.deepEqual(Object.keys(r),
      ['count', 'max_model_len', 'tokens', 'token_strs']);
    assert.equal(r.count, r.tokens.length);
    assert.equal(r.max_model_len, 32768);
    assert.equal(r.token_strs, null);
    assert.deepEqual(await ask('detokenize', { tokens: r.tokens }), { prompt });
    const { usage } = await ask('completions', { prompt: r.tokens,
      max_tokens: 1 });
    assert.equal(usage.prompt_tokens, r.count);
    assert.equal((await ask('tokenize', { prompt })).count, r.count + 1);
  }
});

test('a chat: the prompt that the chat has', async () => {
  const { usage } = await ask('chat/completions', { messages, max_tokens: 1 });
  const tokens = await ask('tokenize', { messages });
  const render = await ask('chat/completions/render', { messages,
    stream: true, temperature: 0, logprobs: true });
  assert.equal(tokens.count, usage.prompt_tokens);
  assert.deepEqual(render.token_ids, tokens.tokens);
  assert.match(render.request_id, /^render-[0-9a-f]{32}$/);
  assert.match(render.prompt, /^<\|begin_of_text\|><\|start_header_id\|>system/);
  assert.ok(render.prompt.includes(messages[1].content));
  assert.deepEqual(await ask('detokenize', { tokens: render.token_ids }),
    { prompt: render.prompt });
  const open = await ask('tokenize', { messages,
    add_generation_prompt: false });
  assert.ok(open.count < tokens.count);
});

test('many tokens, more than the rings hold at once', async () => {
  const prompt = 'word and word '.repeat(20000);
  const many = await Promise.all(Array.from({ length: 24 },
    () => ask('tokenize', { prompt })));
  for (const r of many) {
    assert.ok(r.count > 32768, `${r.count}`);
    assert.equal(r.tokens.length, r.count);
  }
  const back = await ask('detokenize', { tokens: many[0].tokens });
  assert.ok(back.prompt.endsWith(prompt));
});

for (const [path, body, param, message] of [
  ['tokenize', {}, 'prompt', /string/],
  ['tokenize', { prompt: ['a'] }, 'prompt', /string/],
  ['tokenize', { prompt: 'a', return_token_strs: true }, 'return_token_strs',
    /ids/],
  ['tokenize', { messages: [] }, 'messages', /empty/],
  ['tokenize', { prompt: 'a', model: 'x' }, 'model', /does not exist/],
  ['detokenize', {}, 'tokens', /array/],
  ['detokenize', { tokens: [1, 'x'] }, 'tokens[1]', /integer/],
  ['detokenize', { tokens: [-1] }, 'tokens[0]', /not a token id/],
  ['chat/completions/render', { messages, temperature: 9 }, 'temperature',
    /9/],
]) {
  test(`refused: ${path} ${JSON.stringify(body)}`, async () => {
    const status = param === 'model' ? 404 : 400;
    const { error } = await ask(path, body, status);
    assert.equal(error.param, param);
    assert.match(error.message, message);
  });
}

test('GET is no way to ask', async () => {
  const { request } = require('../lib/http');
  assert.equal((await request(`${stack.url}/v1/tokenize`)).status, 405);
  assert.deepEqual(stack.complaints(), []);
});
