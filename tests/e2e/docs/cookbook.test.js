'use strict';
//
// docs/cookbook.md, recipe by recipe, as it stands there: only ports, sockets and
// the paths of files are those of the test.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { spawn, spawnSync } = require('node:child_process');
const { once } = require('node:events');
const fs = require('node:fs');
const http = require('node:http');
const http2 = require('node:http2');
const path = require('node:path');
const { Stack, ENGINE, NGINX, ROOT, freePort, until } = require('../lib/stack');
const { request, post, stream } = require('../lib/http');
const { chat, endless } = require('../lib/prompts');
const { blocks } = require('../lib/docs');
const { Browser } = require('../lib/browser');

const RECIPES = blocks('docs/cookbook.md');
const used = new Set();

function block(title, language, mark = '') {
  const found = RECIPES.filter((b) => b.title === title
    && b.language === language && b.mark === mark);
  assert.equal(found.length, 1, `${title}: one block of ${language} ${mark}`);
  used.add(found[0]);
  return found[0].text;
}

// A stack whose http block has the recipe; url is that of its server.  Its engine
// `main` has another name, since the stack has a `main` with all sockets.
async function cook(t, text, { engine = { backend: 'null', null_rate: 500 },
  engines = {}, change = (s) => s, ...more } = {}) {
  const port = await freePort();
  const stack = new Stack({ engine, engines, ...more });
  const sockets = Object.fromEntries([stack.engine, ...stack.others]
    .map((e) => [e.name, e.socket]));
  const all = /^tokenring_engine main /m.test(text) ? text
    : block('Cookbook', 'nginx') + text;
  stack.options.http = change(all)
    .replace(/(tokenring_(?:engine|pass)) main\b/g, '$1 chef')
    .replaceAll(/unix:\/run\/tokenring\/(\w+)\.sock/g, (_, name) =>
      `unix:${sockets[name]}`)
    .replace(/listen (8080|443)\b/g, `listen 127.0.0.1:${port}`)
    .replaceAll('/etc/nginx/llm-keys', path.join(stack.dir, 'keys'))
    .replaceAll('/etc/nginx/llm-plans', path.join(stack.dir, 'plans'));
  fs.writeFileSync(path.join(stack.dir, 'plans'), 'batch basic;\n');
  fs.writeFileSync(path.join(stack.dir, 'keys'),
    block('Keys per user', 'keys') + '"Bearer sk-batch" batch;\n',
    { mode: 0o600 });
  t.after(async () => {
    await stack.stop();
  });
  await stack.begin();
  return { stack, port, url: `http://127.0.0.1:${port}` };
}

const CHAT = '/v1/chat/completions';
const KEY = { Authorization: 'Bearer sk-8f2c5d1e6a7b4039' };
const BOB = { Authorization: 'Bearer sk-1b9e7c3d5f604a82' };
const ask = (url, headers = {}) => post(`${url}${CHAT}`,
  { ...chat('Hello!'), model: undefined, max_tokens: 2 }, headers);
const models = async (url, headers = {}) => (await request(`${url}/v1/models`,
  { headers })).json().data.map((m) => m.id);

test('keys per user', async (t) => {
  const { url } = await cook(t, block('Keys per user', 'nginx'));
  const none = await ask(url);
  assert.equal(none.status, 401);
  assert.equal(none.json().error.type, 'authentication_error');
  assert.equal((await ask(url, { Authorization: 'Bearer sk-no' })).status, 401);
  const message = (key) => post(`${url}/v1/messages`, { max_tokens: 2,
    messages: [{ role: 'user', content: 'Hello!' }] }, { 'X-Api-Key': key });
  assert.equal((await message('sk-8f2c5d1e6a7b4039')).status, 200);
  const no = await message('sk-no');
  assert.equal(no.status, 401);
  assert.deepEqual([no.json().type, no.json().error.type],
    ['error', 'authentication_error']);
  for (const key of [KEY, BOB]) {
    const out = await ask(url, key);
    assert.equal(out.status, 200, out.text);
  }
});

test('limits per key', async (t) => {
  const { url, stack } = await cook(t, block('Limits per key', 'nginx'),
    { engine: { backend: 'null', null_rate: 20 } });
  const busy = Array.from({ length: 8 }, (_, i) =>
    stream(`${url}${CHAT}`, endless(i, 20000), { headers: KEY }));
  await Promise.all(busy.map((s) => s.when(() => s.text().length > 0)));
  const more = await ask(url, KEY);
  assert.equal(more.status, 429);
  assert.equal(more.json().error.type, 'rate_limit_error');
  assert.equal((await ask(url, BOB)).status, 200);
  assert.equal((await ask(url)).status, 401);
  busy.forEach((s) => s.hangUp());
  await stack.idle();

  const burst = async (headers) => (await Promise.all(Array.from({ length: 80 },
    () => request(`${url}/v1/models`, { headers })))).filter((r) =>
    r.status === 429).length;
  assert.ok(await burst(BOB) > 0, 'more than 50 at once are too many');
  assert.equal(await burst({ Authorization: 'Bearer sk-batch' }), 0);
});

test('plans per key', async (t) => {
  const { url } = await cook(t, block('Limits per key', 'nginx', 'plans'));
  const left = async (headers) => {
    const r = await ask(url, headers);
    assert.equal(r.status, 200, r.text);
    return [r.headers['x-ratelimit-limit-requests'],
      r.headers['x-ratelimit-remaining-requests']];
  };
  assert.deepEqual(await left(KEY), ['20', '19']);
  assert.deepEqual(await left(BOB), ['20', '19']);
  assert.deepEqual(await left({ Authorization: 'Bearer sk-batch' }),
    ['60', '59']);
  assert.equal((await ask(url)).status, 401);
});

test('TLS and HTTP/2', async (t) => {
  const { port } = await cook(t, block('TLS and HTTP/2', 'nginx'), {
    http2: true, // makes a certificate
    change: (text) => text
      .replace('/etc/ssl/certs/llm.example.org.pem', 'DIR/cert.pem')
      .replace('/etc/ssl/private/llm.example.org.key', 'DIR/key.pem'),
  });
  const session = http2.connect(`https://127.0.0.1:${port}`,
    { rejectUnauthorized: false });
  t.after(() => session.close());
  const req = session.request({ ':path': '/v1/models' });
  req.end();
  const [headers] = await once(req, 'response');
  assert.equal(headers[':status'], 200);
  let text = '';
  for await (const part of req.setEncoding('utf8')) text += part;
  assert.equal(JSON.parse(text).data[0].id, 'pocket');
});

const built = spawnSync(NGINX, ['-V'], { encoding: 'utf8' }).stderr;
const h3 = block('TLS and HTTP/2', 'nginx', 'http3');
test('HTTP/3', { skip: !/http_v3/.test(built) && 'this NGINX has no HTTP/3' },
  async (t) => {
    const { port } = await cook(t, block('TLS and HTTP/2', 'nginx')
      .replace('    location', `${h3}\n    location`), {
      http2: true,
      change: (text) => text
        .replace('/etc/ssl/certs/llm.example.org.pem', 'DIR/cert.pem')
        .replace('/etc/ssl/private/llm.example.org.key', 'DIR/key.pem'),
    });
    const sockets = fs.readFileSync('/proc/net/udp', 'utf8');
    assert.match(sockets, new RegExp(`:${port.toString(16).toUpperCase()
      .padStart(4, '0')} `));
  });

test('several models', async (t) => {
  const { url, stack } = await cook(t, block('Several models', 'nginx'), {
    engines: { large: { backend: 'null', served_model_name: 'large' } },
  });
  await until(async () => (await models(url)).length === 4, 'both engines');
  assert.deepEqual((await models(url)).sort(),
    ['gpt-4o', 'gpt-4o-mini', 'large', 'pocket']);
  const answers = async (model) => {
    const r = await post(`${url}${CHAT}`, chat('Hello!',
      { model, max_tokens: 2 }));
    assert.equal(r.status, 200, r.text);
    return r.json().model;
  };
  assert.equal(await answers('gpt-4o'), 'large');
  assert.equal(await answers('gpt-4o-mini'), 'pocket');
  assert.equal(await answers(undefined), 'pocket');
  await stack.others[0].kill();
  await until(async () => await answers('large') === 'pocket', 'the other');
});

test('several models, each at its place', async (t) => {
  const { url } = await cook(t, block('Several models', 'nginx', 'locations'), {
    engines: { large: { backend: 'null', served_model_name: 'large' } },
  });
  assert.deepEqual(await models(url), ['pocket']);
  assert.deepEqual(await models(`${url}/large`), ['large']);
});

test('canary by weight', async (t) => {
  const { url, stack } = await cook(t, block('Canary', 'nginx', 'weights'), {
    engine: { backend: 'null', null_rate: 20 },
    engines: { new: { backend: 'null', null_rate: 20 } },
  });
  await until(async () => /"ready":2\b/.test(
    (await request(`${stack.url}/health`)).text), 'both take requests');
  const busy = Array.from({ length: 60 }, (_, i) =>
    stream(`${url}${CHAT}`, endless(i, 1000)));
  await Promise.all(busy.map((s) => s.when(() => s.text().length > 0)));
  const count = async (e) => Number(/running (\d+)/.exec(await program(
    path.join(path.dirname(ENGINE), 'tokenring'),
    ['stats', '--once', '--engine', e.socket]))[1]);
  await until(async () => await count(stack.engine)
    + await count(stack.others[0]) === 60, 'all of them run');
  const fresh = await count(stack.others[0]);
  assert.ok(fresh >= 1 && fresh <= 8, `${fresh} of 60 on the new engine`);
  busy.forEach((s) => s.hangUp());
});

test('canary by name', async (t) => {
  const { url } = await cook(t, block('Canary', 'nginx', 'split'), {
    engines: { canary: { backend: 'null', served_model_name: 'canary' } },
  });
  await until(async () => (await models(url)).length === 2, 'both engines');
  const seen = { pocket: 0, canary: 0 };
  for (let i = 0; i < 100; i++) {
    const headers = { Authorization: `Bearer sk-${i}` };
    const ask = async () => (await post(`${url}${CHAT}`, chat('Hello!',
      { model: 'pocket', max_tokens: 1 }), headers)).json().model;
    const model = await ask();
    seen[model]++;
    if (model === 'canary') assert.equal(await ask(), model, 'it stays');
  }
  assert.ok(seen.canary >= 1 && seen.canary <= 20, JSON.stringify(seen));
});

test('canary by user', async (t) => {
  const { url } = await cook(t, block('Canary', 'nginx'), {
    engines: { canary: { backend: 'null', served_model_name: 'canary' } },
  });
  assert.deepEqual(await models(url, { 'X-Canary': '1' }), ['canary']);
  assert.deepEqual(await models(url, { 'X-Canary': '0' }), ['pocket']);
  const seen = { pocket: 0, canary: 0 };
  for (let i = 0; i < 300; i++) {
    const headers = { Authorization: `Bearer sk-${i}` };
    const [first] = await models(url, headers);
    seen[first]++;
    if (i < 20) assert.deepEqual(await models(url, headers), [first]);
  }
  assert.ok(seen.canary >= 3 && seen.canary <= 40, JSON.stringify(seen));
});

test('CORS, as a browser sees it', async (t) => {
  const page = http.createServer((req, res) => res.end('<title>app</title>'));
  page.listen(0, '127.0.0.1');
  await once(page, 'listening');
  t.after(() => page.close());
  const origin = `http://127.0.0.1:${page.address().port}`;
  const { url } = await cook(t, block('CORS for browser clients', 'nginx'),
    { change: (text) => text.replace('https://app.example.org', origin) });
  const before = await request(`${url}${CHAT}`, { method: 'OPTIONS' });
  assert.equal(before.status, 204);

  const browser = await Browser.start();
  t.after(() => browser.stop());
  const tab = await browser.open(origin);
  const say = (content) => tab.evaluate(async ([to, body]) => {
    const r = await fetch(to, { method: 'POST', body, headers: {
      'Content-Type': 'application/json', Authorization: 'Bearer sk-x',
      'X-Stainless-Lang': 'js' } });
    return [r.status, await r.text()];
  }, [`${url}${CHAT}`, content]);
  const [status, text] = await say(JSON.stringify({ ...chat('Hello!'),
    max_tokens: 2 }));
  assert.equal(status, 200, text);
  assert.match(text, /"choices"/);
  const [bad, why] = await say('{');
  assert.equal(bad, 400, 'and it can read what is wrong');
  assert.match(why, /"error"/);
});

test('behind a CDN', async (t) => {
  const { url } = await cook(t, `${block('Behind a CDN or another proxy',
    'nginx').replace(/tokenring_keepalive_comment 15s/,
    'tokenring_keepalive_comment 200ms; add_header X-Seen $remote_addr always')}`,
  { engine: { backend: 'null', null_rate: 0.5 } });
  assert.equal((await ask(url)).status, 403);
  const secret = { 'X-Cdn-Secret': 'change-me',
    'X-Forwarded-For': '203.0.113.9' };
  const out = await request(`${url}/v1/models`, { headers: secret });
  assert.equal(out.status, 200);
  assert.equal(out.headers['x-seen'], '203.0.113.9');
  const s = stream(`${url}${CHAT}`, endless(0, 10), { headers: secret });
  await s.when(() => s.comments.length >= 3);
  s.hangUp();
});

test('from proxy_pass to vLLM', async (t) => {
  const title = 'From proxy_pass to vLLM';
  const other = http.createServer((req, res) => {
    res.setHeader('Content-Type', 'application/json');
    res.end('{"data":[{"id":"vllm"}]}');
  });
  other.listen(0, '127.0.0.1');
  await once(other, 'listening');
  t.after(() => { other.closeAllConnections(); other.close(); });
  const change = (text) => text.replaceAll('127.0.0.1:8000',
    `127.0.0.1:${other.address().port}`);
  const first = await cook(t, block(title, 'nginx', 'vllm'), { change });
  assert.deepEqual(await models(first.url), ['vllm']);

  const { url } = await cook(t, block(title, 'nginx'), { change });
  assert.deepEqual(await models(url, { 'X-Backend': 'vllm' }), ['vllm']);
  assert.deepEqual(await models(url, { 'X-Backend': 'tokenring' }), ['pocket']);
  const seen = new Set();
  for (let i = 0; i < 200 && seen.size < 2; i++) {
    seen.add((await models(url, { Authorization: `Bearer ${i}` }))[0]);
  }
  assert.deepEqual([...seen].sort(), ['pocket', 'vllm']);
});

// Runs a program with the text of a block; what it wrote.
async function program(command, args, options = {}) {
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'],
    ...options });
  let out = '';
  let err = '';
  child.stdout.on('data', (d) => { out += d; });
  child.stderr.on('data', (d) => { err += d; });
  const [code] = await once(child, 'close');
  assert.equal(code, 0, err);
  return out;
}

const python = (module) => spawnSync('python3', ['-c', `import ${module}`])
  .status === 0;
const [openai, langchain] = RECIPES.filter((b) => b.title === 'Clients'
  && b.language === 'python');

test('clients', async (t) => {
  const { url } = await cook(t, block('Keys per user', 'nginx'),
    { engine: { kv_memory: '32m' } });
  const here = (text) => text.replaceAll('http://127.0.0.1:8080', url);
  await t.test('curl', async () => {
    const out = await program('sh', ['-ec', here(block('Clients', 'sh', 'curl'))]);
    assert.match(JSON.parse(out).choices[0].message.content, /\w/);
  });
  for (const name of ['openai', 'langchain']) {
    await t.test(`Node: ${name}`, async () => {
      const out = await program('node', ['-e',
        here(block('Clients', 'js', name))], { cwd: __dirname });
      assert.match(out, /\w/);
    });
  }
  await t.test('they are the clients that the page names', () => {
    const page = fs.readFileSync(path.join(ROOT, 'docs/cookbook.md'), 'utf8');
    const { devDependencies: pinned } = require('../package.json');
    assert.ok(page.includes(`openai\` (tested with ${pinned.openai})`));
    assert.ok(page.includes(`(tested with ${pinned['@langchain/openai']} and ${
      pinned['@langchain/core']})`));
  });
  for (const [name, b, module] of [['Python', openai, 'openai'],
    ['LangChain', langchain, 'langchain_openai']]) {
    used.add(b);
    await t.test(`${name}: it parses`, () => program('python3', ['-c',
      'import ast, sys; ast.parse(sys.argv[1])', b.text]));
    await t.test(name, { skip: !python(module) && `no Python ${module}` },
      async () => {
        assert.match(await program('python3', ['-c', here(b.text)]), /\w/);
      });
  }
  await t.test('Open WebUI: the models that it lists', async () => {
    const env = Object.fromEntries(block('Clients', 'env').trim().split('\n')
      .map((line) => line.split('=')));
    assert.deepEqual(await models(url, {
      Authorization: `Bearer ${env.OPENAI_API_KEY}` }), ['pocket']);
    assert.match(env.OPENAI_API_BASE_URL, /:8080\/v1$/);
  });
});

test('every block of the cookbook was tried', () => {
  assert.deepEqual(RECIPES.filter((b) => !used.has(b))
    .map((b) => `line ${b.line}: ${b.title}`), []);
});
