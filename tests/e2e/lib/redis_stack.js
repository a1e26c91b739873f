'use strict';
//
// A stack whose engine tells a real Redis, and what tests ask of it.

const assert = require('node:assert/strict');
const { Stack, until } = require('./stack');
const { Redis } = require('./redis');

const FAST = { backend: 'null', null_rate: 2000, redis_flush: '10ms' };
const SLOW = { ...FAST, null_rate: 20 };

// NGINX itself reads nothing from it, unless http: says otherwise.
async function withStack(options, what) {
  const { redis: settings = {}, engine = FAST, ...rest }
    = { http: 'tokenring_redis off;', ...options };
  const redis = await Redis.start(settings);
  let stack;
  try {
    stack = await Stack.start({ ...rest, engine: { redis: redis.address,
      ...(typeof engine === 'function' ? engine(redis) : engine) } });
    await what(stack, redis);
    assert.deepEqual(stack.complaints(), []);
  } finally {
    if (stack) await stack.stop();
    await redis.stop();
  }
}

const completion = (max_tokens, more = {}) =>
  ({ prompt: 'once', max_tokens, ...more });
const idOf = (text) => /"id":"(?:chat)?cmpl-([0-9a-f]{32})"/.exec(text)[1];

// Waits until the request's hash says so; its fields.
function state(redis, id, want) {
  return until(async () => {
    const hash = await redis.hash(`tr:req:{${id}}`);
    return hash && hash.state === want ? hash : null;
  }, async () => `${id} ${want}: ${JSON.stringify(
    await redis.hash(`tr:req:{${id}}`))}`);
}

// The states of a request in the order in which they were written.
function states(lines, id) {
  const seen = [];
  for (const line of lines) {
    const m = new RegExp(`"HSET" "tr:req:\\{${id}\\}" "state" "([a-z]+)"`)
      .exec(line);
    if (m && seen[seen.length - 1] !== m[1]) seen.push(m[1]);
  }
  return seen;
}

module.exports = { withStack, completion, idOf, state, states, FAST, SLOW };
