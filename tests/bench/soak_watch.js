'use strict';
//
// What soak.js watches: memory, descriptors and CPU time of every process, what
// is in use, and, when the load pauses, that everything has come back.  Memory is
// what a process has for itself (RssAnon): what it shares with others, rings
// and the model's file, is a matter of who touched it first.  And it is what a
// process has from malloc and has not given back (heap_count.c): there a leak is
// told from holes in the heap.

const fs = require('node:fs');
const path = require('node:path');
const lib = require('./lib.js');
const { until, leaves, read, parseMetrics } = require('../e2e/lib/stack.js');
const { request } = require('../e2e/lib/http.js');

// What is shorter has no slope: a page more or less would be megabytes an hour.
const SPAN = 300000;

// KiB that a process has from malloc; null where they are not counted.
function heap(pid) {
  try {
    const file = path.join(process.env.HEAP_COUNT, String(pid));
    return Number(fs.readFileSync(file).readBigInt64LE()) / 1024;
  } catch {
    return null;
  }
}

// null when the process has gone.
function look(pid) {
  const status = read(`/proc/${pid}/status`);
  const kib = (name) => Number((new RegExp(`^${name}:\\s+(\\d+)`, 'm')
    .exec(status) || [0, 0])[1]);
  try {
    return { rss: kib('VmRSS'), anon: kib('RssAnon'), heap: heap(pid),
      fds: fs.readdirSync(`/proc/${pid}/fd`).length,
      cpu: lib.sum(lib.cpuNs(pid)) / 1e9 };
  } catch {
    return null;
  }
}

// Connections that a server on this loopback port has not closed.
function connections(port) {
  const hex = port.toString(16).toUpperCase().padStart(4, '0');
  return read('/proc/net/tcp').split('\n').map((l) => l.trim().split(/\s+/))
    .filter((f) => f[1] && f[1].endsWith(`:${hex}`)
      && (f[3] === '01' || f[3] === '08')).length;
}

// KiB an hour, by least squares; points are [ms, KiB].
function slope(points) {
  const n = points.length;
  const t0 = points[0][0];
  const x = points.map(([t]) => (t - t0) / 3600000);
  const y = points.map(([, v]) => v);
  const mx = lib.sum(x) / n;
  const my = lib.sum(y) / n;
  const sxx = lib.sum(x.map((v) => (v - mx) ** 2));
  return lib.sum(x.map((v, i) => (v - mx) * (y[i] - my))) / sxx;
}

class Watch {
  // broken(text): something did not come back
  constructor({ stack, redis, ports, broken }) {
    Object.assign(this, { stack, redis, ports, broken });
    this.engines = [stack.engine, ...stack.others];
    this.lives = new Map(); // by pid: {what, cpu, samples, quiet}
    this.samples = [];
    this.quiets = [];
    this.peak = {};
    this.totals = {}; // by counter and engine
    this.free = null;
  }

  // {what, pid} of all that run now.
  processes() {
    return [
      ...this.stack.workers().map((pid) => ({ what: 'worker', pid })),
      ...this.engines.filter((e) => e.pid)
        .map((e) => ({ what: `engine ${e.settings.name}`, pid: e.pid })),
      { what: 'redis-server', pid: this.redis.pid },
    ].filter((p) => p.pid);
  }

  async metrics() {
    return parseMetrics((await request(`${this.stack.url}/metrics`)).text);
  }

  async gauges() {
    const m = await this.metrics();
    const v = (name) => {
      try { return m.value(`tokenring_${name}`); } catch { return 0; }
    };
    const pages = { all: 0, free: 0 };
    for (const s of m.samples) {
      if (s.name !== 'tokenring_kv_cache_pages') continue;
      pages.all += s.value;
      // what is kept of prefixes is free for whoever needs it
      if (['free', 'cached'].includes(s.labels.level)) pages.free += s.value;
    }
    this.remember(m);
    return { running: v('num_requests_running'),
      waiting: v('num_requests_waiting'), outstanding: v('outstanding_tokens'),
      active: v('gateway_active_requests'), pages: pages.all - pages.free,
      free: pages.free, swapped: v('kv_cache_swapped_pages'),
      held: v('redis_held_bytes') };
  }

  // Counters, over all lives of their engines: one that is smaller than before
  // began anew.
  remember(m) {
    const note = (name, key, labels) => {
      let now;
      try {
        now = m.value(key, labels);
      } catch {
        return; // it is away, or nothing was counted yet
      }
      const of = this.totals[name] ||= {};
      const c = of[labels.replica || 0] ||= { before: 0, last: 0 };
      if (now < c.last) c.before += c.last;
      c.last = now;
    };
    for (const i of this.engines.keys()) {
      for (const name of ['preemptions', 'kv_swaps', 'kv_recomputations',
        'generation_tokens', 'prompt_tokens', 'channel_errors']) {
        note(name, `tokenring_${name}_total`, { replica: String(i) });
      }
    }
    for (const name of ['pauses', 'retries', 'protocol_errors', 'requests',
      'engine_losses']) {
      note(name, `tokenring_gateway_${name}_total`, {});
    }
  }

  total(name) {
    return lib.sum(Object.values(this.totals[name] || {})
      .map((c) => c.before + c.last));
  }

  async sample() {
    const t = Date.now();
    const row = { t };
    for (const p of this.processes()) {
      const now = look(p.pid);
      if (!now) continue;
      let life = this.lives.get(p.pid);
      if (!life) {
        life = { ...p, from: t, first: now.cpu, quiet: [] };
        this.lives.set(p.pid, life);
      }
      life.to = t;
      life.cpu = now.cpu;
      life.fdsMost = Math.max(life.fdsMost || 0, now.fds);
      (row[p.what] ||= []).push([p.pid, now.rss, now.anon, now.fds]);
    }
    try {
      Object.assign(row, await this.gauges());
      for (const k of ['running', 'waiting', 'pages', 'swapped', 'active']) {
        this.peak[k] = Math.max(this.peak[k] || 0, row[k]);
      }
    } catch { /* a worker was killed under it */ }
    try {
      row.redisKeys = await this.redis.command('DBSIZE');
      row.redisBytes = Number(/used_memory:(\d+)/.exec(
        await this.redis.command('INFO', 'memory'))[1]);
    } catch { /* it is away */ }
    this.samples.push(row);
    return row;
  }

  // Nobody asks anything and all is well: waits until nothing is held any more.
  // What does not come back is told, and the soak goes on.
  async quiet(patience = 60) {
    const back = async (what, test) => {
      let now;
      try {
        await until(async () => {
          now = await test().catch((e) => e.message);
          return now === true;
        }, what, patience);
      } catch {
        this.broken(`when all was quiet: ${what}, not ${JSON.stringify(now)}`);
      }
    };
    await back('two workers, none that leaves', async () => {
      const pids = this.stack.workers();
      return (pids.length === this.stack.options.workers
        && !pids.some(leaves)) || pids.length;
    });
    await back('nothing in use', async () => {
      const { free, ...used } = await this.gauges();
      const none = Object.values(used).every((n) => n === 0);
      if (none) this.free ??= free;
      return (none && free === this.free)
        || { free, before: this.free, ...used };
    });
    await back('no connection', async () => {
      const open = this.ports.map(connections);
      return open.every((n) => n === 0) || open;
    });
    await back('no request in Redis', async () => {
      const keys = (await this.redis.command('KEYS', '*'))
        .filter((k) => !/^tr:(engines$|(engine|card|metrics|requests|usage):)/.test(k));
      return keys.length === 0 || keys.slice(0, 5);
    });
    const row = await this.sample();
    for (const p of this.processes()) {
      const now = look(p.pid);
      if (now) this.lives.get(p.pid).quiet.push({ t: row.t, ...now });
    }
    this.quiets.push(row);
    return row;
  }

  // Of every process that lived through some quiet moments: how its memory and
  // descriptors went.  The first `warm` ms of a life are left out of the slope.
  summary(warm) {
    return [...this.lives.values()].filter((l) => l.quiet.length > 0)
      .map((l) => {
        const later = l.quiet.filter((q) => q.t - l.from >= warm);
        const points = later.length >= 3
          && later.at(-1).t - later[0].t >= SPAN ? later : [];
        const rate = (key) => (points.length
          ? slope(points.map((q) => [q.t, q[key]])) : null);
        const fds = l.quiet.map((q) => q.fds);
        return { what: l.what, pid: l.pid, minutes: (l.to - l.from) / 60000,
          quiet: l.quiet.length, points: points.length,
          span: points.length ? (points.at(-1).t - points[0].t) / 60000 : 0,
          cpu: l.to > l.from ? (l.cpu - l.first) * 1e5 / (l.to - l.from) : 0,
          heap: l.quiet.map((q) => q.heap),
          heapSlope: l.quiet[0].heap === null ? null : rate('heap'),
          anon: l.quiet.map((q) => q.anon), rss: l.quiet.map((q) => q.rss), fds,
          fdsMost: l.fdsMost, anonSlope: rate('anon'), rssSlope: rate('rss') };
      });
  }

  // At most `n` of the samples, a line each.
  lines(n) {
    const every = Math.ceil(this.samples.length / n);
    const names = ['running', 'waiting', 'active', 'pages', 'swapped', 'held',
      'redisBytes', 'redisKeys'];
    return ['s ' + names.join(' ') + ' | process:pid,rss KiB,own KiB,fds ..']
      .concat(this.samples.filter((_, i) => i % every === 0).map((row) => [
        Math.round((row.t - this.samples[0].t) / 1000),
        ...names.map((k) => row[k] ?? '-'), '|',
        ...Object.entries(row).filter(([, v]) => Array.isArray(v))
          .flatMap(([what, v]) => v.map((one) =>
            `${what.replace(' ', '-')}:${one.join(',')}`))].join(' ')));
  }
}

module.exports = { Watch, slope };
