'use strict';
//
// Structured output: what an answer must be, it is.  STRICT=N strict answers at
// temperature 2 (500; make test-strict asks for 10,000), from seed STRICT_FROM
// on, every finished one checked by ajv; the other kinds; hostile schemas beside
// plain streams.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const Ajv = require('ajv/dist/2020');
const { Stack } = require('../lib/stack');
const { post, stream } = require('../lib/http');
const { endless } = require('../lib/prompts');

const STRICT = Number(process.env.STRICT || 500);
const FROM = Number(process.env.STRICT_FROM || 0);
const AT_ONCE = 64;

const schemas = [
  { type: 'object', required: ['name', 'age'],
    properties: { name: { type: 'string', maxLength: 12 },
      age: { type: 'integer', minimum: 0, maximum: 120 } } },
  { type: 'object', required: ['kind', 'tags'], properties: {
    kind: { enum: ['cat', 'dog', 'mouse'] },
    tags: { type: 'array', minItems: 1, maxItems: 3,
      items: { type: 'string', pattern: '^[a-z]{1,8}$' } },
    note: { anyOf: [{ type: 'null' }, { type: 'string', maxLength: 5 }] } } },
  { $ref: '#/$defs/node', $defs: { node: { type: 'object',
    properties: { value: { type: 'number', minimum: -1, maximum: 1 },
      next: { anyOf: [{ type: 'null' }, { $ref: '#/$defs/node' }] } },
    required: ['value', 'next'] } } },
  { type: 'object', required: ['shape'], properties: { shape: { oneOf: [
    { type: 'object', required: ['type', 'radius'], properties: {
      type: { const: 'circle' },
      radius: { type: 'integer', multipleOf: 5, minimum: 5 } } },
    { type: 'object', required: ['type', 'when'], properties: {
      type: { const: 'event' },
      when: { type: 'string', pattern: '^\\d{4}-\\d{2}$' } } }] } } },
];

// What strict means: an object that does not say so is closed.
function closed(schema) {
  if (Array.isArray(schema)) return schema.map(closed);
  if (schema === null || typeof schema !== 'object') return schema;
  const out = {};
  for (const [key, value] of Object.entries(schema)) out[key] = closed(value);
  if (schema.type === 'object') out.additionalProperties = false;
  return out;
}

const ajv = new Ajv({ strict: false });
const checks = schemas.map((schema) => ajv.compile(closed(schema)));

let stack;
const chat = (fields) => post(`${stack.url}/v1/chat/completions`, {
  messages: [{ role: 'user', content: 'Write something.' }],
  max_tokens: 120, ...fields });

const format = (schema, strict = true) => ({ type: 'json_schema',
  json_schema: { name: 'thing', strict, schema } });

// Runs `n` jobs, AT_ONCE at a time.
async function inParallel(n, job) {
  let next = 0;
  await Promise.all(Array.from({ length: AT_ONCE }, async () => {
    while (next < n) await job(next++);
  }));
}

before(async () => {
  stack = await Stack.start({ engine: { max_num_seqs: 64,
    kv_memory: '256m', max_queue: 512 } });
});
after(() => stack && stack.stop());

test(`${STRICT} strict answers at temperature 2`, async () => {
  let finished = 0;
  await inParallel(STRICT, async (i) => {
    const answer = await chat({ temperature: 2, seed: FROM + i,
      response_format: format(schemas[i % schemas.length]) });
    assert.equal(answer.status, 200, answer.text);
    const { message, finish_reason: reason } = answer.json().choices[0];
    if (reason !== 'stop') return;
    finished++;
    const check = checks[i % schemas.length];
    assert.ok(check(JSON.parse(message.content)),
      `${message.content}: ${JSON.stringify(check.errors)}`);
  });
  assert.ok(finished > STRICT / 4, `${finished} of ${STRICT} finished`);
  console.log(`${finished} of ${STRICT} finished, all valid`);
  await stack.idle();
});

test('each kind gives what it says, in every choice and in a stream',
  async () => {
    const cases = [
      [{ guided_choice: ['yes', 'no', 'perhaps'] }, /^(yes|no|perhaps)$/],
      [{ guided_regex: '[A-F]{3,6}-\\d{2}' }, /^[A-F]{3,6}-\d{2}$/],
      [{ guided_grammar: 'root ::= item ("," item){2}\nitem ::= [a-c]+ "!"' },
        /^[a-c]+!,[a-c]+!,[a-c]+!$/],
      [{ structured_outputs: { choice: ['\u00e9t\u00e9', '\ud83d\ude00'] } },
        /^(\u00e9t\u00e9|\ud83d\ude00)$/],
      [{ guided_json: { type: 'integer', minimum: 10, maximum: 99 } },
        /^[1-9]\d$/],
      [{ guided_json: '{"type": "boolean"}' }, /^(true|false)$/],
    ];
    for (const [fields, wanted] of cases) {
      let finished = 0;
      for (const temperature of [0, 2]) {
        const answer = await chat({ ...fields, temperature, n: 3, seed: 7,
          logprobs: true, top_logprobs: 2, min_tokens: 1 });
        assert.equal(answer.status, 200, answer.text);
        for (const choice of answer.json().choices) {
          assert.match(choice.finish_reason, /^(stop|length)$/);
          if (choice.finish_reason === 'stop') {
            assert.match(choice.message.content, wanted);
            finished++;
          }
          assert.ok(choice.logprobs.content.length > 0);
          for (const token of choice.logprobs.content) {
            assert.ok(token.logprob <= 0); // of the raw logits
          }
        }
      }
      const s = await stream(`${stack.url}/v1/chat/completions`, {
        messages: [{ role: 'user', content: 'Go' }], stream: true,
        max_tokens: 200, temperature: 2, seed: 3, ...fields }).finished;
      assert.equal(s.status, 200);
      assert.ok(s.done);
      assert.equal(s.events.flatMap((e) => e.choices)
        .map((c) => c.finish_reason).find(Boolean), 'stop');
      assert.match(s.text(), wanted);
      // of six: the greedy three are alike, and may repeat until max_tokens
      assert.ok(finished >= 3, `${finished} of 6 with `
        + `${JSON.stringify(fields)}`);
    }
  });

test('/metrics counts masks, and those that leave no choice', async () => {
  const masks = async () => {
    const m = await stack.metrics();
    return ['tokenring_grammar_masks_total',
      'tokenring_grammar_masks_single_total'].map((name) => m.value(name));
  };
  const took = async (fields) => {
    const [all, single] = await masks();
    const r = await chat({ temperature: 0, max_tokens: 12, ...fields });
    assert.equal(r.status, 200, r.text);
    const [all2, single2] = await masks();
    return [all2 - all, single2 - single, r.json().usage.completion_tokens];
  };
  assert.deepEqual((await took({})).slice(0, 2), [0, 0]);
  const [free, chosen, tokens] = await took({ guided_regex: '[a-z ]{200}' });
  assert.deepEqual([free, chosen], [tokens, 0]);
  // no token of the vocabulary has two of these
  const [all, forced, n] = await took({ guided_choice: ['\u{1f60b}'.repeat(9)] });
  assert.equal(all, n);
  assert.equal(forced, n);
});

test('json_object is an object; the end comes even before min_tokens',
  async () => {
    let finished = 0;
    for (let seed = 0; seed < 8; seed++) {
      const answer = await chat({ response_format: { type: 'json_object' },
        temperature: 1.5, seed, max_tokens: 200, min_tokens: 150 });
      assert.equal(answer.status, 200, answer.text);
      const { message, finish_reason: reason } = answer.json().choices[0];
      if (reason === 'stop') {
        const value = JSON.parse(message.content);
        assert.equal(Object.prototype.toString.call(value), '[object Object]',
          message.content);
        finished++;
      }
    }
    assert.ok(finished > 0, 'none of 8 finished');
    const answer = await chat({ guided_choice: ['a'], min_tokens: 50 });
    assert.equal(answer.json().choices[0].message.content, 'a');
    assert.equal(answer.json().choices[0].finish_reason, 'stop');
  });

test('biases and penalties choose among what fits; a stop string may cut it',
  async () => {
    const bias = Object.fromEntries(Array.from({ length: 300 },
      (_, i) => [String(20 + i), 100])); // text that no such answer begins with
    const cases = [{ logit_bias: bias },
      { frequency_penalty: 2, presence_penalty: 2 },
      { repetition_penalty: 2, temperature: 0 }];
    for (const fields of cases) {
      for (let seed = 0; seed < 4; seed++) {
        const { message, finish_reason: reason } = (await chat({ temperature: 1,
          seed, ...fields, response_format: format(schemas[0]) }))
          .json().choices[0];
        assert.equal(reason, 'stop', message.content);
        assert.ok(checks[0](JSON.parse(message.content)), message.content);
      }
    }
    const whole = { seed: 1, response_format: format(schemas[0]) };
    const all = (await chat(whole)).json().choices[0].message.content;
    const cut = (await chat({ ...whole, stop: [','] })).json().choices[0];
    assert.equal(cut.finish_reason, 'stop');
    assert.equal(cut.message.content, all.slice(0, all.indexOf(',')));
  });

test('what cannot be compiled is one request\'s 400', async () => {
  const answer = await chat({ response_format: format({ type: 'array',
    uniqueItems: true }) });
  assert.equal(answer.status, 400);
  assert.equal(answer.json().error.message, 'Invalid schema for '
    + 'response_format \'thing\': \'uniqueItems\' at / is not supported.');
  assert.equal(answer.json().error.param, 'response_format');
  // without strict it is left out
  const loose = await chat({ response_format: format({ type: 'array',
    maxItems: 1, uniqueItems: true }, false) });
  assert.equal(loose.status, 200, loose.text);
});

// Hostile in different ways; `i` makes each of them new to the cache.
const hostile = [
  (i) => ({ type: 'object', properties: Object.fromEntries(
    Array.from({ length: 4000 }, (_, k) => [`p${i}_${k}`,
      { type: 'string' }])) }),
  (i) => ({ type: 'string', pattern: `^(a{1,${900 + i}}){1,900}$` }),
  (i) => ({ type: 'string', pattern: `(a|b)*a(a|b){${20 + i}}` }),
  (i) => ({ allOf: Array.from({ length: 20 }, (_, k) => ({ anyOf: [
    { required: [`a${i}_${k}`] }, { required: [`b${i}_${k}`] }] })) }),
  (i) => ({ enum: Array.from({ length: 9000 }, (_, k) => `v${i}_${k}`) }),
  (i) => ({ type: 'array', minItems: 1e6 + i, items: {} }),
];

test('64 hostile schemas stop nobody', async () => {
  const url = `${stack.url}/v1/chat/completions`;
  const plain = Array.from({ length: 16 }, (_, i) => endless(i, 60));
  const alone = [];
  for (const body of plain) alone.push(await stream(url, body).finished);
  const streams = plain.map((body) => stream(url, body).finished);
  const answers = Array.from({ length: 64 }, (_, i) => chat({ max_tokens: 20,
    response_format: format(hostile[i % hostile.length](i)) }));
  for (const answer of await Promise.all(answers)) {
    assert.ok([200, 400, 429].includes(answer.status), answer.text);
  }
  (await Promise.all(streams)).forEach((s, i) => {
    assert.ok(s.done && !s.cut, `stream ${i} ended`);
    assert.equal(s.text(), alone[i].text(), `stream ${i}`);
  });
  await stack.idle();
  assert.deepEqual(stack.complaints(), []);
});
