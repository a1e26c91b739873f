'use strict';
//
// An engine dies at every border between two records of a request: when the
// record in front of it is published, and just before that.  Two scripted engines
// (fake_engine.c) start again by themselves; clients see the whole answer, once.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { spawn, spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { ROOT, BUILD, Stack, until } = require('../lib/stack');
const { post, stream, textOf } = require('../lib/http');

const COUNT = 4;
let stack, url;
const engines = [];
let n = 0; // deaths

before(async () => {
  const made = spawnSync('make', ['-s', 'fake-engine', `B=${BUILD}`],
    { cwd: ROOT, encoding: 'utf8' });
  assert.equal(made.status, 0, made.stderr);
  stack = await Stack.start({ engine: null, pass: 'fleet',
    http: 'tokenring_engine fleet unix:DIR/one.sock unix:DIR/two.sock;',
    location: 'tokenring_migrate 1 timeout=60s;' });
  for (const name of ['one', 'two']) {
    const socket = path.join(stack.dir, `${name}.sock`);
    engines.push(spawn(path.join(BUILD, 'tests/fake_engine'),
      [socket, '--restart'], { stdio: 'inherit' }));
    await until(() => fs.existsSync(socket), socket);
  }
  await stack.connected(2);
  url = `${stack.url}/v1/chat/completions`;
});

after(async () => {
  if (stack) {
    const complaints = stack.complaints();
    await stack.stop();
    await Promise.all(engines.map((e) => new Promise((resolve) => {
      e.once('exit', resolve);
      e.kill('SIGTERM');
    })));
    assert.deepEqual(complaints, []);
  }
});

const said = (choice) => Array.from({ length: COUNT },
  (_, i) => `c${choice} t${i} `).join('');

async function streamed(body, why) {
  const s = await stream(url, { ...body, stream: true, include_usage: true })
    .finished;
  assert.ok(s.done && !s.cut, `${why}: ${s.raw.slice(-400)}`);
  const ends = s.events.flatMap((e) => e.choices || [])
    .filter((c) => c.finish_reason);
  return {
    texts: Array.from({ length: body.choices }, (_, k) => textOf(s.events, k)),
    ends: ends.map((c) => c.index).sort(),
    tokens: s.events.at(-1).usage.completion_tokens,
  };
}

async function whole(body, why) {
  const r = await post(url, body);
  assert.equal(r.status, 200, `${why}: ${r.text}`);
  const { choices, usage } = r.json();
  return {
    texts: choices.map((c) => c.message.content),
    ends: choices.filter((c) => c.finish_reason).map((c) => c.index),
    tokens: usage.completion_tokens,
  };
}

for (const [name, run] of [['a stream', streamed], ['a whole answer', whole]]) {
  for (const choices of [1, 3]) {
    test(`${name} with ${choices} choices`, async () => {
      const all = Array.from({ length: choices }, (_, k) => k);
      // ACCEPTED, the tokens, a FINISH each; behind the last one it is over.
      const records = 1 + choices * COUNT + choices;
      for (let at = 0; at <= records; at++) {
        for (const early of [false, true]) {
          // A request that finds no engine at all has nothing to move.
          await until(async () => (await stack.metrics())
            .value('tokenring_connected_workers') > 0, 'an engine');
          const why = `behind record ${at}${early ? ', unpublished' : ''}`;
          const once = path.join(stack.dir, `once${++n}`);
          fs.writeFileSync(once, '');
          assert.deepEqual(await run({ fake: 'dies', count: COUNT, choices, at,
            early, once }, why), { texts: all.map(said), ends: all,
            tokens: choices * COUNT }, why);
          assert.ok(!fs.existsSync(once), `${why}: it died`);
        }
      }
    });
  }
}

test('each was a move, or a request that was sent again', async () => {
  const m = await stack.metrics();
  // From the first token that was published to the last FINISH that was not.
  assert.equal(m.value('tokenring_gateway_migrations_total'),
    2 * [1, 3].reduce((sum, c) => sum + 2 * (c * COUNT + c - 1), 0));
  // Before that: two borders, and the third unpublished.
  assert.equal(m.value('tokenring_gateway_retries_total'), 2 * 2 * 5);
  assert.equal(m.value('tokenring_gateway_unmovable_total'), 0);
  assert.equal(m.value('tokenring_gateway_protocol_errors_total'), 0);
});
