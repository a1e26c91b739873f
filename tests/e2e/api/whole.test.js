'use strict';
//
// Random requests to every endpoint that streams: a whole answer is what a
// stream tells, joined, to the byte, also where it is refused.  WHOLE=N requests
// of each endpoint (24; make test-whole asks for 2,000), from WHOLE_FROM on.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { Stack } = require('../lib/stack');
const { post, stream } = require('../lib/http');
const { story } = require('../lib/prompts');
const { joinedChoices, wholeChoices, joinedMessage, wholeMessage,
  joinedResponse, wholeResponse } = require('../lib/joined');

const WHOLE = Number(process.env.WHOLE || 24);
const FROM = Number(process.env.WHOLE_FROM || 0);
let stack;

before(async () => {
  stack = await Stack.start({ engine: { kv_policy: 'full', kv_memory: '256m',
    max_num_seqs: 64, max_queue: 512 } });
});
after(() => stack && stack.stop());

// Numbers that depend on i alone.
function dice(i) {
  let a = (i + 1) * 0x9e3779b9;
  const next = () => {
    a = (a + 0x6d2b79f5) | 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  return { chance: (p) => next() < p, number: (n) => Math.floor(next() * n),
    one: (list) => list[Math.floor(next() * list.length)] };
}

const place = { type: 'object', required: ['name', 'size'],
  additionalProperties: false, properties: { name: { type: 'string',
    maxLength: 12 }, size: { enum: ['small', 'large'] },
  at: { type: 'array', maxItems: 3, items: { type: 'integer' } } } };
const asks = ['What is 17 plus 25?', 'What is the weather like in Ashford?',
  'Tell me of \u00e9t\u00e9 \ud83d\ude00.', story(3)];
const fns = (d) => ['get_weather', 'find'].slice(0, 1 + d.number(2)).map(
  (name) => ({ name, description: `Does ${name}.`, parameters: place,
    ...(d.chance(0.5) ? { strict: true } : {}) }));
const common = (d, i) => ({ seed: i, temperature: d.one([0, 0.7, 1, 2]),
  ...(d.chance(0.3) ? { top_p: 0.8 } : {}),
  ...(d.chance(0.2) ? { top_k: 1 + d.number(40) } : {}) });
const thinking = (d) => ({ chat_template_kwargs: { enable_thinking: true },
  ...(d.chance(0.5) ? { thinking_token_budget: d.number(20) } : {}) });
const sampling = (d, i) => ({ ...common(d, i), max_tokens: 1 + d.number(90),
  ...(d.chance(0.3) ? { n: 1 + d.number(3) } : {}),
  ...(d.chance(0.3) ? { stop: d.one(['.', ['e ', 'zz'], '"']) } : {}),
  ...(d.chance(0.2) ? { frequency_penalty: 0.5, presence_penalty: 1 } : {}),
  ...(d.chance(0.1) ? { min_tokens: 5, include_stop_str_in_output: true }
    : {}) });
const guided = (d) => d.one([{ guided_regex: '[a-f]{3,9}( [0-9]+)?' },
  { guided_choice: ['yes', 'no', 'per haps'] }, { guided_json: place },
  { response_format: { type: 'json_object' } },
  { response_format: { type: 'json_schema', json_schema: { name: 'p',
    strict: true, schema: place } } }]);

const endpoints = {
  'chat/completions': (d, i) => ({ ...sampling(d, i),
    messages: [{ role: 'user', content: d.one(asks) }],
    ...(d.chance(0.4) ? thinking(d) : {}),
    ...(d.chance(0.3) ? { logprobs: true, top_logprobs: d.number(3) } : {}),
    ...(d.chance(0.4) ? guided(d) : {}),
    ...(d.chance(0.6) ? { tools: fns(d).map((f) => ({ type: 'function',
      function: f })), tool_choice: d.one(['auto', 'none', 'required',
      { type: 'function', function: { name: 'get_weather' } }]),
    parallel_tool_calls: d.chance(0.5) } : {}) }),
  completions: (d, i) => ({ ...sampling(d, i),
    prompt: d.one([asks[0], [asks[1], asks[3]], [1, 2, 3]]),
    ...(d.chance(0.3) ? { logprobs: d.number(4) } : {}),
    ...(d.chance(0.2) ? { echo: true } : {}),
    ...(d.chance(0.3) ? guided(d) : {}) }),
  responses: (d, i) => ({ ...common(d, i), max_output_tokens: 1 + d.number(90),
    input: d.one([asks[0], [{ role: 'user', content: asks[1] }]]),
    ...(d.chance(0.4) ? thinking(d) : {}),
    ...(d.chance(0.4) ? { text: { format: { type: 'json_schema', name: 'p',
      strict: true, schema: place } } } : {}),
    ...(d.chance(0.6) ? { tools: fns(d).map((f) => ({ type: 'function', ...f })),
      tool_choice: d.one(['auto', 'none', 'required']) } : {}) }),
  messages: (d, i) => ({ ...common(d, i), max_tokens: 1 + d.number(90),
    messages: [{ role: 'user', content: d.one(asks) }],
    ...(d.chance(0.4) ? thinking(d) : {}),
    ...(d.chance(0.3) ? { stop_sequences: ['.', 'e '] } : {}),
    ...(d.chance(0.3) ? { output_config: { format: { type: 'json_schema',
      schema: place } } } : {}),
    ...(d.chance(0.6) ? { tools: fns(d).map(({ parameters, ...f }) => ({ ...f,
      input_schema: parameters })), tool_choice: { type: d.one(['auto', 'any',
      'none']) } } : {}) }),
};

async function both(path, body, where) {
  const url = `${stack.url}/v1/${path}`;
  const one = await post(url, body);
  const s = stream(url, { ...body, stream: true });
  await s.finished;
  assert.equal(s.status, one.status, where);
  if (one.status !== 200) {
    assert.equal(one.status, 400, `${where}: ${one.text}`);
    assert.deepEqual(JSON.parse(s.raw), one.json(), where);
    return false;
  }
  const [joined, whole] = path === 'messages' ? [joinedMessage, wholeMessage]
    : path === 'responses' ? [joinedResponse, wholeResponse]
      : [joinedChoices, wholeChoices];
  assert.deepEqual(joined(s.events), whole(one.json()), where);
  return true;
}

for (const [path, make] of Object.entries(endpoints)) {
  test(`${WHOLE} random requests: ${path}`, async () => {
    let next = 0, answered = 0;
    await Promise.all(Array.from({ length: 16 }, async () => {
      while (next < WHOLE) {
        const i = FROM + next++, body = make(dice(i), i);
        if (await both(path, body, `${i}: ${JSON.stringify(body)}`)) answered++;
      }
    }));
    assert.ok(answered > WHOLE * 0.6, `${answered} of ${WHOLE} answered`);
    console.log(`${path}: ${answered} of ${WHOLE} answered, whole is streamed`);
    await stack.idle();
  });
}
