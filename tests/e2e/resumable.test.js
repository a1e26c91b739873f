'use strict';
//
// What the module reads from Redis, and how: answers that are taken up again,
// states, owners, wishes to cancel; and what it does when Redis holds nonsense,
// is slow, or is not there.  The engine's part is written by the test itself
// (lib/records.js), beside an engine that is a script (fake_engine.c): so every
// order of events can be made.  redis_requests.test.js has a real engine.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { createHash, randomBytes } = require('node:crypto');
const { spawn, spawnSync } = require('node:child_process');
const fs = require('node:fs');
const http2 = require('node:http2');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { ROOT, BUILD, Stack, alive, sleep, until, read } = require('./lib/stack');
const { post, request, stream } = require('./lib/http');
const { Redis } = require('./lib/redis');
const R = require('./lib/records');

const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-resume-'));
const socket = path.join(dir, 'fake.sock');
let redis, stack, other, fake;

async function startFake() {
  fake = spawn(path.join(BUILD, 'tests/fake_engine'), [socket],
    { stdio: 'inherit' });
  await until(() => fs.existsSync(socket), 'the socket of the fake engine');
}

async function gateway(more = {}) {
  const s = await Stack.start({
    engine: null,
    http: `tokenring_engine fake unix:${socket};
      tokenring_redis ${redis.address} timeout=10s;`,
    pass: 'fake',
    server: `
      location /plain/v1/ { tokenring_pass fake; }
      location /none/v1/ { tokenring_redis off; tokenring_pass fake; }
      location /owned/v1/ { tokenring_resumable on;
        tokenring_request_key $http_authorization; tokenring_pass fake; }`,
    location: `tokenring_resumable on;
      tokenring_buffer_size 64k;`,
    ...more,
  });
  await s.healthy();
  return s;
}

before(async () => {
  const made = spawnSync('make', ['-s', 'fake-engine', `B=${BUILD}`],
    { cwd: ROOT, encoding: 'utf8' });
  assert.equal(made.status, 0, made.stderr);
  fs.chmodSync(dir, 0o755);
  redis = await Redis.start();
  await startFake();
  [stack, other] = await Promise.all([gateway(), gateway()]);
});

after(async () => {
  if (stack) await stack.stop();
  if (other) await other.stop();
  if (fake) fake.kill();
  if (redis) await redis.stop();
  fs.rmSync(dir, { recursive: true, force: true });
});

const url = (id, s = stack, place = '') => `${s.url}${place}/v1/requests/${id}`;
const follow = (id, { s = stack, after: last, place = '', ...more } = {}) =>
  stream(`${url(id, s, place)}/stream`, undefined, {
    ...more,
    headers: { ...(last === undefined ? {} : { 'Last-Event-ID': String(last) }),
      ...more.headers },
  });

// The records that the fake engine makes of {fake: 'tokens', count, choices}.
function tokens({ count, choices = 1, ...more }) {
  const all = [R.accepted({ choices, ...more })];
  for (let i = 0; i < count; i++) {
    for (let c = 0; c < choices; c++) {
      all.push(R.delta(`t${i} `, { choice: c }));
    }
  }
  for (let c = 0; c < choices; c++) {
    all.push(R.finish({ choice: c, last: c + 1 === choices,
      completion: count * choices }));
  }
  return all;
}

// Entries of some records each, as a flush every now and then makes them.
async function spread(w, records, each = 3) {
  for (let i = 0; i < records.length; i += each) {
    await w.put(records.slice(i, i + each), { publish: false });
  }
  return w;
}

// New workers serve, and those of before have left: they may still have
// accepted a connection while the new ones came.
async function reload(s) {
  await s.reload();
  await until(() => s.workers().length === 1, 'old workers have left');
}

// What a stream has after the event with this id.
function rest(raw, id) {
  const at = raw.indexOf(`id: ${id}\n`);
  assert.ok(at >= 0, `id ${id} in ${raw}`);
  return raw.slice(raw.indexOf('\n\n', at) + 2);
}

const written = (options) => new R.Written(redis, options);

// ---- a live stream and what is read again ------------------------------------

for (const shape of [
  { name: 'chat', path: 'chat/completions' },
  { name: 'chat with usage', path: 'chat/completions', usage: true },
  { name: 'three choices', path: 'chat/completions', choices: 3 },
  { name: 'completions', path: 'completions', chat: false, choices: 2 },
]) {
  test(`${shape.name}: the same bytes live, again, and after any event`,
    async () => {
      const { choices = 1, chat = true, usage = false } = shape;
      const live = await stream(`${stack.url}/v1/${shape.path}`, {
        fake: 'tokens', count: 9, choices, stream: true, include_usage: usage,
      }).finished;
      assert.equal(live.status, 200, live.raw);
      assert.equal(live.done, true);
      const id = live.headers['x-tokenring-id'];
      assert.match(id, /^[0-9a-f]{32}$/);
      // 1 is ACCEPTED, which makes no event
      assert.deepEqual(live.ids,
        Array.from({ length: 10 * choices }, (_, i) => i + 2));

      const w = await written({ id }).state('done',
        { endpoint: chat ? 'chat' : 'completions' });
      await spread(w, tokens({ count: 9, choices, chat, usage }), 4);
      for (const s of [stack, other]) {
        const again = await follow(id, { s }).finished;
        assert.equal(again.status, 200);
        assert.equal(again.raw, live.raw);
        assert.equal(again.headers['x-tokenring-id'], id);
      }
      for (const last of live.ids) {
        const resumed = await follow(id, { s: other, after: last }).finished;
        assert.equal(resumed.raw, rest(live.raw, last), `after ${last}`);
      }
      // the number of ACCEPTED, and in the URL
      assert.equal((await follow(id, { after: 1 }).finished).raw, live.raw);
      assert.equal((await stream(`${url(id)}/stream?after=5`, undefined)
        .finished).raw, rest(live.raw, 5));
    });
}

test('an answer that was not streamed is read again as it was', async () => {
  const live = await post(`${stack.url}/v1/chat/completions`,
    { fake: 'tokens', count: 4, choices: 2 });
  const id = live.headers['x-tokenring-id'];
  const w = await written({ id }).state('done', { stream: 0 });
  await spread(w, tokens({ count: 4, choices: 2, stream: false }));
  const again = await request(`${url(id)}/stream`);
  assert.equal(again.status, 200, again.text);
  assert.equal(again.text, live.text);
});

test('without tokenring_resumable there are no ids, and texts are merged',
  async () => {
    const s = await stream(`${stack.url}/plain/v1/chat/completions`,
      { fake: 'tokens', count: 9, stream: true }).finished;
    assert.equal(s.done, true);
    assert.ok(!s.raw.includes('id: '), s.raw);
    assert.ok(s.events.length < 9, 'they came at once');
    // its state can be asked for
    assert.match(s.headers['x-tokenring-id'], /^[0-9a-f]{32}$/);
    assert.equal((await stream(`${stack.url}/none/v1/chat/completions`,
      { fake: 'tokens', stream: true }).finished).headers['x-tokenring-id'],
    undefined);
  });

test('a text is one event, however long; an empty one is none', async () => {
  const w = await written().state('done');
  const long = 'é'.repeat(40000);
  await w.put([R.accepted(), R.started(), R.delta('a'), R.delta(''),
    R.delta(long), R.finish({ completion: 3 })]);
  const s = await follow(w.id).finished;
  assert.deepEqual(s.ids, [2, 4, 5]);
  assert.equal(s.text(), `a${long}`);
  assert.equal((await follow(w.id, { after: 3 }).finished).text(), long);
});

test('ids of completions are taken with their prefixes', async () => {
  const w = await written().state('done');
  await w.put(tokens({ count: 1 }));
  for (const name of [w.id, `chatcmpl-${w.id}`, `cmpl-${w.id}`]) {
    const r = await request(url(name));
    assert.equal(r.status, 200, r.text);
    assert.equal(r.json().id, `chatcmpl-${w.id}`);
    assert.equal((await follow(name).finished).done, true);
  }
});

test('an error is read again: as status before, as event after a text',
  async () => {
    const early = await written().state('failed');
    await early.put([R.accepted(), R.error(-8, 'no "luck"')]);
    const r = await request(`${url(early.id)}/stream`);
    assert.equal(r.status, 500);
    assert.equal(r.json().error.message, 'no "luck"');

    const late = await written().state('failed');
    await late.put([R.accepted(), R.delta('a '), R.delta('b '),
      R.error(-11, 'too late')]);
    const s = await follow(late.id).finished;
    assert.equal(s.status, 200);
    assert.equal(s.text(), 'a b ');
    assert.deepEqual(s.ids, [2, 3, 4]);
    assert.equal(s.events.at(-1).error.code, 'timeout');
    assert.equal(s.done, false);
    const resumed = await follow(late.id, { after: 3 }).finished;
    assert.equal(resumed.raw, rest(s.raw, 3));
    // who has seen the error gets nothing more, and an end
    const seen = await follow(late.id, { after: 4 }).finished;
    assert.equal(seen.status, 200);
    assert.equal(seen.raw, '');
    assert.equal(seen.cut, false);
  });

// ---- following ----------------------------------------------------------------

test('a follower gets what is there, and then what comes', async () => {
  const w = await (await written().heartbeat()).state('decode');
  await w.put([R.accepted(), R.delta('one ')]);
  const s = follow(w.id);
  await s.when(() => s.text() === 'one ');
  for (const text of ['two ', 'three ', 'four ']) {
    await w.put([R.delta(text)]);
    await s.when(() => s.text().endsWith(text));
  }
  const late = follow(w.id, { s: other, after: 3 });
  await late.when(() => late.text() === 'three four ');
  await w.put([R.finish({ completion: 4 })]);
  assert.equal((await s.finished).done, true);
  assert.equal((await late.finished).raw, rest(s.raw, 3));
  assert.equal((await follow(w.id).finished).raw, s.raw);
});

test('a follower may come before the first record', async () => {
  const w = await (await written().heartbeat()).state('queued');
  const s = follow(w.id);
  await sleep(300);
  assert.equal(s.status, 0);
  await w.put(tokens({ count: 3 }));
  assert.equal((await s.finished).text(), 't0 t1 t2 ');
});

test('an id that is ahead of Redis waits for it', async () => {
  const w = await (await written().heartbeat()).state('decode');
  await w.put([R.accepted(), R.delta('a ')]);
  const s = follow(w.id, { after: 4 });
  await sleep(200);
  await w.put([R.delta('b '), R.delta('c ')]);
  await sleep(200);
  assert.equal(s.raw, '');
  await w.put([R.delta('d '), R.finish({ completion: 4 })]);
  assert.equal((await s.finished).text(), 'd ');
});

test('messages that come twice, out of place or broken do no harm',
  async () => {
    const w = await (await written().heartbeat()).state('decode');
    await w.put([R.accepted(), R.delta('a ')]);
    const s = follow(w.id);
    await s.when(() => s.text() === 'a ');
    await until(async () => (await redis.command('PUBSUB', 'NUMSUB',
      w.key('live')))[1] > 0, 'a subscription');
    const say = (m) => redis.command('PUBLISH', w.key('live'), m);
    const bytes = R.delta('a ').toString('latin1');
    await say(`1 2\n${bytes}`);
    await say('');
    await say('\n');
    await say('7');
    await say('99999999999999999999999 3\nx');
    await say('9 9\n');
    // one that was lost: the next one makes the follower read
    await w.put([R.delta('b ')], { publish: false });
    await w.put([R.delta('c ')]);
    await s.when(() => s.text() === 'a b c ');
    // and a last one that was lost is found without a message
    await w.put([R.finish({ completion: 3 })], { publish: false });
    const end = await s.finished;
    assert.equal(end.done, true);
    assert.deepEqual(end.ids, [2, 3, 4, 5]);
  });

test('300 followers, one connection; the last one that leaves unsubscribes',
  async () => {
    const w = await (await written().heartbeat()).state('decode');
    await w.put([R.accepted(), R.delta('a ')]);
    const all = Array.from({ length: 300 }, () => follow(w.id));
    await Promise.all(all.map((s) => s.when(() => s.text() === 'a ')));
    const channels = async () => (await redis.command('CLIENT', 'LIST'))
      .split('\n').filter((line) => /name=tokenring-channels/.test(line)
        && / sub=[1-9]/.test(line));
    await until(async () => (await channels()).length === 1, 'one connection');
    assert.match((await channels())[0], / sub=1 /);
    for (let i = 0; i < 5; i++) await w.put([R.delta(`${i} `)]);
    for (const s of all.slice(100)) s.hangUp();
    await w.put([R.delta('b '), R.finish({ completion: 7 })]);
    for (const s of all.slice(0, 100)) {
      assert.equal((await s.finished).text(), 'a 0 1 2 3 4 b ');
      assert.equal(s.done, true);
    }
    await until(async () => (await channels()).length === 0, 'unsubscribed');
    // the same channel again, at once, many times
    for (let i = 0; i < 20; i++) {
      const x = await (await written({ id: w.id }).heartbeat()).state('decode');
      await redis.command('DEL', x.key('out'));
      await x.put([R.accepted(), R.delta('a ')]);
      const s = follow(x.id);
      await s.when(() => s.text() === 'a ');
      if (i % 2) s.hangUp();
      else await x.put([R.finish({ completion: 1 })]);
      await s.finished;
    }
  });

test('a client that reads nothing costs a page, and gets everything',
  async () => {
    const w = await (await written().heartbeat()).state('decode');
    const texts = [];
    const piece = () => {
      const text = `${randomBytes(700).toString('hex')} `;
      texts.push(text);
      return R.delta(text);
    };
    await w.put([R.accepted(), piece()]);
    const s = follow(w.id);
    await s.start;
    s.res.pause();
    for (let i = 0; i < 300; i++) {
      await w.put(Array.from({ length: 20 }, piece));
    }
    await w.put([R.finish({ completion: texts.length })]);
    const held = () => Number(/VmRSS:\s+(\d+)/.exec(
      read(`/proc/${stack.workers()[0]}/status`))[1]);
    await sleep(500);
    const before = held();
    assert.ok(before < 200 * 1024, `${before} KiB`);
    s.res.resume();
    const end = await s.finished;
    assert.equal(end.done, true);
    assert.equal(end.text(), texts.join(''));
  });

test('keep-alive comments, and a client that leaves', async () => {
  const w = await (await written().heartbeat()).state('decode');
  await w.put([R.accepted(), R.delta('a ')]);
  stack.configure({ location: `${stack.options.location}
    tokenring_keepalive_comment 200ms;` });
  await reload(stack);
  const s = follow(w.id);
  await s.when(() => s.comments.length >= 2);
  s.hangUp();
  await until(async () => (await redis.command('PUBSUB', 'NUMSUB',
    w.key('live')))[1] === 0, 'unsubscribed');
});

// ---- engines that are gone ----------------------------------------------------

test('the engine has died: what there is, an error, the end', async () => {
  const w = await written().state('decode'); // and no heartbeat
  await redis.command('DEL', w.key('engine', w.engine));
  await w.put([R.accepted(), R.delta('a '), R.delta('b ')]);
  const s = await follow(w.id).finished;
  assert.equal(s.text(), 'a b ');
  assert.equal(s.events.at(-1).error.code, 'engine_unavailable');
  assert.equal(s.cut, false);
  const state = (await request(url(w.id))).json();
  assert.equal(state.state, 'failed');
  assert.equal(state.error.code, 'engine_unavailable');
  // another run of the same engine knows nothing of it
  await written({ run: 'fedcba9876543210' }).heartbeat();
  assert.equal((await request(url(w.id))).json().state, 'failed');
  await w.heartbeat();
  assert.equal((await request(url(w.id))).json().state, 'decode');
  // nothing was told yet: a status
  const queued = await written({ engine: 'nobody' }).state('queued');
  const r = await request(`${url(queued.id)}/stream`);
  assert.equal(r.status, 503);
  assert.equal(r.json().error.code, 'engine_unavailable');
});

test('it dies while somebody follows', async () => {
  const w = await written({ engine: 'brief' });
  await w.heartbeat();
  await w.state('decode');
  await w.put([R.accepted(), R.delta('a ')]);
  const s = follow(w.id);
  await s.when(() => s.text() === 'a ');
  await redis.command('DEL', w.key('engine', 'brief'));
  const end = await s.finished;
  assert.equal(end.events.at(-1).error.code, 'engine_unavailable');
});

test('output that has expired, and output that has no end', async () => {
  const gone = await written().state('done');
  const r = await request(`${url(gone.id)}/stream`);
  assert.equal(r.status, 404);
  assert.match(r.json().error.message, /not kept any longer/);
  const half = await written().state('done');
  await half.put([R.accepted(), R.delta('a ')]);
  const s = await follow(half.id).finished;
  assert.equal(s.events.at(-1).error.code, 'engine_unavailable');
  // never kept
  const not = await written().state('done', { resumable: 0 });
  assert.match((await request(`${url(not.id)}/stream`)).json().error.message,
    /tokenring_resumable/);
});

// ---- states and owners --------------------------------------------------------

test('the state as JSON', async () => {
  const w = await written();
  await w.heartbeat();
  await w.state('done', {
    endpoint: 'completions', request_id: 'abc', started: 1700000000223,
    first_token: 1700000000523, finished: 1700000002123, choices: 2,
    prompt_tokens: 7, completion_tokens: 40, cached_tokens: 3, preemptions: 1,
    finish_reason: 'length', kv_bytes: 250, kv_full_bytes: 1000,
    share_high: '0.5', share_low: '0.25', share_pruned: '0.25', detach: 1,
  });
  const r = await request(url(w.id));
  assert.equal(r.status, 200);
  assert.equal(r.headers['cache-control'], 'no-store');
  assert.deepEqual(r.json(), {
    id: `cmpl-${w.id}`, object: 'request', state: 'done',
    model: 'fake "model"', engine: 'scribe', request_id: 'abc', stream: true,
    resumable: true, detach: true, gap: false, choices: 2,
    created: 1700000000.123, started: 1700000000.223,
    first_token: 1700000000.523, finished: 1700000002.123,
    finish_reason: 'length', error: null,
    timings: { unit: 's', queue: 0.1, ttft: 0.4, total: 2 }, preemptions: 1,
    usage: {
      prompt_tokens: 7, completion_tokens: 40, total_tokens: 47,
      prompt_tokens_details: { cached_tokens: 3 },
      kv_cache: { bytes: 250, fp16_bytes: 1000, ratio: 0.25, share_high: 0.5,
        share_low: 0.25, share_pruned: 0.25 },
    },
  });
  for (const state of ['queued', 'prefill', 'decode', 'detached']) {
    await w.state(state);
    assert.equal((await request(url(w.id))).json().state, state);
  }
  await w.state('failed', { error_status: 'TR_ERR_TIMEOUT', error: 'slow' });
  assert.deepEqual((await request(url(w.id))).json().error,
    { message: 'slow', type: 'server_error', param: null, code: 'timeout' });
  const head = await request(url(w.id), { method: 'HEAD' });
  assert.equal(head.status, 200);
  assert.equal(head.text, '');
  const put = await request(url(w.id), { method: 'PUT' });
  assert.equal(put.status, 405);
  assert.equal(put.headers.allow, 'GET, HEAD, DELETE');
});

test('another owner gets the answer of an id that nobody has', async () => {
  const w = await written();
  const owner = createHash('sha1').update(`${w.id}:Bearer mine`).digest('hex');
  await w.state('done', { owner });
  await w.put(tokens({ count: 2 }));
  const as = (key) => (key ? { authorization: key } : {});
  const unknown = randomBytes(16).toString('hex');
  for (const [method, tail] of [['GET', ''], ['GET', '/stream'],
    ['DELETE', '']]) {
    const ask = (id, key, place = '/owned') => request(
      `${url(id, stack, place)}${tail}`, { method, headers: as(key) });
    const nobody = await ask(unknown, 'Bearer mine');
    assert.equal(nobody.status, 404);
    for (const [key, place] of [['Bearer yours', '/owned'], [null, '/owned'],
      ['Bearer mine', '']]) { // where there is no key, nobody is the owner
      const r = await ask(w.id, key, place);
      assert.equal(r.status, 404);
      assert.equal(r.text, nobody.text);
      const names = (h) => Object.keys(h).filter((n) => n !== 'date').sort();
      assert.deepEqual(names(r.headers), names(nobody.headers));
    }
    const mine = await ask(w.id, 'Bearer mine');
    assert.equal(mine.status, 200, mine.text);
  }
  // one without an owner is anybody's
  const free = await written().state('done');
  assert.equal((await request(url(free.id, stack, '/owned'))).status, 200);
  // what is no id at all
  for (const id of ['x', 'chatcmpl-', `${w.id}0`, w.id.toUpperCase() + 'A',
    `${w.id}/x`, `${w.id.slice(0, 31)}G`, '%00'.repeat(32)]) {
    const r = await request(url(id));
    assert.equal(r.status, id.includes('%00') ? 400 : 404, id);
  }
  // and where there is no Redis, there is nothing
  const none = await request(url(w.id, stack, '/none'));
  assert.equal(none.status, 404);
  assert.match(none.json().error.message, /There is nothing here/);
});

// Asks for a request, and has it written when Redis has said that there is
// none.  Once more if the machine slept for longer than the second look waits.
async function early(tail, method, want) {
  for (let left = 8; ; left--) {
    const w = await (await written({ engine: 'late' })).heartbeat();
    const monitor = await redis.monitor();
    const looks = () => monitor.lines.filter((line) =>
      line.includes(`"HMGET" "${w.key('req')}"`)).length;
    const answer = request(`${url(w.id)}${tail}`, { method });
    await until(() => looks() > 0, 'the first look');
    await w.put(tokens({ count: 2 }));
    await w.state('decode');
    const r = await answer;
    monitor.stop();
    if (r.status === want || left === 0) {
      assert.ok(looks() >= 2, 'it was looked up again');
      return { r, w };
    }
  }
}

test('who is earlier than the engine\'s next flush is not told 404', async () => {
  const leave = await redis.subscribe('tr:ctl:{late}', () => {});
  const state = await early('', 'GET', 200);
  assert.equal(state.r.status, 200, state.r.text);
  assert.equal(state.r.json().state, 'decode');
  // the page was asked for with the record: it is not lost
  const answer = await early('/stream', 'GET', 200);
  assert.equal(answer.r.status, 200, answer.r.text);
  assert.equal(answer.r.text, (await follow(answer.w.id).finished).raw);
  assert.match(answer.r.text, /t0 .*t1 .*\[DONE\]/s);
  assert.equal((await early('', 'DELETE', 202)).r.status, 202);
  leave();
});

test('nobody\'s id and another owner\'s are looked up equally often',
  async () => {
    const w = await written();
    await w.state('done', { owner: 'a'.repeat(40) });
    await w.put(tokens({ count: 2 }));
    for (const tail of ['', '/stream']) {
      for (const id of [w.id, randomBytes(16).toString('hex')]) {
        const monitor = await redis.monitor();
        const r = await request(`${url(id, stack, '/owned')}${tail}`);
        assert.equal(r.status, 404);
        await redis.command('ECHO', 'over');
        await until(() => monitor.lines.some((l) => l.includes('"over"')),
          'the monitor has heard all');
        monitor.stop();
        assert.equal(monitor.lines.filter((line) =>
          line.includes(`"HMGET" "tr:req:{${id}}"`)).length, 2);
      }
    }
  });

test('a client that leaves between two looks', async () => {
  const id = randomBytes(16).toString('hex');
  const monitor = await redis.monitor();
  const all = ['', '/stream'].map((tail) => stream(`${url(id)}${tail}`));
  await until(() => monitor.lines.filter((line) =>
    line.includes(`"HMGET" "tr:req:{${id}}"`)).length >= 2, 'both first looks');
  monitor.stop();
  for (const s of all) s.hangUp();
  await Promise.all(all.map((s) => s.finished));
  assert.equal((await request(url(id))).status, 404);
  assert.deepEqual(stack.complaints(), []);
});

test('where an event is asked for that is none: 400', async () => {
  const w = await written().state('done');
  for (const last of ['x', '-1', '1.5', '9'.repeat(19), '0x1', '1 ']) {
    const r = await request(`${url(w.id)}/stream?after=${encodeURIComponent(
      last)}`);
    assert.equal(r.status, 400, last);
  }
});

test('DELETE tells the engine, wherever it is', async () => {
  const w = await written({ engine: 'wishes' });
  await w.heartbeat();
  await w.state('decode');
  // nobody hears it
  const deaf = await request(url(w.id), { method: 'DELETE' });
  assert.equal(deaf.status, 503);
  assert.equal(deaf.headers['retry-after'], '1');
  const heard = [];
  const leave = await redis.subscribe(w.key('ctl', 'wishes'),
    (m) => heard.push(m.toString()));
  const r = await request(url(`chatcmpl-${w.id}`, other),
    { method: 'DELETE' });
  assert.equal(r.status, 202, r.text);
  assert.equal(r.json().cancelling, true);
  assert.equal(r.json().state, 'decode');
  await until(() => heard.length > 0, 'a wish');
  assert.deepEqual(heard, [`cancel ${w.id}`]);
  // what is over stays as it is
  await w.state('cancelled');
  const over = await request(url(w.id), { method: 'DELETE' });
  assert.equal(over.status, 200);
  assert.equal(over.json().state, 'cancelled');
  await w.state('decode');
  await redis.command('DEL', w.key('engine', 'wishes'));
  const lost = await request(url(w.id), { method: 'DELETE' });
  assert.equal(lost.status, 200);
  assert.equal(lost.json().state, 'failed');
  assert.equal(heard.length, 1);
  leave();
});

// ---- detaching ----------------------------------------------------------------

test('X-Tokenring-Detach: only where output is kept, and only 0 or 1',
  async () => {
    const detach = (value, place = '') => post(
      `${stack.url}${place}/v1/chat/completions`, { fake: 'tokens' },
      { 'X-Tokenring-Detach': value });
    assert.equal((await detach('1')).status, 200);
    assert.equal((await detach('0')).status, 200);
    assert.equal((await detach('0', '/plain')).status, 200);
    for (const [value, place] of [['yes', ''], ['', ''], ['1', '/plain']]) {
      const r = await detach(value, place);
      assert.equal(r.status, 400, `${value} ${place}`);
      assert.match(r.json().error.message, /X-Tokenring-Detach/);
    }
  });

test('its stream begins with the headers, before there is a token',
  async () => {
    const s = stream(`${stack.url}/v1/chat/completions`,
      { fake: 'never', stream: true },
      { headers: { 'X-Tokenring-Detach': '1' } });
    // "never" accepts nothing, so that this one has none
    await sleep(200);
    assert.equal(s.status, 0);
    s.hangUp();
    const slow = stream(`${stack.url}/v1/chat/completions`,
      { fake: 'tokens', count: 2, ms: 500, stream: true },
      { headers: { 'X-Tokenring-Detach': '1' } });
    await slow.start;
    assert.match(slow.headers['x-tokenring-id'], /^[0-9a-f]{32}$/);
    assert.equal((await slow.finished).text(), 't0 t1 ');
  });

// ---- nonsense in Redis --------------------------------------------------------

test('records that no engine wrote: an error, a line in the log, no crash',
  async () => {
    const a = R.accepted();
    const long = Buffer.alloc(8);
    long.writeUInt32LE(0xfffffff0, 0);
    long.writeUInt16LE(R.TYPE.delta, 4);
    const reserved = R.delta('x');
    reserved.writeUInt16LE(1, 6);
    const cases = {
      'cut head': [a, Buffer.from('abc')],
      'a length beyond the end': [a, long],
      'a reserved field': [a, reserved],
      'no ACCEPTED': [R.delta('x')],
      'ACCEPTED twice': [a, a],
      'a type': [a, R.record(99, Buffer.from('x'))],
      'a text beyond its record': [a, R.delta('x', { textLen: 4000000000 })],
      'a choice': [a, R.delta('x', { choice: 77 })],
      'a short finish': [a, R.record('finish', Buffer.alloc(12))],
      'too many choices': [R.accepted({ choices: 100000 })],
      'no choices': [R.accepted({ choices: 0 })],
      'a positive status': [a, R.error(5, 'x')],
      'logprobs that were not asked for': [a, R.record('delta', Buffer.concat(
        [Buffer.from([0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0]),
          Buffer.from('abcd')]))],
      'an endpoint': [R.accepted({ chat: false })],
    };
    for (const [name, records] of Object.entries(cases)) {
      const w = await written().state('done');
      await w.put(records);
      const r = await request(`${url(w.id)}/stream`);
      assert.equal(r.status, 500, `${name}: ${r.status} ${r.text}`);
      assert.equal(r.json().error.code, 'internal_error');
    }
    assert.match(stack.errorLog(), /bad output in Redis/);
    // a text was told before: an event
    const w = await written().state('done');
    await w.put([a, R.delta('x'), long]);
    const s = await follow(w.id).finished;
    assert.equal(s.text(), 'x');
    assert.equal(s.events.at(-1).error.code, 'internal_error');
    const ended = await written().state('done');
    await ended.put([R.accepted({ choices: 2 }), R.finish({ last: false }),
      R.delta('x')]);
    const e = await follow(ended.id).finished;
    assert.equal(e.events.at(-1).error.code, 'internal_error');
    assert.equal(e.text(), '');
  });

test('entries and keys of other kinds', async () => {
  const bad = async (w) => {
    const r = await request(`${url(w.id)}/stream`);
    assert.equal(r.status, 500, r.text);
  };
  // numbers that do not fit the records
  let w = await written().state('done');
  await redis.command('XADD', w.key('out'), '5-0', 'r', 'x');
  await bad(w);
  w = await written().state('done');
  await redis.command('XADD', w.key('out'), '7-0', 'r', R.accepted());
  await bad(w);
  // no field of that name
  w = await written().state('done');
  await redis.command('XADD', w.key('out'), '1-0', 'q', 'x');
  await bad(w);
  // an id that is none of ours
  w = await written().state('done');
  await redis.command('XADD', w.key('out'), '1-1', 'r', R.accepted());
  await bad(w);
  // a stream that is a string
  w = await written().state('done');
  await redis.command('SET', w.key('out'), 'x');
  assert.equal((await request(`${url(w.id)}/stream`)).status, 503);
  // a hash that is a list, a state that nobody knows
  w = written();
  await redis.command('RPUSH', w.key('req'), 'x');
  assert.equal((await request(url(w.id))).status, 404);
  w = await written().state('walking');
  assert.equal((await request(url(w.id))).status, 404);
  // fields that are no numbers, and far too long
  w = await written().state('done', {
    created: 'soon', prompt_tokens: '-5', completion_tokens: '1e9',
    kv_bytes: '99999999999999999999', kv_full_bytes: 'NaN', share_high: 'inf',
    model: 'x'.repeat(100000), error_status: 'TR_ERR_NO_SUCH',
    error: '\x00\xff"'.repeat(5000), finish_reason: '"}',
  });
  const r = await request(url(w.id));
  assert.equal(r.status, 200);
  const state = r.json();
  assert.equal(state.created, null);
  assert.equal(state.usage.prompt_tokens, 0);
  assert.ok(state.model.length <= 128);
  assert.equal(state.error.code, 'internal_error');
  assert.equal(state.finish_reason, '"}');
  // another version of the records
  w = await written().state('done', { wire: 99 });
  assert.equal((await request(`${url(w.id)}/stream`)).status, 503);
});

test('random bytes for records', async () => {
  const seed = Number(process.env.TR_SEED || Date.now() % 1e9);
  console.log(`# TR_SEED=${seed}`);
  let x = seed;
  const random = (n) => {
    x = (x * 1103515245 + 12345) % 2147483648;
    return Math.floor(x / 65536) % n;
  };
  const whole = tokens({ count: 5, choices: 2 });
  for (let i = 0; i < 150; i++) {
    const records = whole.map((r) => Buffer.from(r));
    for (let k = 0; k < 1 + random(3); k++) {
      const r = records[random(records.length)];
      r[random(r.length)] = random(256);
    }
    const w = await written().state('done');
      await redis.command('XADD', w.key('out'), `${records.length}-0`,
      'r', Buffer.concat(records));
    const answer = await request(`${url(w.id)}/stream`);
    assert.ok([200, 400, 404, 413, 429, 500, 503, 504, 405]
      .includes(answer.status), `${answer.status}`);
  }
});

// ---- Redis slow, away, or not ours --------------------------------------------

// A TCP relay that can stall, and cut.
async function relay() {
  const pairs = new Set();
  const r = { stalled: false, opened: 0 };
  const server = net.createServer((client) => {
    r.opened++;
    const up = net.connect(redis.port, '127.0.0.1');
    const pair = { client, up };
    pairs.add(pair);
    client.on('data', (d) => { if (!r.stalled) up.write(d); });
    up.on('data', (d) => { if (!r.stalled) client.write(d); });
    for (const s of [client, up]) {
      s.on('error', () => {});
      s.on('close', () => { client.destroy(); up.destroy(); pairs.delete(pair); });
    }
  });
  await new Promise((resolve) => { server.listen(0, '127.0.0.1', resolve); });
  r.address = `127.0.0.1:${server.address().port}`;
  r.cut = () => { for (const p of pairs) p.client.destroy(); };
  r.close = () => { r.cut(); server.close(); };
  return r;
}

test('a Redis that stalls or cuts: 503 in time, and everybody else streams on',
  async () => {
    const through = await relay();
    const s = await gateway({
      http: `tokenring_engine fake unix:${socket};
        tokenring_redis ${through.address} timeout=2s;`,
    });
    try {
      const w = await (await written().heartbeat()).state('decode');
      await w.put([R.accepted(), R.delta('a ')]);
      await until(async () => (await request(url(w.id, s))).status === 200,
        'Redis is reached');
      const f = follow(w.id, { s });
      await f.when(() => f.text() === 'a ');
      const busy = stream(`${s.url}/v1/chat/completions`,
        { fake: 'tokens', count: 300, ms: 10, stream: true });
      through.stalled = true;
      const r = await Promise.all(Array.from({ length: 20 },
        () => request(url(w.id, s))));
      for (const x of r) {
        assert.equal(x.status, 503);
        assert.equal(x.json().error.code, 'redis_unavailable');
        assert.equal(x.headers['retry-after'], '1');
      }
      assert.equal((await request(`${url(w.id, s)}/stream`)).status, 503);
      assert.equal((await busy.finished).events.length >= 300, true);
      await w.put([R.delta('b ')]);
      through.stalled = false;
      through.cut();
      // the follower comes through it
      await f.when(() => f.text() === 'a b ');
      await until(async () => (await request(url(w.id, s))).status === 200,
        'Redis is reached again');
      await w.put([R.finish({ completion: 2 })]);
      assert.equal((await f.finished).done, true);
      // one line an outage, not one for each request
      const lines = s.errorLog().split('\n')
        .filter((l) => /no Redis/.test(l) && /for=commands/.test(l));
      assert.ok(lines.length < 8, lines.join('\n'));
      assert.deepEqual(s.complaints(), []);
    } finally {
      await s.stop();
      through.close();
    }
  });

test('no Redis at all; a password that is wrong; then the right one',
  async () => {
    const secret = randomBytes(12).toString('hex');
    const locked = await Redis.start({ requirepass: secret });
    const file = path.join(dir, 'password');
    fs.writeFileSync(file, 'wrong\n');
    const conf = (address, more = '') => ({
      http: `tokenring_engine fake unix:${socket};
        tokenring_redis ${address} timeout=300ms ${more};`,
    });
    const s = await gateway(conf('127.0.0.1:1'));
    try {
      const id = randomBytes(16).toString('hex');
      const away = async () => {
        const r = await request(url(id, s));
        assert.equal(r.status, 503, r.text);
        assert.equal(r.json().error.code, 'redis_unavailable');
        assert.equal((await post(`${s.url}/v1/chat/completions`,
          { fake: 'tokens' })).status, 200);
      };
      await away();
      for (const place of [locked.address, `unix:${locked.socket}`]) {
        for (const [password, more] of [['wrong', ''], ['wrong', 'user=default']]) {
          fs.writeFileSync(file, `${password}\n`);
          s.configure(conf(place, `password_file=${file} ${more}`));
          await reload(s);
          await away();
        }
        assert.match(s.errorLog(), /WRONGPASS|invalid password/i);
        fs.writeFileSync(file, `${secret}\n`);
        s.configure(conf(place, `password_file=${file} db=3`));
        await reload(s);
        await until(async () => (await request(url(id, s))).status === 404,
          () => `the right password\n${s.errorLog()}`);
      }
      assert.ok(!s.errorLog().includes(secret), 'the password is in the log');
      s.configure(conf(`unix:${dir}/nothing.sock`));
      await reload(s);
      await away();
    } finally {
      await s.stop();
      await locked.stop();
    }
  });

test('a user of Redis with just the documented rights', async () => {
  const manual = read(path.join(ROOT, 'docs/administration.md'));
  const [, rules] = /ACL SETUSER nginx on >PASSWORD ([^`]*?)\n```/.exec(manual);
  const closed = await Redis.start({ lines: ['user writer on >w ~* &* +@all',
    `user nginx on >secret ${rules.replace(/\s+/g, ' ')}`] });
  const file = path.join(dir, 'acl');
  fs.writeFileSync(file, 'secret\n');
  const s = await gateway({ http: `tokenring_engine fake unix:${socket};
    tokenring_redis ${closed.address} user=nginx password_file=${file};` });
  try {
    const w = await (await new R.Written(closed).heartbeat()).state('decode');
    await w.put([R.accepted(), R.delta('a ')]);
    const f = follow(w.id, { s });
    await f.when(() => f.text() === 'a ');
    await sleep(1200); // a look at the state
    await w.put([R.delta('b ')]);
    await f.when(() => f.text() === 'a b ');
    const stop = await closed.subscribe(w.key('ctl', w.engine), () => {});
    assert.equal((await request(url(w.id, s), { method: 'DELETE' })).status,
      202);
    stop();
    await w.put([R.finish({ completion: 2 })]);
    assert.equal((await f.finished).done, true);
    assert.ok(!/NOPERM/.test(s.errorLog()), s.errorLog());
    assert.ok(!(await closed.command('ACL', 'LOG')).length, 'a denied command');
  } finally {
    await s.stop();
    await closed.stop();
  }
});

test('a user that may not subscribe: a second behind, and few lines in the log',
  async () => {
    const closed = await Redis.start({ lines: [
      'user nginx on >secret ~tr:* &tr:* +hmget +hget +xrange +xrevrange'] });
    const file = path.join(dir, 'deaf');
    fs.writeFileSync(file, 'secret\n');
    const s = await gateway({ http: `tokenring_engine fake unix:${socket};
      tokenring_redis ${closed.address} user=nginx password_file=${file};` });
    try {
      const w = await (await new R.Written(closed).heartbeat())
        .state('decode');
      await w.put([R.accepted(), R.delta('a ')]);
      const f = follow(w.id, { s });
      await f.when(() => f.text() === 'a ');
      for (const text of ['b ', 'c ', 'd ']) {
        await w.put([R.delta(text)]);
        await f.when(() => f.text().endsWith(text));
      }
      await w.put([R.finish({ completion: 4 })]);
      assert.equal((await f.finished).done, true);
      const lines = s.errorLog().split('\n')
        .filter((l) => /for=channels/.test(l));
      assert.equal(lines.length, 1, lines.join('\n'));
      assert.match(lines[0], /NOPERM/);
    } finally {
      await s.stop();
      await closed.stop();
    }
  });

test('over HTTP/2: followed, and left', async () => {
  const s = await gateway({ http2: true });
  try {
    const w = await (await written().heartbeat()).state('decode');
    await w.put([R.accepted(), R.delta('a ')]);
    const session = http2.connect(`https://127.0.0.1:${s.tlsPort}`,
      { rejectUnauthorized: false });
    session.on('error', () => {});
    const texts = [];
    const ask = () => {
      const i = texts.push('') - 1;
      const q = session.request({ ':path': `/v1/requests/${w.id}/stream` });
      q.setEncoding('utf8');
      q.on('data', (d) => { texts[i] += d; });
      q.on('error', () => {});
      return q;
    };
    const stays = ask();
    const leaves = ask();
    await until(() => texts.every((t) => t.includes('"a "')), 'both follow');
    leaves.close(http2.constants.NGHTTP2_CANCEL);
    await w.put([R.delta('b ')]);
    await until(() => texts[0].includes('"b "'), 'one goes on');
    assert.ok(!texts[1].includes('"b "'));
    stays.close(http2.constants.NGHTTP2_CANCEL);
    await until(async () => (await redis.command('PUBSUB', 'NUMSUB',
      w.key('live')))[1] === 0, 'unsubscribed');
    session.destroy();
    assert.deepEqual(s.complaints(), []);
  } finally {
    await s.stop();
  }
});

test('configurations that are refused', async () => {
  const s = new Stack({ engine: null });
  s.port = 1;
  try {
    for (const [text, why] of [
      ['tokenring_redis 127.0.0.1 db=x;', /invalid parameter "db=x"/],
      ['tokenring_redis 127.0.0.1 timeout=0;', /invalid parameter/],
      ['tokenring_redis 127.0.0.1 passwort=x;', /invalid parameter/],
      ['tokenring_redis 127.0.0.1 user=x;', /user= without password_file=/],
      [`tokenring_redis 127.0.0.1 password_file=${dir}/none;`, /open\(\).*none/],
      ['tokenring_redis no-such-host.invalid;', /host not found/],
      ['tokenring_redis off db=1;', /no parameters/],
      ['tokenring_redis 127.0.0.1; tokenring_redis 127.0.0.2;', /duplicate/],
    ]) {
      s.configure({ http: text });
      const out = s.nginx('-t');
      assert.notEqual(out.status, 0, text);
      assert.match(out.text, why, text);
    }
  } finally {
    await s.stop();
  }
});

// ---- reload and exit ----------------------------------------------------------

test('reloads with followers: they go on, and nothing is left open',
  async () => {
    const descriptors = () => fs.readdirSync(
      `/proc/${stack.workers().at(-1)}/fd`).length;
    await stack.reload();
    await until(() => stack.workers().length === 1, 'old workers have left');
    const before = descriptors();
    const w = await (await written().heartbeat()).state('decode');
    await w.put([R.accepted(), R.delta('a ')]);
    const all = [];
    for (let i = 0; i < 3; i++) {
      const some = Array.from({ length: 20 }, () => follow(w.id));
      await Promise.all(some.map((s) => s.when(() => s.text() === 'a ')));
      all.push(...some);
      await stack.reload();
    }
    await w.put([R.delta('b '), R.finish({ completion: 2 })]);
    for (const s of all) {
      assert.equal((await s.finished).text(), 'a b ');
      assert.equal(s.done, true);
    }
    await until(() => stack.workers().length === 1, 'old workers have left');
    // in the same worker, over and over
    for (let i = 0; i < 5; i++) {
      const some = Array.from({ length: 20 }, () => follow(w.id));
      for (const s of some) await s.finished;
      await request(url(w.id));
    }
    await until(() => descriptors() <= before + 3,
      () => `${descriptors()} descriptors, ${before} before`);
    assert.deepEqual(stack.complaints(), []);
  });

test('an exiting worker does not wait for a silent request', async () => {
  const hasty = await gateway({
    location: 'tokenring_resumable on; tokenring_idle_timeout 2s;',
  });
  try {
    const w = await (await written().heartbeat()).state('queued');
    const old = hasty.workers()[0];
    const s = follow(w.id, { s: hasty });
    await until(async () => (await redis.command('PUBSUB', 'NUMSUB',
      w.key('live')))[1] > 0, 'a subscription');
    await hasty.reload();
    const end = await s.finished; // idle_timeout, however alive the engine is
    assert.ok(end.cut || end.status >= 500);
    await until(() => !hasty.workers().includes(old), 'it has left');
  } finally {
    await hasty.stop();
  }
});

test('a worker that is told to end at once leaves nothing open', async () => {
  const w = await (await written().heartbeat()).state('decode');
  await w.put([R.accepted(), R.delta('a ')]);
  const s = await gateway();
  try {
    const f = follow(w.id, { s });
    await f.when(() => f.text() === 'a ');
    const [worker] = s.workers();
    process.kill(s.master, 'SIGTERM');
    await f.finished;
    await until(() => !alive(worker) && !alive(s.master), 'all of it has ended');
    // a crash, or a descriptor that nobody closed, would be there
    assert.match(s.errorLog(), new RegExp(`process ${worker} exited with code 0`));
    assert.deepEqual(s.complaints(), []);
    await until(async () => (await redis.command('PUBSUB', 'NUMSUB',
      w.key('live')))[1] === 0, 'its subscription has gone');
  } finally {
    await s.stop();
  }
  assert.deepEqual(stack.complaints(), []);
  assert.deepEqual(other.complaints(), []);
});
