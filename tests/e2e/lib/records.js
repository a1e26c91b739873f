'use strict';
//
// What an engine writes to Redis about a request (docs/redis.md), written by a
// test: records as in include/tokenring/wire.h, entries of a stream, states.
// With it a test needs no engine that behaves, and can write what none would.

const { randomBytes } = require('node:crypto');

const TYPE = { accepted: 16, delta: 17, finish: 18, error: 19, started: 20,
  kv: 24 };
const REASON = { stop: 1, length: 2, aborted: 3 };
const WIRE = 5; // TR_STORED_VERSION

function record(type, payload) {
  const head = Buffer.alloc(8);
  head.writeUInt32LE(payload.length, 0);
  head.writeUInt16LE(typeof type === 'number' ? type : TYPE[type], 4);
  return Buffer.concat([head, payload]);
}

function accepted({ chat = true, stream = true, usage = false,
  logprobs = false, stats = false, kv = false, choices = 1, prompt = 7,
  model = 'fake "model"', policy = 'fake"policy', created = 1700000000,
} = {}) {
  const name = Buffer.from(model);
  const head = Buffer.alloc(72);
  head.writeUInt16LE(chat ? 1 : 2, 0);
  head.writeUInt16LE((stream ? 1 : 0) | (usage ? 2 : 0) | (logprobs ? 4 : 0)
    | (stats ? 8 : 0) | (kv ? 16 : 0), 2);
  head.writeUInt32LE(choices, 4);
  head.writeUInt32LE(prompt, 8);
  head.writeUInt32LE(name.length, 12);
  head.writeBigInt64LE(BigInt(created), 16);
  head.writeUInt32LE(Buffer.byteLength(policy), 24);
  return record('accepted', Buffer.concat([head, name, Buffer.from(policy)]));
}

function delta(text, { choice = 0, tokens = 1, textLen } = {}) {
  const bytes = Buffer.from(text);
  const head = Buffer.alloc(24);
  head.writeUInt32LE(choice, 0);
  head.writeUInt32LE(tokens, 4);
  head.writeUInt32LE(textLen === undefined ? bytes.length : textLen, 8);
  return record('delta', Buffer.concat([head, bytes]));
}

// tr_wire_usage_t
function usage({ bytes = 250, full = 1000, tokens = [0, 0, 0, 0] } = {}) {
  const b = Buffer.alloc(48);
  b.writeBigUInt64LE(BigInt(bytes), 0);
  b.writeBigUInt64LE(BigInt(full), 8);
  tokens.forEach((n, i) => b.writeUInt32LE(n, 16 + 4 * i));
  return b;
}

function kv({ choice = 0, ...held } = {}) {
  const head = Buffer.alloc(8);
  head.writeUInt32LE(choice, 0);
  return record('kv', Buffer.concat([head, usage(held)]));
}

function finish({ choice = 0, reason = 'stop', last = true, prompt = 7,
  completion = 0, cached = 3, held = {}, choiceTokens = completion } = {}) {
  const b = Buffer.alloc(112);
  b.writeUInt32LE(choice, 0);
  b.writeUInt16LE(REASON[reason], 4);
  b.writeUInt16LE(last ? 1 : 0, 6);
  b.writeUInt32LE(prompt, 8);
  b.writeUInt32LE(completion, 12);
  b.writeUInt32LE(cached, 16);
  usage(held).copy(b, 48);
  b.writeUInt32LE(choiceTokens, 96);
  return record('finish', b);
}

function error(status, message) {
  const text = Buffer.from(message);
  const head = Buffer.alloc(24);
  head.writeInt32LE(status, 0);
  head.writeUInt32LE(text.length, 12);
  return record('error', Buffer.concat([head, text]));
}

const started = () => record('started', Buffer.alloc(8));

// One request of an engine that is this test.
class Written {
  constructor(redis, options = {}) {
    this.redis = redis;
    this.id = options.id || randomBytes(16).toString('hex');
    this.prefix = options.prefix || 'tr:';
    this.engine = options.engine || 'scribe';
    this.run = options.run || '0123456789abcdef';
    this.number = 0;
  }

  key(kind, name = this.id) { return `${this.prefix}${kind}:{${name}}`; }

  // The hash, with what every resumable request has.
  async state(state, more = {}) {
    await this.redis.command('HSET', this.key('req'), ...Object.entries({
      state, engine: this.engine, run: this.run, model: 'fake "model"',
      endpoint: 'chat', resumable: 1, stream: 1, wire: WIRE,
      created: 1700000000123, choices: 1, ...more,
    }).flat());
    return this;
  }

  async heartbeat(seconds = 60) {
    await this.redis.command('HSET', this.key('engine', this.engine), 'run',
      this.run, 'state', 'ready');
    await this.redis.command('EXPIRE', this.key('engine', this.engine), seconds);
    return this;
  }

  // An entry of these records (a started has no number), and its message.
  async put(records, { publish = true } = {}) {
    const first = this.number + 1;
    this.number += records.filter((r) => r.length < 8
      || r.readUInt16LE(4) !== TYPE.started).length;
    const bytes = Buffer.concat(records);
    await this.redis.command('XADD', this.key('out'), `${this.number}-0`,
      'r', bytes);
    if (publish) {
      await this.redis.command('PUBLISH', this.key('live'),
        Buffer.concat([Buffer.from(`${first} ${this.number}\n`), bytes]));
    }
    return this;
  }
}

module.exports = {
  Written, record, accepted, delta, kv, finish, error, started, TYPE, WIRE,
};
