'use strict';
//
// The output of resumable requests in a real Redis, as the engine writes it: of
// clients that stay, that leave, whose worker dies, whose engine stops.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { until } = require('../lib/stack');
const { post, stream } = require('../lib/http');
const { output, RECORD, deltaText, errorMessage } = require('../lib/redis');
const { withStack, completion, idOf, state, FAST, SLOW }
  = require('../lib/redis_stack');

test('the output of a resumable request', async () => {
  await withStack({ engine: { ...FAST, null_rate: 300 },
    location: 'tokenring_resumable on;' }, async (stack, redis) => {
    const url = `${stack.url}/v1/completions`;
    const answer = await post(url, completion(150));
    assert.equal(answer.status, 200);
    const id = idOf(answer.text);
    const hash = await state(redis, id, 'done');
    assert.equal(hash.resumable, '1');
    const records = output(await redis.stream(`tr:out:{${id}}`));
    assert.equal(records[0].type, RECORD.ACCEPTED);
    assert.equal(records[records.length - 1].type, RECORD.FINISH);
    assert.equal(records.filter((r) => r.type === RECORD.DELTA)
      .map((r) => deltaText(r.payload)).join(''), answer.json().choices[0].text);
    const ttl = await redis.command('PTTL', `tr:out:{${id}}`);
    assert.ok(ttl > 0 && ttl <= 3600000, `${ttl}`);

    // Live, the same bytes come as they are written.
    const seen = [];
    const s = stream(url, completion(20000, { stream: true }));
    await s.when(() => s.raw.length > 0);
    const two = idOf(s.raw);
    const stop = await redis.subscribe(`tr:live:{${two}}`,
      (message) => seen.push(message));
    await until(() => seen.length > 9, 'messages');
    s.hangUp();
    await state(redis, two, 'cancelled');
    stop();
    const entries = await redis.stream(`tr:out:{${two}}`);
    for (const message of seen) {
      const at = message.indexOf('\n');
      const [first, last] = message.toString('utf8', 0, at).split(' ')
        .map(Number);
      const i = entries.findIndex((e) => e.id === `${last}-0`);
      assert.ok(i >= 0, `${last} is an entry`);
      assert.equal(first, i === 0 ? 1
        : Number(entries[i - 1].id.split('-')[0]) + 1);
      assert.ok(message.subarray(at + 1).equals(entries[i].r));
    }
  });
});

test('a request that goes on without its client, and without its worker',
  async () => {
    await withStack({ engine: { ...FAST, null_rate: 100 },
      location: 'tokenring_resumable on;' }, async (stack, redis) => {
      const url = `${stack.url}/v1/completions`;
      const detach = { 'X-Tokenring-Detach': '1' };
      const s = stream(url, completion(800, { stream: true }),
        { headers: detach });
      await s.when(() => s.raw.length > 0);
      const one = idOf(s.raw);
      s.hangUp();
      await state(redis, one, 'detached');

      const t = stream(url, completion(800, { stream: true }),
        { headers: detach });
      await t.when(() => t.raw.length > 0);
      const two = idOf(t.raw);
      for (const pid of stack.workers()) process.kill(pid, 'SIGKILL');
      await state(redis, two, 'detached');
      for (const id of [one, two]) {
        const hash = await state(redis, id, 'done');
        assert.equal(hash.completion_tokens, '800');
        assert.equal(hash.detach, '1');
        const records = output(await redis.stream(`tr:out:{${id}}`));
        assert.equal(records[records.length - 1].type, RECORD.FINISH);
        assert.ok(records.length > 50);
      }
      // A killed worker is in the error log, and nothing else is.
      stack.complaints = () => [];
    });
  });

test('an engine that stops ends what it has in Redis', async () => {
  await withStack({ engine: { ...SLOW, drain_timeout: '0s' },
    location: 'tokenring_resumable on;' }, async (stack, redis) => {
    const s = stream(`${stack.url}/v1/completions`,
      completion(4000, { stream: true }));
    await s.when(() => s.raw.length > 0);
    const id = idOf(s.raw);
    await state(redis, id, 'decode');
    await stack.engine.kill('SIGTERM');
    const hash = await redis.hash(`tr:req:{${id}}`);
    assert.equal(hash.state, 'failed');
    assert.equal(hash.error_status, 'TR_ERR_DRAINING');
    const records = output(await redis.stream(`tr:out:{${id}}`));
    const last = records[records.length - 1];
    assert.equal(last.type, RECORD.ERROR);
    assert.match(errorMessage(last.payload), /stopping|shutting down/);
    await s.finished;
  });
});
