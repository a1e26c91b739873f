'use strict';
//
// The load of soak.js: requests of every kind, and what is asked of each answer.
// Every case is sent alone at first, streamed and not, and what it got then is
// right: the CPU's results do not depend on what else runs (docs/engine.md), so
// texts, log probabilities and usage must be the same to the byte whatever the
// weather is.  An answer that ends early must be a beginning of that.  What does
// not end normally is counted by its kind, and must have a reason in the calendar
// (soak_weather.js).

const assert = require('node:assert/strict');
const { isDeepStrictEqual } = require('node:util');
const { setTimeout: sleep } = require('node:timers/promises');
const { stream, SseReader } = require('../e2e/lib/http.js');
const { chat, endless, story, goldens } = require('../e2e/lib/prompts.js');

const long = (i, n) => Array.from({ length: n }, (_, k) => story(i + 7 * k))
  .join(' ');
const told = (i, n, more) => chat(long(i, n), { ignore_eos: true, ...more });
const completion = (prompt, more) => ({ model: 'pocket', prompt,
  temperature: 0, max_tokens: 24, ...more });

const CASES = {
  'chat, short': chat('Hello!', { max_tokens: 40 }),
  'chat, its own end': { ...chat('', { max_tokens: 120 }),
    messages: goldens[2].messages },
  'chat, turns': { ...chat('', { max_tokens: 60 }),
    messages: goldens[5].messages },
  'chat, 60 tokens': endless(1, 60),
  'chat, 160 tokens': endless(2, 160),
  'chat, long prompt': told(3, 12, { max_tokens: 40 }),
  'chat, longest prompt': told(4, 18, { max_tokens: 80 }),
  'chat, seed': told(5, 4, { temperature: 1, seed: 5, max_tokens: 60 }),
  'chat, n=3': told(6, 3, { temperature: 1, seed: 6, n: 3, max_tokens: 40 }),
  'chat, stop': chat(story(1), { max_tokens: 80, stop: ['silver', 'old'] }),
  'chat, logprobs': told(7, 2, { logprobs: true, top_logprobs: 5,
    max_tokens: 30 }),
  'chat, full': told(8, 8, { kv_policy: 'full', max_tokens: 50 }),
  'chat, full, seed': told(9, 4, { kv_policy: 'full', max_tokens: 120, seed: 9,
    temperature: 1 }),
  'chat, large body': { ...endless(9, 20), pad: 'x'.repeat(200000) },
  'chat, wide': told(10, 2, { n: 2, logprobs: true, top_logprobs: 20,
    max_tokens: 100 }),
  'text': completion('Once upon a time', { max_tokens: 50 }),
  'text, ids': completion(goldens[3].ids, { max_tokens: 64 }),
  'text, three prompts': completion([story(1), 'Tell me', long(2, 3)]),
  'text, stop': completion(long(11, 2), { stop: [' the', '.'],
    ignore_eos: true, max_tokens: 60 }),
  'text, echo': completion('Once upon a time', { echo: true, logprobs: 2,
    max_tokens: 12 }),
  'text, full': completion(long(13, 4), { kv_policy: 'full', logprobs: 2,
    ignore_eos: true, max_tokens: 100 }),
  'text, logprobs': completion(long(12, 6), { logprobs: 3, max_tokens: 30 }),
};
// Others' prefixes, where they were compressed, give another answer than the
// prompt computed anew; at 16 bits they do not, and are used.
const asked = (name) => ({ ...CASES[name],
  ...(CASES[name].kv_policy === 'full' ? {} : { kv_reuse: false }) });

const WIDE = 'chat, wide';

// Those that may move: with `full`, what follows is the same to the byte.
const MOVING = ['chat, full', 'chat, full, seed', 'text, full'];

const BAD = [
  ['chat/completions', '{"model":', 400, null],
  ['chat/completions', chat('x', { temperature: 9 }), 400, 'temperature'],
  ['chat/completions', chat('x', { n: 0 }), 400, 'n'],
  ['chat/completions', chat('x', { messages: [] }), 400, 'messages'],
  ['chat/completions', chat('x', { stream: true, top_p: 'high' }), 400, 'top_p'],
  ['chat/completions', chat('x', { model: 'gpt-4' }), 404, 'model'],
  ['completions', completion(new Array(3000).fill(300)), 400, undefined],
  ['completions', completion('x', { stop: Array(17).fill('x') }), 400, 'stop'],
  ['embeddings', { model: 'pocket', input: 'x' }, 400, 'model'],
];

const isChat = (body) => Array.isArray(body.messages);
const where = (body) => (isChat(body) ? 'chat/completions' : 'completions');

// Arrays of log probabilities as they stand in whole answers and in chunks, one
// entry a token.
function logprobs(value) {
  if (!value) return [];
  if (value.content) return value.content;
  return value.tokens.map((token, i) => ({ token,
    logprob: value.token_logprobs[i], offset: value.text_offset[i],
    top: value.top_logprobs ? value.top_logprobs[i] : null }));
}

const counted = ({ prompt_tokens, completion_tokens, total_tokens }) =>
  ({ prompt_tokens, completion_tokens, total_tokens });

// What an answer says, the same for both forms: choices, and usage where it is.
function ofWhole(value) {
  return { usage: counted(value.usage),
    choices: value.choices.map((c, i) => {
      assert.equal(c.index, i);
      return { text: c.message ? c.message.content : c.text,
        reason: c.finish_reason, logprobs: logprobs(c.logprobs) };
    }) };
}

// Of a stream, which must be well formed; with `whole` it has all of its parts.
function ofStream(events, body, whole) {
  const out = { choices: [] };
  const about = events[0] && JSON.stringify([events[0].id, events[0].created]);
  events.forEach((e, at) => {
    assert.equal(e.object, isChat(body) ? 'chat.completion.chunk'
      : 'text_completion');
    assert.equal(JSON.stringify([e.id, e.created]), about);
    assert.equal(e.model, 'pocket');
    if (e.usage) {
      assert.ok(body.stream_options, 'usage was asked for');
      assert.equal(at, events.length - 1, 'usage is the last');
      assert.deepEqual(e.choices, []);
      out.usage = counted(e.usage);
      return;
    }
    assert.equal(e.choices.length, 1);
    const [c] = e.choices;
    const first = !out.choices[c.index];
    const o = out.choices[c.index] ||= { text: '', reason: null, logprobs: [] };
    assert.equal(o.reason, null, 'nothing comes after the reason');
    if (c.delta && first) assert.equal(c.delta.role, 'assistant');
    o.text += c.delta ? c.delta.content || '' : c.text;
    o.logprobs.push(...logprobs(c.logprobs));
    o.reason = c.finish_reason || null;
  });
  if (whole && body.stream_options) assert.ok(out.usage, 'usage is there');
  return out;
}

function checkBeginning(said, right) {
  said.choices.forEach((c, i) => {
    assert.equal(c.text, right.choices[i].text.slice(0, c.text.length),
      `choice ${i} is a beginning`);
    assert.deepEqual(c.logprobs,
      right.choices[i].logprobs.slice(0, c.logprobs.length));
  });
}

function same(said, right, what) {
  if (isDeepStrictEqual(said, right)) return;
  const cut = (value) => JSON.stringify(value).slice(0, 1500);
  assert.fail(`${what}: ${cut(said)}\nalone: ${cut(right)}`);
}

function checkWhole(said, right, name) {
  same(said.choices, right.choices, name);
  if (said.usage) same(said.usage, right.usage, `${name}, usage`);
}

function upTo(raw, id) {
  return id === undefined ? '' : raw.slice(0, raw.indexOf('\n\n',
    raw.indexOf(`id: ${id}\n`)) + 2);
}

function parse(raw) {
  const reader = new SseReader();
  reader.push(raw);
  return reader;
}

class Load {
  // broken(text): an answer is wrong; slowPort: NGINX with small buffers
  constructor({ stack, slowPort, calendar, broken }) {
    Object.assign(this, { stack, calendar, broken });
    this.slow = `http://127.0.0.1:${slowPort}`;
    this.engines = 1 + stack.others.length;
    this.right = {};
    this.counts = {};
    this.open = 0;
  }

  url(path, kept, base = this.stack.url) {
    return `${base}${kept ? '' : '/plain'}/v1/${path}`;
  }

  // Every case alone: both forms, both places.
  async learn() {
    for (const name of Object.keys(CASES)) {
      const body = asked(name);
      const whole = await stream(this.url(where(body), true),
        { ...body, stream: false }).finished;
      assert.equal(whole.status, 200, `${name}: ${whole.raw.slice(0, 300)}`);
      const right = this.right[name] = ofWhole(JSON.parse(whole.raw));
      for (const kept of [true, false]) {
        const asked = { ...body, stream: true,
          stream_options: { include_usage: true } };
        const s = await stream(this.url(where(body), kept), asked).finished;
        assert.ok(s.done, s.raw);
        checkWhole(ofStream(s.events, asked, true), right, name);
      }
    }
  }

  count(kind, outcome) {
    const of = this.counts[kind] ||= {};
    of[outcome] = (of[outcome] || 0) + 1;
  }

  // Why this answer is not whole, or null when it is; what has no reason in the
  // calendar is broken.
  failure(s, began, { redis = false } = {}) {
    const now = Date.now();
    const blame = (what) => this.calendar.during(what, began, now).length > 0;
    const excuse = (kind, reason) => {
      assert.ok(reason, `${kind} without a reason: HTTP ${s.status} `
        + s.raw.slice(-300));
      return kind;
    };
    if (s.cut || s.status === 0) return excuse('cut', blame('worker'));
    const sse = /event-stream/.test(s.headers['content-type'] || '');
    if (sse) {
      if (s.done) return null;
      const last = s.events.at(-1);
      assert.ok(last && last.error, `a stream ends with [DONE] or an error: `
        + s.raw.slice(-300));
      assert.ok(s.events.slice(0, -1).every((e) => !e.error));
      return excuse(`error event ${last.error.code}`,
        this.calendar.engineGone(began, now)
        || (redis && (blame('redis') || blame('worker') || blame('engine'))));
    }
    if (s.status < 400) return null;
    const { error } = JSON.parse(s.raw);
    if (s.status === 429 || s.status === 503) {
      assert.ok(Number(s.headers['retry-after']) >= 1, 'Retry-After');
    }
    if (s.status === 429) {
      return excuse('429', error.code === 'queue_full' && blame('burst'));
    }
    if (s.status === 503) {
      return excuse(`503 ${error.code}`, error.code === 'redis_unavailable'
        ? redis && (blame('redis') || blame('engine'))
        : this.calendar.noEngine(began, now, this.engines));
    }
    if (s.status === 404 && redis) return excuse('404', blame('redis'));
    return null;
  }

  // An answer to this case that was not disturbed by us: what became of it.
  judge(s, name, body, began, options) {
    const right = this.right[name];
    const failed = this.failure(s, began, options);
    if (failed) {
      const events = s.events.filter((e) => !e.error);
      if (body.stream && events.length) {
        checkBeginning(ofStream(events, body, false), right);
      }
      return failed;
    }
    assert.equal(s.status, 200, s.raw.slice(0, 300));
    const said = body.stream ? ofStream(s.events, body, true)
      : ofWhole(JSON.parse(s.raw));
    checkWhole(said, right, name);
    return 'right';
  }

  // ---- kinds of requests ----------------------------------------------------

  pick(roll) {
    const names = Object.keys(CASES);
    const name = names[roll(names.length)];
    return { name, kept: roll(2) === 1 };
  }

  body(name, streamed, roll) {
    return { ...asked(name), stream: streamed,
      ...(streamed && roll(2) ? { stream_options: { include_usage: true } }
        : {}) };
  }

  async ask(roll, streamed) {
    const { name, kept } = this.pick(roll);
    const body = this.body(name, streamed, roll);
    const began = Date.now();
    const s = await stream(this.url(where(body), kept), body).finished;
    return this.judge(s, name, body, began);
  }

  async hangUp(roll) {
    const { name, kept } = this.pick(roll);
    const body = this.body(name, roll(4) > 0, roll);
    const began = Date.now();
    const s = stream(this.url(where(body), kept), body);
    await Promise.race([s.finished, sleep(roll(roll(2) ? 100 : 2000))]);
    if (s.over) return this.judge(s, name, body, began);
    s.hangUp();
    await s.finished;
    const events = s.events.filter((e) => !e.error);
    if (events.length) {
      checkBeginning(ofStream(events, body, false), this.right[name]);
    }
    return 'hung up';
  }

  // One that may move, and is followed: no end of an engine is any excuse.
  async move(roll) {
    const name = MOVING[roll(MOVING.length)];
    const body = this.body(name, true, roll);
    const began = Date.now();
    const s = stream(`${this.stack.url}/moving/v1/${where(body)}`, body);
    await s.start;
    const id = (s.headers || {})['x-tokenring-id'];
    const f = s.status === 200 && roll(2) === 1 ? stream(
      `${this.stack.url}/v1/requests/${id}/stream`) : null;
    await s.finished;
    if (s.events.some((e) => e.error)) {
      assert.fail(`it did not move: ${s.raw.slice(-300)}`);
    }
    const outcome = this.judge(s, name, body, began);
    if (f && outcome === 'right') {
      await f.finished;
      const failed = this.failure(f, began, { redis: true });
      if (failed) return failed;
      assert.equal(f.raw.replace(/^:.*\n\n/gm, ''),
        s.raw.replace(/^:.*\n\n/gm, ''), 'who follows sees the same');
    }
    return outcome;
  }

  // The body in pieces; one in four goes before it has sent all of it.
  async drip(roll) {
    const { name, kept } = this.pick(roll);
    const body = this.body(name, roll(2) === 1, roll);
    const began = Date.now();
    let left = false;
    const send = async (req, text) => {
      const leaves = roll(4) === 0;
      for (let i = 0, at = 0; i < 3; i++) {
        const next = i === 2 ? text.length : Math.floor(text.length * (i + 1) / 3);
        req.write(text.slice(at, next));
        at = next;
        await sleep(roll(300));
        if (i === 1 && leaves) {
          left = true;
          req.destroy();
          return;
        }
      }
      req.end();
    };
    const s = await stream(this.url(where(body), kept), body, { send }).finished;
    return left ? 'hung up' : this.judge(s, name, body, began);
  }

  // Reads, stands still, reads on; what it gets is more than all buffers hold.
  async slowly(roll) {
    const body = this.body(WIDE, true, roll);
    const began = Date.now();
    const s = stream(this.url(where(body), roll(2) === 1, this.slow), body);
    await s.start;
    for (let i = 0; i < 4 && !s.over && s.res; i++) {
      s.res.pause();
      await sleep(500 + roll(2500));
      s.res.resume();
      await Promise.race([s.finished, sleep(20)]);
    }
    await s.finished;
    return this.judge(s, WIDE, body, began);
  }

  async bad(roll) {
    const [path, body, status, param] = BAD[roll(BAD.length)];
    const began = Date.now();
    const s = await stream(this.url(path, roll(2) === 1), body).finished;
    const failed = this.failure(s, began);
    if (failed) return failed;
    assert.equal(s.status, status, s.raw.slice(0, 300));
    const { error } = JSON.parse(s.raw);
    assert.equal(typeof error.message, 'string');
    if (param !== undefined) assert.equal(error.param, param, s.raw);
    return 'right';
  }

  // Reads a part, leaves, and takes the rest from Redis.
  async resume(roll) {
    const { name } = this.pick(roll);
    const body = this.body(name, true, roll);
    const began = Date.now();
    const s = stream(this.url(where(body), true), body,
      { headers: { 'X-Tokenring-Detach': '1' } });
    const enough = 1 + roll(20);
    await s.when(() => s.ids.length >= enough).catch(() => {});
    if (s.over) {
      await s.finished;
      return this.judge(s, name, body, began);
    }
    s.hangUp();
    await s.finished;
    await sleep(roll(2) ? 0 : roll(3000));
    const last = s.ids.at(-1);
    const f = await stream(
      `${this.stack.url}/v1/requests/${s.headers['x-tokenring-id']}/stream`,
      undefined, { headers: { 'Last-Event-ID': String(last) } }).finished;
    const failed = this.failure(f, began, { redis: true });
    if (failed) return failed;
    const joined = parse(upTo(s.raw, last) + f.raw);
    checkWhole(ofStream(joined.events, body, true), this.right[name], name);
    return 'right';
  }

  // Leaves one that goes on, and cancels it.
  async cancel(roll) {
    const body = endless(roll(9), 300);
    const began = Date.now();
    const s = stream(this.url(where(body), true), body,
      { headers: { 'X-Tokenring-Detach': '1' } });
    await s.when(() => s.ids.length >= 2).catch(() => {});
    if (s.over) {
      await s.finished;
      return this.failure(s, began) || 'over before';
    }
    s.hangUp();
    await s.finished;
    const at = `${this.stack.url}/v1/requests/${s.headers['x-tokenring-id']}`;
    const d = await stream(at, undefined, { method: 'DELETE' }).finished;
    const failed = this.failure(d, began, { redis: true });
    if (failed) return failed;
    assert.ok(d.status === 202 || d.status === 200, `DELETE: ${d.status}`);
    for (const end = Date.now() + 30000; ;) {
      const g = await stream(at).finished;
      const why = this.failure(g, began, { redis: true });
      if (why) return why;
      const { state } = JSON.parse(g.raw);
      if (state === 'cancelled' || state === 'done') return 'right';
      const now = Date.now();
      if (['redis', 'engine', 'worker'].some((what) =>
        this.calendar.during(what, began, now).length)) return 'disturbed';
      assert.ok(now < end, `cancelled, and still ${state}`);
      await sleep(100);
    }
  }

  async look(roll) {
    const path = ['/health', '/metrics', '/v1/models', '/v1/models/pocket',
      '/plain/v1/models'][roll(5)];
    const began = Date.now();
    const s = await stream(`${this.stack.url}${path}`).finished;
    if (path === '/health' && s.status === 503) {
      assert.ok(this.calendar.noEngine(began, Date.now(), this.engines), s.raw);
      return '503 health';
    }
    const failed = this.failure(s, began);
    if (failed) return failed;
    assert.equal(s.status, 200, s.raw.slice(0, 300));
    return 'right';
  }

  // ---- who sends them -------------------------------------------------------

  // One request of a kind; whatever is not as it must be is told, and the load
  // goes on.
  async once(kind, roll) {
    const what = {
      stream: () => this.ask(roll, true), whole: () => this.ask(roll, false),
      'hang-up': () => this.hangUp(roll), 'body in pieces': () => this.drip(roll),
      'slow reader': () => this.slowly(roll), bad: () => this.bad(roll),
      resumed: () => this.resume(roll), cancelled: () => this.cancel(roll),
      'other paths': () => this.look(roll), moving: () => this.move(roll),
    }[kind];
    this.open++;
    try {
      this.count(kind, await what());
    } catch (error) {
      this.count(kind, 'WRONG');
      this.broken(`${kind}: ${error.message}`);
    }
    this.open--;
  }

  // A client, until going() says no.
  async client(roll, going) {
    const kinds = Object.entries({ stream: 30, whole: 18, 'hang-up': 14,
      'body in pieces': 6, 'slow reader': 5, bad: 8, resumed: 12, cancelled: 3,
      moving: 20, 'other paths': 4 }).flatMap(([kind, n]) => Array(n).fill(kind));
    while (going()) {
      await this.once(kinds[roll(kinds.length)], roll);
      await sleep(roll(4) ? roll(100) : roll(600));
    }
  }

  // More at once than the queues take.
  async burst(roll, n) {
    const entry = this.calendar.begin('burst');
    await Promise.all(Array.from({ length: n }, () =>
      this.once(roll(2) ? 'stream' : 'whole', roll)));
    this.calendar.end(entry);
  }
}

module.exports = { Load };
