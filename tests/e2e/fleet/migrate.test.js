'use strict';
//
// Streams that survive their engine (tokenring_migrate): engines are killed again
// and again, and clients see a pause and nothing else.  On the CPU with kv_policy
// full, every answer is the one of a run that nobody disturbed, byte for byte:
// sampled, with several choices, stop strings, penalties, logprobs, echo.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { execFile } = require('node:child_process');
const path = require('node:path');
const { promisify } = require('node:util');
const { BUILD, Stack, until, sleep, alive, freePort } = require('../lib/stack');
const { post, stream } = require('../lib/http');
const { ask, counts, gathered, run } = require('../lib/moved');
const { story } = require('../lib/prompts');

const CPU = { kv_policy: 'full', kv_memory: '64m', max_num_seqs: 16 };

const all = (stack, n) => Promise.all(Array.from({ length: n }, (_, i) =>
  run(stack, i, i % 5 !== 4)));

// Requests run; then a moment, so that each kill meets other tokens.
async function underWay(stack, over, k) {
  await until(async () => {
    if (over()) return true;
    const running = (await stack.metrics()).text
      .matchAll(/^tokenring_num_requests_running\S* (\d+)/gm);
    return [...running].some((m) => Number(m[1]) > 0);
  }, 'requests run');
  await sleep(20 + 13 * (k % 5));
}

async function disturbed(options, n, disturb) {
  const stack = await Stack.start({ engine: CPU, ...options });
  // What a killed engine leaves in the log is not asked about.
  stack.complaints = () => [];
  try {
    await stack.connected(1 + stack.others.length);
    const want = await all(stack, n);
    const moved = async () => (await stack.metrics())
      .value('tokenring_gateway_migrations_total') > 0;
    let rounds = 0;
    // A busy machine may look when all is over.
    for (let tries = 0; tries < 6 && !(rounds >= 2 && await moved()); tries++) {
      let over = false;
      const answers = all(stack, n).finally(() => { over = true; });
      rounds += await disturb(stack, () => over);
      const got = await answers;
      for (let i = 0; i < n; i++) {
        assert.deepEqual(got[i], want[i], `${i}`);
      }
    }
    assert.ok(rounds >= 2, `${rounds} engines were killed`);
    const m = await stack.metrics();
    assert.ok(m.value('tokenring_gateway_migrations_total') > 0);
    assert.equal(m.value('tokenring_gateway_unmovable_total'), 0);
    const pauses = m.value('tokenring_gateway_migration_seconds_count');
    assert.ok(pauses > 0
      && pauses <= m.value('tokenring_gateway_migrations_total'), pauses);
    assert.equal(m.value('tokenring_gateway_migration_seconds_bucket',
      { le: '+Inf' }), pauses);
    assert.ok(m.value('tokenring_gateway_migration_seconds_sum') > 0);
    await stack.idle();
  } finally {
    await stack.stop();
  }
}

test('two engines, killed in turns', () => disturbed({
  engines: { second: CPU }, pass: 'fleet',
  http: 'tokenring_engine fleet unix:DIR/main.sock unix:DIR/second.sock;',
  location: 'tokenring_migrate 100 timeout=60s strict;',
}, 16, async (stack, over) => {
  const engines = [stack.engine, stack.others[0]];
  let k = 0;
  while (k < 8 && !over()) {
    await underWay(stack, over, k);
    if (over()) break;
    const e = engines[k % 2];
    await e.kill();
    await e.start();
    await until(() => over() || e.connects(), 'it is back');
    k++;
  }
  return k;
}));

// Kills two engines by turns, so many times, each when something is under way.
const killedByTurns = (times) => async (stack, over) => {
  const engines = [stack.engine, stack.others[0]];
  let k = 0;
  while (k < times && !over()) {
    await underWay(stack, over, k);
    if (over()) break;
    await engines[k % 2].kill();
    await engines[k % 2].start();
    await until(() => over() || engines[k % 2].connects(), 'it is back');
    k++;
  }
  return k;
};

// Its cache is made as it was at the first engine: the prompt at once, and what
// was said since token by token.
const DIFFKV = { ...CPU, kv_policy: 'diffkv', kv_reuse: 'no', replay: 'decode' };

test('a policy that compresses, with replay decode: the same answers', () =>
  disturbed({ engine: DIFFKV, engines: { second: DIFFKV },
    location: 'tokenring_migrate 100 timeout=60s strict;',
  }, 16, killedByTurns(6)));

test('beside another model: each stays with its own', () => disturbed({
  engines: { second: CPU,
    third: { backend: 'null', served_model_name: 'other' } },
  location: 'tokenring_migrate 100 timeout=60s strict;',
}, 8, killedByTurns(4)));

test('one engine that is killed and comes back', () => disturbed({
  location: 'tokenring_migrate 100 timeout=60s;',
}, 8, async (stack, over) => {
  let k = 0;
  while (k < 5 && !over()) {
    await underWay(stack, over, k);
    if (over()) break;
    await stack.engine.kill();
    await stack.engine.start();
    k++;
  }
  return k;
}));

test('killed before it has accepted a request: the next one gets it', async () => {
  const stack = await Stack.start({ engine: CPU,
    location: 'tokenring_migrate 3 timeout=60s;' });
  stack.complaints = () => [];
  try {
    await stack.connected(1);
    const want = await all(stack, 4);
    stack.engine.signal('SIGSTOP');
    const answers = all(stack, 4);
    await sleep(300);
    await stack.engine.kill();
    await sleep(300); // nobody is there
    await stack.engine.start();
    assert.deepEqual(await answers, want);
    await stack.idle();
  } finally {
    await stack.stop();
  }
});

test('without tokenring_migrate, and beyond its moves, an error ends the stream',
  async () => {
    for (const location of ['', 'tokenring_migrate 0;',
      'tokenring_migrate 1 timeout=300ms;']) {
      const stack = await Stack.start({ engine: { backend: 'null',
        null_rate: 25, kv_memory: '64m' }, location });
      stack.complaints = () => [];
      try {
        const s = stream(`${stack.url}/v1/completions`, { model: 'pocket',
          prompt: 'x', max_tokens: 4000, stream: true });
        await s.begun();
        await stack.engine.kill();
        await s.finished;
        assert.ok(!s.done, 'no [DONE]');
        assert.match(s.raw, /engine_unavailable/);
      } finally {
        await stack.stop();
      }
    }
  });

test('a constrained answer goes on, and stays so', async () => {
  const stack = await Stack.start({ engine: CPU,
    location: 'tokenring_migrate 5 timeout=60s;' });
  stack.complaints = () => [];
  const body = { model: 'pocket', prompt: 'Tell ', max_tokens: 900, stream: true,
    seed: 3, structured_outputs: { regex: '([a-z]{3} [0-9]{4}, ){40,200}' } };
  try {
    const want = await stream(`${stack.url}/v1/completions`, body).finished;
    const s = stream(`${stack.url}/v1/completions`, body);
    await s.begun();
    await stack.engine.kill();
    await stack.engine.start();
    await s.finished;
    assert.ok(s.done, s.raw.slice(-400));
    assert.equal(s.text(), want.text());
    await stack.connected(1);
    await stack.idle();
  } finally {
    await stack.stop();
  }
});

test('tokenring drain --move: running requests go to the other engine', async () => {
  const stack = await Stack.start({ engine: CPU, engines: { second: CPU },
    pass: 'fleet', location: 'tokenring_migrate 5 timeout=60s strict;',
    http: 'tokenring_engine fleet unix:DIR/main.sock unix:DIR/second.sock;' });
  stack.complaints = () => [];
  const drain = (...args) => promisify(execFile)(
    path.join(BUILD, 'bin/tokenring'), ['drain', ...args, stack.engine.socket]);
  try {
    await stack.connected(2);
    const want = await all(stack, 8);
    const answers = all(stack, 8);
    await until(async () => (await stack.metrics())
      .value('tokenring_num_requests_running', { replica: '0' }) > 0, 'some run');
    await drain('--move');
    assert.ok((await stack.metrics()).value('tokenring_gateway_migrations_total')
      + (await stack.metrics()).value('tokenring_gateway_retries_total') > 0);
    assert.deepEqual(await answers, want);
    await assert.rejects(drain('--move', '--undo'), /exclude each other/);
    await drain('--undo');
    assert.deepEqual(await all(stack, 2), want.slice(0, 2));
    await drain('--move', '--exit');
    await stack.engine.exited;
    await stack.engine.start();
    await stack.connected(2);
    await stack.idle();
  } finally {
    await stack.stop();
  }
});

test('tokenring drain --move waits for requests that cannot move', async () => {
  const stack = await Stack.start({ engine: CPU, engines: { second: CPU },
    pass: 'fleet', location: 'tokenring_migrate 5 timeout=60s strict; '
      + 'tokenring_retry_buffer 1k;',
    http: 'tokenring_engine fleet unix:DIR/main.sock unix:DIR/second.sock;' });
  stack.complaints = () => [];
  try {
    await stack.connected(2);
    // one of each kind at each engine: the body of the long one is not kept
    const ask = (prompt) => ({ model: 'pocket', prompt, max_tokens: 300,
      ignore_eos: true, seed: 5, stream: true });
    const bodies = [0, 1, 2, 3].map((i) => ask(i % 2 ? `Story ${i}. `
      : `Story ${i}. `.repeat(150)));
    const texts = async () => {
      const streams = bodies.map((b) => stream(`${stack.url}/v1/completions`, b));
      return { streams, done: Promise.all(streams.map(async (s) => {
        await s.finished;
        assert.ok(s.done, s.raw.slice(-600));
        return s.text();
      })) };
    };
    const want = await (await texts()).done;
    const { streams, done } = await texts();
    await Promise.all(streams.map((s) => s.begun()));
    await promisify(execFile)(path.join(BUILD, 'bin/tokenring'),
      ['drain', '--move', stack.engine.socket]);
    assert.deepEqual(await done, want);
    const m = await stack.metrics();
    assert.ok(m.value('tokenring_gateway_migrations_total') > 0);
    assert.equal(m.value('tokenring_gateway_unmovable_total'), 0);
    await stack.idle();
  } finally {
    await stack.stop();
  }
});

test('an engine that stops gives its requests to another', async () => {
  const brief = { ...CPU, drain_timeout: '0s' };
  const stack = await Stack.start({ engine: brief, engines: { second: brief },
    pass: 'fleet', location: 'tokenring_migrate 5 timeout=60s strict;',
    http: 'tokenring_engine fleet unix:DIR/main.sock unix:DIR/second.sock;' });
  stack.complaints = () => [];
  try {
    await stack.connected(2);
    const want = await all(stack, 8);
    const answers = all(stack, 8);
    await until(async () => (await stack.metrics())
      .value('tokenring_num_requests_running', { replica: '0' }) > 0, 'some run');
    await sleep(200);
    await stack.engine.kill('SIGTERM');
    assert.deepEqual(await answers, want);
    await stack.engine.start();
    await stack.idle();
  } finally {
    await stack.stop();
  }
});

// One runs, the others wait in the queue or at the parser: nothing of them was
// told.  They wait for the engine as those that had begun.
test('requests that had not begun wait for an engine that starts again', async () => {
  const one = { ...CPU, max_num_seqs: 1, drain_timeout: '0s' };
  const stack = await Stack.start({ engine: one,
    location: 'tokenring_migrate 5 timeout=60s strict;' });
  stack.complaints = () => [];
  try {
    const want = await all(stack, 5);
    const answers = all(stack, 5);
    await until(async () => {
      const m = await stack.metrics();
      return m.value('tokenring_num_requests_running') > 0
        && m.value('tokenring_num_requests_waiting') > 0;
    }, 'one runs, others wait');
    await stack.engine.kill('SIGTERM');
    await stack.engine.start();
    assert.deepEqual(await answers, want);
    await stack.idle();
  } finally {
    await stack.stop();
  }
});

// The worker that has it takes nothing new since the reload, and connects to the
// engine for it alone: the stream before it in the queue ends with the engine.
test('the same in a worker that only ends its requests', async () => {
  const stack = await Stack.start({
    engine: { backend: 'null', null_rate: 25, max_num_seqs: 1, kv_memory: '64m' },
    location: 'tokenring_migrate 5 timeout=60s;',
    server: `location /ends/v1/ { tokenring_pass main; }` });
  stack.complaints = () => [];
  try {
    const body = { max_tokens: 5000, ignore_eos: true };
    const first = stream(`${stack.url}/ends/v1/completions`,
      { ...body, prompt: 'a', stream: true });
    await first.begun();
    const second = post(`${stack.url}/v1/completions`,
      { ...body, prompt: 'b', max_tokens: 5 });
    await until(async () => (await stack.metrics())
      .value('tokenring_num_requests_waiting') === 1, 'one waits');
    const [old] = await stack.reload();
    await stack.engine.kill();
    await first.finished;
    assert.ok(!first.done);
    assert.ok(alive(old));
    await stack.engine.start();
    const r = await second;
    assert.equal(r.status, 200, r.text);
    assert.equal(r.json().usage.completion_tokens, 5);
    await until(() => !alive(old), 'the old worker has gone');
  } finally {
    await stack.stop();
  }
});

// It has had the one move that it may have, and its turn has not come.
test('an engine that stops keeps what waits there and may move no more', async () => {
  const one = { backend: 'null', null_rate: 25, max_num_seqs: 1,
    kv_memory: '64m', drain_timeout: '60s' };
  const stack = await Stack.start({ engine: one, engines: { second: one },
    pass: 'fleet', location: 'tokenring_migrate 1 timeout=60s;',
    http: `tokenring_engine fleet unix:DIR/main.sock unix:DIR/second.sock;
      tokenring_engine last unix:DIR/second.sock;`,
    server: 'location /last/v1/ { tokenring_pass last; }' });
  stack.complaints = () => [];
  try {
    await stack.connected(2);
    const ask = (where, n) => stream(`${stack.url}${where}/v1/completions`,
      { prompt: 'a', max_tokens: n, ignore_eos: true, stream: true,
        stream_options: { include_usage: true } });
    const before = ask('/last', 100);
    await before.begun();
    const moves = ask('', 60);
    await moves.begun();
    await stack.engine.kill();
    await until(async () => (await stack.metrics())
      .value('tokenring_num_requests_waiting', { replica: '1' }) === 1, 'one waits');
    const stopped = stack.others[0].kill('SIGTERM');
    await stack.engine.start();
    for (const [s, n] of [[before, 100], [moves, 60]]) {
      await s.finished;
      assert.ok(s.done, s.raw.slice(-600));
      assert.equal(s.events.at(-1).usage.completion_tokens, n);
    }
    await stopped;
  } finally {
    await stack.stop();
  }
});

// More than is kept for moves: then nothing is, also of the body, where a stream
// has begun and cannot be sent again.  Its room is for others, here for one body.
test('a stream that may move no more keeps no body', async () => {
  const body = { prompt: 'a', ignore_eos: true, user: 'x'.repeat(60000) };
  const first = { ...body, max_tokens: 5000, stream: true };
  const stack = await Stack.start({
    engine: { backend: 'null', null_rate: 100, kv_memory: '64m' },
    http: 'tokenring_models one { engine main; }',
    server: `location /one/v1/ {
        tokenring_body_memory 96k;
        tokenring_migrate 1 memory=${JSON.stringify(first).length + 40};
        tokenring_pass models=one;
      }` });
  try {
    const url = `${stack.url}/one/v1/completions`;
    const s = stream(url, first);
    await until(() => s.events.length > 20, 'it has more than ten tokens');
    const r = await post(url, { ...body, max_tokens: 2 });
    assert.equal(r.status, 200, r.text);
    assert.ok(!s.over);
    await stack.engine.kill();
    await s.finished;
    assert.ok(!s.done);
    assert.equal((await stack.metrics())
      .value('tokenring_gateway_unmovable_total'), 1);
  } finally {
    await stack.stop();
  }
});

// A client that reads nothing for a while: its engine pauses, and so does each
// that goes on after it.
test('a slow reader over two kills: all of it, and no engine runs ahead', async () => {
  const port = await freePort();
  const stack = await Stack.start({ engine: CPU, engines: { second: CPU },
    location: `tokenring_migrate 5 timeout=60s strict;
      tokenring_buffer_size 16k;`,
    server: `listen 127.0.0.1:${port} sndbuf=16k;` });
  stack.complaints = () => [];
  try {
    await stack.connected(2);
    const start = () => stream(`http://127.0.0.1:${port}/v1/chat/completions`, {
      messages: [{ role: 'user', content: story(3) }], n: 8, max_tokens: 300,
      ignore_eos: true, temperature: 1, seed: 5, logprobs: true,
      top_logprobs: 20, stream: true, stream_options: { include_usage: true } });
    const want = gathered(await start().finished);
    assert.equal(want.usage.completion, 8 * 300);
    const count = async (name) => (await stack.metrics())
      .value(`tokenring_gateway_${name}_total`);
    const before = await count('pauses');
    const slow = start();
    await slow.begun();
    slow.res.pause();
    const engines = [stack.engine, stack.others[0]];
    for (let k = 0; k < 2; k++) {
      await until(async () => await count('pauses') > before + k,
        `it is paused by its ${k + 1}. engine`);
      const m = await stack.metrics();
      const at = [0, 1].find((replica) => m.value('tokenring_outstanding_tokens',
        { replica: String(replica) }) > 0);
      await engines[at].kill();
      await until(async () => await count('migrations') === k + 1, 'it moves');
      await engines[at].start();
      await stack.connected(2);
    }
    await until(async () => await count('pauses') > before + 2, 'by the third');
    slow.res.resume();
    await slow.finished;
    assert.ok(slow.done, slow.raw.slice(-600));
    assert.deepEqual(gathered(slow), want);
    await stack.idle();
  } finally {
    await stack.stop();
  }
});
