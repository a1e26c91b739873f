'use strict';
//
// Tenants and their plans (docs/directives.md, tokenring_plan): budgets of
// requests and tokens, what clients are told of them, and that official clients
// do as they are told.  Budgets of a minute refill while a test runs: what is
// counted exactly has the hour or the day.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const OpenAI = require('openai');
const path = require('node:path');
const { execFile } = require('node:child_process');
const { Stack, BUILD, until, sleep } = require('../lib/stack');
const { withPlans, seconds, checkLimited } = require('../lib/plans');
const { post, request, stream } = require('../lib/http');

test('requests: as many as the plan has, for each tenant, by all workers',
  withPlans('tokenring_plan few requests=5/h;', async (stack, ask) => {
    const left = [];
    for (let i = 0; i < 5; i++) {
      const r = await ask('few-a');
      assert.equal(r.status, 200, r.text);
      assert.equal(r.headers['x-ratelimit-limit-requests'], '5');
      left.push(Number(r.headers['x-ratelimit-remaining-requests']));
      const reset = seconds(r.headers['x-ratelimit-reset-requests']);
      assert.ok(reset > 720 * i && reset <= 720 * (i + 1), `${reset} s`);
    }
    assert.deepEqual(left, [4, 3, 2, 1, 0]);
    for (let i = 0; i < 3; i++) {
      const r = await ask('few-a');
      checkLimited(r, { type: 'requests', most: 720 });
      assert.equal(r.headers['x-ratelimit-remaining-requests'], '0');
      assert.equal(r.headers['x-should-retry'], undefined);
    }
    // Others are not concerned, nor is a tenant without a plan.
    assert.equal((await ask('few-b')).status, 200);
    const free = await ask(null);
    assert.equal(free.status, 200);
    assert.equal(free.headers['x-ratelimit-limit-requests'], undefined);
    const all = await Promise.all(Array.from({ length: 20 }, () =>
      ask('few-c')));
    assert.equal(all.filter((r) => r.status === 200).length, 5);
    assert.equal((await stack.metrics())
      .value('tokenring_gateway_limited_total'), 18);
    // What is no prompt costs nothing.
    assert.equal((await request(`${stack.url}/v1/models`,
      { headers: { 'X-Key': 'few-a' } })).status, 200);
  }, { workers: 2 }));

test('a budget comes back evenly, and openai waits as it is told', withPlans(
  'tokenring_plan quick requests=120/m; tokenring_plan slow requests=12/m;',
  async (stack, ask) => {
    const all = await Promise.all(Array.from({ length: 130 }, () =>
      ask('quick-a')));
    const limited = all.filter((r) => r.status === 429);
    assert.ok(limited.length > 0);
    const ms = Math.max(...limited.map((r) =>
      checkLimited(r, { type: 'requests', most: 0.5 })));
    await sleep(ms);
    await until(async () => (await ask('quick-a')).status === 200, 'one more');

    let tries = 0;
    const client = new OpenAI({ apiKey: 'x', baseURL: `${stack.url}/v1`,
      maxRetries: 5, defaultHeaders: { 'X-Key': 'slow-a' },
      fetch: (...args) => { tries++; return fetch(...args); } });
    // Nothing is left, nor will be for seconds.
    await until(async () => {
      const refused = await ask('slow-a');
      return refused.status === 429
        && Number(refused.headers['retry-after-ms']) > 4000;
    }, 'a used up budget');
    const r = await client.completions.create(
      { model: 'pocket', prompt: 'x', max_tokens: 1 });
    assert.equal(r.choices.length, 1);
    assert.ok(tries >= 2 && tries <= 6, `${tries} tries`);
  }));

test('tokens: prompts, answers, both, and what is owed', withPlans(`
  tokenring_plan in in=100/h;
  tokenring_plan out out=50/h;
  tokenring_plan both tokens=1k/h requests=100/h;`, async (stack, ask) => {
  const used = async (key, more) => {
    const r = await ask(key, more);
    assert.equal(r.status, 200, r.text);
    return r.json().usage;
  };
  const left = (r) => Number(r.headers['x-ratelimit-remaining-tokens']);
  // A prompt is taken before the answer's headers are sent.
  let n = 100;
  for (const words of [20, 40, 60]) {
    const r = await ask('in-a', { prompt: 'one '.repeat(words) });
    assert.equal(r.status, 200, r.text);
    n -= r.json().usage.prompt_tokens;
    assert.equal(left(r), Math.max(n, 0));
  }
  assert.ok(n < 0, 'it is overdrawn');
  const owing = checkLimited(await ask('in-a'), { type: 'tokens', most: 3600 });
  // Not before what is owed has come in, and one token.
  assert.ok(Math.abs(owing - (1 - n) * 36000) < 30000, `${owing} ms`);

  const out = await used('out-a', { max_tokens: 50, ignore_eos: true });
  assert.equal(out.completion_tokens, 50);
  checkLimited(await ask('out-a'), { type: 'tokens', most: 72 });

  const one = await used('both-a', { max_tokens: 100, ignore_eos: true });
  const r = await ask('both-a');
  const two = r.json().usage;
  assert.equal(r.headers['x-ratelimit-limit-tokens'], '1000');
  assert.equal(r.headers['x-ratelimit-limit-requests'], '100');
  assert.equal(left(r), 1000 - one.total_tokens - two.total_tokens);
}));

test('an answer ends where the budget does', withPlans(`
  tokenring_plan out out=50/h;
  tokenring_plan both tokens=80/h;`, async (stack, ask) => {
  const long = { max_tokens: 3000, ignore_eos: true };
  const check = (choices, usage, tokens) => {
    choices.forEach((c) => assert.equal(c.finish_reason, 'length'));
    assert.equal(usage.cut, 'token_budget');
    assert.equal(usage.completion_tokens, tokens);
  };
  const whole = await ask('out-a', long);
  assert.equal(whole.status, 200, whole.text);
  check(whole.json().choices, whole.json().usage, 50);
  assert.equal((await ask('out-a')).status, 429);

  const several = (await ask('out-b', { ...long, n: 3 })).json();
  assert.equal(several.choices.length, 3);
  check(several.choices, several.usage, 50);

  for (const [path, body] of [['completions', { prompt: 'x' }],
    ['chat/completions', { messages: [{ role: 'user', content: 'x' }] }]]) {
    const s = await stream(`${stack.url}/v1/${path}`, { ...body, ...long,
      stream: true, stream_options: { include_usage: true } },
    { headers: { 'X-Key': `both-${path}` } }).finished;
    assert.ok(s.done, s.raw.slice(-300));
    const last = s.events.filter((e) => e.choices.length
      && e.choices[0].finish_reason);
    assert.equal(last.length, 1);
    const { usage } = s.events.at(-1);
    check(last[0].choices, usage, 80 - usage.prompt_tokens);
  }
  for (const [path, body, ended] of [
    ['responses', { input: 'x', max_output_tokens: 3000, ignore_eos: true },
      (r) => r.status === 'incomplete'
        && r.incomplete_details.reason === 'max_output_tokens'],
    ['messages', { max_tokens: 3000, ignore_eos: true,
      messages: [{ role: 'user', content: 'x' }] },
    (r) => r.stop_reason === 'max_tokens'],
  ]) {
    const r = await post(`${stack.url}/v1/${path}`,
      { model: 'pocket', ...body }, { 'X-Key': `out-${path}` });
    assert.equal(r.status, 200, r.text);
    assert.ok(ended(r.json()), r.text);
    assert.equal(r.json().usage.cut, 'token_budget');
    assert.equal(r.json().usage.output_tokens, 50);
    const s = stream(`${stack.url}/v1/${path}`,
      { model: 'pocket', ...body, stream: true },
      { headers: { 'X-Key': `out-s${path}` } });
    const { raw } = await s.finished.catch(() => s);
    assert.match(raw, /"reason":"max_output_tokens"|"stop_reason":"max_tokens"/);
    assert.match(raw, /"cut":"token_budget"/);
  }
  // What ends by itself is not cut.
  const own = (await ask('out-c', { max_tokens: 10, ignore_eos: true })).json();
  assert.equal(own.usage.cut, undefined);
  await stack.idle();
}));

// What clients count is what was sampled: not one token more than there was,
// however many ask at once, of which worker, and whether they stay.
test('a budget is never exceeded by a token, whatever runs at once', withPlans(`
  tokenring_plan out out=1000/d;
  tokenring_plan both tokens=1000/d;`, async (stack) => {
  const open = (key, more, body = {}) => stream(`${stack.url}/v1/completions`,
    { prompt: 'x', max_tokens: 4000, ignore_eos: true, stream: true,
      stream_options: { include_usage: true }, ...body },
    { headers: { 'X-Key': key }, ...more });
  const sum = (list, key) => list.reduce((n, s) =>
    n + (s.events.at(-1)?.usage?.[key] || 0), 0);
  const run = async (key, body) => Promise.all(Array.from({ length: 64 }, () =>
    open(key, {}, body).finished));

  const all = await run('out-a');
  all.forEach((s) => {
    assert.ok(s.done, s.raw.slice(-300));
    assert.equal(s.events.at(-1).usage.cut, 'token_budget');
  });
  assert.equal(sum(all, 'completion_tokens'), 1000);
  // Several choices share what their request has.
  const several = await run('out-b', { n: 3 });
  assert.equal(sum(several, 'completion_tokens'), 1000);
  // Prompts may overdraw, answers do not: one that is counted when nothing is left
  // gets no token, and leaves the others theirs.
  const both = await run('both-a', { prompt: 'one two' });
  const answered = both.filter((s) =>
    s.events.at(-1)?.usage?.completion_tokens > 0);
  const n = sum(both, 'completion_tokens');
  assert.ok(n >= 1000 - sum(both, 'prompt_tokens')
    && n <= 1000 - sum(answered, 'prompt_tokens'), `${n} tokens`);

  // What ends by itself gives back what it did not use; so do those who leave,
  // and pay for what they had.
  const short = await Promise.all(Array.from({ length: 9 }, () =>
    open('out-c', {}, { max_tokens: 11 }).finished));
  assert.equal(sum(short, 'completion_tokens'), 99);
  const gone = [open('out-c'), open('out-c')];
  await Promise.all(gone.map((s) => s.begun()));
  gone.forEach((s) => s.hangUp());
  await Promise.all(gone.map((s) => s.finished.catch(() => {})));
  await stack.active(0);
  const rest = sum(await run('out-c'), 'completion_tokens');
  const total = 3000 + sum(both, 'completion_tokens');
  await until(() => sums(stack)['']?.completion_tokens === total,
    () => `${total} tokens are logged, not ${sums(stack)[''].completion_tokens}`);
  assert.ok(rest > 500 && rest < 902, `${rest} tokens`);
}, { workers: 2 }));

test('a worker that dies leaks no token', withPlans(
  'tokenring_plan out out=2000/d;', async (stack, ask) => {
    const complaints = () => Stack.prototype.complaints.call(stack);
    stack.complaints = () => complaints()
      .filter((line) => !/exited on signal 9/.test(line));
    const long = () => stream(`${stack.url}/v1/completions`, { prompt: 'x',
      max_tokens: 4000, ignore_eos: true, stream: true },
    { headers: { 'X-Key': 'out-a' } });
    const streams = Array.from({ length: 8 }, long);
    await Promise.all(streams.map((s) => s.begun()));
    const [worker] = stack.workers();
    process.kill(worker, 'SIGKILL');
    const ends = await Promise.all(streams.map((s) =>
      s.finished.then(() => s, () => s)));
    const told = ends.reduce((n, s) => n + s.events.length, 0);
    await until(async () => (await stack.metrics())
      .value('tokenring_connected_workers') === 1, 'the next worker');
    const r = await until(async () => {
      const one = await ask('out-a', { max_tokens: 1 }).catch(() => null);
      return one && one.status === 200 && one;
    }, 'an answer');
    const left = Number(r.headers['x-ratelimit-remaining-tokens']);
    // What clients saw is a little less than what was told: some died unsent.
    assert.ok(left <= 2000 - told - 1, `${left} after ${told}`);
    assert.ok(left >= 2000 - told - 8 * 64, `${left} after ${told}`);
    const all = await Promise.all(Array.from({ length: 8 }, () =>
      ask('out-a', { max_tokens: 4000, ignore_eos: true })));
    assert.equal(all.reduce((n, a) =>
      n + (a.status === 200 ? a.json().usage.completion_tokens : 0), 0), left);
  }, { workers: 1 }));

test('streams are charged while they run, and when they are cut', withPlans(
  'tokenring_plan out out=200/h;', async (stack, ask) => {
    const open = () => stream(`${stack.url}/v1/completions`,
      { prompt: 'x', max_tokens: 4000, ignore_eos: true, stream: true },
      { headers: { 'X-Key': 'out-a' } });
    const s = open();
    await s.begun();
    await until(async () => (await ask('out-a', { max_tokens: 1 })).status
      === 429, 'the stream has used it up');
    s.hangUp();
    await s.finished.catch(() => {});
    await stack.active(0);
    checkLimited(await ask('out-a'), { type: 'tokens', most: 80000 });
  }));

test('a day: no haste to try again', withPlans(
  'tokenring_plan day tokens=5/d;', async (stack, ask) => {
    assert.equal((await ask('day-a', { max_tokens: 5, ignore_eos: true }))
      .status, 200);
    const r = await ask('day-a');
    checkLimited(r, { type: 'insufficient_quota', code: 'insufficient_quota',
      most: 86400 });
    assert.equal(r.headers['x-should-retry'], 'false');
    let tries = 0;
    const client = new OpenAI({ apiKey: 'x', baseURL: `${stack.url}/v1`,
      defaultHeaders: { 'X-Key': 'day-a' },
      fetch: (...args) => { tries++; return fetch(...args); } });
    await assert.rejects(client.completions.create(
      { model: 'pocket', prompt: 'x' }), (e) => e.status === 429
        && e.code === 'insufficient_quota');
    assert.equal(tries, 1);
  }));

test('a tenant of two plans uses up each of them once', withPlans(`
  tokenring_plan few requests=2/h;
  tokenring_plan more requests=3/h;`, async (stack, ask) => {
  for (let i = 0; i < 2; i++) {
    assert.equal((await ask('few-a')).status, 200);
    assert.equal((await ask('more-a')).status, 200);
  }
  assert.equal((await ask('few-a')).status, 429);
  assert.equal((await ask('more-a')).status, 200);
  assert.equal((await ask('few-a')).status, 429);
  assert.equal((await ask('more-a')).status, 429);
}, { location: 'tokenring_tenant one; tokenring_limits $plan;' }));

test('hosts: each gives its part, rounded down', withPlans(
  'tokenring_plan part requests=11/h out=50/h seats=5 hosts=4;',
  async (stack, ask) => {
    const first = await ask('part-a', { max_tokens: 40, ignore_eos: true });
    assert.equal(first.json().usage.completion_tokens, 12);
    assert.equal(first.json().usage.cut, 'token_budget');
    assert.equal(first.headers['x-ratelimit-limit-requests'], '2');
    assert.equal(first.headers['x-ratelimit-limit-tokens'], '12');
    const held = stream(`${stack.url}/v1/completions`, { prompt: 'x',
      max_tokens: 4000, ignore_eos: true, stream: true },
    { headers: { 'X-Key': 'part-b' } });
    await held.begun();
    assert.match((await ask('part-b')).json().error.message,
      /1 requests at once/);
    held.hangUp();
    await held.finished.catch(() => {});
  }));

test('a reload keeps what was used, also of a plan with other numbers', withPlans(
  'tokenring_plan few requests=2/h;', async (stack, ask) => {
    assert.equal((await ask('few-a')).status, 200);
    assert.equal((await ask('few-a')).status, 200);
    await stack.reload();
    assert.equal((await ask('few-a')).status, 429);
    stack.configure({ http: stack.options.http.replace('2/h', '3/h') });
    await stack.reload();
    const r = await ask('few-a');
    assert.equal(r.status, 200);
    assert.equal(r.headers['x-ratelimit-remaining-requests'], '0');
    assert.equal((await ask('few-a')).status, 429);
    // A limit of another kind is full; that of the first is still used up.
    stack.configure({ http: stack.options.http
      .replace('requests=3/h', 'tokens=1k/h requests=3/h') });
    await stack.reload();
    assert.equal((await ask('few-a')).status, 429);
    stack.configure({ http: stack.options.http
      .replace(' requests=3/h', ' requests=100/m') });
    await stack.reload();
    const other = await ask('few-a');
    assert.equal(other.status, 200);
    assert.equal(other.headers['x-ratelimit-remaining-requests'], '99');
    // A plan that a variable names and nobody has defined.
    assert.equal((await ask('other-a')).status, 500);
    assert.ok(stack.errorLog().includes('no tokenring_plan "other"'));
  }));

// Old workers charge by the old plan for as long as their streams last: here each
// time that one is hung up.
const held = async (stack, key, n) => {
  const all = Array.from({ length: n }, () => stream(
    `${stack.url}/v1/completions`, { prompt: 'x', max_tokens: 4000,
      ignore_eos: true, stream: true }, { headers: { 'X-Key': key } }));
  await Promise.all(all.map((s) => s.begun()));
  return async () => {
    const s = all.pop();
    s.hangUp();
    await s.finished.catch(() => {});
    await stack.active(all.length);
  };
};
const SLOW = { engine: { backend: 'null', null_rate: 40, kv_memory: '64m' } };

test('a reload with other kinds: streams of before fill no budget', withPlans(
  'tokenring_plan keep out=100k/m;', async (stack, ask) => {
    assert.equal((await ask('keep-a', { max_tokens: 7, ignore_eos: true })).status,
      200);
    const hangUp = await held(stack, 'keep-a', 8);
    stack.configure({ http: stack.options.http
      .replace('out=100k/m', 'tokens=1k/d requests=4/h') });
    await stack.reload();
    let left = 1000;
    for (let i = 0; i < 4; i++) {
      const r = await ask('keep-a');
      assert.equal(r.status, 200, r.text);
      left -= r.json().usage.total_tokens;
      assert.equal(r.headers['x-ratelimit-remaining-requests'], `${3 - i}`);
      assert.equal(r.headers['x-ratelimit-remaining-tokens'], `${left}`);
      await hangUp();
    }
    assert.equal((await ask('keep-a')).status, 429);
    // What an old one had leased goes back to the old budget alone; and a third
    // plan finds again what it has of the second.
    stack.configure({ http: stack.options.http
      .replace('tokens=1k/d requests=4/h', 'in=10k/d requests=5/h tokens=1k/d') });
    await stack.reload();
    await hangUp();
    const r = await ask('keep-a');
    assert.equal(r.status, 200, r.text);
    left -= r.json().usage.total_tokens;
    assert.equal(r.headers['x-ratelimit-remaining-requests'], '0');
    assert.equal(r.headers['x-ratelimit-remaining-tokens'], `${left}`);
    await hangUp();
    assert.equal((await ask('keep-a')).status, 429);
    await hangUp();
    await hangUp();
  }, SLOW));

// 8 places: two plans with ten kinds take them from each other.
test('a reload to more kinds than an account has places for', withPlans(
  `tokenring_plan keep in=1m/s in=1m/m in=1m/h in=1m/d out=1m/s out=1m/m
    out=1m/h out=1m/d;`, async (stack, ask) => {
    const hangUp = await held(stack, 'keep-a', 5);
    stack.configure({ http: stack.options.http
      .replace(/keep in=[^;]*/, 'keep tokens=1k/d requests=3/h') });
    await stack.reload();
    let n = 0;
    for (let i = 0; i < 5; i++) {
      n += (await ask('keep-a')).status === 200;
      await hangUp();
    }
    assert.ok(n >= 1 && n <= 3, `${n} requests`);
  }, SLOW));

test('more tenants than there is room for: the quiet ones are forgotten',
  withPlans(`tokenring_tenants zone=small:64k;
    tokenring_plan few requests=1/h;`, async (stack, ask) => {
    const keys = Array.from({ length: 600 }, (_, i) => `few-${i}`);
    for (let at = 0; at < keys.length; at += 30) {
      const all = await Promise.all(keys.slice(at, at + 30).map((k) => ask(k)));
      all.forEach((r) => assert.equal(r.status, 200, r.text));
    }
    assert.equal((await ask('few-599')).status, 429);
    assert.equal((await ask('few-0')).status, 200);
    // Full as it is, a reload can show them, and what was used stays used.
    assert.deepEqual(await told(stack), {});
    stack.configure({ http: stack.options.http.replace('64k', '64k shown') });
    await stack.reload();
    assert.equal((await ask('few-599')).status, 429);
    assert.equal((await ask('few-new')).status, 200);
    await until(async () => {
      const all = await told(stack);
      return Object.keys(all).length === 3 && all['few-599']?.limited === 1
        && all['few-new']?.requests === 1;
    }, 'both are counted');
  }));

// The sums of the access log's lines, by X-Mark, which the tests send with the key.
function sums(stack) {
  const out = {};
  for (const line of fs.readFileSync(`${stack.dir}/access.log`, 'utf8')
    .split('\n').filter(Boolean).map((l) => JSON.parse(l))) {
    if (!line.uri.startsWith('/v1/')) continue;
    const t = out[line.mark] = out[line.mark]
      || { requests: 0, limited: 0, prompt_tokens: 0, completion_tokens: 0 };
    t.requests++;
    t.limited += line.status === 429;
    t.prompt_tokens += Number(line.prompt_tokens);
    t.completion_tokens += Number(line.completion_tokens);
  }
  return out;
}

async function told(stack) {
  const out = {};
  for (const s of (await stack.metrics()).samples) {
    const m = /^tokenring_tenant_(\w+)_total$/.exec(s.name);
    if (m) (out[s.labels.tenant] = out[s.labels.tenant] || {})[m[1]] = s.value;
  }
  return out;
}

test('shown tenants: their sums are those of the access log', withPlans(`
  tokenring_tenants zone=shown:1m shown;
  tokenring_plan few requests=3/h;`, async (stack) => {
  const ask = (key, more) => post(`${stack.url}/v1/completions`,
    { prompt: 'one two three', max_tokens: 5, ...more },
    { 'X-Key': key, 'X-Mark': key });
  const cut = ['few-cut', 'other "quoted"'].map((key) =>
    stream(`${stack.url}/v1/completions`, { prompt: 'x', max_tokens: 4000,
      ignore_eos: true, stream: true },
    { headers: { 'X-Key': key, 'X-Mark': key } }));
  await Promise.all(cut.map((s) => s.begun()));
  await Promise.all(['few-a', 'few-b', 'c', 'd'].flatMap((key, i) =>
    Array.from({ length: i < 2 ? 5 : 4 }, (_, k) => ask(key,
      { n: 1 + i % 2, max_tokens: 3 + k }))));
  await until(async () => {
    const all = await told(stack);
    return all.c?.requests === 4 && all.d?.requests === 4;
  }, 'they have rows');
  // What is refused is counted there, too.
  await Promise.all(['c', 'd'].map((key) => ask(key, { max_tokens: -1 })));
  cut.forEach((s) => s.hangUp());
  await Promise.all(cut.map((s) => s.finished.catch(() => {})));
  await stack.active(0);
  let want;
  await until(() => {
    want = sums(stack);
    return Object.values(want).reduce((n, t) => n + t.requests, 0) === 22;
  }, 'all are logged');
  assert.equal(want['few-a'].limited, 2);
  assert.equal(want.c.limited, 0);
  assert.ok(want['few-cut'].completion_tokens > 0);
  let got;
  const check = async () => {
    got = await told(stack);
    assert.deepEqual(got.other, { requests: 0, limited: 0, prompt_tokens: 0,
      completion_tokens: 0 });
    delete got.other;
    assert.deepEqual(Object.fromEntries(Object.entries(got)
      .map(([k, v]) => [k.replaceAll('\\"', '"'), v])), want);
  };
  await until(async () => Object.values(await told(stack))
    .reduce((n, t) => n + t.requests, 0) === 22, 'all are counted');
  await check();
  await stack.reload();
  await check();
  // The hundred-and-first and all later ones share a row.
  for (let at = 0; at < 120; at += 40) {
    await Promise.all(Array.from({ length: 40 }, (_, i) => ask(`t${at + i}`)));
  }
  let all;
  await until(async () => {
    all = await told(stack); // a request is logged when its client has it
    return Object.values(all).reduce((n, t) => n + t.requests, 0) === 142;
  }, 'all are counted');
  assert.equal(Object.keys(all).length, 101);
  assert.equal(all.other.requests, 120 - (100 - 6));
}, { workers: 2, location: `tokenring_tenant $http_x_key;
  tokenring_limits $plan;` }));

// Counters of requests by the label tenant, once there are n in all.
async function counted(stack, n) {
  let out;
  await until(async () => {
    out = Object.fromEntries(Object.entries(await told(stack))
      .map(([name, t]) => [name, t.requests]));
    return Object.values(out).reduce((a, b) => a + b, 0) === n;
  }, () => `${n} requests are counted: ${JSON.stringify(out)}`);
  return out;
}

test('shown tenants: no two have one name', withPlans(
  `tokenring_tenants zone=shown:1m shown;
  map $http_x_key $tenant { default $http_x_key; letter "\u00e9"; }`,
  async (stack, ask) => {
    const names = { other: '0x6f74686572', others: 'others', c3a9: 'c3a9',
      letter: '0xc3a9', '0xc3a9': '0x307863336139', '0x': '0x3078',
      '0Xc3a9': '0Xc3a9', 'a\tb': '0x610962', '(none)': '(none)' };
    for (const key of Object.keys(names)) {
      assert.equal((await ask(key)).status, 200);
    }
    const long = 'x'.repeat(64);
    assert.equal((await ask(long)).status, 200);
    assert.equal((await ask(`${long}x`)).status, 200);
    assert.equal((await ask(null)).status, 200);
    assert.deepEqual(await counted(stack, 12), { other: 1, '': 1, [long]: 1,
      ...Object.fromEntries(Object.values(names).map((name) => [name, 1])) });
  }, { location: 'tokenring_tenant $tenant;' }));

test('shown tenants: who is refused takes no row', withPlans(`
  tokenring_tenants zone=shown:1m shown;
  tokenring_plan few requests=1/h;`, async (stack, ask) => {
  for (let at = 0; at < 120; at += 40) {
    const all = await Promise.all(Array.from({ length: 40 }, (_, i) =>
      ask(`stranger${at + i}`, { max_tokens: -1 })));
    all.forEach((r) => assert.equal(r.status, 400, r.text));
  }
  assert.deepEqual(await counted(stack, 120), { other: 120 });
  // One that is accepted does, and has the next refusal there; so does one
  // with a plan at once.
  assert.equal((await ask('stranger7')).status, 200);
  await counted(stack, 121);
  assert.equal((await ask('stranger7', { max_tokens: -1 })).status, 400);
  assert.equal((await ask('few-a', { max_tokens: -1 })).status, 400);
  assert.equal((await ask('few-a')).status, 429);
  assert.deepEqual(await counted(stack, 124), { other: 120, stranger7: 2,
    'few-a': 2 });
}));

const stats = (...args) => new Promise((resolve) => {
  execFile(path.join(BUILD, 'bin/tokenring'), ['stats', '--tenants', ...args],
    (error, out, err) => resolve({ status: error ? error.code : 0, out, err }));
});

test('shown tenants: tokenring stats has them', withPlans(`
  tokenring_tenants zone=shown:1m shown;
  tokenring_plan few requests=1/h;`, async (stack, ask) => {
  for (const key of ['few-a', 'few-a', 'say "hi\\"']) await ask(key);
  assert.equal((await ask('z', { max_tokens: 9, n: 2 })).status, 200);
  const counts = await counted(stack, 4);
  assert.equal(counts['few-a'], 2);
  const all = await told(stack);
  const json = await stats('--url', `${stack.url}/`, '--once', '--json');
  assert.equal(json.status, 0, json.err);
  const { tenants, time } = JSON.parse(json.out);
  assert.ok(Math.abs(time - Date.now() / 1000) < 600);
  assert.equal(tenants[0].name, 'z', 'who used most comes first');
  assert.equal(tenants[0].completion_tokens, 18);
  assert.ok(tenants.some((t) => t.name === 'say "hi\\"'), json.out);
  const escaped = (name) => name.replace(/["\\]/g, '\\$&');
  assert.deepEqual(Object.fromEntries(tenants.map(({ name, ...t }) => {
    assert.equal(t.completion_tokens_per_s, null);
    delete t.completion_tokens_per_s;
    return [escaped(name), t];
  })), all);

  const text = await stats('--url', `${stack.url}/metrics`, '-1');
  const rows = text.out.trim().split('\n').map((row) => row.split(/  +/));
  assert.deepEqual(rows[0], ['tenant', 'requests', 'refused', 'prompt tokens',
    'answer tokens']);
  assert.deepEqual(rows.find((row) => row[0] === 'few-a'), ['few-a', '2', '1',
    `${all['few-a'].prompt_tokens}`, '2']);

  const wrong = await stats('--url', `${stack.url}/health`, '-1');
  assert.equal(wrong.status, 1);
  assert.match(wrong.err, /\/health\/metrics answered 404, expected 200/);
  stack.configure({ http: stack.options.http.replace('1m shown', '1m') });
  await stack.reload();
  const none = await until(async () => {
    const r = await stats('--url', stack.url, '-1');
    return r.status === 1 && r;
  }, 'the new configuration');
  assert.match(none.err, /shows no tenants: tokenring_tenants .* shown; is what/);
}));

test('shown tenants: a location without tenants has the row without a name',
  withPlans('tokenring_tenants zone=shown:1m shown;', async (stack, ask) => {
    assert.equal((await ask('a', { max_tokens: -1 })).status, 400);
    assert.deepEqual(await counted(stack, 1), { other: 1 });
    assert.equal((await ask('a')).status, 200);
    assert.equal((await ask('b')).status, 200);
    assert.deepEqual(await counted(stack, 3), { other: 1, '': 2 });
  }, { location: '' }));
