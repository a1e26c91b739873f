'use strict';
//
// What the dashboard's tests share: a synthetic fleet, written to a real Redis
// as an engine would (docs/redis.md), an NGINX with a dashboard before it, and
// the stream of events as the page gets it.

const assert = require('node:assert/strict');
const http = require('node:http');
const path = require('node:path');
const { Stack, ROOT } = require('./stack');
const { Redis } = require('./redis');
const { SyntheticFleet, commands } = require('./synthetic_fleet');

const PAGE = path.join(ROOT, 'dashboard');

const location = (more = '') => `location /dashboard/ {
  tokenring_dashboard ${PAGE}; ${more} }`;

// Many commands in one go.
async function all(redis, list) {
  const client = await redis.client();
  await Promise.all(list.map((words) => client.raw(...words)));
}

// A synthetic fleet that writes to this Redis once a second, and stops with it.
class Feed {
  static async start(redis, { seed = 7, past = 90, engines } = {}) {
    const feed = new Feed();
    const now = Date.now();
    feed.redis = redis;
    feed.since = now; // up to here it is made up, a sample each second
    feed.fleet = new SyntheticFleet(seed, now - past * 1000, engines);
    for (let t = now - past * 1000; t <= now; t += 1000) {
      feed.fleet.step(t);
      await feed.write(t, t > now - 1000);
    }
    feed.timer = setInterval(() => {
      const t = Date.now();
      feed.fleet.step(t);
      feed.write(t).catch(() => {});
    }, 1000);
    return feed;
  }

  async write(t, requests = true) {
    await all(this.redis, this.fleet.engines
      .flatMap((e) => commands(e, t, { requests })));
  }

  stop() { clearInterval(this.timer); }
}

// Redis, a fleet in it, NGINX with a dashboard: body(parts).
function with_fleet(options, body) {
  return async () => {
    const redis = await Redis.start();
    const feed = await Feed.start(redis, options.feed);
    const stack = await Stack.start({ engine: null,
      http: `tokenring_redis ${redis.address};`, server: location(), ...options });
    try {
      await body({ redis, feed, stack, url: `${stack.url}/dashboard/` });
      assert.deepEqual(stack.complaints(), []);
    } finally {
      feed.stop();
      await stack.stop();
      await redis.stop();
    }
  };
}

// The stream of events, as the page gets it.
function watch(url, name = 'events') {
  const out = { events: [], of: (type) => out.events.filter((e) => e.type === type) };
  let left = '';
  out.ended = new Promise((resolve, reject) => {
    const req = http.get(`${url}${name}`, { agent: false }, (res) => {
      out.status = res.statusCode;
      out.headers = res.headers;
      res.setEncoding('utf8');
      res.on('data', (text) => {
        left += text;
        const blocks = left.split('\n\n');
        left = blocks.pop();
        for (const block of blocks) {
          if (/^retry: \d+$/.test(block)) continue;
          assert.match(block, /^data: [^\n]+$/);
          out.events.push(JSON.parse(block.slice(6)));
        }
      });
      res.on('end', resolve);
      res.on('error', resolve);
    });
    req.on('error', (e) => (out.closed ? resolve() : reject(e)));
    out.close = () => { out.closed = true; req.destroy(); };
  });
  out.ended.catch(() => {});
  return out;
}

module.exports = { PAGE, location, all, with_fleet, watch };
