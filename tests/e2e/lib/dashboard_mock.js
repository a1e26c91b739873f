'use strict';
//
// The dashboard without NGINX, Redis and engines: serves dashboard/ with the
// headers that the module gives it, and a stream of a synthetic fleet.  To work
// on the page:
//
//   node tests/e2e/lib/dashboard_mock.js [PORT]
//
// and, while it runs, POST /mock/kill?engine=NAME, /mock/start?engine=NAME,
// /mock/redis?state=away, /mock/redis?state=up, /mock/redis?state=none.

const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const { SyntheticFleet, BOUNDS_US, strings } = require('./synthetic_fleet');

const ROOT = path.resolve(__dirname, '../../../dashboard');
const HISTORY = 3660;
const TYPES = { '.html': 'text/html; charset=utf-8', '.css': 'text/css',
  '.js': 'text/javascript', '.svg': 'image/svg+xml' };
const CSP = "default-src 'none'; script-src 'self'; style-src 'self'; "
  + "connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
  + "form-action 'none'; frame-ancestors 'none'; "
  + "require-trusted-types-for 'script'";

class Mock {
  constructor({ seed = 7, engines } = {}) {
    this.viewers = new Set();
    this.redis = 'up';
    const end = Date.now();
    this.fleet = new SyntheticFleet(seed, end - HISTORY * 1000, engines);
    this.history = new Map(this.fleet.engines.map((e) => [e.name, []]));
    this.told = new Map();
    for (let t = end - HISTORY * 1000; t <= end; t += 1000) this.step(t);
  }

  step(t) {
    this.fleet.step(t);
    this.fresh = new Map();
    for (const e of this.fleet.engines) {
      if (!e.alive) continue;
      const s = { id: `${t}-0`, ...strings(e.sample(t)) };
      const list = this.history.get(e.name);
      list.push(s);
      if (list.length > HISTORY) list.shift();
      this.fresh.set(e.name, s);
    }
  }

  requests(t) {
    const all = this.fleet.engines.flatMap((e) =>
      e.recent.map((r) => e.request(r, e.alive ? t : e.now)));
    return all.sort((a, b) => b.created - a.created).slice(0, 40);
  }

  tick(t) {
    if (this.redis === 'away') {
      return { type: 'tick', now: t, redis: this.redis, reason: 'Connection refused',
        engines: [], requests: [] };
    }
    const changed = this.requests(t).filter((r) => {
      const text = JSON.stringify(r);
      const same = this.told.get(r.id) === text;
      this.told.set(r.id, text);
      return !same;
    });
    return { type: 'tick', now: t, redis: this.redis, requests: changed,
      gateway: { active: 3, requests: { 200: Math.round(t / 900), 429: Math.round(t / 19000),
        503: Math.round(t / 61000) }, tenants: [
        { name: 'acme', requests: 1203, limited: 7, prompt_tokens: 181000, completion_tokens: 90400 },
        { name: 'zoo', requests: 88, limited: 0, prompt_tokens: 4100, completion_tokens: 7300 },
        { name: '', requests: 5, limited: 0, prompt_tokens: 610, completion_tokens: 92 },
        { name: 'other', requests: 2, limited: 0, prompt_tokens: 0, completion_tokens: 0 }] },
      engines: this.fleet.engines.map((e) => ({ name: e.name, seen: String(e.now),
        heart: e.alive ? strings(e.heart(e.now)) : null,
        card: e.alive ? null : strings(e.card()),
        samples: this.fresh.has(e.name) ? [this.fresh.get(e.name)] : [] })) };
  }

  send(res, event) {
    res.write(`data: ${JSON.stringify(event)}\n\n`);
  }

  events(res) {
    res.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-cache' });
    const t = Date.now();
    this.send(res, { type: 'hello', bounds: BOUNDS_US });
    for (const e of this.fleet.engines) {
      this.send(res, { type: 'history', engine: e.name,
        samples: this.history.get(e.name) });
    }
    this.send(res, { type: 'requests', requests: this.requests(t) });
    this.send(res, this.tick(t));
    this.viewers.add(res);
    res.on('close', () => this.viewers.delete(res));
  }

  handle(req, res) {
    const url = new URL(req.url, 'http://mock');
    if (url.pathname.startsWith('/mock/')) {
      const e = this.fleet.engines.find((x) => x.name === url.searchParams.get('engine'));
      if (url.pathname === '/mock/kill') e.alive = false;
      if (url.pathname === '/mock/start') { e.now = Date.now(); e.start(); }
      if (url.pathname === '/mock/redis') this.redis = url.searchParams.get('state');
      res.end('ok\n');
      return;
    }
    if (url.pathname === '/events') {
      this.events(res);
      return;
    }
    const found = /^\/requests\/([0-9a-f]{32})$/.exec(url.pathname);
    if (found) {
      const r = this.requests(Date.now()).find((x) => x.id === found[1]);
      res.writeHead(r ? 200 : 404, { 'Content-Type': 'application/json' });
      res.end(JSON.stringify(r || {}));
      return;
    }
    const name = url.pathname === '/' ? '/index.html' : url.pathname;
    const file = path.join(ROOT, path.normalize(name));
    if (!file.startsWith(ROOT) || !fs.existsSync(file)) {
      res.writeHead(404);
      res.end();
      return;
    }
    res.writeHead(200, { 'Content-Type': TYPES[path.extname(file)] || 'text/plain',
      'Content-Security-Policy': CSP, 'X-Content-Type-Options': 'nosniff' });
    res.end(fs.readFileSync(file));
  }

  start(port = 0) {
    this.server = http.createServer((req, res) => this.handle(req, res));
    this.timer = setInterval(() => {
      const t = Date.now();
      this.step(t);
      const event = this.tick(t);
      for (const v of this.viewers) this.send(v, event);
    }, 1000);
    return new Promise((resolve) => {
      this.server.listen(port, '127.0.0.1', () => {
        this.url = `http://127.0.0.1:${this.server.address().port}`;
        resolve(this);
      });
    });
  }

  stop() {
    clearInterval(this.timer);
    this.server.closeAllConnections();
    return new Promise((resolve) => { this.server.close(resolve); });
  }
}

module.exports = { Mock, CSP };

if (require.main === module) {
  new Mock().start(Number(process.argv[2] || 8090))
    .then((mock) => process.stdout.write(`${mock.url}/\n`));
}
