'use strict';
//
// The differentiated KV cache in service.  With diffkv and a page pool that is
// far too small, two hundred streams are preempted, swapped out and back, some
// hang up, NGINX reloads: whoever is answered gets byte for byte what the same
// request gets when nothing disturbs it.  Then what requests may choose, and
// what users see of it.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { execFile } = require('node:child_process');
const path = require('node:path');
const { promisify } = require('node:util');
const { Stack, BUILD, read, sleep, until } = require('../lib/stack');
const { post, request, stream } = require('../lib/http');
const { chat, endless, story } = require('../lib/prompts');
const { GPU, undisturbed, checkSame } = require('../lib/same');

const STREAMS = 200;
const KINDS = 20;

// Prompts of about 30 to 250 tokens.
const long = (i, n) => Array.from({ length: n }, (_, k) => story(i + 7 * k))
  .join(' ');

const body = (i) => endless(i, 30 + 2 * i, {
  messages: [{ role: 'user', content: long(i, 1 + i % 10) }],
  ...(i % 2 ? { temperature: 1, seed: i } : {}),
  ...(i % 7 === 0 ? { logprobs: true } : {}),
});

function essence(s) {
  const out = { text: s.text(), logprobs: [] };
  for (const event of s.events) {
    for (const c of event.choices) {
      if (c.logprobs) out.logprobs.push(...c.logprobs.content);
    }
  }
  return out;
}

test(`diffkv: ${STREAMS} streams in a small pool, hang-ups, a reload`,
  async () => {
    const stack = await Stack.start({
      engine: { max_num_seqs: 64, kv_memory: '9m', swap_memory: '64m',
        kv_policy: 'diffkv:alpha_low=0.02', max_model_len: 600 },
    });
    try {
      const url = `${stack.url}/v1/chat/completions`;
      const alone = [];
      for (let i = 0; i < KINDS; i++) {
        alone.push(await undisturbed(url, body(i)));
      }
      assert.equal((await stack.metrics()).value('tokenring_preemptions_total'),
        0);
      const one = async (i) => {
        const s = stream(url, body(i % KINDS));
        if (i % 10 === 3) {
          await Promise.race([s.finished, sleep(50 + 13 * i)]);
          s.hangUp();
          await s.finished;
          return;
        }
        await s.finished;
        assert.equal(s.status, 200, s.raw);
        assert.ok(s.done && !s.cut, `stream ${i} ended`);
        const want = alone[i % KINDS];
        checkSame(s.text(), want, `stream ${i}`, { compressed: true });
        if (!GPU) {
          assert.deepEqual(essence(s), essence(want.stream), `stream ${i}`);
        }
      };
      const all = Promise.all(Array.from({ length: STREAMS },
        (_, i) => one(i)));
      await sleep(1000);
      await stack.reload();
      await all;
      const m = await stack.metrics();
      // A device keeps more pages back: gpu.test.js fills one.
      if (!process.env.TR_BACKEND) {
        assert.ok(m.value('tokenring_preemptions_total') > 0);
        assert.ok(m.value('tokenring_kv_swaps_total') > 0);
      }
      assert.equal(m.value('tokenring_kv_recomputations_total'), 0);
      await stack.freed();
      await until(async () => (await stack.metrics())
        .value('tokenring_kv_cache_swapped_pages') === 0, 'nothing swapped');
      assert.deepEqual(stack.complaints(), []);
    } finally {
      await stack.stop();
    }
  });

// ---- what requests choose, and what users see -------------------------------

let stack;
let url;

before(async () => {
  stack = await Stack.start({
    engine: { kv_policy: 'full', kv_request_alpha: 'yes',
      kv_policies: 'diffkv:alpha_high=1,alpha_low=0.02 uniform:levels=4/4' },
  });
  url = `${stack.url}/v1/chat/completions`;
});
after(() => stack.end());

const ask = (more) => chat(long(3, 20), {
  max_tokens: 20, ignore_eos: true, ...more,
});

test('models: what a request may name, the default first', async () => {
  const { data } = (await request(`${stack.url}/v1/models`)).json();
  assert.deepEqual(data[0].kv_policies, ['full',
    'diffkv:alpha_high=1,alpha_low=0.02', 'uniform:levels=4/4']);
});

test('usage.kv_cache: what a request took, under each policy', async () => {
  const seen = {};
  for (const kv_policy of ['full', 'diffkv', 'uniform', 'uniform:levels=4/4',
    'diffkv:alpha_high=1,alpha_low=0.02']) {
    const r = await post(url, ask({ kv_policy }));
    assert.equal(r.status, 200, r.text);
    const { usage } = r.json();
    const kv = usage.kv_cache;
    assert.ok(Math.abs(kv.ratio - kv.bytes / kv.fp16_bytes) < 1e-3);
    assert.ok(Math.abs(kv.share_high + kv.share_low + kv.share_pruned - 1)
      < 1e-3, JSON.stringify(kv));
    // 8 layers, 2 KV heads of 64: 4096 bytes a token; the last token that was
    // sampled is in no cache
    assert.equal(kv.fp16_bytes, 4096 * (usage.total_tokens - 1));
    seen[kv_policy] = kv;
  }
  assert.equal(seen.full.share_high, 1);
  assert.ok(seen.full.ratio >= 1);
  assert.equal(seen.uniform.share_high, 1);
  assert.ok(seen.uniform.ratio < 0.6, JSON.stringify(seen.uniform));
  assert.ok(seen.diffkv.ratio < seen.full.ratio);
  assert.ok(seen.diffkv.share_low + seen.diffkv.share_pruned > 0.05,
    JSON.stringify(seen.diffkv));
  assert.deepEqual(seen.uniform, seen['uniform:levels=4/4']);
  assert.deepEqual(seen.diffkv, seen['diffkv:alpha_high=1,alpha_low=0.02']);
  // without a choice it is the engine's
  const plain = (await post(url, ask({}))).json();
  assert.deepEqual(plain.usage.kv_cache, seen.full);
});

test('the log says what a token of a head takes at each level', () => {
  const levels = [...read(stack.engine.log)
    .matchAll(/kv level (\w+)( uncompressed)? page_tokens=(\d+) head_token_bytes=(\S+)/g)]
    .map(([, level, , tokens, bytes]) => [level, tokens * bytes]);
  assert.deepEqual(levels.map(([level]) => level),
    ['k16v16', 'k8v4', 'k4v2', 'k8v8', 'k4v4']);
  const [, page] = read(stack.engine.log).match(/kv cache page_bytes=(\d+)/);
  // the bytes are of whole pages
  for (const [level, bytes] of levels) {
    assert.ok(Math.abs(bytes / page - 1) < 1e-4, `${level}: ${bytes}, ${page}`);
  }
});

test('include_kv: what a request holds, while it runs', async () => {
  for (const kv_policy of ['full', 'diffkv', 'uniform']) {
    const s = await stream(url, ask({ stream: true, kv_policy, n: 2,
      max_tokens: 200, stream_options: { include_usage: true,
        continuous_usage_stats: true, include_kv: true } })).finished;
    assert.equal(s.status, 200, s.raw);
    const last = s.events.pop().usage;
    assert.equal(last.kv_cache.policy, kv_policy);
    const ends = [];
    for (const { choices: [choice], usage } of s.events) {
      const kv = usage.kv_cache;
      const { full, high, low, pruned } = kv.tokens;
      const all = full + high + low + pruned;
      assert.equal(kv.policy, kv_policy);
      assert.equal(kv.fp16_bytes, 4096 * all);
      assert.ok(all >= usage.prompt_tokens && all <= usage.total_tokens,
        JSON.stringify(usage));
      assert.ok(Math.abs((full + high) / all - kv.share_high) < 2e-3);
      assert.ok(Math.abs(pruned / all - kv.share_pruned) < 2e-3);
      if (choice.finish_reason) {
        assert.equal(all, usage.total_tokens - 1);
        ends.push(kv);
      }
    }
    // the request's is the sum of its choices'
    assert.equal(ends.length, 2);
    for (const key of ['bytes', 'fp16_bytes']) {
      assert.equal(ends[0][key] + ends[1][key], last.kv_cache[key]);
    }
    for (const tier of ['full', 'high', 'low', 'pruned']) {
      assert.equal(ends[0].tokens[tier] + ends[1].tokens[tier],
        last.kv_cache.tokens[tier]);
    }
    assert.equal(last.kv_cache.tokens.full === last.kv_cache.fp16_bytes / 4096,
      kv_policy === 'full', JSON.stringify(last));
  }
});

test('usage.kv_cache: at the end of a stream, too', async () => {
  const s = await stream(url, ask({
    stream: true, stream_options: { include_usage: true },
    kv_policy: 'diffkv', kv_alpha_high: 2, kv_alpha_low: 1,
  }), { headers: { 'X-Mark': 'kv' } }).finished;
  const kv = s.events.at(-1).usage.kv_cache;
  const [line] = await stack.logged('kv');
  assert.equal(Number(line.kv_ratio), kv.ratio);
  assert.equal(Number(line.kv_bytes), kv.bytes);
  assert.equal(Number(line.kv_fp16_bytes), kv.fp16_bytes);
  for (const kept of ['high', 'low', 'pruned']) {
    const share = kv[`share_${kept}`];
    assert.ok(share > 0.01 && share < 0.99, JSON.stringify(kv));
    assert.equal(Number(line[`kv_${kept}`]), share);
  }
  assert.equal(line.preemptions, '0');
});

test('kv_alpha_high, kv_alpha_low: thresholds of one request', async () => {
  const kv = async (more) => (await post(url,
    ask({ kv_policy: 'diffkv', ...more }))).json().usage.kv_cache;
  const same = await kv({ kv_alpha_high: 1, kv_alpha_low: 0.02 });
  assert.deepEqual(same, await kv({}));
  const all = await kv({ kv_alpha_high: 0, kv_alpha_low: 0 });
  assert.equal(all.share_high, 1);
  const none = await kv({ kv_alpha_high: 3.5, kv_alpha_low: 3 });
  assert.ok(none.share_pruned > same.share_pruned, JSON.stringify(none));
});

test('echo and n: prompts are at 16 bits whatever the policy', async () => {
  const answer = async (kv_policy, max_tokens) => {
    const r = await post(`${stack.url}/v1/completions`, { model: 'pocket',
      prompt: long(4, 12), echo: true, logprobs: 0, n: 2, temperature: 0,
      max_tokens, ignore_eos: true, kv_policy });
    assert.equal(r.status, 200, r.text);
    return r.json().choices;
  };
  const full = await answer('full', 0);
  for (const policy of ['diffkv', 'uniform']) {
    for (const tokens of [0, 12]) {
      const choices = await answer(policy, tokens);
      assert.equal(choices.length, 2);
      for (const c of choices) {
        assert.ok(c.text.startsWith(full[0].text));
        assert.equal(c.text, choices[0].text);
        full[0].logprobs.token_logprobs.forEach((want, i) => {
          const got = c.logprobs.token_logprobs[i];
          assert.ok(got === want || Math.abs(got - want) < 1e-4,
            `${policy}, token ${i}: ${got}, ${want}`);
        });
        assert.equal(c.logprobs.tokens.length,
          full[0].logprobs.tokens.length + tokens);
      }
    }
  }
});

for (const [name, more, param, message] of [
  ['a policy that is not allowed', { kv_policy: 'h2o' }, 'kv_policy',
    /h2o.*"full", "diffkv:alpha_high=1,alpha_low=0.02", "uniform/s],
  ['a policy with other settings', { kv_policy: 'diffkv:alpha_low=9' },
    'kv_policy', /allows/],
  ['a policy that is a number', { kv_policy: 4 }, 'kv_policy', /a string/],
  ['a threshold that is a string', { kv_policy: 'diffkv', kv_alpha_low: '1' },
    'kv_alpha_low', /a number/],
  ['a threshold below 0', { kv_policy: 'diffkv', kv_alpha_low: -1 },
    'kv_alpha_low', /-1.*from 0/],
  ['a threshold above all', { kv_policy: 'diffkv', kv_alpha_high: 1e9 },
    'kv_alpha_high', /1e\+09.*1000/],
  ['thresholds the wrong way round',
    { kv_policy: 'diffkv', kv_alpha_high: 1, kv_alpha_low: 2 },
    'kv_alpha_low', /above/],
  ['a threshold where there is none', { kv_alpha_high: 1 }, 'kv_alpha_high',
    /full has no/],
]) {
  test(`refused: ${name}`, async () => {
    const r = await post(url, ask(more));
    assert.equal(r.status, 400, r.text);
    const { error } = r.json();
    assert.equal(error.type, 'invalid_request_error');
    assert.equal(error.param, param);
    assert.match(error.message, message);
  });
}

test('refused: thresholds where requests may not set them', async () => {
  const strict = await Stack.start({ engine: { kv_policy: 'diffkv' } });
  try {
    const at = `${strict.url}/v1/chat/completions`;
    for (const param of ['kv_alpha_high', 'kv_alpha_low']) {
      const r = await post(at, ask({ [param]: 1 }));
      assert.equal(r.status, 400, r.text);
      assert.equal(r.json().error.param, param);
    }
    const r = await post(at, ask({ kv_policy: 'full' }));
    assert.equal(r.json().error.param, 'kv_policy');
    assert.equal((await post(at, ask({ kv_policy: 'diffkv' }))).status, 200);
  } finally {
    await strict.stop();
  }
});

// A prompt and its compressed copy stand side by side, so that a policy's
// longest request is shorter than the engine's where the pool is small.
test('max_tokens left open: what the policy of the request has room for',
  async () => {
    const small = await Stack.start({
      engine: { kv_policies: 'uniform:levels=4/4', kv_memory: '5m' },
    });
    try {
      for (const kv_policy of ['full', 'uniform']) {
        const r = await post(`${small.url}/v1/chat/completions`,
          chat(long(3, 2), { max_tokens: undefined, kv_policy }));
        assert.equal(r.status, 200, `${kv_policy}: ${r.text}`);
      }
    } finally {
      await small.stop();
    }
  });

test('/metrics and stats: pages by level while it runs, sums after', async (t) => {
  await stack.idle();
  const first = await stack.metrics();
  // There is always one, however long the looks take; just one is counted.
  const body = endless(1, 3000, {
    messages: [{ role: 'user', content: long(5, 20) }], kv_policy: 'diffkv',
  });
  let s, over = false, begun = 0;
  t.after(() => { over = true; });
  const running = (async () => {
    for (; !over; begun++) {
      s = stream(url, body);
      await s.finished;
    }
  })();
  const m = await until(async () => {
    const now = await stack.metrics();
    const pages = (level) => now.value('tokenring_kv_cache_pages', { level });
    return pages('8/4') > 0 && pages('16/16') === 0 && now;
  }, 'compressed pages');
  const used = ['16/16', '8/8', '8/4', '4/2', '4/4'].reduce((sum, level) => sum
    + m.value('tokenring_kv_cache_pages', { level }), 0);
  const all = used + ['free', 'cached'].reduce((sum, level) => sum
    + m.value('tokenring_kv_cache_pages', { level }), 0);
  assert.ok(Math.abs(m.value('tokenring_kv_cache_usage_ratio') - used / all)
    < 1e-4);
  assert.equal(m.value('tokenring_kv_cache_fp16_bytes'),
    4096 * m.value('tokenring_kv_cache_tokens'));
  assert.ok(used * m.value('tokenring_kv_cache_page_bytes')
    < m.value('tokenring_kv_cache_fp16_bytes'));
  const stats = async (...args) => (await promisify(execFile)(
    path.join(BUILD, 'bin/tokenring'),
    ['stats', '-e', stack.engine.socket, '--once', ...args])).stdout;
  await until(async () => {
    const { kv } = JSON.parse(await stats('--json'));
    return kv.levels['8/4'].pages > 0 && kv.used_bytes < kv.fp16_bytes;
  }, 'compressed pages in JSON');
  let text;
  await until(async () => {
    text = await stats();
    return /8\/4 +\[#*\.*\] [1-9]\d* pages, \d+ bytes a token/.test(text)
      && /at 16 bits +[\d.]+ MiB .*: [\d.]+% of it is taken/.test(text);
  }, () => `compressed pages in text:\n${text}`);
  over = true;
  s.hangUp();
  await running;
  await stack.idle();
  const last = await stack.metrics();
  const sum = (name, labels) => last.value(name, labels)
    - first.value(name, labels);
  assert.equal(sum('tokenring_kv_request_ratio_count'), begun);
  const bytes = sum('tokenring_kv_request_bytes_total');
  const full = ['high', 'low', 'pruned'].reduce((n, kept) => n
    + sum('tokenring_kv_request_fp16_bytes_total', { kept }), 0);
  assert.ok(bytes > 0 && bytes < full, `${bytes} of ${full}`);
  // Those that came to their end weigh more than the one that was hung up.
  const ratio = sum('tokenring_kv_request_ratio_sum') / begun;
  assert.ok(Math.abs(ratio - bytes / full) < (begun > 1 ? 0.1 : 1e-3),
    `${ratio}, ${bytes / full}`);
});
