'use strict';
//
// Bad requests through the whole product: each with its status, its `param`,
// its `code`, and a word that its message must have.  After every one of them
// the same stack still answers a good one.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { Stack } = require('../lib/stack');
const { post, raw, request } = require('../lib/http');
const { chat } = require('../lib/prompts');

let stack;

before(async () => {
  stack = await Stack.start({
    engine: { kv_memory: '16m', max_body: '1m' },
    location: 'client_max_body_size 2m;',
  });
});
after(async () => {
  const r = await post(`${stack.url}/v1/chat/completions`, chat('Hello!'));
  const complaints = stack.complaints();
  await stack.idle();
  await stack.stop();
  assert.equal(r.status, 200);
  assert.deepEqual(complaints, []);
});

const with_ = (more) => ({ ...chat('Hello!'), ...more });
const say = (message) => with_({ messages: [message] });
const prompt = (value, more) => ({ model: 'pocket', prompt: value, ...more });
const without = (key) => {
  const body = chat('Hello!');
  delete body[key];
  return body;
};

// what, path, body, param, message; the status is 400 unless said
const chatTable = [
  ['no body', '', null, /JSON|body|empty/i],
  ['not JSON', 'hello', null, /JSON/],
  ['half of JSON', '{"model":"pocket","messages":[{"role":', null, /JSON/],
  ['JSON and then more', `${JSON.stringify(chat('Hi'))} {}`, null, /JSON/],
  ['an array', [], null, /object/],
  ['a string', '"hello"', null, /object|JSON/],
  ['null', 'null', null, /object|JSON/],
  ['a duplicate key\'s last value rules: wrong type',
    '{"model":"pocket","n":1,"n":"two","messages":[]}', 'n', /n/],
  ['deeply nested', `${'['.repeat(100000)}`, null, /JSON|deep/i],
  ['invalid UTF-8', Buffer.concat([
    Buffer.from('{"model":"pocket","messages":[{"role":"user","content":"'),
    Buffer.from([0xc3, 0x28]), Buffer.from('"}]}')]), null, /UTF-8|JSON/i],
  ['a lone surrogate', '{"model":"pocket","messages":[{"role":"user",'
    + '"content":"\\ud800"}]}', null, /JSON|surrogate|Unicode/i],
  ['NUL in a key', '{"model":"pocket","messages":[{"role":"user",'
    + '"content":"ab","x\\u0000":1}]}', null, /u0000/i],
  ['messages: absent', without('messages'), 'messages', /messages/],
  ['messages: empty', with_({ messages: [] }), 'messages', /empty/],
  ['messages: a string', with_({ messages: 'hi' }), 'messages', /array/],
  ['messages: of strings', with_({ messages: ['hi'] }), 'messages[0]', /object/],
  ['a message without role', say({ content: 'x' }), 'messages[0].role', /role/],
  ['a message with a strange role', say({ role: 'robot', content: 'x' }),
    'messages[0].role', /robot/],
  ['a message with a numeric role', say({ role: 1, content: 'x' }),
    'messages[0].role', /string/],
  ['a message without content', say({ role: 'user' }),
    'messages[0].content', /content/],
  ['content: a number', say({ role: 'user', content: 5 }),
    'messages[0].content', /string/],
  ['content: no parts', say({ role: 'user', content: [] }),
    'messages[0].content', /empty/],
  ['content: an image', say({
    role: 'user',
    content: [{ type: 'text', text: 'x' },
      { type: 'image_url', image_url: { url: 'data:' } }],
  }), 'messages[0].content[1].type', /image_url/],
  ['content: a part without text', say({
    role: 'user', content: [{ type: 'text' }],
  }), 'messages[0].content[0].text', /text/],
  ['model: a number', with_({ model: 4 }), 'model', /string/],
  ['temperature: too high', with_({ temperature: 2.5 }), 'temperature', /2/],
  ['temperature: negative', with_({ temperature: -0.1 }), 'temperature', /0/],
  ['temperature: a string', with_({ temperature: '1' }), 'temperature',
    /number/],
  ['top_p: below 0', with_({ top_p: -0.01 }), 'top_p', /top_p/],
  ['top_p: above 1', with_({ top_p: 1.01 }), 'top_p', /top_p/],
  ['top_k: -2', with_({ top_k: -2 }), 'top_k', /top_k/],
  ['top_k: a fraction', with_({ top_k: 1.5 }), 'top_k', /integer/],
  ['min_p: above 1', with_({ min_p: 1.5 }), 'min_p', /min_p/],
  ['presence_penalty: too high', with_({ presence_penalty: 3 }),
    'presence_penalty', /presence_penalty/],
  ['frequency_penalty: too low', with_({ frequency_penalty: -3 }),
    'frequency_penalty', /frequency_penalty/],
  ['repetition_penalty: 0', with_({ repetition_penalty: 0 }),
    'repetition_penalty', /repetition_penalty/],
  ['n: 0', with_({ n: 0 }), 'n', /n/],
  ['n: too many', with_({ n: 100000 }), 'n', /n/],
  ['max_tokens: 0', with_({ max_tokens: 0 }), 'max_tokens', /max_tokens/],
  ['max_tokens: negative', with_({ max_tokens: -5 }), 'max_tokens',
    /max_tokens/],
  ['max_tokens: a fraction', with_({ max_tokens: 1.5 }), 'max_tokens',
    /integer/],
  ['max_tokens and max_completion_tokens',
    with_({ max_tokens: 5, max_completion_tokens: 6 }), 'max_tokens', /same/],
  ['min_tokens above max_tokens', with_({ min_tokens: 50, max_tokens: 5 }),
    'min_tokens', /min_tokens/],
  ['seed: beyond 64 bits', '{"model":"pocket","messages":[{"role":"user",'
    + '"content":"x"}],"seed":99999999999999999999}', 'seed',
    /64-bit integer, but got 99999999999999999999/],
  ['max_tokens: 1e300', '{"model":"pocket","messages":[{"role":"user",'
    + '"content":"x"}],"max_tokens":1e300}', 'max_tokens', /1e\+300/],
  ['seed: a string', with_({ seed: 'x' }), 'seed', /integer/],
  ['stop: a number', with_({ stop: 7 }), 'stop', /stop/],
  ['stop: seventeen', with_({ stop: Array(17).fill('x') }), 'stop', /16/],
  ['stop: of numbers', with_({ stop: [1] }), 'stop[0]', /string/],
  ['stop_token_ids: of strings', with_({ stop_token_ids: ['a'] }),
    'stop_token_ids[0]', /integer/],
  ['stop_token_ids: unknown', with_({ stop_token_ids: [999999] }),
    'stop_token_ids[0]', /vocabulary|999999/],
  ['logit_bias: an array', with_({ logit_bias: [] }), 'logit_bias', /object/],
  ['logit_bias: too much', with_({ logit_bias: { 5: 101 } }), /logit_bias/,
    /100/],
  ['logit_bias: no token', with_({ logit_bias: { five: 1 } }), /logit_bias/,
    /five|token/],
  ['logit_bias: a token twice', with_({ logit_bias: { 5: 60, '05': 60 } }),
    /logit_bias/, /"05"/],
  ['chat_template_kwargs: thinking', with_({ chat_template_kwargs: {
    enable_thinking: 1 } }), 'chat_template_kwargs.enable_thinking', /boolean/],
  ['logprobs: a number', with_({ logprobs: 3 }), 'logprobs', /boolean/],
  ['top_logprobs without logprobs', with_({ top_logprobs: 2 }), 'top_logprobs',
    /logprobs/],
  ['top_logprobs: 21', with_({ logprobs: true, top_logprobs: 21 }),
    'top_logprobs', /20/],
  ['stream: a string', with_({ stream: 'yes' }), 'stream', /boolean/],
  ['stream_options without stream',
    with_({ stream_options: { include_usage: true } }), 'stream_options',
    /stream/],
  ['stream_options: a list', with_({ stream: true, stream_options: [] }),
    'stream_options', /object/],
  ['include_usage: a number',
    with_({ stream: true, stream_options: { include_usage: 1 } }),
    'stream_options.include_usage', /boolean/],
  ['response_format: YAML', with_({ response_format: { type: 'yaml' } }),
    'response_format.type', /json_object/],
  ['response_format: a schema that cannot be held',
    with_({ response_format: { type: 'json_schema', json_schema: {
      name: 'x', strict: true, schema: { properties: { a: { not: {} } } } } } }),
    'response_format', /'not' at \/properties\/a is not supported/],
  ['guided_regex: none', with_({ guided_regex: '(' }), 'guided_regex',
    /\( without \)/],
  ['guided_grammar: no root', with_({ guided_grammar: 'a ::= "b"' }),
    'guided_grammar', /the rule 'root' is not there/],
  ['tool_choice: required', with_({ tool_choice: 'required' }), 'tool_choice',
    /tool/],
];

const textTable = [
  ['prompt: absent', { model: 'pocket' }, 'prompt', /prompt/],
  ['prompt: null', prompt(null), 'prompt', /prompt/],
  ['prompt: a number', prompt(5), 'prompt', /string/],
  ['prompt: empty list', prompt([]), 'prompt', /empty/],
  ['prompt: mixed', prompt([1, 'a']), 'prompt[1]', /integer/],
  ['prompt: an unknown token', prompt([1, 4096]), 'prompt[1]', /4096/],
  ['prompt: a negative token', prompt([-1]), 'prompt[0]', /-1/],
  ['prompt: a fraction', prompt([1.5]), /prompt/, /integer|token ids/],
  ['prompt: a list of lists of texts', prompt([['a']]), /prompt\[0\]/,
    /integer|token/],
  ['logprobs: 21', prompt('x', { logprobs: 21 }), 'logprobs', /20/],
  ['logprobs: true', prompt('x', { logprobs: true }), 'logprobs', /integer/],
  ['echo: a string', prompt('x', { echo: 'yes' }), 'echo', /boolean/],
  ['best_of: more than n', prompt('x', { best_of: 3 }), 'best_of', /best_of/],
  ['suffix', prompt('x', { suffix: 'end' }), 'suffix', /suffix/],
];

function check(row, path) {
  const [what, body, param, message] = row;
  test(`${path}: ${what}`, async () => {
    const r = await post(`${stack.url}/v1/${path}`, body);
    assert.equal(r.status, 400, r.text);
    assert.match(r.headers['content-type'], /^application\/json/);
    const { error } = r.json();
    assert.equal(error.type, 'invalid_request_error');
    if (param instanceof RegExp) assert.match(error.param, param);
    else assert.equal(error.param, param, error.message);
    assert.equal(error.code, null);
    assert.match(error.message, message);
  });
}

for (const row of chatTable) check(row, 'chat/completions');
for (const row of textTable) check(row, 'completions');

async function rejected(body, status, code, param, path = 'chat/completions') {
  const r = await post(`${stack.url}/v1/${path}`, body);
  assert.equal(r.status, status, r.text);
  const { error } = r.json();
  assert.equal(error.code, code);
  assert.equal(error.param, param);
  return error;
}

test('a model that is not there: 404', () =>
  rejected(with_({ model: 'gpt-5' }), 404, 'model_not_found', 'model'));

test('a prompt longer than the context: 400', () =>
  rejected(chat('word '.repeat(6000)), 400, 'context_length_exceeded',
    'messages'));

test('max_tokens beyond the context: a ceiling', async () => {
  const models = (await request(`${stack.url}/v1/models`)).json();
  const { max_model_len: most } = models.data[0];
  const r = await post(`${stack.url}/v1/completions`, prompt(
    Array(most - 6).fill(300), { max_tokens: most, ignore_eos: true }));
  assert.equal(r.status, 200, r.text);
  assert.equal(r.json().choices[0].finish_reason, 'length');
  assert.equal(r.json().usage.total_tokens, most);
});

for (const [what, type, status] of [
  ['with a charset', 'Application/JSON; charset=utf-8', 200],
  ['+json', 'application/vnd.api+json', 200],
  ['text/plain', 'text/plain', 415],
  ['a form', 'application/x-www-form-urlencoded', 415],
  ['+json alone', 'application/+json', 415],
  ['text/json', 'text/json', 415],
  ['none', undefined, 415],
]) {
  test(`Content-Type: ${what}: ${status}`, async () => {
    const r = await request(`${stack.url}/v1/chat/completions`, {
      method: 'POST', body: JSON.stringify(chat('Hello!', { max_tokens: 1 })),
      headers: type ? { 'Content-Type': type } : {} });
    assert.equal(r.status, status, r.text);
    if (status === 415) {
      const { error } = r.json();
      assert.equal(error.code, 'unsupported_media_type');
      assert.match(error.message, /Expected application\/json/);
    }
  });
}

for (const [what, path, options, status] of [
  ['no such URL', '/v1/nothing', { method: 'POST', body: '{}' }, 404],
  ['no such method', '/v1/chat/completions', { method: 'GET' }, 405],
  ['no JSON', '/v1/chat/completions', { method: 'POST', body: 'x',
    headers: { 'Content-Type': 'text/plain' } }, 415],
  ['models', '/v1/models', {}, 200],
  ['a model', '/v1/models/pocket', {}, 200],
  ['no such model', '/v1/models/none', {}, 404],
  ['a bad body', '/v1/completions', { method: 'POST', body: '{' }, 400],
  ['too large', '/v1/completions', { method: 'POST',
    body: 'x'.repeat(3 << 20) }, 413],
]) {
  test(`X-Request-Id: ${what}`, async () => {
    const ask = (more) => request(stack.url + path, { ...options,
      headers: { 'Content-Type': 'application/json', ...options.headers,
        ...more } });
    const one = await ask({});
    assert.equal(one.status, status, one.text);
    assert.match(one.headers['x-request-id'], /^req_[0-9a-f]{32}$/);
    const two = await ask({ 'X-Request-Id': 'mine-1' });
    assert.equal(two.headers['x-request-id'], 'mine-1');
  });
}

test('token ids beyond the context: 400', () =>
  rejected(prompt(Array(4097).fill(300)), 400, 'context_length_exceeded',
    'prompt', 'completions'));

test('a body beyond the engine\'s max_body: 413', async () => {
  const error = await rejected(chat('x'.repeat(1200 * 1024)), 413,
    'request_too_large', null);
  assert.match(error.message, /max_body|bytes|large/i);
});

test('a body beyond client_max_body_size: 413', async () => {
  const r = await post(`${stack.url}/v1/chat/completions`,
    chat('x'.repeat(3 << 20)));
  assert.equal(r.status, 413);
});

test('a request that the page pool can never hold: refused at once', async () => {
  // few sequences: a device's tables of them are in kv_memory, too
  const small = await Stack.start({
    engine: { kv_memory: '2m', max_num_seqs: 4 } });
  try {
    const r = await post(`${small.url}/v1/chat/completions`,
      chat('the fox and '.repeat(900)));
    assert.equal(r.status, 400, r.text);
    assert.equal(r.json().error.type, 'invalid_request_error');
    assert.equal((await post(`${small.url}/v1/chat/completions`,
      chat('Hello!'))).status, 200);
  } finally {
    await small.stop();
  }
});

test('tools for a model that has no form of them', async () => {
  const without = await Stack.start({ engine: { tool_dialect: 'none' } });
  try {
    const r = await post(`${without.url}/v1/chat/completions`, chat('Hello!', {
      tools: [{ type: 'function', function: { name: 'f' } }],
    }));
    assert.equal(r.status, 400, r.text);
    assert.equal(r.json().error.param, 'tools');
    assert.match(r.json().error.message, /no tool format/);
  } finally {
    await without.stop();
  }
});

for (const [what, path, method, status] of [
  ['GET on chat', '/v1/chat/completions', 'GET', 405],
  ['PUT on completions', '/v1/completions', 'PUT', 405],
  ['DELETE on models', '/v1/models', 'DELETE', 405],
  ['an unknown path', '/v1/nothing', 'GET', 404],
  ['a path that only begins like ours', '/v1/chat/completionsx', 'POST', 404],
  ['the folder itself', '/v1/', 'GET', 404],
]) {
  test(`${what}: ${status}`, async () => {
    const r = await request(`${stack.url}${path}`, {
      method, headers: { 'Content-Length': 0 },
    });
    assert.equal(r.status, status);
    assert.equal(r.json().error.type, 'invalid_request_error');
  });
}

test('chunked encoding that breaks off, and a length that lies', async () => {
  const head = 'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n'
    + 'Content-Type: application/json\r\n';
  const broken = await raw(stack.port,
    `${head}Transfer-Encoding: chunked\r\n\r\nzz\r\n`);
  assert.match(broken, /^HTTP\/1\.1 400 /);
  const twice = await raw(stack.port,
    `${head}Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}`);
  assert.match(twice, /^HTTP\/1\.1 400 /);
});

test('a request id that is no token is replaced', async () => {
  const long = 'x'.repeat(300);
  const r = await post(`${stack.url}/v1/chat/completions`, chat('Hello!'),
    { 'X-Request-Id': long });
  assert.equal(r.status, 200);
  assert.notEqual(r.headers['x-request-id'], long);
  assert.match(r.headers['x-request-id'], /^[\x21-\x7e]{1,64}$/);
});
