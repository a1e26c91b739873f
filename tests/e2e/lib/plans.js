'use strict';
//
// A stack whose tenants have plans, and what a client at a limit is told.  The
// tenant is the header X-Key, its plan what precedes the first hyphen in it.

const assert = require('node:assert/strict');
const { Stack } = require('./stack');
const { post } = require('./http');

const NULL = { backend: 'null', null_rate: 500, kv_memory: '64m' };

function withPlans(plans, body, options = {}) {
  return async () => {
    const stack = await Stack.start({
      engine: NULL,
      http: `${plans}
        map $http_x_key $plan { default ""; "~^(?<name>[a-z]+)-" $name; }`,
      location: 'tokenring_tenant $http_x_key; tokenring_limits $plan;',
      ...options,
    });
    try {
      await body(stack, (key, more = {}) => post(`${stack.url}/v1/completions`,
        { prompt: 'one two three', max_tokens: 2, ...more },
        key ? { 'X-Key': key } : {}));
    } finally {
      await stack.end();
    }
  };
}

// From 120ms, 1s, 6m0s, 1h2m3s.
function seconds(text) {
  const m = /^(?:(\d+)ms|(?:(\d+)h)?(?:(\d+)m)?(\d+)s)$/.exec(text);
  assert.ok(m, text);
  return m[1] ? Number(m[1]) / 1000
    : Number(m[2] || 0) * 3600 + Number(m[3] || 0) * 60 + Number(m[4]);
}

function checkLimited(r, { type, code = 'rate_limit_exceeded', most }) {
  assert.equal(r.status, 429, r.text);
  const e = r.json().error;
  assert.equal(e.type, type);
  assert.equal(e.code, code);
  assert.match(e.message, /^Rate limit reached: \d+ .* Please try again in /);
  const ms = Number(r.headers['retry-after-ms']);
  assert.ok(ms > 0 && ms <= most * 1000, `${ms} ms`);
  assert.equal(Number(r.headers['retry-after']), Math.ceil(ms / 1000));
  return ms;
}

module.exports = { withPlans, seconds, checkLimited };
