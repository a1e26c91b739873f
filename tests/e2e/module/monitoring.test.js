'use strict';
//
// conf/prometheus and conf/grafana: valid by promtool, about metrics that the
// module exports and no others, and every expression of the dashboard answered
// by a real Prometheus that scrapes a real NGINX with a real engine.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { spawn, spawnSync } = require('node:child_process');
const { once } = require('node:events');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { Stack, ROOT, until, freePort, read } = require('../lib/stack');
const { request, post } = require('../lib/http');
const { chat } = require('../lib/prompts');

const CONF = path.join(ROOT, 'conf');
const PROMETHEUS = process.env.TR_PROMETHEUS || 'prometheus';
const board = JSON.parse(fs.readFileSync(
  path.join(CONF, 'grafana/dashboards/tokenring.json'), 'utf8'));
const exprs = board.panels.flatMap((p) => p.targets.map((t) => t.expr));
const rules = fs.readFileSync(
  path.join(CONF, 'prometheus/tokenring.rules.yml'), 'utf8');

const names = (text) => [...text.matchAll(/\btokenring_[a-z0-9_]+/g)]
  .map((m) => m[0]);

function promtool(...args) {
  const out = spawnSync('promtool', args, { encoding: 'utf8' });
  return { status: out.status, text: `${out.stdout}${out.stderr}` };
}

test('Prometheus accepts the configuration and the rules', () => {
  const config = promtool('check', 'config',
    path.join(CONF, 'prometheus/prometheus.yml'));
  assert.equal(config.status, 0, config.text);
  const alerts = (rules.match(/- alert:/g) || []).length;
  assert.ok(alerts >= 5);
  assert.match(config.text, new RegExp(`${alerts} rules found`));
});

test('alerts fire when they should, and only then', () => {
  const out = promtool('test', 'rules',
    path.join(ROOT, 'tests/e2e/lib/alerts.yml'));
  assert.equal(out.status, 0, out.text);
});

test('Grafana\'s dashboard is whole', () => {
  const ids = board.panels.map((p) => p.id);
  assert.equal(new Set(ids).size, ids.length, 'each panel has its own id');
  const taken = new Set();
  for (const p of board.panels) {
    const { x, y, w, h } = p.gridPos;
    assert.ok(x >= 0 && x + w <= 24, p.title);
    for (let i = x; i < x + w; i++) {
      for (let j = y; j < y + h; j++) {
        assert.ok(!taken.has(`${i},${j}`), `${p.title} lies on another panel`);
        taken.add(`${i},${j}`);
      }
    }
    assert.ok(p.title && p.targets.length > 0);
    assert.deepEqual(p.datasource, { type: 'prometheus', uid: '${source}' });
    for (const t of p.targets) assert.ok(t.expr && t.refId);
  }
  const source = fs.readFileSync(
    path.join(CONF, 'grafana/provisioning/datasources/prometheus.yml'), 'utf8');
  const list = board.templating.list.find((v) => v.name === 'source');
  assert.match(source, new RegExp(`uid: ${list.current.value}$`, 'm'));
  for (const [, name] of exprs.join(' ').matchAll(/\$(\w+)/g)) {
    assert.ok(name === '__rate_interval'
      || board.templating.list.some((v) => v.name === name), `$${name}`);
  }
});

// A Prometheus of the test's own: conf/prometheus, but for target and pace.
async function withPrometheus(stack, body) {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-prom-'));
  fs.copyFileSync(path.join(CONF, 'prometheus/tokenring.rules.yml'),
    path.join(dir, 'tokenring.rules.yml'));
  fs.writeFileSync(path.join(dir, 'prometheus.yml'), fs.readFileSync(
    path.join(CONF, 'prometheus/prometheus.yml'), 'utf8')
    .replace('127.0.0.1:8080', `127.0.0.1:${stack.port}`)
    .replace(/scrape_interval: \w+/, 'scrape_interval: 1s')
    .replace(/evaluation_interval: \w+/, 'evaluation_interval: 1s'));
  const port = await freePort();
  const log = fs.openSync(path.join(dir, 'log'), 'a');
  const child = spawn(PROMETHEUS, [`--config.file=${dir}/prometheus.yml`,
    `--storage.tsdb.path=${dir}/data`, `--web.listen-address=127.0.0.1:${port}`],
  { stdio: ['ignore', log, log], cwd: dir });
  fs.closeSync(log);
  const end = () => child.kill('SIGKILL');
  process.on('exit', end);
  let gone = null;
  child.on('error', (e) => { gone = e; });
  child.on('exit', (code) => { gone = gone || new Error(`ended with ${code}`); });
  const ask = async (what, query) => {
    if (gone) throw new Error(`prometheus: ${gone.message}\n${read(`${dir}/log`)}`);
    const r = await request(`http://127.0.0.1:${port}/api/v1/${what}?`
      + new URLSearchParams(query)).catch(() => null);
    return r && r.status !== 503 ? r.json() : null;
  };
  try {
    await body(ask);
  } finally {
    end();
    if (!gone) await once(child, 'exit');
    process.off('exit', end);
    fs.rmSync(dir, { recursive: true, force: true });
  }
}

test('every metric is exported, every expression answered', async () => {
  const stack = await Stack.start({ engine: {
    kv_policy: 'diffkv:alpha_high=12,alpha_low=0' } });
  const url = `${stack.url}/v1/chat/completions`;
  try {
    const ask = () => post(url, chat('Tell me a story about a fox.'));
    assert.equal((await ask()).status, 200);
    const exported = new Set((await stack.metrics()).samples.map((s) => s.name));
    const judged = rules.replace(/^ *(summary|description):.*$/gm, '');
    for (const name of new Set([...exprs, judged].flatMap(names))) {
      assert.ok(exported.has(name), `${name} is in no /metrics`);
    }
    await withPrometheus(stack, async (prometheus) => {
      await until(async () => {
        const r = await prometheus('query', { query: 'tokenring_up == 1' });
        return r && r.data.result.length === 1;
      }, 'a first scrape');
      await ask();
      for (const expr of exprs) {
        const query = expr.replaceAll('$__rate_interval', '1m')
          .replaceAll('$engine', '.*');
        let last;
        await until(async () => {
          last = await prometheus('query', { query });
          if (last && last.status !== 'success') {
            throw new Error(`${query}: ${last.error}`);
          }
          return last && last.data.result.length > 0;
        }, () => `an answer to ${query}: ${JSON.stringify(last)}`);
      }
      const states = await until(async () => {
        const r = await prometheus('rules', { type: 'alert' });
        const all = r && r.data.groups.flatMap((g) => g.rules);
        return all && all.length && all.every((a) => a.health === 'ok') && all;
      }, 'rules that evaluate');
      assert.deepEqual(states.filter((a) => a.state === 'firing')
        .map((a) => a.name), [], 'nothing is wrong');
    });
    assert.deepEqual(stack.complaints(), []);
  } finally {
    await stack.stop();
  }
});
