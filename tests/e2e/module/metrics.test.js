'use strict';
//
// What an operator sees: /health, /metrics and the log variables, also while
// the engine is in a long step.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const path = require('node:path');
const { Stack, until, read, BUILD, VERSION } = require('../lib/stack');
const { post, stream, request } = require('../lib/http');
const { chat, endless, goldens } = require('../lib/prompts');

// What must be running meanwhile: tokens at a set pace, for minutes.
const PACED = { backend: 'null', null_rate: 25 };
const LONG = 20000;

let stack;
let url;

before(async () => {
  stack = await Stack.start({ workers: 2 });
  url = `${stack.url}/v1/chat/completions`;
});
after(() => stack.end());

test('/health: 200, JSON, and says what runs', async () => {
  const r = await request(`${stack.url}/health`);
  assert.equal(r.status, 200);
  assert.match(r.headers['content-type'], /^application\/json/);
  assert.equal(r.json().status, 'ok');
});

test('one version: --version, logs, /metrics', async () => {
  const version = VERSION;
  for (const name of ['tokenring-engine', 'tokenring']) {
    const out = spawnSync(path.join(BUILD, 'bin', name), ['--version'],
      { encoding: 'utf8' });
    assert.equal(out.stdout, `${name} ${version}\n`);
  }
  assert.equal((await stack.metrics())
    .value('tokenring_gateway_build_info', { version }), 1);
  const said = stack.errorLog().match(/\[notice\] .*: tokenring .*/g);
  assert.equal(said.length, 1, 'one worker says it');
  assert.ok(said[0].endsWith(`: tokenring ${version}`), said[0]);
  assert.ok(read(stack.engine.log).includes(`engine ready version=${version} `));
});

test('/metrics: promtool accepts it', async (t) => {
  await post(url, chat('Hello!'));
  const r = await request(`${stack.url}/metrics`);
  assert.equal(r.status, 200);
  assert.match(r.headers['content-type'], /^text\/plain; version=0\.0\.4/);
  const out = spawnSync('promtool', ['check', 'metrics'],
    { input: r.text, encoding: 'utf8' });
  if (out.error) {
    t.skip('promtool is not installed (make deps)');
    return;
  }
  assert.equal(out.status, 0, `${out.stdout}${out.stderr}`);
  assert.equal(`${out.stdout}${out.stderr}`.trim(), '');
});

test('/metrics: counts what happened, exactly', async () => {
  await stack.idle();
  const before = await stack.metrics();
  const golden = goldens[3];
  const r = await post(url, {
    model: 'pocket', messages: golden.messages, temperature: 0, max_tokens: 64,
  });
  const { usage } = r.json();
  const s = await stream(url, endless(2, 17, {
    stream_options: { include_usage: true },
  })).finished;
  const streamed = s.events.at(-1).usage;
  assert.equal(streamed.completion_tokens, 17);
  await stack.idle();
  const after = await stack.metrics();
  const grew = (name, labels) => after.value(name, labels)
    - before.value(name, labels);
  assert.equal(grew('tokenring_prompt_tokens_total'),
    usage.prompt_tokens + streamed.prompt_tokens);
  assert.equal(grew('tokenring_generation_tokens_total'),
    usage.completion_tokens + 17);
  assert.equal(grew('tokenring_request_success_total',
    { finished_reason: 'stop' }), 1);
  assert.equal(grew('tokenring_request_success_total',
    { finished_reason: 'length' }), 1);
  for (const histogram of ['time_to_first_token', 'e2e_request_latency',
    'request_queue_time']) {
    assert.equal(grew(`tokenring_${histogram}_seconds_count`), 2, histogram);
    assert.equal(grew(`tokenring_${histogram}_seconds_bucket`, { le: '+Inf' }),
      2, histogram);
  }
  assert.equal(grew('tokenring_inter_token_latency_seconds_count'),
    usage.completion_tokens + 17 - 2);
});

test('/metrics: histograms are cumulative', async () => {
  const m = await stack.metrics();
  const series = new Map();
  for (const s of m.samples.filter((x) => x.name.endsWith('_bucket'))) {
    const { le, ...rest } = s.labels;
    const key = s.name + JSON.stringify(rest);
    series.set(key, [...(series.get(key) || []), s.value]);
  }
  assert.ok(series.size >= 4);
  for (const [key, values] of series) {
    assert.deepEqual(values, [...values].sort((a, b) => a - b), key);
  }
});

test('/metrics and /health answer while the engine is stopped in a step', async () => {
  const stopped = await Stack.start({ engine: PACED });
  try {
    const s = stream(`${stopped.url}/v1/chat/completions`, endless(0, LONG));
    await until(async () => (await stopped.metrics())
      .value('tokenring_num_requests_running') === 1, 'it runs');
    // A stopped process is the longest step there is.
    stopped.engine.signal('SIGSTOP');
    for (let i = 0; i < 4; i++) {
      assert.equal((await stopped.metrics())
        .value('tokenring_num_requests_running'), 1);
      assert.equal((await request(`${stopped.url}/health`)).status, 200);
      assert.equal((await request(`${stopped.url}/v1/models`)).status, 200);
    }
    stopped.engine.signal('SIGCONT');
    s.hangUp();
    await stopped.idle();
  } finally {
    await stopped.stop();
  }
});

test('/health: an engine that stands still with work is unhealthy', async () => {
  const stalled = await Stack.start({
    engine: PACED, http: 'tokenring_stall_timeout 500ms;',
  });
  try {
    const s = stream(`${stalled.url}/v1/chat/completions`, endless(0, LONG));
    await until(async () => (await stalled.metrics())
      .value('tokenring_num_requests_running') === 1, 'it runs');
    stalled.engine.signal('SIGSTOP');
    await until(async () => (await request(`${stalled.url}/health`)).status
      === 503, 'unhealthy');
    stalled.engine.signal('SIGCONT');
    await stalled.healthy();
    s.hangUp();
  } finally {
    if (stalled.engine.pid) stalled.engine.signal('SIGCONT');
    await stalled.stop();
  }
});

test('log variables: of a stream', async () => {
  const r = await stream(url, endless(1, 12), {
    headers: { 'X-Mark': 'vars', 'X-Request-Id': 'vars-1' },
  }).finished;
  assert.ok(r.done);
  const [line] = await stack.logged('vars');
  assert.equal(line.status, 200);
  assert.equal(line.id, 'vars-1');
  assert.equal(line.model, 'pocket');
  assert.ok(Number(line.prompt_tokens) > 10);
  assert.equal(Number(line.completion_tokens), 12);
  assert.equal(line.finish_reason, 'length');
  assert.match(line.ttft, /^\d+\.\d{3,6}$/);
  assert.match(line.tpot, /^\d+\.\d{3,6}$/);
  // The same unit; NGINX's clock stands still while it handles events.
  assert.ok(Number(line.ttft) <= line.request_time + 1);
  // Pages are counted whole, so a short sequence holds more than its tokens.
  assert.ok(Number(line.kv_ratio) >= 1, line.kv_ratio);
});

test('log variables: of a refused request, and of one that is not ours', async () => {
  await post(url, '{', { 'X-Mark': 'refused' });
  const [line] = await stack.logged('refused');
  assert.equal(line.status, 400);
  assert.ok(line.id.length > 0);
  assert.equal(line.finish_reason, 'error');
  await request(`${stack.url}/plain`, { headers: { 'X-Mark': 'plain' } });
  const [other] = await stack.logged('plain');
  assert.equal(other.completion_tokens, '');
});

test('nothing of a prompt or an answer is in a log at the default level', async () => {
  const quiet = await Stack.start({ engine: { log_level: 'notice' } });
  try {
    const secret = 'xylophonequokka';
    await post(`${quiet.url}/v1/chat/completions`, chat(secret));
    await post(`${quiet.url}/v1/chat/completions`,
      chat(secret, { temperature: 7 }));
    await post(`${quiet.url}/v1/completions`,
      { model: 'pocket', prompt: secret, echo: true, max_tokens: 2 });
    const s = stream(`${quiet.url}/v1/chat/completions`, {
      ...endless(0, 3900), user: secret,
    });
    await s.begun();
    s.hangUp();
    await quiet.idle();
    assert.doesNotMatch(quiet.logs() + quiet.errorLog(), /xylophonequokka/);
  } finally {
    await quiet.stop();
  }
});
