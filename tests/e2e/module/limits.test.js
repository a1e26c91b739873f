'use strict';
//
// What is refused before it costs anything: a full queue, NGINX's own limits
// with the OpenAI body (tokenring_error), and time limits.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { withStack, until, sleep } = require('../lib/stack');
const { post, stream, request } = require('../lib/http');
const { chat, endless } = require('../lib/prompts');
const OpenAI = require('openai');

// What must be running meanwhile: tokens at a set pace, for minutes.
const PACED = { backend: 'null', null_rate: 25 };
const LONG = 20000;

const waiting = async (stack) => (await stack.metrics())
  .value('tokenring_num_requests_waiting');

test('a full queue: 429 with Retry-After, RateLimitError', withStack(
  { engine: { ...PACED, max_num_seqs: 2, max_queue: 3 } }, async (stack, url) => {
    const busy = [0, 1].map((i) => stream(url, endless(i, LONG)));
    await Promise.all(busy.map((s) => s.begun()));
    const queued = [0, 1, 2].map((i) => stream(url, endless(i, 10)));
    await until(async () => await waiting(stack) === 3, 'three wait');
    const r = await post(url, chat('Hello!'));
    assert.equal(r.status, 429, r.text);
    assert.ok(Number(r.headers['retry-after']) >= 1);
    assert.equal(r.json().error.type, 'rate_limit_error');
    assert.equal(r.json().error.code, 'queue_full');
    const client = new OpenAI({
      baseURL: `${stack.url}/v1`, apiKey: 'x', maxRetries: 0,
    });
    await assert.rejects(client.chat.completions.create(chat('Hello!')),
      OpenAI.RateLimitError);
    // The rest of the place is served as before.
    assert.equal((await request(`${stack.url}/health`)).status, 200);
    busy.forEach((s) => s.hangUp());
    for (const s of queued) {
      await s.finished;
      assert.ok(s.done, s.raw);
    }
    assert.equal((await post(url, chat('Hello!'))).status, 200);
  }));

test('a burst: every request is served or refused, none is lost', withStack(
  { workers: 2, engine: { max_num_seqs: 4, max_queue: 8 } },
  async (stack, url) => {
    const all = await Promise.all(Array.from({ length: 120 }, (_, i) =>
      post(url, { ...endless(i % 5, 20), stream: false })));
    const served = all.filter((r) => r.status === 200);
    const refused = all.filter((r) => r.status === 429);
    assert.equal(served.length + refused.length, 120,
      JSON.stringify(all.map((r) => r.status)));
    assert.ok(served.length >= 8, `${served.length} served`);
    await stack.idle();
  }));

test('limit_req, limit_conn, client_max_body_size speak OpenAI', withStack({
  engine: PACED,
  http: `limit_req_zone $binary_remote_addr zone=req:1m rate=1r/m;
    limit_conn_zone $binary_remote_addr zone=conn:1m;
    limit_req_status 429;
    limit_conn_status 429;`,
  server: `
    error_page 401 403 413 429 500 502 503 504 @llm_error;
    location @llm_error { tokenring_error; }
    location = /limited/v1/chat/completions {
        limit_req zone=req;
        rewrite ^/limited(/.*)$ $1 break;
        tokenring_pass main;
    }
    location = /few/v1/chat/completions {
        limit_conn conn 1;
        rewrite ^/few(/.*)$ $1 break;
        tokenring_pass main;
    }
    location = /small/v1/chat/completions {
        client_max_body_size 1k;
        rewrite ^/small(/.*)$ $1 break;
        tokenring_pass main;
    }
    location = /denied/v1/chat/completions {
        deny all;
        rewrite ^/denied(/.*)$ $1 break;
        tokenring_pass main;
    }
    location = /key/v1/chat/completions {
        auth_request /check;
        rewrite ^/key(/.*)$ $1 break;
        tokenring_pass main;
    }
    location = /check { return 401; }
    location = /broken/v1/chat/completions {
        auth_request /nobody;
        rewrite ^/broken(/.*)$ $1 break;
        tokenring_pass main;
    }
    location = /nobody { proxy_pass http://127.0.0.1:1; }`,
}, async (stack, url) => {
  const at = (name) => url.replace('/v1/', `/${name}/v1/`);
  const error = (r, status, type) => {
    assert.equal(r.status, status, r.text);
    assert.match(r.headers['content-type'], /^application\/json/, r.text);
    assert.equal(r.json().error.type, type);
    assert.ok(r.json().error.message.length > 0);
  };
  assert.equal((await post(at('limited'), chat('Hello!'))).status, 200);
  error(await post(at('limited'), chat('Hello!')), 429, 'rate_limit_error');
  error(await post(at('small'), chat('x'.repeat(2000))), 413,
    'invalid_request_error');
  const denied = await post(at('denied'), chat('Hello!'));
  assert.equal(denied.status, 403);
  assert.ok(denied.json().error);
  const key = await post(at('key'), chat('Hello!'));
  assert.equal(key.status, 401);
  assert.ok(key.json().error);
  error(await post(at('broken'), chat('Hello!')), 500, 'server_error');
  const client = new OpenAI({
    baseURL: `${stack.url}/key/v1`, apiKey: 'x', maxRetries: 0,
  });
  await assert.rejects(client.chat.completions.create(chat('Hello!')),
    OpenAI.AuthenticationError);
  const busy = stream(at('few'), endless(0, LONG));
  await busy.begun();
  error(await post(at('few'), chat('Hello!')), 429, 'rate_limit_error');
  busy.hangUp();
  await busy.finished;
}));

test('too long in the queue: tokenring_queue_timeout', withStack({
  engine: { ...PACED, max_num_seqs: 1 },
  server: `location = /hasty/v1/chat/completions {
        tokenring_queue_timeout 300ms;
        rewrite ^/hasty(/.*)$ $1 break;
        tokenring_pass main;
    }`,
}, async (stack, url) => {
  const busy = stream(url, endless(0, LONG));
  await busy.begun();
  const r = await post(url.replace('/v1/', '/hasty/v1/'), chat('Hello!'));
  assert.equal(r.status, 504, r.text);
  assert.equal(r.json().error.code, 'timeout');
  await until(async () => await waiting(stack) === 0, 'it left the queue');
  busy.hangUp();
  await busy.finished;
  assert.equal((await post(url, chat('Hello!'))).status, 200);
}));

test('a long prefill is not the queue: tokenring_first_token_timeout', withStack({
  engine: { max_num_seqs: 1, max_batch_tokens: 4 },
  location: 'tokenring_queue_timeout 3s;',
  server: `location = /short/v1/chat/completions {
        tokenring_first_token_timeout 100ms;
        rewrite ^/short(/.*)$ $1 break;
        tokenring_pass main;
    }`,
}, async (stack, url) => {
  // some 900 steps of four tokens each before the first one comes out
  const long = chat('the fox and '.repeat(900), { max_tokens: 3,
    kv_reuse: false });
  const answer = post(url, long);
  // Some steps later it stays in its prefill for longer than the queue's limit.
  await until(async () => (await stack.metrics())
    .value('tokenring_kv_cache_tokens') > 40, 'some steps');
  stack.engine.signal('SIGSTOP');
  await sleep(3500);
  stack.engine.signal('SIGCONT');
  const r = await answer;
  assert.equal(r.status, 200, r.text);
  // A busy worker may see the first token and its time-out at once.
  const short = await until(async () => {
    const one = await post(url.replace('/v1/', '/short/v1/'), long);
    return one.status === 200 ? null : one;
  }, 'a time-out');
  assert.equal(short.status, 504, short.text);
  assert.match(short.json().error.message, /first token/);
  await stack.idle();
}));

test('waiting clients get comments: tokenring_keepalive_comment', withStack({
  engine: { ...PACED, max_num_seqs: 1 },
  location: 'tokenring_keepalive_comment 100ms;',
}, async (stack, url) => {
  const busy = stream(url, endless(0, LONG));
  await busy.begun();
  const queued = stream(url, endless(1, 5));
  await queued.when(() => queued.comments.length >= 3);
  assert.equal(queued.events.length <= 1, true);
  busy.hangUp();
  await queued.finished;
  assert.ok(queued.done);
  assert.equal(queued.events[0].choices[0].delta.role, 'assistant');
}));
