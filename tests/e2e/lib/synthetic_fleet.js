'use strict';
//
// A fleet that is not there: engines that "serve" made-up requests, told as an
// engine tells it in Redis (docs/redis.md).  For the dashboard's mock server,
// and to fill a real Redis without waiting ten minutes for a history.  Driven by
// a seed and by the time that it is given: nothing here looks at a clock.

const BOUNDS_US = [100, 250, 500, 1000, 2000, 3000, 5000, 7500, 10000, 15000,
  20000, 30000, 50000, 75000, 100000, 150000, 250000, 500000, 750000, 1000000,
  2500000, 5000000, 10000000, 20000000, 40000000, 80000000, 160000000,
  640000000];

// mulberry32
function random(seed) {
  let a = seed >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = Math.imul(a ^ (a >>> 15), a | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

function hex(rnd, n) {
  let s = '';
  while (s.length < n) s += Math.floor(rnd() * 16).toString(16);
  return s;
}

class Histogram {
  constructor() { this.counts = new Array(BOUNDS_US.length + 1).fill(0); }

  observe(ms, times = 1) {
    let i = 0;
    while (i < BOUNDS_US.length && ms * 1000 > BOUNDS_US[i]) i++;
    this.counts[i] += times;
  }

  toString() { return this.counts.join(' '); }
}

// Bytes of a token at 16 bits, of all layers: Llama-3-8B's.
const FULL = 131072;
const LEVELS = [['16/16', 1], ['8/4', 0.41], ['4/2', 0.22]];

// Its weights, as AWQ has them; and those of Qwen3-4B in 16 bits.
const LLAMA = { weights: 'AWQ 4.16 bits', weights_file_bytes: 5730000000,
  weights_bytes: 5740000000, parameters: 8030261248 };
const QWEN = { weights: 'BF16', weights_file_bytes: 8044936192,
  weights_bytes: 8044943000, parameters: 4022468096 };

class SyntheticEngine {
  constructor(name, rnd, now, more = {}) {
    Object.assign(this, { name, rnd, now, rate: 1.6, pool: 2048,
      model: 'llama-3-8b-instruct', weights: LLAMA, slow: 1, alive: true }, more);
    this.pageBytes = 1 << 20;
    this.start();
  }

  start() {
    this.run = hex(this.rnd, 16);
    this.started = this.now;
    this.live = [];
    this.recent = [];
    this.counters = { prompt_tokens: 0, generation_tokens: 0, stop: 0,
      length: 0, aborted: 0, error: 0, preemptions: 0, kv_request_bytes: 0,
      kv_request_full_bytes: 0 };
    this.h = { ttft: new Histogram(), inter_token: new Histogram(),
      e2e: new Histogram(), queue: new Histogram(), step: new Histogram() };
    this.alive = true;
  }

  arrive(t) {
    const { rnd } = this;
    const prompt = Math.floor(200 * Math.exp(rnd() * 3.2));
    const wait = 5 + 40 * rnd() ** 4 * this.slow + this.live.length * 0.6;
    const prefill = prompt * 0.16 * this.slow + 8;
    const first = wait + prefill;
    const tpot = (14 + 10 * rnd() + this.live.length * 0.25) * this.slow;
    const output = Math.floor(60 * Math.exp(rnd() * 2.4));
    const failed = rnd() < 0.01;
    const cancelled = !failed && rnd() < 0.05;
    const end = first + tpot * output * (failed || cancelled ? rnd() : 1);
    const r = { id: hex(rnd, 32), created: t, started: t + wait,
      first_token: t + first, end: t + end, tpot, prompt, output, failed,
      cancelled, told: 0,
      high: 0.12 + 0.12 * rnd(), pruned: 0.15 + 0.2 * rnd() };
    r.low = 1 - r.high - r.pruned;
    this.live.push(r);
    this.recent.unshift(r);
    this.recent.length = Math.min(this.recent.length, 64);
  }

  // One second, the one that ends at t.
  step(t) {
    const { counters: c, h } = this;
    if (!this.alive) return;
    this.now = t;
    const wave = 1 + 0.5 * Math.sin(t / 47000) + 0.35 * Math.sin(t / 13000);
    let n = this.rate * wave * (0.5 + this.rnd());
    while (n > this.rnd()) {
      n -= 1;
      this.arrive(t - 1000 + Math.floor(1000 * this.rnd()));
    }
    for (const r of this.live) {
      if (r.first_token <= t && r.told === 0) {
        h.ttft.observe(r.first_token - r.created);
        h.queue.observe(r.started - r.created);
        c.prompt_tokens += r.prompt;
        r.told = 1;
      }
      const tokens = this.tokens(r, t);
      if (tokens > r.told) {
        c.generation_tokens += tokens - r.told;
        h.inter_token.observe(r.tpot * (0.7 + 0.6 * this.rnd()), tokens - r.told);
        r.told = tokens;
      }
      if (r.end <= t) {
        h.e2e.observe(r.end - r.created);
        c[r.failed ? 'error' : r.cancelled ? 'aborted'
          : r.output % 5 === 0 ? 'length' : 'stop'] += 1;
        c.preemptions += r.output % 23 === 0 ? 1 : 0;
        if (!r.failed) {
          const told = this.request(r, t);
          c.kv_request_bytes += Number(told.kv_bytes) || 0;
          c.kv_request_full_bytes += Number(told.kv_full_bytes) || 0;
        }
      }
    }
    this.live = this.live.filter((r) => r.end > t);
  }

  tokens(r, t) {
    if (t < r.first_token) return 0;
    return Math.min(r.output,
      1 + Math.floor((Math.min(t, r.end) - r.first_token) / r.tpot));
  }

  cached(t) {
    const out = { tokens: 0, bytes: LEVELS.map(() => 0) };
    for (const r of this.live) {
      if (r.started > t) continue;
      const n = r.prompt + this.tokens(r, t);
      out.tokens += n;
      if (t < r.first_token) {
        out.bytes[0] += n * FULL;
      } else {
        out.bytes[0] += Math.min(n, 64) * FULL;
        out.bytes[1] += n * r.high * FULL * LEVELS[1][1];
        out.bytes[2] += n * r.low * FULL * LEVELS[2][1];
      }
    }
    return out;
  }

  // What ended requests left, as far as there is room: a tenth of the pool.
  prefixes(used) {
    const left = this.pool - used.reduce((a, b) => a + b, 0);
    return Math.max(0, Math.min(left, Math.round(this.pool / 10)));
  }

  heart(t) {
    return { ...this.card(), state: 'ready', heartbeat: t };
  }

  card() {
    return { run: this.run, model: this.model, backend: 'cuda',
      kv_policy: 'diffkv', started: this.started,
      host: 'gpu-01', pid: 4211, version: '0.1', max_model_len: 8192,
      page_bytes: this.pageBytes, pages: this.pool,
      levels: LEVELS.map((l) => l[0]).join(' '),
      level_bytes: LEVELS.map((l) => Math.round(FULL * l[1])).join(' '),
      full_token_bytes: FULL, ...this.weights };
  }

  sample(t) {
    const kv = this.cached(t);
    const used = kv.bytes.map((b) => Math.ceil(b * 1.06 / this.pageBytes));
    const waiting = this.live.filter((r) => r.started > t).length;
    return { run: this.run, running: this.live.length - waiting, waiting,
      ...this.counters,
      gpu_percent: Math.min(99, 20 + 3 * this.live.length),
      gpu_milliwatts: 90000 + 11000 * this.live.length,
      kv_free: this.pool - used.reduce((a, b) => a + b, 0),
      kv_used: used.join(' '), kv_swapped: 0,
      kv_cached: this.prefixes(used), kv_tokens: kv.tokens,
      kv_full_bytes: kv.tokens * FULL, kv_files_bytes: 3 * 2 ** 30, kv_host_bytes: 2 ** 31,
      ...Object.fromEntries(Object.entries(this.h).map(([k, v]) => [k, `${v}`])) };
  }

  request(r, t) {
    const at = (x) => (x <= t ? Math.round(x) : undefined);
    const over = r.end <= t;
    const n = this.tokens(r, t);
    const full = (r.prompt + n) * FULL;
    const out = { id: r.id,
      state: over ? (r.failed ? 'failed' : r.cancelled ? 'cancelled' : 'done')
        : t < r.started ? 'queued' : t < r.first_token ? 'prefill' : 'decode',
      engine: this.name, run: this.run, model: this.model, endpoint: 'chat',
      request_id: `demo-${r.id.slice(0, 6)}`, stream: 1, created: r.created,
      started: at(r.started), first_token: at(r.first_token),
      finished: over ? at(r.end) : undefined, choices: 1,
      prompt_tokens: t >= r.started ? r.prompt : undefined,
      completion_tokens: n, cached_tokens: 0,
      preemptions: 0 };
    if (n > 0 && !(over && r.failed)) {
      const high = Math.round((r.prompt + n) * r.high);
      const pruned = Math.round((r.prompt + n) * r.pruned);
      Object.assign(out, {
        finish_reason: over ? (r.output % 5 === 0 ? 'length' : 'stop') : undefined,
        kv_policy: 'diffkv', kv_tokens_full: 0, kv_tokens_high: high,
        kv_tokens_low: r.prompt + n - high - pruned, kv_tokens_pruned: pruned,
        kv_bytes: Math.round(full * (r.high * 0.41 + r.low * 0.22) * 1.06 + 64 * FULL * 0.3),
        kv_full_bytes: full, share_high: r.high.toFixed(4),
        share_low: r.low.toFixed(4), share_pruned: r.pruned.toFixed(4) });
    }
    if (r.failed && over) {
      Object.assign(out, { error_status: 'engine_failed', error: 'the step failed' });
    }
    // As Redis gives it: strings, and no field that has no value.
    return Object.fromEntries(Object.entries(out)
      .filter(([, v]) => v !== undefined).map(([k, v]) => [k, String(v)]));
  }
}

class SyntheticFleet {
  constructor(seed, now, engines = {
    'gpu-a': {}, 'gpu-b': { rate: 1.2, pool: 1536 },
    'gpu-c': { rate: 0.8, slow: 1.7, pool: 1024, model: 'qwen3-4b', weights: QWEN } }) {
    this.rnd = random(seed);
    this.engines = Object.entries(engines).map(([name, more]) =>
      new SyntheticEngine(name, this.rnd, now, more));
  }

  step(t) {
    for (const e of this.engines) e.step(t);
  }
}

const strings = (o) => Object.fromEntries(
  Object.entries(o).map(([k, v]) => [k, String(v)]));

// What the engine writes to Redis at t, as commands; requests: those, too.
function commands(e, t, { prefix = 'tr:', requests = true } = {}) {
  const flat = (o) => Object.entries(o).flat();
  const out = [];
  if (!e.alive) return out;
  const key = (kind) => `${prefix}${kind}:{${e.name}}`;
  out.push(['HSET', key('engine'), ...flat(e.heart(t))],
    ['PEXPIRE', key('engine'), 5000],
    ['HSET', key('card'), ...flat(e.card())],
    ['ZADD', `${prefix}engines`, t, e.name],
    ['XADD', key('metrics'), 'MAXLEN', '~', 4000, `${t}-0`, ...flat(e.sample(t))]);
  for (const r of requests ? e.recent : []) {
    out.push(['HSET', `${prefix}req:{${r.id}}`,
      ...flat(e.request(r, t)).slice(2)],
    ['EXPIRE', `${prefix}req:{${r.id}}`, 3600],
    ['ZADD', key('requests'), r.created, r.id]);
  }
  out.push(['ZREMRANGEBYRANK', key('requests'), 0, -201]);
  return out;
}

module.exports = { commands, SyntheticFleet, BOUNDS_US, random, strings };
