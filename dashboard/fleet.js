// What is known of the fleet: engines, their samples, recent requests.  Fed by
// the events of the module, which passes on what stands in Redis as it is
// (docs/redis.md), or without a Redis what the engines of that NGINX say; all
// values are strings there, and nothing is trusted here.

// An engine without a heartbeat is a matter for an alert this long; its past
// stays as long as there are samples of it.
export const MOURN = 15 * 60 * 1000;
const KEEP = 62 * 60 * 1000;
// Of samples older than this, one in SPARSE seconds is enough: counters only
// grow.
const DENSE = 11 * 60 * 1000;
export const SPARSE = 10;
export const RECENT = 40;

const number = (s) => (s === undefined || s === null || s === '' ? NaN : Number(s));
const numbers = (s) => (s ? String(s).trim().split(/\s+/).map(Number) : []);

export const FINAL = new Set(['done', 'failed', 'cancelled']);

function sample(raw) {
  return {
    t: parseInt(raw.id, 10),
    run: raw.run || '',
    running: number(raw.running),
    waiting: number(raw.waiting),
    prompt: number(raw.prompt_tokens),
    generation: number(raw.generation_tokens),
    stop: number(raw.stop),
    length: number(raw.length),
    aborted: number(raw.aborted),
    error: number(raw.error),
    preemptions: number(raw.preemptions),
    gpu: number(raw.gpu_percent) / 100,
    watts: number(raw.gpu_milliwatts) / 1000,
    ended: number(raw.kv_request_bytes),
    endedFull: number(raw.kv_request_full_bytes),
    kvFree: number(raw.kv_free),
    kvUsed: numbers(raw.kv_used),
    kvSwapped: number(raw.kv_swapped),
    kvCached: number(raw.kv_cached),   // NaN: an older engine
    kvFiles: number(raw.kv_files_bytes),
    kvHost: number(raw.kv_host_bytes),
    kvLoses: number(raw.kv_guard_warnings) > 0,
    kvTokens: number(raw.kv_tokens),
    kvFull: number(raw.kv_full_bytes),
    ttft: numbers(raw.ttft),
    inter: numbers(raw.inter_token),
    e2e: numbers(raw.e2e),
  };
}

export class Engine {
  constructor(name) {
    this.name = name;
    this.seen = 0;       // its last heartbeat, Unix ms
    this.alive = false;
    this.stopped = false; // on demand, and nobody needs it
    this.card = {};      // what it is, also when it has gone
    this.samples = [];   // by time
    this.most = 0;       // more of them are thinned out
  }

  get run() { return this.alive ? this.card.run : ''; }
  get state() {
    if (!this.alive) return this.stopped ? 'stopped' : 'gone';
    return this.card.state || 'ready';
  }

  get pageBytes() { return number(this.card.page_bytes); }
  get pages() { return number(this.card.pages); }
  get levels() {
    return (this.card.levels || '').split(/\s+/).filter(Boolean);
  }

  get last() { return this.samples[this.samples.length - 1] || null; }

  get model() { return this.card.model || ''; }

  heart(fields, seen, card) {
    this.seen = Math.max(this.seen, number(seen) || 0);
    this.alive = fields !== null && Object.keys(fields).length > 0;
    this.stopped = !this.alive && Boolean(card) && card.state === 'stopped';
    if (this.alive) this.card = fields;
    else if (card && !this.card.model) this.card = card;
  }

  add(raws) {
    const times = new Set(this.samples.map((s) => s.t));
    const fresh = raws.map(sample)
      .filter((s) => Number.isFinite(s.t) && !times.has(s.t));
    if (fresh.length === 0) return;
    const ordered = !this.last || fresh[0].t > this.last.t;
    this.samples.push(...fresh);
    if (!ordered || fresh.length > 1) this.samples.sort((a, b) => a.t - b.t);
    // Once a minute.
    const oldest = this.last.t - KEEP;
    if (this.samples[0].t < oldest || this.samples.length > this.most) {
      const dense = this.last.t - DENSE;
      this.samples = this.samples.filter((s) => s.t >= oldest
        && (s.t >= dense || Math.floor(s.t / 1000) % SPARSE === 0));
      this.most = this.samples.length + 60;
    }
  }
}

export class Fleet {
  constructor() {
    this.engines = new Map();
    this.requests = new Map();
    this.bounds = [];        // of the histograms, us
    this.redis = 'connecting';
    this.reason = '';
    this.skew = 0;           // server's clock less ours, ms
    this.fresh = 0;          // our clock at the last tick
    this.known = 0;          // server's clock when the fleet was last known
    this.gateway = [];       // what this NGINX has counted, by time
    this.tenants = [];       // what they have used here
  }

  // Without a Redis, NGINX tells of its own engines alone.
  get local() { return this.redis === 'none'; }

  get up() { return this.redis === 'up' || this.local; }

  // Time stands still while nothing is known.
  get now() {
    return this.up ? Date.now() + this.skew : this.known;
  }

  get models() {
    return [...new Set([...this.engines.values()].map((e) => e.model)
      .filter(Boolean))].sort();
  }

  // What this NGINX answered in the last minute, by status; null: not known.
  answered() {
    const last = this.gateway[this.gateway.length - 1];
    if (!last) return null;
    const past = this.gateway[0];
    const out = {};
    for (const [status, n] of Object.entries(last.requests)) {
      out[status] = Math.max(0, n - (past.requests[status] || 0));
    }
    return out;
  }

  engine(name) {
    let e = this.engines.get(name);
    if (!e) {
      e = new Engine(name);
      this.engines.set(name, e);
    }
    return e;
  }

  apply(event) {
    switch (event.type) {
      case 'hello':
        this.bounds = event.bounds;
        break;
      case 'history':
        this.engine(event.engine).add(event.samples);
        break;
      case 'requests':
        this.take(event.requests);
        break;
      case 'tick':
        this.tick(event);
        break;
      default:
    }
  }

  tick(event) {
    this.skew = event.now - Date.now();
    this.fresh = Date.now();
    this.redis = event.redis;
    this.reason = event.reason || '';
    if (event.gateway && event.gateway.requests) {
      this.tenants = event.gateway.tenants || [];
      this.gateway.push({ t: event.now, requests: event.gateway.requests });
      this.gateway = this.gateway.filter((g) => g.t > event.now - 60500);
    }
    if (!this.up) return;
    this.known = event.now;
    for (const e of event.engines) {
      const engine = this.engine(e.name);
      engine.heart(e.heart, e.seen, e.card);
      engine.add(e.samples);
    }
    const named = new Set(event.engines.map((e) => e.name));
    for (const [name, e] of this.engines) {
      if (!named.has(name)) e.heart(null, 0, null);
      if (!e.alive && event.now - Math.max(e.seen, e.last ? e.last.t : 0) > KEEP
        && !(this.local && named.has(name))) this.engines.delete(name);
    }
    this.take(event.requests);
  }

  take(list) {
    for (const r of list) this.requests.set(r.id, r);
    if (this.requests.size <= RECENT * 2) return;
    const kept = this.recent().slice(0, RECENT);
    this.requests = new Map(kept.map((r) => [r.id, r]));
  }

  recent() {
    return [...this.requests.values()]
      .sort((a, b) => number(b.created) - number(a.created) || (a.id < b.id ? 1 : -1));
  }

  sorted() {
    return [...this.engines.values()]
      .sort((a, b) => a.name.localeCompare(b.name, 'en', { numeric: true }));
  }
}

// A request as it is to be read: a state that is not final, of an engine that
// has gone, or has started anew since, is a failure that nobody could write.
export function view(request, fleet) {
  const at = (key) => number(request[key]);
  const engine = fleet.engines.get(request.engine);
  let state = request.state || 'queued';
  let error = request.error || '';
  if (!FINAL.has(state) && fleet.redis === 'up' && request.engine
      && !(engine && engine.alive && engine.run === request.run)) {
    state = 'failed';
    error = 'its engine has gone';
  }
  const final = FINAL.has(state);
  const end = at('finished') || (final ? NaN : fleet.now);
  const held = at('kv_bytes');
  const full = at('kv_full_bytes');
  return {
    id: request.id, raw: request, state, final, error,
    engine: request.engine || '', model: request.model || '',
    created: at('created'), started: at('started'),
    first: at('first_token'), finished: at('finished'),
    age: fleet.now - at('created'),
    duration: end - at('created'),
    ttft: at('first_token') - at('created'),
    prompt: at('prompt_tokens'), output: at('completion_tokens'),
    held, full, ratio: full > 0 ? held / full : NaN,
    high: at('share_high'), low: at('share_low'), pruned: at('share_pruned'),
    tokens: ['full', 'high', 'low', 'pruned'].map((k) => at(`kv_tokens_${k}`)),
  };
}
