'use strict';
//
// Reuse of prefixes in service: a conversation that goes on, an agent whose
// early message changes, users behind one system prompt, salts, and what
// answers, metrics and `tokenring stats` say of it.  Answers are those of an
// engine that computes everything.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { execFileSync } = require('node:child_process');
const path = require('node:path');
const { Stack, BUILD } = require('../lib/stack');
const { post, stream } = require('../lib/http');
const { story } = require('../lib/prompts');
const { GPU } = require('../lib/same');

// On a GPU two answers may part where tokens are as good as tied.
const skip = GPU;

let stack;
let plain;

before(async () => {
  if (skip) return;
  const engine = { kv_policy: 'full', kv_memory: '64m', max_model_len: 2000 };
  // The software device's bits depend on the batch with bf16.
  if (process.env.TR_BACKEND) engine.dtype = 'f16';
  stack = await Stack.start({ engine });   // by default
  plain = await Stack.start({ engine: { ...engine, kv_reuse: 'no' } });
});
after(async () => {
  if (skip) return;
  await stack.stop();
  await plain.stop();
});

const long = (i, n) => Array.from({ length: n }, (_, k) => story(i + 7 * k))
  .join(' ');

async function ask(to, messages, more = {}, headers = {}) {
  const r = await post(`${to.url}/v1/chat/completions`, {
    model: 'pocket', messages, max_tokens: 40, temperature: 0, ...more },
  headers);
  assert.equal(r.status, 200, r.text);
  const body = r.json();
  return { text: body.choices.map((c) => c.message.content),
    prompt: body.usage.prompt_tokens,
    output: body.usage.completion_tokens,
    cached: body.usage.prompt_tokens_details.cached_tokens };
}

test('a conversation: each turn computes what is new', { skip }, async () => {
  const messages = [{ role: 'system', content: long(1, 8) }];
  let held = 0;
  let prompts = 0;
  let computed = 0;
  for (let turn = 0; turn < 6; turn++) {
    messages.push({ role: 'user', content: story(100 + turn) });
    const a = await ask(stack, messages);
    const b = await ask(plain, messages);
    assert.deepEqual(a.text, b.text, `turn ${turn}`);
    assert.equal(b.cached, 0);
    assert.ok(a.cached >= held && a.cached < a.prompt,
      `turn ${turn}: ${a.cached} of ${a.prompt}, expected ${held}`);
    // The next prompt has this one; where the answer ended, tokens of text
    // may be others than those that were sampled.
    held = a.prompt;
    prompts += a.prompt;
    computed += a.prompt - a.cached;
    messages.push({ role: 'assistant', content: a.text[0] });
  }
  assert.ok(computed < prompts / 2, `${computed} of ${prompts}`);
});

test('the same prompt, and one that ends otherwise', { skip }, async () => {
    const at = (end) => [{ role: 'user', content: `${long(50, 6)} ${end}` }];
    const first = await ask(stack, at('Blue.'));
    const again = await ask(stack, at('Blue.'));
    assert.equal(again.cached, again.prompt - 1);
    assert.deepEqual(again.text, first.text);
    const other = await ask(stack, at('Nothing of the kind.'));
    assert.ok(other.cached > first.prompt - 30 && other.cached < first.prompt);
    assert.deepEqual(other.text, (await ask(plain, at('Nothing of the kind.')))
      .text);
  });

test('streamed usage counts the same', { skip }, async () => {
  const body = { model: 'pocket', max_tokens: 5, temperature: 0,
    messages: [{ role: 'user', content: long(900, 4) }] };
  const url = `${stack.url}/v1/chat/completions`;
  const seen = [];
  for (const path of [url, `${stack.url}/v1/completions`]) {
    const ask = path === url ? body : { model: 'pocket', max_tokens: 5,
      prompt: long(950, 4) };
    for (let i = 0; i < 2; i++) {
      const s = stream(path, { ...ask, stream: true,
        stream_options: { include_usage: true } });
      await s.finished;
      const { usage } = s.events[s.events.length - 1];
      assert.equal(usage.total_tokens,
        usage.prompt_tokens + usage.completion_tokens);
      seen.push(usage.prompt_tokens
        - usage.prompt_tokens_details.cached_tokens);
    }
  }
  assert.ok(seen[0] > 30 && seen[2] > 30, seen.join());
  assert.deepEqual([seen[1], seen[3]], [1, 1], 'all but the last token');
});

test('kv_reuse false, and salts', { skip }, async () => {
  const messages = [{ role: 'user', content: long(77, 6) }];
  assert.equal((await ask(stack, messages, { kv_reuse: false })).cached, 0);
  assert.equal((await ask(stack, messages)).cached < 30, true);
  const own = await ask(stack, messages, { cache_salt: 'mine' });
  assert.equal(own.cached, 0);
  const mine = await ask(stack, messages, { cache_salt: 'mine' });
  assert.equal(mine.cached, mine.prompt - 1);
  assert.equal((await ask(stack, messages, { cache_salt: 'min' })).cached, 0);
  for (const [more, param] of [[{ cache_salt: 'x'.repeat(129) }, 'cache_salt'],
    [{ cache_salt: 7 }, 'cache_salt'], [{ kv_reuse: 1 }, 'kv_reuse']]) {
    const r = await post(`${stack.url}/v1/chat/completions`,
      { messages, ...more });
    assert.equal(r.status, 400, r.text);
    assert.equal(r.json().error.param, param);
  }
  const r = await post(`${plain.url}/v1/chat/completions`,
    { messages, kv_reuse: true });
  assert.equal(r.status, 400, r.text);
  assert.match(r.json().error.message, /does not reuse/);
});

test('strangers share nothing; one key, or one for all, does', { skip },
  async () => {
    const messages = [{ role: 'user', content: long(600, 6) }];
    const as = (to, headers) => ask(to, messages, {}, headers);
    const key = (name) => ({ Authorization: `Bearer ${name}` });
    const first = await as(stack, key('one'));
    assert.equal(first.cached, 0);
    assert.equal((await as(stack, key('two'))).cached, 0);
    assert.equal((await as(stack, { 'X-Api-Key': 'one' })).cached, 0);
    assert.equal((await as(stack, {})).cached < 30, true);
    assert.equal((await as(stack, key('one'))).cached, first.prompt - 1);
    const all = await Stack.start({
      engine: { kv_policy: 'full', kv_reuse: 'yes' },
      location: 'tokenring_cache_key all$http_x_tenant;' });
    try {
      assert.equal((await as(all, key('one'))).cached, 0);
      assert.equal((await as(all, key('two'))).cached, first.prompt - 1);
      assert.equal((await as(all, { 'X-Tenant': '2', ...key('two') })).cached,
        0);
    } finally {
      await all.stop();
    }
  });

test('users behind one system prompt, at once', { skip }, async () => {
  const system = { role: 'system', content: long(200, 20) };
  const users = Array.from({ length: 12 }, (_, i) => [system,
    { role: 'user', content: story(300 + i) }]);
  const before = await stack.metrics();
  const got = await Promise.all(users.map((m) => ask(stack, m)));
  const want = await Promise.all(users.map((m) => ask(plain, m)));
  assert.deepEqual(got.map((a) => a.text), want.map((a) => a.text));
  const after = await stack.metrics();
  const total = got.reduce((n, a) => n + a.prompt, 0);
  const computed = after.value('tokenring_prefill_tokens_total')
    - before.value('tokenring_prefill_tokens_total');
  assert.equal(computed, total - got.reduce((n, a) => n + a.cached, 0));
  assert.ok(computed < total / 4, `${computed} of ${total} computed`);
});

test('n choices count once', { skip }, async () => {
  const messages = [{ role: 'user', content: long(400, 5) }];
  await ask(stack, messages);
  const three = await ask(stack, messages, { n: 3 });
  assert.equal(three.cached, three.prompt - 1);
});

test('metrics and stats', { skip }, async () => {
  await stack.freed();
  const m = await stack.metrics();
  assert.ok(m.value('tokenring_prefix_hits_total') > 0);
  assert.ok(m.value('tokenring_prefix_hits_total')
    <= m.value('tokenring_prefix_queries_total'));
  assert.ok(m.value('tokenring_prefix_cuts_total') > 0);
  assert.ok(m.value('tokenring_prefix_blocks') > 0);
  const pages = (level) => m.value('tokenring_kv_cache_pages', { level });
  assert.ok(pages('cached') > 0);
  assert.equal(pages('16/16'), 0);
  assert.equal(m.value('tokenring_kv_cache_usage_ratio'), 0);
  const stats = JSON.parse(execFileSync(path.join(BUILD, 'bin/tokenring'),
    ['stats', '-e', stack.engine.socket, '--once', '--json']));
  assert.equal(stats.prefixes.hits, m.value('tokenring_prefix_hits_total'));
  assert.equal(stats.prefixes.cached_pages, pages('cached'));
});

// ---- compressed -------------------------------------------------------------

// Only the CPU reuses them.
test('compressed prefixes: a conversation, cuts, and a crowd',
  { skip: Boolean(process.env.TR_BACKEND) }, async () => {
    const pool = await Stack.start({ engine: { kv_policy: 'diffkv',
      kv_policies: 'uniform', kv_reuse: 'yes', kv_memory: '64m' } });
    try {
      for (const kv_policy of ['diffkv', 'uniform']) {
        const messages = [{ role: 'system', content: long(1, 8) }];
        let held = 0;
        for (let turn = 0; turn < 6; turn++) {
          messages.push({ role: 'user', content: story(100 + turn) });
          const a = await ask(pool, messages, { kv_policy });
          assert.ok(a.cached >= held && a.cached < a.prompt,
            `${kv_policy}, turn ${turn}: ${a.cached} of ${a.prompt}, `
            + `expected ${held}`);
          held = a.prompt;
          messages.push({ role: 'assistant', content: a.text[0] });
        }
        // An earlier message changes; the same again; other salts, policies.
        messages[5].content = 'Something else entirely.';
        const cut = await ask(pool, messages.slice(0, 6), { kv_policy });
        assert.ok(cut.cached > 0.7 * cut.prompt
          && cut.cached < cut.prompt - 3, `${cut.cached} of ${cut.prompt}`);
        assert.equal((await ask(pool, messages.slice(0, 6), { kv_policy }))
          .cached, cut.prompt - 1);
        for (const more of [{ cache_salt: 'x' }, { kv_reuse: false }]) {
          assert.equal((await ask(pool, messages.slice(0, 6),
            { kv_policy, ...more })).cached, 0);
        }
      }
      // One computes what all begin with; the others wait for that.
      const system = { role: 'system', content: long(40, 12) };
      const got = await Promise.all(Array.from({ length: 10 }, (_, i) =>
        ask(pool, [system, { role: 'user', content: story(300 + i) }])));
      const cached = got.reduce((n, a) => n + a.cached, 0);
      const total = got.reduce((n, a) => n + a.prompt, 0);
      assert.ok(cached > 0.7 * total, `${cached} of ${total}`);
      await pool.freed();
      const m = await pool.metrics();
      assert.equal(m.value('tokenring_kv_cache_tokens'), 0);
      assert.ok(m.value('tokenring_kv_cache_pages', { level: 'cached' }) > 0);
    } finally {
      await pool.stop();
    }
  });
