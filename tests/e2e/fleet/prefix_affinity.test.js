'use strict';
//
// A conversation's next turn goes to the engine that computed the one before
// (tokenring_prefix_affinity), unless that has much more to do: two engines with a
// prefix cache, and what they say was cached.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { Stack, until } = require('../lib/stack');
const { post, stream } = require('../lib/http');
const { story } = require('../lib/prompts');

const CPU = { kv_policy: 'full', kv_memory: '96m', max_num_seqs: 8 };
let stack;

before(async () => {
  stack = await Stack.start({ engine: CPU, engines: { second: CPU },
    pass: 'fleet',
    http: `tokenring_engine fleet unix:DIR/main.sock unix:DIR/second.sock;
      tokenring_engine only0 unix:DIR/main.sock;
      tokenring_engine only1 unix:DIR/second.sock;`,
    location: 'tokenring_prefix_affinity on;',
    server: `location /off/v1/ { tokenring_pass fleet; }
      location /only0/v1/ { tokenring_pass only0; }
      location /only1/v1/ { tokenring_pass only1; }` });
  await stack.connected(2);
});

after(async () => { if (stack) await stack.stop(); });

// A conversation, whose first message is longer than a few blocks.
const begin = (name) => [{ role: 'system', content: `${name}: ${
  Array.from({ length: 60 }, (_, i) => story(i)).join(' ')}` }];

async function turn(messages, where = '') {
  messages.push({ role: 'user', content: `And then, number ${messages.length}?` });
  const r = await post(`${stack.url}${where}/v1/chat/completions`, {
    model: 'pocket', messages, max_tokens: 4, temperature: 0 });
  assert.equal(r.status, 200, r.text);
  const { usage, choices } = r.json();
  messages.push(choices[0].message);
  return usage;
}

// The share of the prompts of later turns that was cached.
async function cached(where, names) {
  const talks = names.map(begin);
  for (const t of talks) await turn(t, where);
  let prompt = 0, hit = 0;
  for (let k = 0; k < 3; k++) {
    for (const t of talks) {
      const usage = await turn(t, where);
      prompt += usage.prompt_tokens;
      hit += usage.prompt_tokens_details.cached_tokens;
    }
  }
  return hit / prompt;
}

test('conversations find their cache again', async () => {
  const value = async (name) => (await stack.metrics())
    .value(`tokenring_gateway_prefix_${name}_total`);
  // Three, so that taking turns sends each to either engine.
  const off = await cached('/off', ['red', 'green', 'blue']);
  assert.equal(await value('lookups'), 0);
  const on = await cached('', ['cyan', 'pink', 'grey']);
  assert.ok(on > 0.9, `${on} cached`);
  assert.ok(on > off + 0.2, `${on} with, ${off} without`);
  assert.equal(await value('lookups'), 12);
  assert.equal(await value('hits'), 9);
  assert.equal(await value('stale'), 0);
});

test('others, short bodies, and another key go by the load alone', async () => {
  const m = async () => (await stack.metrics())
    .value('tokenring_gateway_prefix_hits_total');
  const talk = begin('black');
  await turn(talk);
  const hits = await m();
  for (const content of ['short', ...talk.map((t) => `x${t.content}`)]) {
    assert.equal((await post(`${stack.url}/v1/chat/completions`, {
      model: 'pocket', max_tokens: 1, messages: [{ role: 'user', content }] }))
      .status, 200);
  }
  assert.equal((await post(`${stack.url}/v1/chat/completions`, {
    model: 'pocket', max_tokens: 1, messages: talk },
  { Authorization: 'Bearer another' })).status, 200);
  assert.equal(await m(), hits);
});

test('an engine with much more to do, and one that has gone, are passed over',
  async () => {
    const talk = begin('white');
    const where = async () => {
      const all = (await stack.metrics()).samples.filter((s) => s.name
        === 'tokenring_prompt_tokens_total').reduce((sum, s) => {
        sum[s.labels.replica] = (sum[s.labels.replica] || 0) + s.value;
        return sum;
      }, {});
      return [all[0] || 0, all[1] || 0];
    };
    let was = await where();
    await turn(talk);
    let now = await where();
    const warm = now[0] > was[0] ? 0 : 1;
    // Some thousand tokens of prompts at the warm one.
    const busy = Array.from({ length: 6 }, () => stream(
      `${stack.url}/only${warm}/v1/chat/completions`, { model: 'pocket',
        messages: talk, max_tokens: 2000, stream: true, ignore_eos: true }));
    await Promise.all(busy.map((s) => s.begun()));
    was = await where();
    await turn(talk);
    now = await where();
    assert.ok(now[1 - warm] > was[1 - warm], `${was} ${now} ${warm}`);
    for (const s of busy) s.hangUp();
    await Promise.all(busy.map((s) => s.finished));
    await stack.idle();
    // Another run of it has nothing.
    const engine = [stack.engine, ...stack.others][warm];
    await engine.kill('SIGTERM');
    await engine.exited;
    await turn(talk);
    await engine.start();
    await until(() => engine.connects(), 'it is back');
    await stack.connected(2);
    const usage = await turn(talk);
    assert.ok(usage.prompt_tokens_details.cached_tokens
      > 0.9 * usage.prompt_tokens, JSON.stringify(usage));
  });
