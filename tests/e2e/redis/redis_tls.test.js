'use strict';
//
// TLS to Redis, of the engine and of the module, against a real redis-server
// with certificates on both sides: what is asked for by name, refused and
// logged, and that nothing of it blocks or stays open.  Where hiredis_ssl was
// not found when they were built, asking for TLS is a clear error.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const http2 = require('node:http2');
const net = require('node:net');
const { Stack, until, sleep, read, freePort, ENGINE, POCKET }
  = require('../lib/stack');
const { post, request, stream } = require('../lib/http');
const { Redis } = require('../lib/redis');
const { Proxy } = require('../lib/redis_proxy');
const { Certs } = require('../lib/certs');
const { completion, state, FAST } = require('../lib/redis_stack');

// ---- what was built ---------------------------------------------------------

function engineSays(settings) {
  const args = Object.entries(settings).flatMap(([k, v]) => [`--${k}`, v]);
  return spawnSync(ENGINE, ['--check', '--model', POCKET, ...args],
    { encoding: 'utf8' });
}

async function moduleSays(text) {
  const s = new Stack({ engine: null });
  s.port = 1;
  try {
    s.configure({ http: text });
    return s.nginx('-t');
  } finally {
    await s.stop();
  }
}

const engineHas = engineSays({ redis: 'x', redis_tls: 'yes' }).status === 0;
let certs, moduleHas;

before(async () => {
  moduleHas = (await moduleSays('tokenring_redis 127.0.0.1 tls;'))
    .status === 0;
  certs = new Certs()
    .sign('server', { names: ['DNS:redis.test', 'IP:127.0.0.1'] })
    .sign('wrong', { names: ['DNS:somebody.else'] })
    .sign('foreign', { names: ['IP:127.0.0.1'], ca: 'other-ca' })
    .sign('client').sign('locked', { password: 'sesame' });
});
after(() => { if (certs) certs.remove(); });

// Tests of what was not built are skipped when they run: by then it is known.
function tlsTest(name, fn) {
  test(name, async (t) => {
    if (!engineHas || !moduleHas) {
      t.skip(`built without hiredis_ssl: ${[!engineHas && 'engine',
        !moduleHas && 'module'].filter(Boolean).join(', ')}`);
      return;
    }
    await fn();
  });
}

test('without hiredis_ssl, asking for TLS is an error that says so',
  async (t) => {
    if (engineHas && moduleHas) {
      t.skip('this build has it');
      return;
    }
    if (!engineHas) {
      const out = engineSays({ redis: 'x', redis_tls: 'yes' });
      assert.notEqual(out.status, 0);
      assert.match(out.stderr, /redis_tls yes: .* built without hiredis_ssl/);
    }
    if (!moduleHas) {
      const out = await moduleSays('tokenring_redis 127.0.0.1 tls;');
      assert.notEqual(out.status, 0);
      assert.match(out.text, /has "tls", but .* built without hiredis_ssl/);
    }
  });

test('parameters of TLS that make no sense', async () => {
  for (const more of ['tls_ca=/x', 'tls_cert=/x tls_key=/y', 'tls_name=x',
    'tls_verify=off']) {
    const out = await moduleSays(`tokenring_redis 127.0.0.1 ${more};`);
    assert.notEqual(out.status, 0, more);
    assert.match(out.text, /tls_\* parameters without "tls"/, more);
  }
  for (const more of ['tls_ca=', 'tls=on', 'tls_verify=perhaps', 'tls_nam=x']) {
    const out = await moduleSays(`tokenring_redis 127.0.0.1 tls ${more};`);
    assert.notEqual(out.status, 0, more);
    assert.match(out.text, /invalid parameter "tls/, more);
  }
  const out = engineSays({ redis: 'x', redis_tls_ca: '/x' });
  assert.notEqual(out.status, 0);
  assert.match(out.stderr, /redis_tls_ca .* without `redis_tls yes`/);
});

tlsTest('files and addresses that cannot be', async () => {
  const f = (name) => certs.path(name);
  const pair = (c, k) => `tls_cert=${f(c)} tls_key=${f(k)}`;
  for (const [more, why] of [
    [`tls_ca=${f('none.pem')}`, /tls_ca ".*none.pem": No such file/],
    [`tls_ca=${f('server.key')}`, /tls_ca ".*server.key": no cert/i],
    [`tls_cert=${f('client.pem')}`, /needs tls_cert= and tls_key= together/],
    [`tls_key=${f('client.key')}`, /needs tls_cert= and tls_key= together/],
    [pair('client.key', 'client.key'), /tls_cert ".*client.key": no start/i],
    [pair('client.pem', 'server.key'), /tls_key ".*server.key": key values/i],
    [pair('locked.pem', 'locked.key'), /tls_key ".*locked.key": \w+/],
  ]) {
    const out = await moduleSays(`tokenring_redis 127.0.0.1 tls ${more};`);
    assert.notEqual(out.status, 0, more);
    assert.match(out.text, why);
  }
  const socket = await moduleSays('tokenring_redis unix:/x tls;');
  assert.match(socket.text, /has "tls" for a Unix socket/);
  for (const [settings, why] of [
    [{ redis: 'unix:/x' }, /has no TLS on a Unix socket/],
    [{ redis_tls_cert: '/x' },
      /redis_tls_cert \/x without redis_tls_key: both are needed/],
    [{ redis_tls_key: '/x' },
      /redis_tls_key \/x without redis_tls_cert: both are needed/],
  ]) {
    const out = engineSays({ redis: 'x', redis_tls: 'yes', ...settings });
    assert.notEqual(out.status, 0);
    assert.match(out.stderr, why);
  }
});

// ---- with a Redis -----------------------------------------------------------

// Redis with TLS, which asks who comes, and a stack whose engine and NGINX reach
// it so.  server: its certificate; own: whether they have one; through: a network
// in between.
async function withTls(what, { server = 'server', engine = {}, own = true, through,
  timeout = '10s', ...rest } = {}) {
  const port = await freePort();
  const redis = await Redis.start({ 'tls-port': port,
    'tls-cert-file': certs.path(`${server}.pem`),
    'tls-key-file': certs.path(`${server}.key`),
    'tls-ca-cert-file': certs.path('ca.pem'), 'tls-auth-clients': 'yes' });
  const between = through ? await Proxy.start({ port }) : null;
  const address = between ? between.address : `127.0.0.1:${port}`;
  const files = { ca: certs.path('ca.pem'), ...own && {
    cert: certs.path('client.pem'), key: certs.path('client.key') } };
  const params = Object.entries(files).map(([k, v]) => `tls_${k}=${v}`)
    .join(' ');
  const http = (words) =>
    `tokenring_redis ${address} tls timeout=${timeout} ${words};`;
  let stack;
  try {
    stack = await Stack.start({ location: 'tokenring_resumable on;',
      http: http(params), ...rest,
      engine: { ...FAST, redis: address, redis_tls: 'yes',
        redis_timeout: timeout, ...Object.fromEntries(Object.entries(files)
          .map(([k, v]) => [`redis_tls_${k}`, v])), ...engine } });
    await what({ stack, redis, between, address, params,
      configure: async (words) => {
        stack.configure({ http: http(words) });
        await stack.reload();
        await until(() => stack.workers().length === 1, 'old workers left');
      } });
    assert.deepEqual(stack.complaints(), []);
  } finally {
    if (stack) await stack.stop();
    if (between) between.stop();
    await redis.stop();
  }
}

const place = (stack, id) => `${stack.url}/v1/requests/${id}`;
const up = (stack, want) => until(async () => (await stack.metrics())
  .value('tokenring_redis_up') === want, () => `up: ${want}\n${stack.logs()}`);
const lines = (text, what) => text.split('\n').filter((l) => what.test(l));

// What the engine says of it, which it may have to try first.
const lost = (stack) => until(() => {
  const said = lines(read(stack.engine.log), /redis lost/);
  return said.length > 0 && said;
}, 'a line in the log of the engine');

// Until a state can be read: 404 is an answer of Redis, too.
const reached = (stack) => until(async () =>
  (await request(place(stack, '0'.repeat(32)))).status === 404,
() => `Redis is reached\n${stack.logs()}`);

tlsTest('state, output and cancelling, all of it over TLS', async () => {
  await withTls(async ({ stack, redis }) => {
    await up(stack, 1);
    // longer than a record of TLS, in many pages
    const live = await stream(`${stack.url}/v1/completions`,
      completion(3000, { stream: true })).finished;
    assert.equal(live.done, true);
    const id = live.headers['x-tokenring-id'];
    await state(redis, id, 'done');
    assert.equal((await request(place(stack, id))).json().state, 'done');
    for (let i = 0; i < 3; i++) {
      const again = await stream(`${place(stack, id)}/stream`, undefined)
        .finished;
      assert.equal(again.raw, live.raw);
    }
    const s = stream(`${stack.url}/v1/completions`, completion(20000,
      { stream: true }),
    { headers: { 'X-Tokenring-Detach': '1' } });
    await s.when(() => s.ids.length > 5);
    const f = stream(`${place(stack, s.headers['x-tokenring-id'])}/stream`,
      undefined);
    await f.when(() => f.ids.length > 50);
    assert.equal((await request(place(stack, s.headers['x-tokenring-id']),
      { method: 'DELETE' })).status, 202);
    assert.equal((await s.finished).events.at(-1).error.code,
      'request_cancelled');
    assert.equal((await f.finished).events.at(-1).error.code,
      'request_cancelled');
    // nobody here spoke anything but TLS, besides this test
    const list = (await redis.command('CLIENT', 'LIST')).split('\n');
    const ours = list.filter((l) => /name=tokenring-/.test(l));
    assert.ok(ours.length >= 2, list.join('\n'));
    assert.deepEqual(ours.filter((l) =>
      l.includes(` laddr=127.0.0.1:${redis.port} `)), []);
  }, { engine: { null_rate: 500 } });
});

tlsTest('Redis is killed and comes back, worker and engine reach it again',
  async () => {
    await withTls(async ({ stack, redis }) => {
      for (let i = 0; i < 3; i++) {
        await up(stack, 1);
        await reached(stack);
        await redis.kill();
        await up(stack, 0);
        assert.equal((await request(place(stack, '0'.repeat(32)))).status, 503);
        assert.equal((await post(`${stack.url}/v1/completions`, completion(20)))
          .status, 200);
        await redis.run();
      }
      await up(stack, 1);
      await reached(stack);
    });
  });

tlsTest('a certificate for another name', async () => {
  const REFUSED = /certificate is refused, name=[\w.]+: .*mismatch/i;
  await withTls(async ({ stack, params, configure }) => {
    const id = '0'.repeat(32);
    for (let i = 0; i < 5; i++) {
      assert.equal((await request(place(stack, id))).status, 503);
      await sleep(150);
    }
    const said = lines(stack.errorLog(), /cannot use Redis/);
    assert.equal(said.length, 1, said.join('\n'));
    assert.match(said[0], REFUSED);
    await up(stack, 0);
    const log = await lost(stack);
    assert.equal(log.length, 1);
    assert.match(log[0], REFUSED);
    assert.equal((await post(`${stack.url}/v1/completions`, completion(20)))
      .status, 200);
    await configure(`${params} tls_name=somebody.else`);
    await reached(stack);
    await configure(`${params} tls_name=nobody.else`);
    assert.equal((await request(place(stack, id))).status, 503);
    assert.match(stack.errorLog(), /name=nobody.else: .*mismatch/i);
    await configure(`${params} tls_verify=off`);
    await reached(stack);
  }, { server: 'wrong' });
  for (const engine of [{ redis_tls_name: 'somebody.else' },
    { redis_tls_verify: 'no' }]) {
    await withTls(({ stack }) => up(stack, 1), { server: 'wrong', engine });
  }
});

tlsTest('a certificate of an authority that we do not know; none of ours',
  async () => {
    await withTls(async ({ stack }) => {
      await up(stack, 0);
      assert.match((await lost(stack))[0], /certificate is refused/);
      assert.equal((await request(place(stack, '0'.repeat(32)))).status, 503);
      assert.match(stack.errorLog(), /cannot use Redis.*certificate is refused.*issuer/);
    }, { server: 'foreign' });
    await withTls(async ({ stack }) => {
      await up(stack, 0);
      assert.match((await lost(stack))[0], /(alert|closed|reset by peer)/i);
      assert.equal((await request(place(stack, '0'.repeat(32)))).status, 503);
      assert.match(stack.errorLog(),
        /cannot use Redis.*(alert|closed|reset by peer)/i);
    }, { own: false });
  });

tlsTest('who speaks TLS to a Redis that does not, and the other way round',
  async () => {
    await withTls(async ({ stack, redis, address }) => {
      stack.configure({ http: `tokenring_redis ${redis.address} tls
        timeout=500ms tls_ca=${certs.path('ca.pem')};` });
      await stack.reload();
      await until(() => stack.workers().length === 1, 'old workers left');
      const id = '0'.repeat(32);
      assert.equal((await request(place(stack, id))).status, 503);
      await until(() => /cannot use Redis, .*(TLS: wrong version|no answer)/
        .test(stack.errorLog()), () => stack.logs());
      stack.configure({ http: `tokenring_redis ${address} timeout=500ms;` });
      await stack.reload();
      await until(() => stack.workers().length === 1, 'old workers left');
      assert.equal((await request(place(stack, id))).status, 503);
      await until(() => new RegExp(`cannot use Redis, redis=${address} .*`
        + '(closed|reset|no answer)').test(stack.errorLog()),
      () => stack.logs());
    });
  });

tlsTest('a network that gives a byte at a time, stalls the handshake, cuts',
  async () => {
    await withTls(async ({ stack, redis, between }) => {
      await up(stack, 1);
      await reached(stack);
      for (const mode of ['drip', 'stall', 'stall-down', 'half', 'stall-up']) {
        between.mode = mode;
        between.cut();
        if (mode === 'drip') {
          await up(stack, 1);
          await reached(stack);
        } else {
          await up(stack, 0);
          assert.equal((await request(place(stack, '0'.repeat(32)))).status,
            503);
        }
        const live = await stream(`${stack.url}/v1/completions`,
          completion(200, { stream: true })).finished;
        assert.equal(live.done, true);
        between.mode = 'pass';
        between.cut();
        await up(stack, 1);
        await reached(stack);
        const id = live.headers['x-tokenring-id'];
        await state(redis, id, 'done');
        // half a second may be too little for a busy machine
        const again = await until(async () => {
          const s = await stream(`${place(stack, id)}/stream`, undefined)
            .finished;
          return s.status === 503 ? null : s;
        }, 'the answer again');
        assert.equal(again.raw, live.raw);
      }
    }, { through: true, timeout: '500ms' });
  });

tlsTest("errors stay with Redis's connections, NGINX's with its own",
  async () => {
    await withTls(async ({ stack, redis, configure, params }) => {
      // NGINX's own TLS fails and works in turn, in the same worker, while the
      // connections to Redis come and go.
      const own = async () => {
        const session = http2.connect(`https://127.0.0.1:${stack.tlsPort}`,
          { rejectUnauthorized: false });
        session.on('error', () => {});
        const q = session.request({ ':path': '/plain' });
        const status = await new Promise((resolve, reject) => {
          q.on('response', (h) => resolve(h[':status']));
          q.on('error', reject);
          q.end();
        });
        session.destroy();
        assert.equal(status, 200);
      };
      const garbage = () => new Promise((resolve) => {
        const c = net.connect(stack.tlsPort, '127.0.0.1',
          () => c.write('no TLS at all\r\n\r\n'));
        c.on('close', resolve);
        c.on('error', () => {});
        c.resume();
      });
      for (let i = 0; i < 4; i++) {
        await reached(stack);
        await garbage();
        await own();
        await reached(stack);
        await redis.restart();
        await own();
      }
      await configure(`${params} tls_name=nobody.else`);
      for (let i = 0; i < 5; i++) {
        assert.equal((await request(place(stack, '0'.repeat(32)))).status, 503);
        await own();
        await sleep(120);
      }
      assert.ok(!/ignoring stale/.test(stack.errorLog()), stack.errorLog());
    }, { http2: true });
  });

tlsTest('reloads and the end with connections open: nothing is left',
  async () => {
    await withTls(async ({ stack, redis }) => {
      const descriptors = () => fs.readdirSync(
        `/proc/${stack.workers().at(-1)}/fd`).length;
      const live = stream(`${stack.url}/v1/completions`, completion(20000,
        { stream: true }),
      { headers: { 'X-Tokenring-Detach': '1' } });
      await live.when(() => live.ids.length > 5);
      live.hangUp();
      const id = live.headers['x-tokenring-id'];
      const follow = async () => {
        const f = stream(`${place(stack, id)}/stream`, undefined);
        await f.when(() => f.ids.length > 20);
        return f;
      };
      const all = [];
      for (let i = 0; i < 3; i++) {
        all.push(await follow(), await follow());
        await stack.reload();
      }
      for (const f of all) {
        const seen = f.ids.length;
        await f.when(() => f.ids.length > seen + 5); // the reload is nothing
        f.hangUp();
      }
      // in one worker, over and over
      await until(() => stack.workers().length === 1, 'old workers have left');
      (await follow()).hangUp();
      const before = descriptors();
      for (let i = 0; i < 5; i++) {
        (await follow()).hangUp();
        await redis.command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
        await redis.command('CLIENT', 'KILL', 'TYPE', 'pubsub');
        await reached(stack);
      }
      await until(() => descriptors() <= before + 3,
        () => `${descriptors()} descriptors, ${before} before`);
      await request(place(stack, id), { method: 'DELETE' });
    }, { engine: { null_rate: 50 } });
  });
