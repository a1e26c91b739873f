'use strict';
//
// The module against an engine that no one would write (fake_engine.c): records
// that break every rule, an engine that is silent, deaf, dead or of another
// version.  A broken rule costs the engine its channel and the channel's
// requests an error; the worker goes on and connects again.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { spawn, spawnSync } = require('node:child_process');
const fs = require('node:fs');
const http = require('node:http');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const {
  ROOT, BUILD, PATIENCE, Stack, sleep, until, freePort, taken, halt,
} = require('../lib/stack');
const { post, stream, answer2 } = require('../lib/http');

const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-fake-'));
const socket = path.join(dir, 'fake.sock');
let stack, url, hasty, wide, small, engine, shadow, gate;
const shadowed = [];
const asked = []; // answers that auth_request waits for

async function startEngine(...args) {
  engine = spawn(path.join(BUILD, 'tests/fake_engine'), [socket, ...args],
    { stdio: 'inherit' });
  await until(() => fs.existsSync(socket), 'the socket of the fake engine');
}

async function stopEngine(signal = 'SIGTERM') {
  if (engine === undefined || engine.exitCode !== null
      || engine.signalCode !== null) return;
  const gone = new Promise((resolve) => { engine.once('exit', resolve); });
  engine.kill(signal);
  await gone;
  fs.rmSync(socket, { force: true });
}

// Replaces the engine; the worker may take a moment to see the new one.
async function restartEngine(...args) {
  await stopEngine();
  await startEngine(...args);
}

before(async () => {
  const made = spawnSync('make', ['-s', 'fake-engine', `B=${BUILD}`],
    { cwd: ROOT, encoding: 'utf8' });
  assert.equal(made.status, 0, made.stderr);
  fs.chmodSync(dir, 0o755);
  await startEngine();
  // what `mirror` sends its copies to
  shadow = http.createServer((req, res) => {
    const parts = [];
    req.on('data', (part) => parts.push(part));
    req.on('end', () => {
      shadowed.push(Buffer.concat(parts));
      res.end();
    });
  });
  await new Promise((resolve) => { shadow.listen(0, '127.0.0.1', resolve); });
  gate = http.createServer((req, res) => { asked.push(res); });
  await new Promise((resolve) => { gate.listen(0, '127.0.0.1', resolve); });
  small = await freePort();
  stack = await Stack.start({
    engine: null,
    http2: true,
    main: 'worker_shutdown_timeout 200ms;',
    http: `tokenring_engine fake unix:${socket} ring=64k;
      tokenring_engine wide unix:${socket} ring=16m;
      tokenring_engine pair unix:${socket} unix:${dir}/./fake.sock;
      tokenring_plan few tokens=5/h;
      tokenring_plan much share=7;
      tokenring_plan more requests=100/h share=9;`,
    pass: 'fake',
    server: `
      listen 127.0.0.1:${small} sndbuf=16k;
      location /hasty/v1/ {
        tokenring_queue_timeout 400ms;
        tokenring_first_token_timeout 400ms;
        tokenring_idle_timeout 400ms;
        tokenring_pass fake;
      }
      location /idle/v1/ {
        tokenring_idle_timeout 400ms;
        tokenring_pass fake;
      }
      location /brief/v1/ {
        client_body_timeout 500ms;
        tokenring_pass fake;
      }
      location /gated/v1/ {
        auth_request /gate;
        tokenring_pass fake;
      }
      location = /gate {
        internal;
        proxy_pass http://127.0.0.1:${gate.address().port}/;
        proxy_pass_request_body off;
        proxy_set_header Content-Length "";
      }
      location /cut/v1/ {
        tokenring_tenant $arg_key;
        tokenring_limits few;
        tokenring_idle_timeout 2s;
        tokenring_pass pair;
      }
      location /shares/v1/ {
        tokenring_tenant $arg_key;
        tokenring_limits $arg_plan;
        tokenring_pass fake;
      }
      location /wide/v1/ { tokenring_pass wide; }
      location /named/v1/ {
        tokenring_model fake;
        tokenring_pass fake;
      }
      location /mirrored/v1/ { mirror /shadow; tokenring_pass fake; }
      location = /shadow {
        internal;
        proxy_pass http://127.0.0.1:${shadow.address().port}/;
      }`,
    location: 'tokenring_stall_timeout 5s;',
  });
  await stack.healthy();
  url = `${stack.url}/v1/chat/completions`;
  wide = `${stack.url}/wide/v1/chat/completions`;
  hasty = `${stack.url}/hasty/v1/chat/completions`;
});

after(async () => {
  await stopEngine();
  if (stack) await stack.stop();
  shadow.close();
  gate.close();
  fs.rmSync(dir, { recursive: true, force: true });
});

const tokens = (n) => Array.from({ length: n }, (_, i) => `t${i} `).join('');

// The worker has its channel (again) and serves.
async function works() {
  await stack.healthy();
  const r = await post(url, { fake: 'tokens', count: 3 });
  assert.equal(r.status, 200, r.text);
  assert.equal(r.json().choices[0].message.content, tokens(3));
}

// ---- what a correct engine sends ------------------------------------------

// As OpenAI has them: a call's id and name come once, its arguments in pieces.
const called = (choice, n) => Array.from({ length: n }, (_, k) => ({
  id: `call_${choice}_${k}`,
  type: 'function',
  function: { name: `find_${k}`, arguments: '{"q": "\\"é\\n😀"}' },
}));

test('tool calls and reasoning, whole', async () => {
  const r = await post(url, { fake: 'items', count: 2, choices: 2 });
  const body = r.json();
  assert.deepEqual(body.choices.map((c) => c.message), [0, 1].map((i) => ({
    role: 'assistant', content: 'so: ', refusal: null,
    reasoning_content: 'hm "é"\nyes', tool_calls: called(i, 2),
  })));
  assert.deepEqual(body.choices.map((c) => c.finish_reason),
    ['tool_calls', 'tool_calls']);
  assert.deepEqual(body.usage.completion_tokens_details,
    { reasoning_tokens: 2 });
});

test('tool calls and reasoning, streamed', async () => {
  const s = await stream(url, { fake: 'items', count: 2, choices: 2,
    stream: true, include_usage: true }).finished;
  assert.equal(s.done, true);
  const chunks = s.events;
  for (const i of [0, 1]) {
    const mine = chunks.flatMap((c) => c.choices)
      .filter((c) => c.index === i);
    assert.deepEqual(mine.map((c) => c.delta), [
      { role: 'assistant', content: '' },
      { reasoning_content: 'hm "é"\n' },
      { reasoning_content: 'yes' },
      { content: 'so: ' },
      ...called(i, 2).flatMap((call, index) => [
        { tool_calls: [{ index, ...call,
          function: { name: call.function.name, arguments: '' } }] },
        ...['{"q": "', '\\"é\\n', '😀"}'].map((part) => ({
          tool_calls: [{ index, function: { arguments: part } }] })),
      ]),
      {},
    ]);
    assert.deepEqual(mine.map((c) => c.finish_reason),
      [...Array(mine.length - 1).fill(null), 'tool_calls']);
  }
  assert.deepEqual(chunks.at(-1).usage.completion_tokens_details,
    { reasoning_tokens: 2 });
});

test('what JSON must escape, and bytes that are no UTF-8', async () => {
  const r = await post(url, { fake: 'escapes' });
  // ff, c0, 80, ed a0 80 and a cut e2 82: every such byte is one U+FFFD
  assert.equal(r.json().choices[0].message.content,
    `"\\/\b\f\n\r\t\x01\x1f\x7f <>&é€😀${'\ufffd'.repeat(8)}`);
});

test("a model's name: JSON has its escapes, Prometheus others", async () => {
  const list = await (await fetch(`${stack.url}/v1/models`)).json();
  assert.equal(list.data[0].id, 'fake/"model"\t\\\n\x7f\ufffd');
  // the list fills its field and has no end there
  assert.deepEqual(list.data[0].kv_policies,
    ['a"b\\', '\ufffd', 'fake"policy', 'x'.repeat(512 - 19 - 1)]);
  const { text } = await stack.metrics();
  assert.ok(text.includes('model_name="fake/\\"model\\"\t\\\\\\n\x7f\ufffd"'),
    text.slice(0, 400));
});

test('logprobs: no predecessor, minus infinity, half a character', async () => {
  const chat = (await post(url, {
    fake: 'tokens', count: 2, logprobs: true,
  })).json().choices[0].logprobs.content;
  assert.equal(chat[0].logprob, null);
  assert.deepEqual(chat[1], {
    token: 't1 ', logprob: -0.25, bytes: [116, 49, 32], top_logprobs: [
      { token: 't1 ', logprob: -0.25, bytes: [116, 49, 32] },
      { token: '\ufffd\ufffd', logprob: -9999, bytes: [226, 130] },
    ],
  });
  const r = await post(`${stack.url}/v1/completions`, {
    fake: 'tokens', count: 2, logprobs: true,
  });
  assert.deepEqual(r.json().choices[0].logprobs, {
    tokens: ['t0 ', 't1 '], token_logprobs: [null, -0.25],
    top_logprobs: [{ 't0 ': null, '\ufffd\ufffd': -9999 },
      { 't1 ': -0.25, '\ufffd\ufffd': -9999 }],
    text_offset: [0, 3],
  });
});

test('the share of a plan goes with the request, also without limits',
  async () => {
    for (const [plan, share] of [['much', '7'], ['more', '9'], ['few', '0'],
      ['', '0']]) {
      const r = await post(`${stack.url}/shares/v1/chat/completions?key=a`
        + `&plan=${plan}`, { fake: 'share' });
      assert.equal(r.json().choices[0].message.content, share, plan);
    }
  });

test('8 MiB through a ring of 64 KiB, eight at a time', async () => {
  const body = `{"fake":"length","x":"${'a'.repeat(8 << 20)}"}`;
  const sum = Buffer.from(body).reduce((a, b) => a + b, 0);
  const all = await Promise.all(Array.from({ length: 8 },
    () => post(url, body)));
  for (const r of all) {
    assert.equal(r.status, 200, r.text);
    assert.equal(r.json().choices[0].message.content,
      `${body.length} ${sum}`);
  }
});

test('a body that mirror read first: whole here and whole there', async () => {
  // none, in memory, in a file, in a file larger than the ring
  for (const n of [0, 100, 60000, 3 << 20]) {
    const body = n && `{"fake":"length","x":"${'m'.repeat(n)}"}`;
    const sum = Buffer.from(body || '').reduce((a, b) => a + b, 0);
    shadowed.length = 0;
    const r = await post(`${stack.url}/mirrored/v1/chat/completions`,
      body || '');
    assert.equal(r.status, 200, r.text);
    if (n) {
      assert.equal(r.json().choices[0].message.content,
        `${body.length} ${sum}`);
    }
    await until(() => shadowed.length === 1, 'the copy');
    assert.equal(shadowed[0].toString(), body || '');
  }
});

for (const [status, answer, code] of [
  [2, 400, null], [3, 400, 'context_length_exceeded'],
  [4, 404, 'model_not_found'], [7, 429, 'queue_full'],
  [8, 500, 'internal_error'], [10, 503, 'engine_draining'],
  [11, 504, 'timeout'], [99, 500, 'internal_error'],
]) {
  test(`ERROR ${-status} is ${answer}`, async () => {
    const r = await post(url, { fake: 'error', count: status });
    assert.equal(r.status, answer);
    assert.deepEqual({ ...r.json().error, type: undefined }, {
      message: 'the fake engine says "no"', param: 'messages[0]', code,
      type: undefined,
    });
    assert.equal(r.headers['retry-after'], status === 7 ? '3' : undefined);
  });
}

test('an error in the middle: an event, the end, no [DONE]', async () => {
  const s = await stream(url, {
    fake: 'late_error', count: 3, ms: 20, stream: true,
  }).finished;
  assert.equal(s.status, 200);
  assert.equal(s.done, false);
  assert.equal(s.cut, false);
  assert.equal(s.events.at(-1).error.code, 'internal_error');
});

test('the same in the events of other APIs', async () => {
  const ask = { fake: 'late_error', count: 3, ms: 20, stream: true };
  const base = url.replace('/chat/completions', '');
  const message = await stream(`${base}/messages`, ask).finished;
  assert.equal(message.events[0].type, 'message_start');
  assert.deepEqual(message.events.at(-1).error.type, 'api_error');
  assert.equal(message.events.at(-1).type, 'error');
  const response = await stream(`${base}/responses`, ask).finished;
  assert.deepEqual(response.events.slice(0, 2).map((e) => e.type),
    ['response.created', 'response.in_progress']);
  const last = response.events.at(-1);
  assert.equal(last.type, 'response.failed');
  assert.equal(last.response.status, 'failed');
  assert.equal(last.response.error.code, 'server_error');
  for (const s of [message, response]) {
    assert.deepEqual([s.status, s.done, s.cut], [200, false, false]);
  }
});

test('arguments that are JSON only as far as a NUL, or no UTF-8', async () => {
  const r = await post(url.replace('chat/completions', 'messages'),
    { fake: 'arguments' });
  assert.deepEqual(r.json().content.map((block) => block.input),
    [{ INVALID_JSON: '{"q": "\\\0"}' }, { q: '\ufffd' }]);
});

// ---- rules broken ---------------------------------------------------------

test('a hostile engine: logprobs where there can be none', async () => {
  for (const path of ['messages', 'responses']) {
    const r = await post(url.replace('chat/completions', path),
      { fake: 'tokens', count: 1, logprobs: true });
    assert.equal(r.status, 503, r.text);
    await works();
  }
});

test('a hostile engine: it aborts what was cut and sent again', async () => {
  const workers = stack.workers();
  for (const path of ['messages', 'responses']) {
    const r = await post(`${stack.url}/cut/v1/${path}?key=${path}`,
      { fake: 'leaves', count: 1 });
    assert.equal(r.status, 503, r.text);
    // It was not sent again: the engine waits for another to abort.
    const next = await post(url, { fake: 'leaves', count: 1 });
    assert.equal(next.status, 503, next.text);
  }
  assert.deepEqual(stack.workers(), workers);
});

for (const how of ['type', 'short', 'long', 'length', 'choice', 'logprobs',
  'item', 'item_kind', 'echo', 'vector', 'twice', 'reason', 'again', 'last', 'abort', 'error', 'header', 'tail']) {
  test(`a hostile engine: ${how}`, async () => {
    const workers = stack.workers();
    const errors = 'tokenring_gateway_protocol_errors_total';
    const seen = (await stack.metrics()).value(errors);
    const bystander = stream(url, {
      fake: 'tokens', count: 100000, ms: 10, stream: true,
    });
    await bystander.begun();
    const victim = await stream(url, {
      fake: `hostile_${how}`, count: 1, ms: 10, stream: true,
      choices: how === 'last' ? 2 : 1,
    }).finished;
    for (const s of [victim, await bystander.finished]) {
      assert.equal(s.status, 200);
      assert.equal(s.events.at(-1).error.code, 'engine_unavailable');
      assert.equal(s.done, false);
      assert.equal(s.cut, false);
    }
    await works();
    assert.equal((await stack.metrics()).value(errors), seen + 1);
    assert.deepEqual(stack.workers(), workers);
  });
}

test('a hostile engine: an index of the request ring', async () => {
  const workers = stack.workers();
  await stream(hasty, { fake: 'hostile_head', count: 1, stream: true })
    .finished;
  // noticed when there is too little space to go on without looking
  const body = `{"fake":"length","x":"${'a'.repeat(1 << 20)}"}`;
  const r = await post(url, body);
  assert.equal(r.status, 503, r.text);
  await works();
  assert.deepEqual(stack.workers(), workers);
});

test('a hostile engine: an index, while a body waits for space', async () => {
  const workers = stack.workers();
  const s = stream(url, { fake: 'hostile_trap', count: 1, ms: 10,
    stream: true });
  await s.start;
  const r = await post(url, `{"fake":"length","x":"${'a'.repeat(1 << 20)}"}`);
  assert.equal(r.status, 503, r.text);
  await s.finished;
  await works();
  assert.deepEqual(stack.workers(), workers);
});

test('a hostile engine: a doorbell that waits', { timeout: 60000 * PATIENCE },
  async () => {
    const workers = stack.workers();
    const s = stream(url, { fake: 'hostile_bell', count: 1, ms: 10,
      stream: true });
    await s.when(() => s.text().includes('!'));
    const r = await post(url, { fake: 'tokens' });
    assert.equal(r.status, 503, r.text);
    assert.equal((await s.finished).events.at(-1).error.code,
      'engine_unavailable');
    await works();
    assert.deepEqual(stack.workers(), workers);
  });

test('a hostile engine: it hangs up and goes on filling its ring', async () => {
  const workers = stack.workers();
  const s = await stream(wide, { fake: 'hostile_flood', count: 1, ms: 10,
    stream: true }).finished;
  assert.equal(s.events.at(-1).error.code, 'engine_unavailable');
  assert.equal(engine.exitCode, null, 'the worker drained until the end');
  await restartEngine();
  await works();
  assert.deepEqual(stack.workers(), workers);
});

test('records of dead and unknown requests are dropped', async () => {
  await stack.healthy();
  const s = await stream(url, {
    fake: 'hostile_dead', count: 1, stream: true,
  }).finished;
  assert.equal(s.done, true);
  assert.equal(s.text(), tokens(1));
});

test('an abort that nobody asked for is an error', async () => {
  const r = await post(url, { fake: 'abort', count: 2 });
  assert.equal(r.status, 503);
  const s = await stream(url, {
    fake: 'abort', count: 2, ms: 20, stream: true,
  }).finished;
  assert.ok(s.events.at(-1).error);
  assert.equal(s.done, false);
});

// A reader with small buffers that reads nothing until rest() is over.
function slow(fake, count, rest, path = '/v1/chat/completions') {
  return new Promise((resolve, reject) => {
    const body = JSON.stringify({ fake, count, stream: true });
    const s = net.connect({ port: small, host: '127.0.0.1' });
    let text = '';
    s.setEncoding('latin1');
    s.on('data', (d) => { text += d; });
    s.on('error', reject);
    s.on('close', () => resolve(text));
    s.write(`POST ${path} HTTP/1.0\r\n`
      + 'Content-Type: application/json\r\n'
      + `Content-Length: ${body.length}\r\n\r\n${body}`);
    s.pause();
    rest().then(() => s.resume(), reject);
  });
}

test('an engine that does not hear a pause loses that request', async () => {
  const pauses = async () => (await stack.metrics())
    .value('tokenring_gateway_pauses_total');
  const before = await pauses();
  const text = await slow('deaf', 40000000, async () => {
    // What is too much after it, a second's work at most, is seen by nobody.
    await until(async () => await pauses() > before, 'a pause');
    await sleep(5000);
  });
  assert.match(text.slice(-400), /too large for the gateway/);
  await works();
});

test('the end of a budget is not taken back by a pause', async () => {
  const text = await slow('late_ears', 100000, () => sleep(1000),
    '/cut/v1/chat/completions?key=slow');
  assert.match(text.slice(-400), /"finish_reason":"length"/);
  assert.match(text.slice(-40), /\[DONE\]/);
});

// ---- silence and death ----------------------------------------------------

test('an engine that says nothing: 504', async () => {
  const r = await post(hasty, { fake: 'silent' });
  assert.equal(r.status, 504);
  assert.equal(r.json().error.code, 'timeout');
});

test('an engine that stops between tokens: an error event', async () => {
  const s = await stream(url.replace('/v1/', '/idle/v1/'), {
    fake: 'tokens', count: 2, ms: 600000, stream: true,
  }).finished;
  assert.equal(s.events.at(-1).error.code, 'timeout');
  assert.equal(s.done, false);
});

test('a hang-up that the engine does not answer is logged anyway', async () => {
  const s = stream(url, { fake: 'silent', stream: true },
    { headers: { 'X-Mark': 'silent' } });
  await stack.active(1);
  s.hangUp();
  await s.finished;
  const [line] = await stack.logged('silent');
  assert.equal(line.status, 499);
  assert.equal(line.finish_reason, 'aborted');
});

test('an engine dies: 503 before the head, an event after it', async () => {
  const s = stream(url, { fake: 'tokens', count: 100000, ms: 20,
    stream: true });
  const whole = post(url, { fake: 'tokens', count: 100000, ms: 20 });
  await s.begun();
  await post(url, { fake: 'die', count: 1 }).then((r) => {
    assert.equal(r.status, 503);
    assert.equal(r.headers['retry-after'], '1');
  });
  assert.equal((await s.finished).events.at(-1).error.code,
    'engine_unavailable');
  assert.equal((await whole).status, 503);
  const absent = await post(url, { fake: 'tokens' });
  assert.equal(absent.status, 503);
  assert.equal(absent.headers['retry-after'], '1');
  fs.rmSync(socket, { force: true });
  await startEngine();
  await stack.healthy();
  await works();
});

test('an answer before the body is whole ends the connection', async () => {
  // more than NGINX holds until it is whole: the engine has a part of it
  const body = `{"fake":"length","x":"${'a'.repeat(1 << 16)}"}`;
  const half = body.length >> 1;
  const s = net.connect({
    port: stack.port, host: '127.0.0.1', allowHalfOpen: true,
  });
  let text = '';
  s.setEncoding('latin1');
  s.on('data', (d) => { text += d; });
  s.on('error', () => {});
  s.write('POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n'
    + 'Content-Type: application/json\r\n'
    + `Content-Length: ${body.length}\r\n\r\n${body.slice(0, half)}`);
  await stack.active(1);
  await taken(s);
  await stopEngine('SIGKILL');
  await until(() => text.endsWith('}'), 'the answer');
  s.end(body.slice(half));
  assert.match(text, /^HTTP\/1\.1 503 /);
  // who reads keep-alive here sends the next request into the void
  assert.match(text, /\r\nConnection: close\r\n/);
  await startEngine();
  await stack.healthy();
  await works();
});

// ---- HTTP/2 ---------------------------------------------------------------

// body(request) writes and ends it; the answer is {status, text}.
async function overHttp2(path, body) {
  const session = stack.http2();
  try {
    const req = session.request({ ':method': 'POST', ':path': path,
      'content-type': 'application/json' });
    const answer = answer2(req);
    await body(req);
    return await answer;
  } finally {
    session.close();
  }
}

test('HTTP/2: an engine is lost when a whole body is about to be read',
  async () => {
    // While auth_request waits, the body comes to its end.  Then the worker
    // reads it later than what else has happened: that the engine has died.
    const workers = stack.workers();
    const r = await overHttp2('/gated/v1/chat/completions', async (req) => {
      req.end(JSON.stringify({ fake: 'tokens' }));
      await until(() => asked.length === 1, 'auth_request');
      await sleep(100); // the body is there, in one frame after the head
      await Promise.all(workers.map(halt));
      await new Promise((resolve) => { asked.pop().end(resolve); });
      await stopEngine('SIGKILL');
      workers.forEach((pid) => process.kill(pid, 'SIGCONT'));
    });
    assert.equal(r.status, 503, r.text);
    await startEngine();
    await works();
    assert.deepEqual(stack.workers(), workers);
    assert.deepEqual(stack.complaints(), []);
  });

test('HTTP/2: client_body_timeout is over while the ring is full', async () => {
  engine.kill('SIGSTOP');
  const first = post(url, `{"fake":"length","x":"${'a'.repeat(1 << 20)}"}`);
  await stack.active(1);
  const r = await overHttp2('/brief/v1/chat/completions', async (req) => {
    req.write(`{"fake":"length","x":"${'b'.repeat(40000)}`);
    await stack.active(2);
    // it waits for the ring, and yet the window has room for more to come
    await sleep(200);
    req.write('b'.repeat(1000));
    await sleep(1500);
    engine.kill('SIGCONT');
    req.end('"}');
  });
  assert.equal(r.status, 200, r.text);
  assert.match(r.text, /41024 /);
  assert.equal((await first).status, 200);
});

for (const [mode, status, code, reason] of [
  ['--full', 429, 'queue_full', null],
  ['--draining', 503, 'engine_draining', 'draining'],
  ['--stalled', 503, 'engine_unavailable', 'stalled'],
  ['--refuse', 503, 'engine_unavailable', 'not connected'],
  ['--mute', 503, 'engine_unavailable', 'not connected'],
]) {
  test(`an engine in the state ${mode}: ${status}`, async () => {
    await restartEngine(mode);
    // until then the worker has not seen the new one
    await until(async () => {
      const r = await post(url, { fake: 'tokens' });
      return r.status === status && r.json().error.code === code;
    }, `${status} ${code}`);
    await until(async () => {
      const health = await fetch(`${stack.url}/health`);
      const said = (await health.json()).engines[0].reason ?? null;
      return health.status === (reason === null ? 200 : 503)
        && said === reason;
    }, `health says ${reason}`);
    if (mode === '--mute') { // whenever it came, nobody waits for ever
      const all = [];
      for (let i = 0; i < 10; i++) {
        all.push(post(url, { fake: 'tokens' }));
        await sleep(300);
      }
      for (const r of await Promise.all(all)) assert.equal(r.status, 503);
    }
    if (mode === '--refuse') {
      await until(() =>
        /speaks versions 11 to 11 of the channel, this module 4 to 4/
          .test(stack.errorLog()), 'a line that names both versions');
    }
    await restartEngine();
    await stack.healthy();
    await works();
  });
}

// Where no engine has them, requests of other endpoints have none, nor have those
// whose engine was chosen by their model.
test('an engine that is older: other endpoints get 503, chats go on', async () => {
  await restartEngine('--plain');
  const messages = (body) => post(`${stack.url}/v1/messages`, body);
  await until(async () => (await post(url, { fake: 'tokens' })).status === 200
    && (await messages({ max_tokens: 2 })).status === 503, 'the older engine');
  const r = await messages({ max_tokens: 2 });
  assert.deepEqual([r.json().type, r.json().error.type], ['error', 'overloaded_error']);
  assert.match(r.text, /engine/);
  const named = () => post(`${stack.url}/named/v1/chat/completions`,
    { fake: 'tokens', model: 'fake' });
  const n = await named();
  assert.equal(n.status, 503, n.text);
  assert.equal(n.json().error.code, 'engine_unavailable');
  assert.equal((await post(url, { fake: 'tokens' })).status, 200);
  await restartEngine();
  await until(async () => (await messages({ fake: 'tokens' })).status !== 503,
    'the newer one');
  assert.equal((await named()).status, 200);
  await works();
});

test('a stream that worker_shutdown_timeout cuts is logged as it was', async () => {
  const s = stream(url, { fake: 'tokens', count: 100000, ms: 20, stream: true },
    { headers: { 'X-Mark': 'shutdown' } });
  await s.begun();
  await stack.reload();
  await s.finished;
  assert.equal(s.done, false);
  const [line] = await stack.logged('shutdown');
  assert.equal(line.finish_reason, 'aborted');
  assert.ok(Number(line.completion_tokens) > 0);
  await works();
});

test('nothing is left behind and nothing was out of order', async () => {
  await stack.active(0);
  assert.deepEqual(stack.complaints(), []);
});
