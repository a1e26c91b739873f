'use strict';
//
// Models by name (docs/directives.md, tokenring_models): a request goes to an
// engine that serves what its body asks for, however the body spells it and
// however it comes; aliases, splits, fallbacks and lists of what is allowed; and
// the engine refuses a body in which it reads another model than the gateway.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { Stack, until } = require('../lib/stack');
const { post, upload, request, stream } = require('../lib/http');

const NULL = { backend: 'null', null_rate: 2000, kv_memory: '64m' };
let stack;

before(async () => {
  stack = await Stack.start({
    engine: { ...NULL, served_model_name: 'llama' },
    engines: {
      second: { ...NULL, served_model_name: 'qwen' },
      third: { ...NULL, served_model_name: 'llama-next' },
    },
    http: `
      tokenring_engine both unix:DIR/main.sock unix:DIR/second.sock;
      tokenring_engine next unix:DIR/third.sock;
      map $http_x_plan $allowed { default "*"; small "qwen,smart gone";
                                  only llama-next; none ""; }
      tokenring_models all {
        engine main;
        default llama;
        alias smart llama;
        alias best smart;
        split llama-x llama=50 llama-next=50 by=$http_x_user;
        split qwen qwen=1 llama=0;
        alias gone nowhere;
        fallback llama-next qwen;
        allow $allowed;
      }
      tokenring_models two { engine both; }
      tokenring_models one { engine next; allow $allowed; }`,
    location: 'client_max_body_size 8m;',
    server: `
      location /all/v1/ { tokenring_pass models=all; }
      location /one/v1/ { tokenring_pass models=one; }
      location /two/v1/ { tokenring_pass models=two; }
      location /few/v1/ {
        tokenring_body_memory 96k;
        tokenring_pass models=all;
      }
      location /said/v1/ {
        tokenring_model $http_x_model;
        tokenring_pass models=all;
      }
      location = /nobody { internal; return 204; }
      location /file/v1/ {
        client_body_in_file_only clean;
        mirror /nobody;
        tokenring_pass models=all;
      }
      location ~ ^/by/(?<where>[a-z=]+)/v1/ { tokenring_pass $where; }`,
  });
  await stack.connected(3);
});

after(async () => { if (stack) await stack.end(); });

const ask = (where, body, headers) =>
  post(`${stack.url}${where}/v1/completions`, typeof body === 'string' ? body
    : { prompt: 'one two', max_tokens: 2, ...body }, headers);

async function served(where, body, headers) {
  const r = await ask(where, body, headers);
  assert.equal(r.status, 200, r.text);
  return r.json().model;
}

async function refused(where, body, status, headers) {
  const r = await ask(where, body, headers);
  assert.equal(r.status, status, r.text);
  return r.json().error;
}

const listed = async (where, headers) => {
  const r = await request(`${stack.url}${where}/v1/models`, { headers });
  assert.equal(r.status, 200, r.text);
  return r.json().data.map((m) => m.id).sort();
};

test('two models behind one engine name: each request finds its own',
  async () => {
    const names = ['llama', 'qwen'];
    const all = await Promise.all(Array.from({ length: 40 }, (_, i) =>
      served('/by/both', { model: names[i % 2] })));
    all.forEach((model, i) => assert.equal(model, names[i % 2]));
    const e = await refused('', { model: 'gpt-4' }, 404);
    assert.equal(e.code, 'model_not_found');
    assert.equal(e.param, 'model');
    assert.match(e.message, /`gpt-4` does not exist/);
    assert.match((await refused('', {}, 400)).message,
      /several models: 'model' must name one/);
    // What is no name is the engine's to refuse.
    assert.equal((await refused('', { model: 7 }, 400)).param, 'model');
    assert.deepEqual(await listed('/by/both'), names);
  });

test('however the body spells it', async () => {
  const end = '"prompt":"x","max_tokens":1';
  for (const [body, model] of [
    [`{"\\u006dodel":"q\\u0077en",${end}}`, 'qwen'],
    [`{"model":"llama",${end},"model":"qwen"}`, 'qwen'],
    [`{"model":"qwen",${end},"model" : "llama" }`, 'llama'],
    [`{"metadata":{"model":"llama"},${end},\n"model":"qwen"}`, 'qwen'],
    [`{"user":"\\"model\\":\\"llama\\"","model":"qwen",${end}}`, 'qwen'],
  ]) {
    assert.equal(await served('', body), model, body);
  }
  assert.equal(await served('/all', `{"model":null,${end}}`), 'llama');
  // No JSON, with and without a model in it.
  assert.match((await refused('/all', '{"model":"qwen",', 400)).message,
    /could not parse/);
  assert.match((await refused('', '["model","qwen"]', 400)).message, /model/);
  const long = await refused('/all', { model: 'x'.repeat(300) }, 404);
  assert.equal(long.code, 'model_not_found');
});

test('however the body comes', async () => {
  const pad = { user: 'x'.repeat(300000) };
  for (const model of ['llama', 'qwen']) {
    assert.equal(await served('', { ...pad, model }), model);
    assert.equal(await served('/file', { model }), model);
    assert.equal(await served('/file', { ...pad, model }), model);
    for (const headers of [{ 'Transfer-Encoding': 'chunked' }, {}]) {
      const body = JSON.stringify({ ...pad, prompt: 'x', max_tokens: 1, model });
      const up = upload(`${stack.url}/v1/completions`, headers['Transfer-Encoding']
        ? headers : { 'Content-Length': body.length });
      for (let at = 0; at < body.length; at += 70001) {
        up.req.write(body.slice(at, at + 70001));
        await new Promise((resolve) => { setTimeout(resolve, 20); });
      }
      up.req.end();
      const r = await up.answer;
      assert.equal(r.status, 200, r.text);
      assert.equal(JSON.parse(r.text).model, model);
    }
  }
  const s = await stream(`${stack.url}/v1/completions`,
    { model: 'qwen', prompt: 'x', max_tokens: 5, stream: true }).finished;
  assert.ok(s.done);
  assert.equal(s.events[0].model, 'qwen');
});

test('default, aliases and splits', async () => {
  assert.equal(await served('/all', {}), 'llama');
  assert.equal(await served('/all', { model: 'smart' }), 'llama');
  assert.equal(await served('/all', { model: 'best' }), 'llama');
  assert.equal(await served('/all', { model: 'qwen' }), 'qwen');
  assert.equal(await served('/all', { model: 'llama-next' }), 'llama-next');
  const seen = {};
  for (let i = 0; i < 40; i++) {
    const headers = { 'X-User': `user${i % 20}` };
    const model = await served('/all', { model: 'llama-x' }, headers);
    seen[i % 20] = seen[i % 20] || model;
    assert.equal(model, seen[i % 20], 'a user stays with a model');
  }
  assert.deepEqual([...new Set(Object.values(seen))].sort(),
    ['llama', 'llama-next']);
  // Each request by itself, where nothing says by what.
  const anyone = await Promise.all(Array.from({ length: 40 }, () =>
    served('/all', { model: 'llama-x' })));
  assert.equal(new Set(anyone).size, 2);
  // The engines of the block only.
  assert.equal((await refused('/two', { model: 'llama-next' }, 404)).code,
    'model_not_found');
  // A name of the configuration that no engine has.
  const e = await refused('/all', { model: 'gone' }, 503);
  assert.equal(e.code, 'engine_unavailable');
});

test('what is allowed', async () => {
  const small = { 'X-Plan': 'small' };
  assert.equal(await served('/all', { model: 'smart' }, small), 'llama');
  assert.equal((await refused('/all', { model: 'llama' }, 404, small)).code,
    'model_not_found');
  assert.equal((await refused('/all', {}, 404, small)).code,
    'model_not_found');
  assert.equal((await refused('/all', { model: 'qwen' }, 404,
    { 'X-Plan': 'none' })).code, 'model_not_found');
  assert.deepEqual(await listed('/all'), ['best', 'gone', 'llama', 'llama-next',
    'llama-x', 'qwen', 'smart']);
  assert.deepEqual(await listed('/all', small), ['gone', 'qwen', 'smart']);
  assert.deepEqual(await listed('/all', { 'X-Plan': 'none' }), []);
  const one = async (id, headers) => request(
    `${stack.url}/all/v1/models/${id}`, { headers });
  const smart = (await one('smart', small)).json();
  assert.equal(smart.root, 'llama');
  assert.ok(smart.max_model_len > 0);
  assert.equal((await one('llama', small)).status, 404);
  assert.equal((await one('llama')).json().id, 'llama');
});

test('what is allowed holds for a request that names no model', async () => {
  assert.equal(await served('/one', {}), 'llama-next');
  assert.equal(await served('/one', {}, { 'X-Plan': 'only' }), 'llama-next');
  for (const plan of ['small', 'none']) {
    const e = await refused('/one', {}, 404, { 'X-Plan': plan });
    assert.deepEqual([e.code, e.param], ['model_not_found', 'model']);
  }
});

test('a model that the administrator names', async () => {
  assert.equal(await served('/said', { model: 'qwen' },
    { 'X-Model': 'qwen' }), 'qwen');
  assert.equal(await served('/said', {}, { 'X-Model': 'smart' }), 'llama');
  // Without the header: as the body says.
  assert.equal(await served('/said', { model: 'qwen' }), 'qwen');
  const e = await refused('/said', { model: 'qwen' }, 400,
    { 'X-Model': 'llama' });
  assert.equal(e.message, 'The gateway and the engine read different models in '
    + 'this body.');
  assert.equal(e.param, 'model');
});

test('tokenring_pass with a variable', async () => {
  assert.equal(await served('/by/next', { model: 'llama-next' }),
    'llama-next');
  assert.equal(await served('/by/both', { model: 'qwen' }), 'qwen');
  assert.equal(await served('/by/models=all', { model: 'smart' }), 'llama');
  for (const where of ['/by/none', '/by/models=none']) {
    assert.equal((await refused(where, {}, 404)).code, 'not_found');
    assert.equal((await request(`${stack.url}${where}/v1/models`)).status, 404);
  }
  assert.deepEqual(await listed('/by/both'), ['llama', 'qwen']);
});

test('bodies that are gathered take no more memory than they may', async () => {
  const e = await refused('/few', { user: 'x'.repeat(200000) }, 429);
  assert.equal(e.code, 'queue_full');
  // What they took is free again.
  for (let i = 0; i < 20; i++) {
    assert.equal(await served('/few', { user: 'x'.repeat(40000) }), 'llama');
  }
  // What others hold that stand still is given to one that comes.
  const ended = [];
  const held = Array.from({ length: 8 }, () => {
    const up = upload(`${stack.url}/few/v1/completions`,
      { 'Content-Length': 100000 });
    up.answer.then((r) => ended.push(r), () => {});
    up.req.write(`{"user":"${'x'.repeat(30000)}`);
    return up;
  });
  await until(() => ended.length >= 5, 'there is room for three of them');
  await until(async () => (await ask('/few', { user: 'x'.repeat(40000) }))
    .status === 200, 'memory again');
  await until(() => ended.some((r) => /this one came the slowest/.test(r.text)),
    'one has ended for it');
  for (const r of ended) assert.equal(r.status, 429, r.text);
  held.forEach((up) => up.req.destroy());
  await stack.active(0);
});

test('a model whose engine is down is known, and another takes its place',
  async () => {
    const next = stack.others[1];
    await next.kill('SIGTERM');
    await stack.connected(2);
    assert.ok((await listed('/all')).includes('llama-next'));
    assert.equal(await served('/all', { model: 'llama-next' }), 'qwen');
    const e = await refused('/by/next', { model: 'llama-next' }, 503);
    assert.equal(e.code, 'engine_unavailable');
    // The engine's own errors are answers, and no reason for another model.
    assert.equal((await ask('/all', { model: 'qwen', max_tokens: -1 })).status,
      400);
    await next.start();
    await stack.connected(3);
    assert.equal(await served('/all', { model: 'llama-next' }), 'llama-next');
  });
