'use strict';
//
// Prefixes in host memory (cache_memory) beside a device's pool: a conversation
// that others have driven out of it goes on as if it had never left, at 16 bits and
// compressed, and usage, metrics and `tokenring stats` say where it came from; with
// files, what host memory has lost comes from these.
//
// The first one to come back is always fetched, since speeds are not known yet.  Later
// ones are fetched or computed, whichever is sooner on this machine (kv_plan.h).

const { test } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { spawnSync } = require('node:child_process');
const { Stack, until, BUILD } = require('../lib/stack');
const { request } = require('../lib/http');
const { story } = require('../lib/prompts');
const { long, ask, told } = require('../lib/turns');

// The device that the tests are told of, or one of software.
const DEVICE = process.env.TR_BACKEND ? {} : {
  backend: 'cuda', cuda_library: path.join(BUILD, 'tests/libtokenring_soft.so'),
  max_num_seqs: 8, max_batch_tokens: 256 };
const ENGINE = { max_model_len: 600, swap_memory: 0, ...DEVICE };

const metric = async (to, name) => Number(
  (await request(`${to.url}/metrics`)).text.match(
    new RegExp(`^tokenring_prefix_${name}(?:{[^}]*})? (\\d+)`, 'm'))[1]);

// Others take its room; what each leaves is in host memory before the next comes.
async function crowd(stack, n) {
  for (let i = 0; i < n; i++) {
    const before = await metric(stack, 'host_written_total');
    await ask(stack, [{ role: 'user',
      content: `${Math.random()} ${long(20 * i, 20)}` }]);
    await until(async () =>
      await metric(stack, 'host_written_total') > before);
  }
}

for (const [kv_policy, kv_memory, others] of [
  ['full', '10m', 8], ['diffkv', '5m', 12], ['uniform', '5m', 12]]) {
  test(`${kv_policy}: a conversation goes on that was driven out`, async () => {
    const [stack, steady] = await Promise.all([
      Stack.start({ engine: { ...ENGINE, kv_policy, kv_memory,
        cache_memory: '64m' } }),
      Stack.start({ engine: { ...ENGINE, kv_policy, kv_memory: '64m' } })]);
    try {
      const messages = [{ role: 'system', content: long(1, 20) }];
      let read = 0;
      for (let turn = 0; turn < 3; turn++) {
        messages.push({ role: 'user', content: story(100 + turn) });
        const tokens = await metric(stack, 'host_tokens_total');
        const a = await ask(stack, messages);
        const b = await ask(steady, messages);
        const fetched = await metric(stack, 'host_read_total') - read;
        assert.deepEqual(told(a), told({ ...b,
          cached: fetched ? b.cached : a.cached }));
        assert.ok(turn === 2 || fetched === turn, `${fetched} in turn ${turn}`);
        if (fetched) {
          assert.ok(a.cached > 0.6 * a.prompt && a.cached < a.prompt,
            `turn ${turn}: ${a.cached} of ${a.prompt}`);
          // All that was found was fetched.
          const came = await metric(stack, 'host_tokens_total') - tokens;
          assert.ok(came >= a.cached, `${came} of ${a.cached}`);
        }
        read += fetched;
        messages.push({ role: 'assistant', content: a.text });
        if (turn !== 2) await crowd(stack, others);
      }
      assert.ok(await metric(stack, 'evicted_blocks_total') > 0);
      // Nobody else's: a salt is a key of its own.
      assert.equal((await ask(stack, messages.slice(0, -1),
        { cache_salt: 'other' })).cached, 0);
      const stats = JSON.parse(spawnSync(path.join(BUILD, 'bin/tokenring'),
        ['stats', '-e', stack.engine.socket, '--once', '--json'],
        { encoding: 'utf8' }).stdout);
      assert.equal(stats.prefix_host.read, read);
      assert.ok(stats.prefix_host.bytes > 0 && stats.prefix_host.prefixes > 0);
    } finally {
      await stack.stop();
      await steady.stop();
    }
  });
}

test('what host memory has lost comes from a file', async () => {
  const top = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-host-'));
  process.on('exit', () => fs.rmSync(top, { recursive: true, force: true }));
  const stack = await Stack.start({ engine: { ...ENGINE, kv_policy: 'full',
    kv_memory: '10m', cache_memory: '6m', cache_dir: path.join(top, 'cache') } });
  try {
    const messages = [{ role: 'user', content: long(1, 20) }];
    const one = await ask(stack, messages);
    await until(async () => await metric(stack, 'files_written_total') >= 1);
    await crowd(stack, 10);
    assert.ok(await metric(stack, 'host_evicted_total') > 0);
    assert.deepEqual(told(await ask(stack, messages)),
      told({ ...one, cached: one.prompt - 1 }));
    assert.equal(await metric(stack, 'files_read_total'), 1);
    assert.equal(await metric(stack, 'host_read_total'), 0);
  } finally {
    await stack.stop();
  }
});
