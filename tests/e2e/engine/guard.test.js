'use strict';
//
// kv_guard and kv_policy auto in service: a model whose keys do not suit its KV policy is noticed
// with its first prompt, in the log, in /metrics and in `tokenring stats`; with
// what helps, and with a model that suits it, nobody hears anything.  auto takes
// what each of them bears.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { Stack, BUILD, POCKET } = require('../lib/stack');
const { post } = require('../lib/http');
const { story } = require('../lib/prompts');

let dir;
let stress;
let one;
let first;

before(() => {
  dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tr-guard-'));
  stress = path.join(dir, 'keys-x16');
  execFileSync('python3', [path.join(POCKET, 'stress.py'), 'keys-x16',
    '--out', dir]);
  one = path.join(dir, 'one');
  execFileSync('python3', [path.join(POCKET, 'stress.py'), 'one',
    '--keys', '64', '--key-pairs', '4', '--only', '3:1', '--out', dir]);
  first = path.join(dir, 'trained-first');
  execFileSync('python3', [path.join(path.dirname(POCKET), 'stress', 'make.py'),
    'first', '--out', dir]);
});
after(() => fs.rmSync(dir, { recursive: true }));

// Some prompts of several hundred tokens; what is known of them then.
async function serve(engine) {
  const stack = await Stack.start({ engine: { kv_memory: '64m',
    kv_policy: 'diffkv:alpha_high=12,alpha_low=0', kv_guard: '1', ...engine } });
  const name = path.basename(engine.model || POCKET);
  let used;
  try {
    for (let i = 0; i < 3; i++) {
      const content = Array.from({ length: 20 }, (_, k) => story(i + 7 * k));
      const r = await post(`${stack.url}/v1/chat/completions`, { model: name,
        messages: [{ role: 'user', content: content.join(' ') }],
        max_tokens: 4, temperature: 0 });
      assert.equal(r.status, 200, r.text);
      used = r.json().usage.kv_cache;
    }
    const m = await stack.metrics();
    const stats = JSON.parse(execFileSync(path.join(BUILD, 'bin/tokenring'),
      ['stats', '-e', stack.engine.socket, '--once', '--json']));
    const log = fs.readFileSync(stack.engine.log, 'utf8').split('\n')
      .filter((line) => line.includes('kv guard'));
    return { m, stats, log, used, whole: fs.readFileSync(stack.engine.log, 'utf8') };
  } finally {
    await stack.stop();
  }
}

test('keys with outliers: the first prompt tells', async () => {
  const { m, stats, log } = await serve({ model: stress, kv_equalise: 'no',
    kv_rotate: 'off' });
  assert.equal(m.value('tokenring_kv_guard_prompts_total'), 3);
  assert.equal(m.value('tokenring_kv_guard_warnings'), 1);
  const error = m.value('tokenring_kv_guard_error_ratio', { part: 'keys' });
  assert.ok(error
    > m.value('tokenring_kv_guard_bound_ratio', { part: 'keys' }), `${error}`);
  assert.equal(log.length, 1, log.join('\n'));
  assert.match(log[0], /warn kv guard: .* do not suit KV policy diffkv:.*docs/);
  assert.equal(stats.guard.warnings, 1);
  assert.equal(stats.guard.prompts, 3);
  assert.ok(Math.abs(stats.guard.keys - error) < 1e-6);
});

test('one KV head of one layer with outliers: it is named', async () => {
  const { m, log } = await serve({ model: one, kv_equalise: 'no', kv_rotate: 'off',
    kv_centre: 'off' });
  assert.equal(m.value('tokenring_kv_guard_warnings'), 1);
  assert.equal(log.length, 1, log.join('\n'));
  assert.match(log[0],
    /compressed keys attention moves by [\d.]+% \(KV head 1 of layer 3\)/);
});

for (const [what, engine] of [
  ['equalised', () => ({ model: stress })],
  ['rotated by default', () => ({ model: stress, kv_equalise: 'no' })],
  ['at 8/4', () => ({ model: stress, kv_equalise: 'no', kv_rotate: 'off',
    kv_policy: 'uniform:levels=8/4' })],
  ['one head, equalised', () => ({ model: one })],
  ['without outliers', () => ({})],
]) {
  test(`nothing to say: ${what}`, async () => {
    const { m, log } = await serve(engine());
    assert.equal(m.value('tokenring_kv_guard_prompts_total'), 3);
    assert.equal(m.value('tokenring_kv_guard_warnings'), 0);
    for (const part of ['keys', 'values']) {
      const error = m.value('tokenring_kv_guard_error_ratio', { part });
      const bound = m.value('tokenring_kv_guard_bound_ratio', { part });
      assert.ok(error > 0 && error < bound, `${part}: ${error} of ${bound}`);
    }
    assert.deepEqual(log, []);
  });
}

test('off, and with nothing to compress', async () => {
  for (const engine of [{ kv_guard: 'off' }, { kv_policy: 'full' }]) {
    const { m, log } = await serve(engine);
    assert.equal(m.value('tokenring_kv_guard_prompts_total'), 0);
    assert.ok(!m.samples.some((x) => x.name.includes('guard_error')));
    assert.deepEqual(log, []);
  }
});

for (const [what, taken, name, engine] of [
  ['without outliers', 'diffkv', 'diffkv', () => ({})],
  ['keys with outliers', 'uniform:levels=8/4', 'uniform',
    () => ({ model: stress, kv_equalise: 'no', kv_rotate: 'off' })],
  ['equalised', 'diffkv', 'diffkv', () => ({ model: stress })],
  ['a first token far off the rest', 'diffkv', 'diffkv', () => ({ model: first })],
]) {
  test(`auto: ${what}`, async () => {
    const { m, log, used, whole } = await serve(
      { ...engine(), kv_policy: 'auto' });
    assert.match(whole, new RegExp(`kv_policy auto took ${taken}: 1\\d+ tokens`
      + ' of the built-in text; .*uniform:levels=4/2 .*memory'));
    assert.equal(used.policy, name);
    assert.equal(m.value('tokenring_kv_guard_warnings'), 0);
    assert.deepEqual(log, []);
  });
}
