'use strict';
//
// service_tier and tier= of a plan: what a request may ask for, what its response
// says, and that a tenant's batch jobs do not hold up its other requests
// (docs/fleet.md, who runs next).

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { post, stream } = require('../lib/http');
const { withPlans } = require('../lib/plans');

test('a request is served in the tier that it asks for, if its plan has it',
  withPlans(`tokenring_plan paid tier=priority;
    tokenring_plan cheap tier=flex;`, async (stack, ask) => {
    const tier = async (key, service_tier) => {
      const r = await ask(key, { service_tier });
      assert.equal(r.status, 200, r.text);
      return r.json().service_tier;
    };
    assert.equal(await tier('a'), undefined);
    assert.equal(await tier('a', null), undefined);
    for (const [asked, free, paid, cheap] of [
      ['auto', 'default', 'priority', 'flex'],
      ['default', 'default', 'default', 'flex'],
      ['scale', 'default', 'default', 'flex'],
      ['flex', 'flex', 'flex', 'flex'],
      ['priority', 'default', 'priority', 'flex'],
    ]) {
      assert.equal(await tier('a', asked), free);
      assert.equal(await tier('paid-a', asked), paid);
      assert.equal(await tier('cheap-a', asked), cheap);
    }
    const r = await ask('a', { service_tier: 'fast' });
    assert.equal(r.status, 400, r.text);
    assert.equal(r.json().error.param, 'service_tier');
    assert.match(r.json().error.message,
      /'fast'\. Expected 'auto', 'default', 'flex'/);
    assert.equal((await ask('a', { service_tier: 3 })).status, 400);

    const s = stream(`${stack.url}/v1/chat/completions`, { stream: true,
      max_tokens: 3, service_tier: 'flex',
      messages: [{ role: 'user', content: 'hi' }] });
    await s.finished;
    assert.ok(s.events.length > 1 && s.events.every((e) =>
      e.service_tier === 'flex'), s.raw);

    const response = await post(`${stack.url}/v1/responses`,
      { input: 'hi', max_output_tokens: 3, service_tier: 'priority' });
    assert.equal(response.json().service_tier, 'default', response.text);
    const message = { max_tokens: 3,
      messages: [{ role: 'user', content: 'hi' }] };
    assert.equal((await post(`${stack.url}/v1/messages`,
      { ...message, service_tier: 'standard_only' })).status, 200);
    assert.equal((await post(`${stack.url}/v1/messages`,
      { ...message, service_tier: 'flex' })).status, 400);
  }));

test('a flood in the tier flex lets the others of its tenant by', withPlans('',
  async (stack, ask) => {
    const held = stream(`${stack.url}/v1/completions`, { prompt: 'x',
      max_tokens: 4000, ignore_eos: true, stream: true },
    { headers: { 'X-Key': 'a' } });
    await held.begun();
    const order = [];
    const send = (name, more) => ask('a', { max_tokens: 20, ignore_eos: true,
      ...more }).then((r) => { order.push(name); return r; });
    const all = [];
    for (let i = 0; i < 6; i++) {
      all.push(send('flex', { service_tier: 'flex' }));
      await stack.active(2 + i);
    }
    for (let i = 0; i < 2; i++) {
      all.push(send('default'));
      await stack.active(8 + i);
    }
    held.hangUp();
    await held.finished.catch(() => {});
    for (const r of await Promise.all(all)) {
      assert.equal(r.status, 200, r.text);
    }
    assert.ok(order.lastIndexOf('default') < order.lastIndexOf('flex') - 1,
      `${order}`);
  }, { engine: { backend: 'null', null_rate: 200, kv_memory: '64m',
    max_num_seqs: 1 } }));
