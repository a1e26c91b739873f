'use strict';
//
// `backend cuda` through the whole product, over the software device
// (tests/soft), or on a GPU with TR_CUDA_LIBRARY: answers, policies side by
// side, constraints, an abort, a device that goes away, and starts that cannot be.  The other
// files run on it, too: docs/gpu.md has the command.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { Stack, until, read, BUILD, ENGINE, POCKET } = require('../lib/stack');
const { post, stream } = require('../lib/http');
const { goldens } = require('../lib/prompts');
const { undisturbed, checkSame } = require('../lib/same');

const SOFT = path.join(BUILD, 'tests/libtokenring_soft.so');
const LIBRARY = process.env.TR_CUDA_LIBRARY && process.env.TR_CUDA_LIBRARY !== 'soft'
  ? process.env.TR_CUDA_LIBRARY : SOFT;
const GPU = {
  backend: 'cuda', cuda_library: LIBRARY, kv_memory: '64m', max_num_seqs: 16,
  max_batch_tokens: 256,
};

test('answers, by graph and without, each under its policy', async () => {
  const stack = await Stack.start({
    engine: { ...GPU, kv_policies: 'diffkv kivi quest' },
  });
  try {
    assert.match(read(stack.engine.log), /graphs captured buckets=5/);
    const url = `${stack.url}/v1/completions`;
    const one = async (golden, kv_policy) => {
      const n = golden.continuation_ids.length;
      const s = await stream(url, {
        model: 'pocket', prompt: golden.ids, temperature: 0, stream: true,
        max_tokens: n < 64 ? 64 : n, kv_policy,
        stream_options: { include_usage: true },
      }).finished;
      assert.equal(s.status, 200, s.raw);
      return s;
    };
    const full = await Promise.all(goldens.map((g) => one(g, 'full')));
    full.forEach((s, i) => assert.equal(s.text(), goldens[i].continuation));
    const mixed = await Promise.all(goldens.map((g, i) =>
      one(g, ['full', 'diffkv', 'kivi', 'quest'][i % 4])));
    mixed.forEach((s, i) => {
      assert.ok(s.text().length > 0 && s.done);
      if (i % 4 === 0) assert.equal(s.text(), goldens[i].continuation);
    });
    await stack.freed();
    assert.deepEqual(stack.complaints(), []);
  } finally {
    await stack.stop();
  }
});

test('sampling: a seed, penalties, bias, logprobs, several choices', async () => {
  const stack = await Stack.start({ engine: GPU });
  try {
    const ask = async (more) => {
      const r = await post(`${stack.url}/v1/completions`, {
        model: 'pocket', prompt: goldens[0].ids, max_tokens: 12, ...more,
      });
      assert.equal(r.status, 200, r.text);
      return r.json();
    };
    const drawn = { temperature: 1.2, top_p: 0.9, seed: 7, n: 3 };
    const [a, b] = await Promise.all([ask(drawn), ask(drawn)]);
    assert.deepEqual(a.choices, b.choices);
    assert.equal(new Set(a.choices.map((c) => c.text)).size > 1, true);
    const top = (await ask({ temperature: 0, logprobs: 4 })).choices[0].logprobs;
    assert.equal(top.tokens.length, 12);
    top.top_logprobs.forEach((t) => assert.equal(Object.keys(t).length, 4));
    const first = goldens[0].continuation_ids[0];
    const barred = await ask({
      temperature: 0, max_tokens: 1, logit_bias: { [first]: -100 },
    });
    assert.ok(!goldens[0].continuation.startsWith(barred.choices[0].text));
    const long = await ask({ temperature: 0, max_tokens: 40, min_tokens: 40 });
    assert.equal(long.usage.completion_tokens, 40);
    const echoed = await ask({ temperature: 0, echo: true, logprobs: 0 });
    assert.equal(echoed.choices[0].logprobs.tokens.length,
      goldens[0].ids.length + 12);
  } finally {
    await stack.stop();
  }
});

test('constrained answers keep to it, plain ones beside them are the same',
  async () => {
    const stack = await Stack.start({ engine: { ...GPU, dtype: 'f16',
      kv_policies: 'full diffkv' } });
    try {
      const plain = (i) => ({
        model: 'pocket', prompt: goldens[i % 3].ids, stream: true,
        temperature: 0, ignore_eos: true, max_tokens: 60,
      });
      const url = `${stack.url}/v1/completions`;
      const alone = [];
      for (let i = 0; i < 3; i += 1) {
        alone.push(await undisturbed(url, plain(i)));
      }
      const ask = (i, more) => post(`${stack.url}/v1/chat/completions`, {
        messages: [{ role: 'user', content: `Write something. ${i}` }],
        kv_policy: i % 2 ? 'diffkv' : 'full', temperature: 1.5, seed: i,
        max_tokens: 100, ...more,
      });
      const kinds = [
        [{ guided_choice: ['yes', 'no', 'perhaps'], min_tokens: 40 },
          /^(yes|no|perhaps)$/],
        [{ guided_regex: '[A-F]{3,6}-\\d{2}', n: 3 }, /^[A-F]{3,6}-\d{2}$/],
        [{ guided_json: { type: 'object', additionalProperties: false,
          required: ['a'], properties: { a: { enum: [1, 'two', null] } } },
        logprobs: true, top_logprobs: 3 },
        /^\{[ \n]*"a":[ \n]*(1|"two"|null)[ \n]*\}$/],
      ];
      const gone = stream(`${stack.url}/v1/chat/completions`, {
        messages: [{ role: 'user', content: 'Go' }], stream: true,
        temperature: 1, guided_regex: '[a-z ]*', max_tokens: 1500,
      });
      const streams = [0, 1, 2, 3, 4].map((i) => stream(url, plain(i)).finished);
      const answers = await Promise.all(Array.from({ length: 12 }, (_, i) =>
        ask(i, kinds[i % kinds.length][0])));
      let finished = 0;
      answers.forEach((a, i) => {
        assert.equal(a.status, 200, a.text);
        for (const choice of a.json().choices) {
          if (choice.finish_reason !== 'stop') continue;
          assert.match(choice.message.content, kinds[i % kinds.length][1]);
          finished += 1;
        }
      });
      assert.ok(finished >= 12, `${finished} finished`);
      (await Promise.all(streams)).forEach((s, i) => {
        assert.ok(s.done && !s.cut, `stream ${i}`);
        checkSame(s.text(), alone[i % 3], `stream ${i}`);
      });
      await until(() => gone.events.length > 3, 'some tokens');
      assert.match(gone.text(), /^[a-z ]*$/);
      gone.hangUp();
      await stack.freed();
      assert.deepEqual(stack.complaints(), []);
    } finally {
      await stack.stop();
    }
  });

test('an abort frees what it held', async () => {
  const stack = await Stack.start({ engine: { ...GPU, kv_policy: 'diffkv' } });
  try {
    const s = stream(`${stack.url}/v1/completions`, {
      model: 'pocket', prompt: goldens[1].ids, max_tokens: 2000, stream: true,
      ignore_eos: true,
    });
    await until(() => s.events.length > 3, 'some tokens');
    s.hangUp();
    await stack.freed();
  } finally {
    await stack.stop();
  }
});

test('a pool that is too small: sequences make way, and come back the same',
  async () => {
    const stack = await Stack.start({
      engine: { ...GPU, max_num_seqs: 64, kv_memory: '6m', swap_memory: '64m',
        kv_policy: 'diffkv:alpha_low=0.02', max_model_len: 620,
        // in BF16 steps of few rows round elsewhere, and near ties fall otherwise
        dtype: 'f16' },
    });
    try {
      const url = `${stack.url}/v1/completions`;
      const body = (i) => ({
        model: 'pocket', prompt: goldens[i % 3].ids, stream: true,
        temperature: 0, ignore_eos: true, max_tokens: 160 + 20 * (i % 6),
      });
      const alone = [];
      for (let i = 0; i < 6; i += 1) alone.push(await undisturbed(url, body(i)));
      stack.engine.signal('SIGSTOP'); // until they are all there
      const asked = Array.from({ length: 24 }, (_, i) =>
        stream(url, body(i)).finished);
      await stack.active(24);
      stack.engine.signal('SIGCONT');
      const all = await Promise.all(asked);
      all.forEach((s, i) => {
        assert.ok(s.done && !s.cut, `stream ${i}`);
        checkSame(s.text(), alone[i % 6], `stream ${i}`, { compressed: true });
      });
      const m = await stack.metrics();
      assert.ok(m.value('tokenring_kv_swaps_total') > 0);
      assert.equal(m.value('tokenring_kv_recomputations_total'), 0);
      assert.deepEqual(stack.complaints(), []);
    } finally {
      await stack.stop();
    }
  });

test('a device that goes away: an error, and the engine leaves',
  { skip: LIBRARY !== SOFT && 'only a software device can be lost' },
  async () => {
    process.env.TOKENRING_SOFT_FAIL = 'lost:12000';
    const starting = Stack.start({ engine: GPU });
    const stack = await starting
      .finally(() => { delete process.env.TOKENRING_SOFT_FAIL; });
    try {
      const s = await stream(`${stack.url}/v1/completions`, {
        model: 'pocket', prompt: goldens[1].ids, max_tokens: 2000,
        stream: true, ignore_eos: true,
      }).finished;
      assert.ok(!s.done);
      assert.match(s.raw, /could not compute|server_error/);
      const end = await stack.engine.exited;
      assert.deepEqual(end, { code: 1, signal: null });
      assert.match(read(stack.engine.log), /error the GPU is lost/);
      assert.match(read(stack.engine.log), /the GPU was lost/);
      await until(async () =>
        (await post(`${stack.url}/v1/completions`, {})).status === 503, '503');
    } finally {
      await stack.stop();
    }
  });

// Memory of a killed engine, which the driver frees late: here, when a file goes.
test('a killed engine\'s memory is waited for',
  { skip: LIBRARY !== SOFT && 'only a software device is held by a file' },
  async () => {
    const held = path.join(fs.mkdtempSync(path.join(os.tmpdir(),
      'tokenring-e2e-')), 'held');
    process.env.TOKENRING_SOFT_HELD = held;
    const stack = await Stack.start({ engine: { ...GPU, kv_memory: null,
      gpu_memory_utilization: '0.75' } })
      .catch((e) => { delete process.env.TOKENRING_SOFT_HELD; throw e; });
    const { engine } = stack;
    const pages = () => [...read(engine.log).matchAll(/kv_pages=(\d+)/g)]
      .map((m) => Number(m[1]));
    const again = async (mib, settings) => {
      await engine.kill('SIGKILL');
      const [pid, bytes] = read(`${engine.socket}.lock`).trim().split('\n');
      assert.ok(Number(pid) > 0);
      assert.ok(Number(bytes) > 100 << 20, `${bytes} bytes were taken`);
      fs.writeFileSync(held, String(mib));
      return engine.start(settings);
    };
    try {
      const starting = again(100, {});
      await until(() => /waiting for memory of the GPU/.test(read(engine.log)),
        () => `it waits\n${read(engine.log)}`);
      assert.equal(pages().length, 1, 'it is not ready');
      fs.rmSync(held);
      await starting;
      assert.match(read(engine.log), /waited for .* enough=yes/);
      assert.equal(pages()[1], pages()[0], 'it has all that the first had');
      // after as long as it may, it takes what there is
      await again(60, { gpu_memory_wait: '200ms' });
      assert.match(read(engine.log), /waited for .* enough=no/);
      assert.ok(pages()[2] < pages()[0]);
      const lines = read(engine.log).match(/waiting for memory/g).length;
      await again(60, { gpu_memory_wait: '0' });
      assert.equal(read(engine.log).match(/waiting for memory/g).length, lines);
    } finally {
      delete process.env.TOKENRING_SOFT_HELD;
      await stack.stop();
      fs.rmSync(path.dirname(held), { recursive: true, force: true });
    }
  });

test('what cannot start, and why', () => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-e2e-'));
  const start = (settings, env = {}) => {
    const args = ['--model', POCKET, '--backend', 'cuda', '--socket',
      path.join(dir, 's.sock')];
    for (const [k, v] of Object.entries(settings)) args.push(`--${k}`, v);
    const out = spawnSync(ENGINE, args, {
      cwd: dir, encoding: 'utf8', timeout: 60000, killSignal: 'SIGKILL',
      env: { ...process.env, ...env },
    });
    return `${out.status}: ${out.stderr}`;
  };
  const soft = { cuda_library: SOFT };
  const fail = (what) => ({ TOKENRING_SOFT_FAIL: what });
  try {
    for (const [settings, env, message] of [
      [{ cuda_library: '/nonexistent.so' }, {}, /cannot load \/nonexistent\.so/],
      [{ cuda_library: 'libm.so.6' }, {}, /is not a CUDA backend/],
      [{ ...soft, device: '9' }, {}, /device 9 cannot be used/],
      [{ ...soft, kv_memory: '900g' }, {}, /kv_memory need 900\.00 GiB/],
      [soft, fail('driver'), /device 0 cannot be used: .*driver/],
      [soft, fail('device'), /device 0 cannot be used/],
      [soft, fail('old'), /driver|compute capability/],
      [soft, fail('alloc:1'),
        /out of memory: buffers for loading weights need 0\.06/],
      [soft, fail('alloc:3'), /out of memory: the weights need 0\.0/],
      [{ ...soft, gpu_memory_utilization: '0.01' }, {},
        /leaves nothing for the KV cache/],
      [{ ...soft, max_num_seqs: '4096', max_batch_tokens: '4096',
        max_model_len: '64', dtype: 'f32' }, {}, /dtype "f32": expected/],
    ]) {
      const said = start(settings, env);
      assert.match(said, /^[12]: /);
      assert.match(said, message);
    }
  } finally {
    fs.rmSync(dir, { recursive: true, force: true });
  }
});
