'use strict';
//
// The weather of soak.js: what is done to the stack while it serves, one thing
// after the other, in an order that the seed gives; and the calendar in which all
// of it stands.  A request that did not end normally is looked up there: it may
// fail only while something went on that can be the reason (docs/operations.md
// has what is promised).  What begins is noted before it is done, what is over
// after everybody has noticed, so that the calendar is never ahead of the stack.

const { until, leaves, parseMetrics, sleep } = require('../e2e/lib/stack.js');
const { request } = require('../e2e/lib/http.js');
const { hostile } = require('./soak_hostile.js');

// A row of numbers that is the same in every run.
function dice(seed) {
  let state = (Math.imul(seed, 2654435761) ^ 0x5bd1e995) & 0x7fffffff;
  return (n) => {
    state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
    return (state >> 8) % n;
  };
}

class Calendar {
  // drain: ms that an engine waits for what it runs when it is to stop
  constructor({ drain }) {
    this.drain = drain;
    this.entries = [];
  }

  begin(what, more = {}) {
    const entry = { what, from: Date.now(), to: Infinity, ...more };
    this.entries.push(entry);
    return entry;
  }

  end(entry) { entry.to = Date.now(); }

  // What of this kind went on between two moments.
  during(what, from, to) {
    return this.entries.filter((e) => e.what === what && e.from <= to
      && e.to >= from);
  }

  // Whether a stream of that time may have lost its engine: one was killed, or
  // stopped and has waited for as long as it may.
  engineGone(from, to) {
    return this.during('engine', from, to).some((e) => e.signal === 'SIGKILL'
      || to - e.from >= this.drain);
  }

  // Whether a request of that time may find no engine: all were away at once,
  // or it lost two of them, one after the other.
  noEngine(from, to, engines) {
    const away = this.during('engine', from, to);
    if (away.filter((e) => e.from >= from).length >= 2) return true;
    return away.some((a) => new Set(away
      .filter((b) => b.from <= a.to && a.from <= b.to)
      .map((b) => b.engine)).size >= engines);
  }
}

class Weather {
  // broken(text): something is not as promised
  // clients: that ask all the time
  constructor({ stack, redis, seed, clients, calendar, burst, broken, log }) {
    Object.assign(this, { stack, redis, clients, calendar, burst, broken,
      log });
    this.roll = dice(seed);
    this.engines = [stack.engine, ...stack.others];
    this.counts = {};
    this.killedWorkers = 0;
  }

  metrics() {
    return request(`${this.stack.url}/metrics`)
      .then((r) => parseMetrics(r.text));
  }

  // All workers are connected to this engine, and it to Redis.
  async settled(i) {
    await until(async () => {
      try {
        const m = await this.metrics();
        return m.value('tokenring_connected_workers', { replica: String(i) })
          === this.stack.options.workers
          && m.value('tokenring_redis_up', { replica: String(i) }) === 1;
      } catch {
        return false; // its worker has just been killed, or it is away
      }
    }, () => `engine ${i} serves again\n${this.stack.logs()}`);
  }

  async allSettled() {
    for (const i of this.engines.keys()) await this.settled(i);
  }

  // Those that have left are gone from the engines' queues, too: no more wait
  // there than clients ask.
  async queuesClear() {
    await until(async () => {
      try {
        const m = await this.metrics();
        return [...this.engines.keys()].every((i) => m.value(
          'tokenring_num_requests_waiting', { replica: String(i) })
          <= this.clients);
      } catch {
        return false; // a worker has just been killed
      }
    }, () => `the queues clear\n${this.stack.logs()}`);
  }

  // ---- what can happen ------------------------------------------------------

  async reload() {
    const entry = this.calendar.begin('reload');
    await this.stack.reload();
    this.calendar.end(entry);
  }

  async killWorker() {
    const workers = this.stack.workers().filter((pid) => !leaves(pid));
    const victim = workers[this.roll(workers.length)];
    const entry = this.calendar.begin('worker', { pid: victim });
    process.kill(victim, 'SIGKILL');
    this.killedWorkers++;
    await until(() => {
      const now = this.stack.workers().filter((pid) => !leaves(pid));
      return !now.includes(victim) && now.length >= workers.length;
    }, 'a killed worker is replaced');
    await this.allSettled();
    this.calendar.end(entry);
  }

  async restartEngine(i, signal) {
    const engine = this.engines[i];
    const entry = this.calendar.begin('engine', { engine: i, signal });
    const end = await engine.kill(signal);
    if (signal === 'SIGTERM' && (end.code !== 0 || end.signal)) {
      this.broken(`an engine ended at SIGTERM with ${JSON.stringify(end)}`);
    }
    await sleep(this.roll(2000));
    await engine.start();
    await this.settled(i);
    this.calendar.end(entry);
  }

  async allEngines(signal) {
    await Promise.all(this.engines.map((_, i) => this.restartEngine(i, signal)));
  }

  async restartRedis() {
    const entry = this.calendar.begin('redis');
    await this.redis.kill(this.roll(2) ? 'SIGKILL' : 'SIGTERM');
    await sleep(this.roll(5000));
    await this.redis.run();
    await this.allSettled();
    // A worker's next attempt may be 8 s away (docs/directives.md).
    entry.to = Date.now() + 9000;
  }

  // It does nothing for a while: what may move is at the other one by then, and
  // what may not has lost its engine.
  async stopEngine(i) {
    const entry = this.calendar.begin('engine', { engine: i, signal: 'SIGKILL' });
    this.engines[i].signal('SIGSTOP');
    await sleep(3000 + this.roll(3000));
    this.engines[i].signal('SIGCONT');
    await this.settled(i);
    this.calendar.end(entry);
  }

  // Their requests fill queues, as a burst does.
  async hostile(kind) {
    const entry = this.calendar.begin('burst');
    await hostile[kind](this.stack);
    await this.allSettled();
    await this.queuesClear();
    this.calendar.end(entry);
  }

  // ---- when -----------------------------------------------------------------

  // what: names of what may happen now.
  async next(what) {
    const name = what[this.roll(what.length)];
    const second = this.engines.length - 1;
    this.log(name);
    this.counts[name] = (this.counts[name] || 0) + 1;
    switch (name) {
    case 'reload': return this.reload();
    case 'worker kill -9': return this.killWorker();
    case 'engine SIGTERM': return this.restartEngine(second, 'SIGTERM');
    case 'engine kill -9': return this.restartEngine(second, 'SIGKILL');
    case 'first engine SIGTERM': return this.restartEngine(0, 'SIGTERM');
    case 'first engine kill -9': return this.restartEngine(0, 'SIGKILL');
    case 'all engines SIGTERM': return this.allEngines('SIGTERM');
    case 'all engines kill -9': return this.allEngines('SIGKILL');
    case 'Redis restart': return this.restartRedis();
    case 'burst': return this.burst();
    case 'engine SIGSTOP': return this.stopEngine(second);
    case 'flood of choices': return this.hostile('choices');
    case 'flood of slow readers': return this.hostile('readers');
    case 'flood of large bodies': return this.hostile('bodies');
    case 'flood of uploads': return this.hostile('uploads');
    case 'flood of handshakes': return this.hostile('handshakes');
    default: throw new Error(`no such weather: ${name}`);
    }
  }
}

// For long figures processes have to live long.  So the first engine stays
// until the last fifth, and the workers from a fifth on until two thirds.
const ENGINES = ['engine SIGTERM', 'engine kill -9', 'Redis restart', 'burst'];
const HOSTILE = ['flood of choices', 'flood of slow readers',
  'flood of large bodies', 'flood of uploads', 'flood of handshakes',
  'engine SIGSTOP'];
const WORKERS = ['reload', 'worker kill -9'];
const FIRST = ['first engine SIGTERM', 'first engine kill -9',
  'all engines SIGTERM', 'all engines kill -9'];
function season(share) {
  if (share < 0.2) return [...ENGINES, ...WORKERS, ...HOSTILE];
  if (share < 0.65) return [...ENGINES, ...HOSTILE];
  if (share < 0.8) return [...ENGINES, ...WORKERS, ...WORKERS];
  return [...ENGINES, ...WORKERS, ...FIRST];
}

module.exports = { Calendar, Weather, season, dice };
