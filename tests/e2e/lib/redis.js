'use strict';
//
// A real Redis for a test: redis-server in a directory of its own, on a free
// loopback port and a Unix socket, without persistence unless a test asks for
// it.  Whatever happens to the test, it is not left running.
//
//   const redis = await Redis.start({ requirepass: 'x', maxmemory: '4mb' });
//   redis.address   'HOST:PORT', for the engine's `redis`
//   redis.socket    the path of its Unix socket (`unix:PATH`)
//   await redis.command('HGETALL', key)      one command, on a connection of ours
//   await redis.hash(key), redis.stream(key) as objects
//   await redis.subscribe(channel, fn)       messages as Buffers
//   await redis.kill(); await redis.restart()
//   await redis.stop()
//   await Redis.start({ clock: true })       with a clock that a test sets:
//   redis.setAhead(seconds)                  of the time of day
//
// The client speaks just enough RESP for that; replies are Buffers where they are
// strings and bytes matter (command with {raw: true}), text otherwise.

const { spawn, spawnSync } = require('node:child_process');
const fs = require('node:fs');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { until, freePort, read, PATIENCE, BUILD } = require('./stack');

const REDIS = process.env.TR_REDIS || 'redis-server';

const living = new Set();
const dirs = new Set();
process.on('exit', () => {
  for (const pid of living) {
    try { process.kill(pid, 'SIGKILL'); } catch { /* gone */ }
  }
  for (const dir of dirs) fs.rmSync(dir, { recursive: true, force: true });
});

// Parses one reply at `at`; returns [value, next] or null when there is less.
function parse(buf, at) {
  const end = buf.indexOf('\r\n', at);
  if (end < 0) return null;
  const line = buf.toString('utf8', at + 1, end);
  const next = end + 2;
  switch (String.fromCharCode(buf[at])) {
  case '+': return [line, next];
  case '-': return [new RedisError(line), next];
  case ':': return [Number(line), next];
  case '$': {
    const n = Number(line);
    if (n < 0) return [null, next];
    if (buf.length < next + n + 2) return null;
    return [buf.subarray(next, next + n), next + n + 2];
  }
  case '*': {
    const n = Number(line);
    if (n < 0) return [null, next];
    const out = [];
    let where = next;
    for (let i = 0; i < n; i++) {
      const one = parse(buf, where);
      if (one === null) return null;
      out.push(one[0]);
      where = one[1];
    }
    return [out, where];
  }
  default: throw new Error(`not a reply: ${line}`);
  }
}

class RedisError extends Error {}

function text(value) {
  if (Buffer.isBuffer(value)) return value.toString();
  return Array.isArray(value) ? value.map(text) : value;
}

// A connection.
class Client {
  static async connect(target) {
    const c = new Client();
    c.waiting = [];
    c.buf = Buffer.alloc(0);
    c.onMessage = null;
    c.socket = net.connect(target);
    await new Promise((resolve, reject) => {
      c.socket.once('connect', resolve);
      c.socket.once('error', reject);
    });
    c.socket.on('data', (data) => c.take(data));
    c.socket.on('error', () => {});
    c.socket.on('close', () => {
      c.closed = true;
      for (const w of c.waiting) w.reject(new Error('the connection closed'));
      c.waiting = [];
    });
    return c;
  }

  take(data) {
    this.buf = this.buf.length ? Buffer.concat([this.buf, data]) : data;
    let at = 0;
    for (;;) {
      const one = at < this.buf.length ? parse(this.buf, at) : null;
      if (one === null) break;
      at = one[1];
      const value = one[0];
      if (this.onMessage && Array.isArray(value)
        && String(value[0]) === 'message') {
        this.onMessage(value[2]);
      } else if (this.onLine && this.waiting.length === 0) {
        this.onLine(value);
      } else if (this.waiting.length) {
        const w = this.waiting.shift();
        if (value instanceof RedisError) w.reject(value);
        else w.resolve(value);
      }
    }
    this.buf = this.buf.subarray(at);
  }

  raw(...args) {
    const parts = [Buffer.from(`*${args.length}\r\n`)];
    for (const arg of args) {
      const bytes = Buffer.isBuffer(arg) ? arg : Buffer.from(String(arg));
      parts.push(Buffer.from(`$${bytes.length}\r\n`), bytes,
        Buffer.from('\r\n'));
    }
    return new Promise((resolve, reject) => {
      if (this.closed) {
        reject(new Error('the connection closed'));
        return;
      }
      this.waiting.push({ resolve, reject });
      this.socket.write(Buffer.concat(parts));
    });
  }

  close() { this.socket.destroy(); }
}

class Redis {
  // Options are settings of redis.conf, but for `clock`; `lines` are added as they
  // are (ACLs).
  static async start(options = {}) {
    const redis = new Redis();
    const { lines = [], clock = false, ...settings } = options;
    redis.dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-redis-'));
    fs.chmodSync(redis.dir, 0o755);
    dirs.add(redis.dir);
    redis.port = await freePort();
    redis.address = `127.0.0.1:${redis.port}`;
    redis.socket = path.join(redis.dir, 'redis.sock');
    redis.log = path.join(redis.dir, 'redis.log');
    redis.settings = {
      bind: '127.0.0.1', port: redis.port, unixsocket: redis.socket,
      unixsocketperm: 777, dir: redis.dir, logfile: redis.log, save: '""',
      appendonly: 'no', daemonize: 'no', ...settings,
    };
    redis.lines = lines;
    redis.env = { ...process.env, LD_PRELOAD: '' };
    if (clock) redis.ownClock();
    redis.password = settings.requirepass || null;
    await redis.run();
    return redis;
  }

  async run() {
    const file = path.join(this.dir, 'redis.conf');
    fs.writeFileSync(file, Object.entries(this.settings)
      .map(([k, v]) => `${k} ${v}`).concat(this.lines).join('\n') + '\n');
    // what stands before malloc is for others: this one brings its own
    const child = spawn(REDIS, [file], { stdio: 'ignore',
      env: this.env });
    this.child = child;
    if (child.pid) living.add(child.pid);
    this.exited = new Promise((resolve) => {
      child.on('error', (error) => resolve({ error }));
      child.on('exit', (code, signal) => {
        living.delete(child.pid);
        resolve({ code, signal });
      });
    });
    let end = null;
    this.exited.then((value) => { end = value; });
    await until(async () => {
      if (end) {
        throw new Error(`redis-server ended: ${JSON.stringify(end)}\n`
          + read(this.log));
      }
      try {
        await this.command('PING');
        return true;
      } catch (error) {
        if (error instanceof RedisError) return !/LOADING/.test(error.message);
        return false;
      }
    }, () => `redis-server answers\n${read(this.log)}`, 30);
  }

  // fake_clock.c
  ownClock() {
    const library = path.join(BUILD, 'tests/fake_clock.so');
    const made = spawnSync('make', ['-s', 'fake-clock', `B=${BUILD}`],
      { cwd: path.join(__dirname, '../../..'), encoding: 'utf8' });
    if (made.status !== 0) throw new Error(made.stderr);
    this.env.LD_PRELOAD = library;
    this.env.FAKE_CLOCK = path.join(this.dir, 'clock');
    this.setAhead(0);
  }

  setAhead(seconds) {
    const value = Buffer.alloc(8);
    value.writeBigInt64LE(BigInt(seconds));
    const fd = fs.openSync(this.env.FAKE_CLOCK,
      fs.constants.O_WRONLY | fs.constants.O_CREAT);
    fs.writeSync(fd, value, 0, 8, 0);
    fs.closeSync(fd);
  }

  get pid() { return this.child ? this.child.pid : 0; }

  async client() {
    if (this.conn && !this.conn.closed) return this.conn;
    this.conn = await Client.connect({ host: '127.0.0.1', port: this.port });
    if (this.password) await this.conn.raw('AUTH', this.password);
    if (this.db) await this.conn.raw('SELECT', this.db);
    return this.conn;
  }

  // Rejects with the error that Redis answers.
  async command(...args) {
    return text(await this.bytes(...args));
  }

  // The same with strings as Buffers.
  async bytes(...args) {
    return (await this.client()).raw(...args);
  }

  // null when there is none.
  async hash(key) {
    const flat = await this.command('HGETALL', key);
    if (flat.length === 0) return null;
    const out = {};
    for (let i = 0; i < flat.length; i += 2) out[flat[i]] = flat[i + 1];
    return out;
  }

  // [{id, ...fields}], fields as Buffers.
  async stream(key) {
    const entries = await this.bytes('XRANGE', key, '-', '+');
    return entries.map(([id, fields]) => {
      const out = { id: id.toString() };
      for (let i = 0; i < fields.length; i += 2) {
        out[fields[i].toString()] = fields[i + 1];
      }
      return out;
    });
  }

  // Every command that comes from now on, as text; the function ends it.
  async monitor() {
    const c = await Client.connect({ host: '127.0.0.1', port: this.port });
    const lines = [];
    if (this.password) await c.raw('AUTH', this.password);
    c.onLine = (line) => lines.push(line);
    await c.raw('MONITOR');
    return { lines, stop: () => c.close() };
  }

  // Returns a function that ends it.
  async subscribe(channel, fn) {
    const c = await Client.connect({ host: '127.0.0.1', port: this.port });
    if (this.password) await c.raw('AUTH', this.password);
    c.onMessage = fn;
    await c.raw('SUBSCRIBE', channel);
    return () => c.close();
  }

  async kill(signal = 'SIGKILL') {
    if (!this.child) return;
    const child = this.child;
    this.child = null;
    if (this.conn) this.conn.close();
    this.conn = null;
    child.kill(signal);
    const timer = setTimeout(() => child.kill('SIGKILL'), 10000 * PATIENCE);
    await this.exited;
    clearTimeout(timer);
  }

  // On the same port and socket.
  async restart(signal = 'SIGKILL') {
    await this.kill(signal);
    await this.run();
  }

  async stop() {
    await this.kill('SIGTERM');
    fs.rmSync(this.dir, { recursive: true, force: true });
    dirs.delete(this.dir);
  }
}

// The records of an entry's `r`: [{type, payload}].
function records(bytes) {
  const out = [];
  let at = 0;
  while (at < bytes.length) {
    const length = bytes.readUInt32LE(at);
    out.push({ type: bytes.readUInt16LE(at + 4),
      payload: bytes.subarray(at + 8, at + 8 + length) });
    at += 8 + length;
  }
  if (at !== bytes.length) throw new Error('an entry ends inside a record');
  return out;
}

// A whole tr:out: [{number, type, payload}].  Throws where it has a hole.
function output(entries) {
  const out = [];
  for (const entry of entries) {
    const last = Number(entry.id.split('-')[0]);
    const some = records(entry.r);
    if (last - some.length !== out.length) {
      throw new Error(`a hole before entry ${entry.id}: ${out.length} records`
        + ` are known, it has ${some.length}`);
    }
    for (const record of some) {
      out.push({ number: out.length + 1, ...record });
    }
  }
  return out;
}

const RECORD = { ACCEPTED: 16, DELTA: 17, FINISH: 18, ERROR: 19 };

// The text of a DELTA, what an ERROR says.
function deltaText(payload) {
  return payload.toString('utf8', 24, 24 + payload.readUInt32LE(8));
}
function errorMessage(payload) {
  const at = 24 + payload.readUInt32LE(8);
  return payload.toString('utf8', at, at + payload.readUInt32LE(12));
}

module.exports = { Redis, RedisError, Client, records, output, RECORD,
  deltaText, errorMessage };
