'use strict';
//
// Engines that hang: stopped amid streams (SIGSTOP), or with a step loop that does
// not come round.  Where requests may move (tokenring_migrate), the gateway closes
// the channel: they go on elsewhere, and what the engine says when it goes on
// (SIGCONT) reaches nobody.  Where they may not, they wait.

const { describe, test } = require('node:test');
const assert = require('node:assert/strict');
const { spawn, spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { ROOT, BUILD, Stack, until, sleep, halt } = require('../lib/stack');
const { stream } = require('../lib/http');
const { story } = require('../lib/prompts');

const CPU = { kv_policy: 'full', kv_memory: '64m', max_num_seqs: 8 };
const FLEET = { engine: CPU, engines: { second: CPU }, pass: 'fleet',
  http: 'tokenring_engine fleet unix:DIR/main.sock unix:DIR/second.sock;' };

const ask = (stack, i, where = '') => stream(`${stack.url}${where}/v1/completions`,
  { model: 'pocket', prompt: `${story(i)} `, max_tokens: 200, ignore_eos: true,
    temperature: 0.8, seed: 40 + i, stream: true,
    stream_options: { include_usage: true } });

const whole = async (s) => {
  await s.finished;
  assert.ok(s.done, s.raw.slice(-500));
  return { text: s.text(), tokens: s.events.at(-1).usage.completion_tokens };
};

const wakeAll = (stack) => {
  for (const e of [stack.engine, ...stack.others]) {
    if (e.pid) e.signal('SIGCONT');
  }
};

// Most of the time they wait.
describe('an engine hangs', { concurrency: 3 }, () => {
  test('stopped amid streams: they go on at the other engine', async () => {
    const stack = await Stack.start({ ...FLEET,
      location: 'tokenring_migrate 3 timeout=60s strict;' });
    stack.complaints = () => [];
    try {
      await stack.connected(2);
      const want = await Promise.all([0, 1, 2, 3].map((i) =>
        whole(ask(stack, i))));
      const streams = want.map((_, i) => ask(stack, i));
      await Promise.all(streams.map((s) => s.begun()));
      await halt(stack.engine.pid);
      await until(() => /channel closed, .*: the engine does not answer/
        .test(stack.errorLog()), 'its channel is closed');
      // It wakes up with requests that are at the other engine now.
      stack.engine.signal('SIGCONT');
      assert.deepEqual(await Promise.all(streams.map(whole)), want);
      const m = await stack.metrics();
      assert.ok(m.value('tokenring_gateway_migrations_total') > 0);
      assert.equal(m.value('tokenring_gateway_unmovable_total'), 0);
      await stack.connected(2);
      await stack.idle();
      assert.deepEqual(await whole(ask(stack, 0)), want[0]);
    } finally {
      wakeAll(stack);
      await stack.stop();
    }
  });

  test('stopped alone, it gets its streams back when it goes on', async () => {
    const stack = await Stack.start({ engine: CPU,
      location: 'tokenring_migrate 3 timeout=60s strict;',
      server: `location /stays/v1/ { tokenring_pass main; }
        location /brief/v1/ {
          tokenring_migrate 3 timeout=200ms;
          tokenring_pass main;
        }` });
    stack.complaints = () => [];
    try {
      const want = [await whole(ask(stack, 0)), await whole(ask(stack, 1))];
      const streams = [ask(stack, 0), ask(stack, 1)];
      const brief = ask(stack, 2, '/brief');
      await Promise.all([...streams, brief].map((s) => s.begun()));
      await halt(stack.engine.pid);
      await brief.finished;
      assert.ok(!brief.done, 'nobody took it in time');
      assert.match(brief.raw, /engine_unavailable/);
      assert.ok(streams.every((s) => !s.done));
      stack.engine.signal('SIGCONT');
      assert.deepEqual(await Promise.all(streams.map(whole)), want);
      // One that cannot move has nothing to gain from a closed channel.
      const stays = ask(stack, 0, '/stays');
      await stays.begun();
      const lost = (await stack.metrics())
        .value('tokenring_gateway_engine_losses_total');
      await halt(stack.engine.pid);
      await sleep(3500);
      stack.engine.signal('SIGCONT');
      assert.deepEqual(await whole(stays), want[0]);
      assert.equal((await stack.metrics())
        .value('tokenring_gateway_engine_losses_total'), lost);
      await stack.idle();
    } finally {
      wakeAll(stack);
      await stack.stop();
    }
  });

  test('a step loop that does not come round: after tokenring_stall_timeout',
    async () => {
      const made = spawnSync('make', ['-s', 'fake-engine', `B=${BUILD}`],
        { cwd: ROOT, encoding: 'utf8' });
      assert.equal(made.status, 0, made.stderr);
      const stack = await Stack.start({ engine: null, pass: 'fleet',
        http: 'tokenring_engine fleet unix:DIR/stuck.sock unix:DIR/well.sock;',
        location: `tokenring_migrate 3 timeout=60s;
          tokenring_stall_timeout 2500ms;` });
      stack.complaints = () => [];
      const engines = [['stuck', '--stuck'], ['well']].map(([name, ...args]) =>
        spawn(path.join(BUILD, 'tests/fake_engine'),
          [`${stack.dir}/${name}.sock`, ...args], { stdio: 'inherit' }));
      try {
        await until(() => ['stuck', 'well'].every((name) =>
          fs.existsSync(`${stack.dir}/${name}.sock`)), 'both sockets');
        await stack.connected(2);
        const body = { fake: 'tokens', count: 24, ms: 250, stream: true };
        const url = `${stack.url}/v1/chat/completions`;
        const streams = [stream(url, body), stream(url, body)];
        for (const s of streams) {
          await s.finished;
          assert.ok(s.done, s.raw.slice(-400));
          assert.equal(s.text(), Array.from({ length: 24 }, (_, i) => `t${i} `)
            .join(''));
        }
        assert.ok((await stack.metrics())
          .value('tokenring_gateway_migrations_total') >= 1);
      } finally {
        await stack.stop();
        await Promise.all(engines.map((e) => new Promise((resolve) => {
          e.once('exit', resolve);
          e.kill('SIGTERM');
        })));
      }
    });
});
