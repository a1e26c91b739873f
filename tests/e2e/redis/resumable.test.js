'use strict';
//
// What the module reads from Redis, and how: answers that are taken up again,
// followers, states, owners, commands to cancel, detached requests.  The engine's
// part is written by the test itself (lib/resumable.js).  What happens when
// Redis is in trouble is resumable_trouble.test.js; redis_requests.test.js has
// a real engine.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { createHash, randomBytes } = require('node:crypto');
const { sleep, until, read } = require('../lib/stack');
const { post, request, stream } = require('../lib/http');
const R = require('../lib/records');
const { start, stop, url, follow, tokens, spread, reload, rest, written } =
  require('../lib/resumable');

let redis, stack, other;

before(async () => {
  ({ redis, stack, other } = await start());
});

after(stop);

// The usage of each chunk is its choice's, as far as it is.
function checkChunkUsage(events, { choices, stats, kv }) {
  const said = Array(choices).fill(0);
  for (const e of events.filter((x) => x.choices.length)) {
    if (!stats) {
      assert.ok(e.usage == null);
      continue;
    }
    const [choice] = e.choices;
    const n = choice.delta && choice.delta.role ? 0 : choice.finish_reason
      ? said[choice.index] : ++said[choice.index];
    assert.equal(e.usage.completion_tokens, n);
    assert.equal(e.usage.total_tokens, 7 + n);
    const i = Math.max(n - 1, 0) * choices;
    assert.deepEqual(e.usage.kv_cache, kv ? {
      policy: 'fake"policy', bytes: 300 + i, fp16_bytes: 1000,
      ratio: Number(((300 + i) / 1000).toFixed(4)), share_high: 0,
      share_low: 0, share_pruned: 0,
      tokens: { full: 1, high: 2, low: 3, pruned: 4 + i },
    } : undefined);
  }
  assert.deepEqual(said, Array(choices).fill(9 * Number(stats)));
}

// ---- a live stream and what is read again ------------------------------------

for (const shape of [
  { name: 'chat', path: 'chat/completions' },
  { name: 'chat with usage', path: 'chat/completions', usage: true },
  { name: 'three choices', path: 'chat/completions', choices: 3 },
  { name: 'completions', path: 'completions', chat: false, choices: 2 },
  { name: 'usage in every chunk', path: 'completions', chat: false, choices: 2,
    usage: true, stats: true },
  { name: 'the KV cache live', path: 'chat/completions', choices: 2,
    stats: true, kv: true },
]) {
  test(`${shape.name}: the same bytes live, again, and after any event`,
    async () => {
      const { choices = 1, chat = true, usage = false, stats = false,
        kv = false } = shape;
      const live = await stream(`${stack.url}/v1/${shape.path}`, {
        fake: 'tokens', count: 9, choices, stream: true, include_usage: usage,
        continuous_usage_stats: stats, include_kv: kv,
      }).finished;
      assert.equal(live.status, 200, live.raw);
      assert.equal(live.done, true);
      const id = live.headers['x-tokenring-id'];
      assert.match(id, /^[0-9a-f]{32}$/);
      // 1 is ACCEPTED, which makes no event; neither does KV
      const numbers = kv
        ? [...Array.from({ length: 9 * choices }, (_, i) => 3 + 2 * i),
          ...Array.from({ length: choices }, (_, i) => 2 + 18 * choices + i)]
        : Array.from({ length: 10 * choices }, (_, i) => i + 2);
      assert.deepEqual(live.ids, numbers);
      checkChunkUsage(live.events, { choices, stats, kv });

      const w = await written({ id }).state('done',
        { endpoint: chat ? 'chat' : 'completions' });
      await spread(w, tokens({ count: 9, choices, chat, usage, stats, kv }),
        4);
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
  assert.match(r.json().error.message, /has expired/);
  const half = await written().state('done');
  await half.put([R.accepted(), R.delta('a ')]);
  const s = await follow(half.id).finished;
  assert.equal(s.events.at(-1).error.code, 'engine_unavailable');
  // never kept
  const not = await written().state('done', { resumable: 0 });
  assert.match((await request(`${url(not.id)}/stream`)).json().error.message,
    /tokenring_resumable/);
});

test('what the log says of who reads an answer again', async () => {
  const w = await written().state('done');
  await w.put(tokens({ count: 3 }));
  const s = await follow(w.id, { headers: { 'X-Mark': 'again' } }).finished;
  assert.ok(s.done, s.raw);
  const [line] = await stack.logged('again');
  assert.equal(line.status, 200);
  assert.equal(line.model, 'fake "model"');
  assert.equal(line.finish_reason, 'stop');
  // what it took is counted where it was made
  assert.equal(line.completion_tokens, '');
  assert.equal(line.kv_bytes, '');
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
    kv_policy: 'diffkv', kv_tokens_full: 3, kv_tokens_high: 20,
    kv_tokens_low: 12, kv_tokens_pruned: 11,
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
      kv_cache: { policy: 'diffkv', bytes: 250, fp16_bytes: 1000, ratio: 0.25,
        share_high: 0.5, share_low: 0.25, share_pruned: 0.25,
        tokens: { full: 3, high: 20, low: 12, pruned: 11 } },
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

test('an endpoint that this gateway does not know is not taken for another',
  async () => {
    const w = await written({ engine: 'newer' });
    await w.put(tokens({ count: 2 }));
    await w.state('done', { endpoint: `responses${'s'.repeat(100000)}` });
    const read = await request(url(w.id));
    assert.equal(read.status, 200, read.text);
    assert.equal(read.json().id, w.id);
    assert.equal(read.json().state, 'done');
    const stream = await request(`${url(w.id)}/stream`);
    assert.equal(stream.status, 503, stream.text);
    assert.match(stream.json().error.message, /endpoint .* does not know/);
    await w.state('done', { endpoint: 'chat' });
    assert.equal((await request(`${url(w.id)}/stream`)).status, 200);
    // it can be ended, all the same
    await w.heartbeat();
    await w.state('decode', { endpoint: 'responses' });
    const heard = [];
    const leave = await redis.subscribe(w.key('ctl', 'newer'),
      (m) => heard.push(m.toString()));
    assert.equal((await request(url(w.id), { method: 'DELETE' })).status, 202);
    await until(() => heard.length > 0, 'a command');
    leave();
    assert.doesNotMatch(stack.errorLog(), /responses/);
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
  assert.match(none.json().error.message, /Not found/);
});

// Asks for a request, and has it written when Redis has said that there is
// none.  Once more if the machine slept for longer than the next look waits.
async function early(tail, method, want, seen = 1) {
  for (let left = 8; ; left--) {
    const w = await (await written({ engine: 'late' })).heartbeat();
    const monitor = await redis.monitor();
    const looks = () => monitor.lines.filter((line) =>
      line.includes(`"HMGET" "${w.key('req')}"`)).length;
    const answer = request(`${url(w.id)}${tail}`, { method });
    await until(() => looks() >= seen, 'the looks in front');
    await w.put(tokens({ count: 2 }));
    await w.state('decode');
    const r = await answer;
    monitor.stop();
    if (r.status === want || left === 0) {
      assert.ok(looks() > seen, 'it was looked up again');
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
  // nor is one who comes while the machine is so busy that a flush is late
  assert.equal((await early('', 'GET', 200, 2)).r.status, 200);
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
          line.includes(`"HMGET" "tr:req:{${id}}"`)).length, 3);
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
  const w = await written({ engine: 'commands' });
  await w.heartbeat();
  await w.state('decode');
  // nobody hears it
  const deaf = await request(url(w.id), { method: 'DELETE' });
  assert.equal(deaf.status, 503);
  assert.equal(deaf.headers['retry-after'], '1');
  const heard = [];
  const leave = await redis.subscribe(w.key('ctl', 'commands'),
    (m) => heard.push(m.toString()));
  const r = await request(url(`chatcmpl-${w.id}`, other),
    { method: 'DELETE' });
  assert.equal(r.status, 202, r.text);
  assert.equal(r.json().cancelling, true);
  assert.equal(r.json().state, 'decode');
  await until(() => heard.length > 0, 'a command');
  assert.deepEqual(heard, [`cancel ${w.id}`]);
  // what is over stays as it is
  await w.state('cancelled');
  const over = await request(url(w.id), { method: 'DELETE' });
  assert.equal(over.status, 200);
  assert.equal(over.json().state, 'cancelled');
  await w.state('decode');
  await redis.command('DEL', w.key('engine', 'commands'));
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
