'use strict';
//
// The module when Redis holds nonsense, is slow, is away or refuses it; followers
// through reloads and exits of workers.  See lib/resumable.js for what it stands
// on.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { randomBytes } = require('node:crypto');
const { once } = require('node:events');
const fs = require('node:fs');
const http2 = require('node:http2');
const net = require('node:net');
const path = require('node:path');
const { ROOT, Stack, alive, sleep, until, read, taken } = require('../lib/stack');
const { post, request, stream } = require('../lib/http');
const { Redis } = require('../lib/redis');
const R = require('../lib/records');
const { start, stop, dir, socket, gateway, url, follow, tokens, reload,
  written } = require('../lib/resumable');

let redis, stack, other;

before(async () => {
  ({ redis, stack, other } = await start());
});

after(stop);

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
        .filter((l) => /cannot use Redis/.test(l) && /for=commands/.test(l));
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

test('a reload while Redis is slow: who has asked is answered', async () => {
  const slow = await Redis.start();
  const s = await gateway({
    http: `tokenring_engine fake unix:${socket};
      tokenring_redis ${slow.address} timeout=60s;`,
    server: `location /dashboard/ {
      tokenring_dashboard ${path.join(ROOT, 'dashboard')}; }`,
  });
  const ask = (what) => {
    const c = net.connect({ port: s.port, host: '127.0.0.1' });
    c.text = '';
    c.setEncoding('latin1');
    c.on('data', (d) => { c.text += d; });
    c.gone = new Promise((resolve) => { c.on('close', resolve); });
    c.write(`GET ${what}/${'a'.repeat(32)} HTTP/1.1\r\nHost: x\r\n\r\n`);
    return c;
  };
  try {
    // connected, so that there is nothing but the answer to wait for
    assert.equal((await request(url('a'.repeat(32), s))).status, 404);
    const [old] = s.workers();
    process.kill(slow.pid, 'SIGSTOP');
    const all = [ask('/v1/requests'), ask('/dashboard/requests')];
    await Promise.all(all.map((c) => once(c, 'connect')));
    for (const c of all) await taken(c);
    await s.reload();
    process.kill(slow.pid, 'SIGCONT');
    for (const c of all) {
      await c.gone;
      assert.match(c.text, /^HTTP\/1\.1 404 /);
    }
    await until(() => !alive(old), 'it waits for nothing else');
    assert.deepEqual(s.complaints(), []);
  } finally {
    process.kill(slow.pid, 'SIGCONT');
    await s.stop();
    await slow.stop();
  }
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
