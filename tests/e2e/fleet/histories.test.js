'use strict';
//
// Clients log all that they see, and so does who follows their streams in Redis,
// while engines are killed, stopped, drained, Redis is stuck, and NGINX reloads; a
// checker (lib/history.js) reads the log.  First the checker itself: faults that
// are planted in a right history, each of which it must find.
// HISTORY_SECONDS (6): how long the engines are disturbed (make test-histories).

const { test } = require('node:test');
const assert = require('node:assert/strict');
const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { BUILD, Stack, until, sleep } = require('../lib/stack');
const { History, check, wanted } = require('../lib/history');
const { Redis } = require('../lib/redis');
const { story } = require('../lib/prompts');

// ---- the checker ----------------------------------------------------------

// Numbers in [0, n), always the same ones.
function dice(seed) {
  let x = seed + 1;
  return (n) => {
    x = (Math.imul(x, 1103515245) + 12345) >>> 0;
    return (x >>> 8) % n;
  };
}

const WANTS = { one: { texts: ['a0 a1 a2 a3 '], reasons: ['stop'],
  prompt: 5, completion: 4 },
two: { texts: ['b0 b1 b2 ', 'c0 c1 c2 '], reasons: ['length', 'stop'],
  prompt: 6, completion: 6 } };

const token = (text) => ({ content: [{ token: text, logprob: -1 }] });

// A right history of six requests, mixed, one of which is followed.
function right(roll) {
  const queues = ['one', 'two', 'one', 'two', 'one', 'two'].map((key, r) => {
    const { texts, reasons, prompt, completion } = WANTS[key];
    const head = { id: `chatcmpl-${r}`, created: 7, model: 'm', object: 'o' };
    const usage = { prompt_tokens: prompt, completion_tokens: completion,
      total_tokens: prompt + completion };
    const words = texts.map((t) => t.match(/\S+ /g));
    const streamed = r < 4;
    const lines = [{ r, kind: 'ask', key, streamed, choices: texts.length },
      { r, kind: 'head', status: 200 }];
    const event = (choices, more) => lines.push({ r, kind: 'event',
      data: { ...head, choices, usage: null, ...more } });
    if (!streamed) {
      lines.push({ r, kind: 'answer', data: { ...head, usage,
        choices: texts.map((content, index) => ({ index, message: { content },
          logprobs: { content: words[index].flatMap((w) => token(w).content) },
          finish_reason: reasons[index] })) } });
    } else {
      texts.forEach((_, index) => event([{ index, delta: { role: 'assistant',
        content: '' }, logprobs: null, finish_reason: null }]));
      for (let k = 0; k < words[0].length; k++) {
        texts.forEach((_, index) => event([{ index,
          delta: { content: words[index][k] }, logprobs: token(words[index][k]),
          finish_reason: null }]));
      }
      texts.forEach((_, index) => event([{ index, delta: {}, logprobs: null,
        finish_reason: reasons[index] }]));
      event([], { usage });
      lines.push({ r, kind: 'done' });
    }
    lines.push({ r, kind: 'end', cut: false });
    return lines;
  });
  queues.push(queues[1].map((l) => (l.kind === 'ask'
    ? { r: 6, kind: 'follow', key: l.key, choices: l.choices, of: 1 }
    : structuredClone({ ...l, r: 6 }))));
  const out = [{ kind: 'nemesis', what: 'none' }];
  while (queues.some((q) => q.length)) {
    const q = queues[roll(queues.length)];
    if (q.length) out.push(q.shift());
  }
  return out;
}

// Each plants one fault in a history h; pick(test): a line's place.
const says = (l) => l.kind === 'event' && l.data.choices[0]
  && l.data.choices[0].delta.content;
const finishes = (l) => l.kind === 'event' && l.data.choices[0]
  && l.data.choices[0].finish_reason;
const uses = (l) => l.kind === 'event' && l.data.usage;
const kind = (k) => (l) => l.kind === k;
const choice = (l) => l.data.choices[0];
const copy = (l) => structuredClone(l);
const FAULTS = {
  'who follows misses a token': (h, pick) =>
    h.splice(pick((l) => says(l) && l.r === 6), 1),
  'who follows has another id': (h) => h.filter((l) => l.r === 6 && l.data)
    .forEach((l) => { l.data.id = 'chatcmpl-9'; }),
  'a token is lost': (h, pick) => h.splice(pick(says), 1),
  'a token comes twice': (h, pick) => {
    const i = pick(says);
    h.splice(i, 0, copy(h[i]));
  },
  'two tokens change places': (h, pick) => {
    const i = pick(says);
    const k = h.findIndex((l, j) => j !== i && says(l) && l.r === h[i].r
      && choice(l).index === choice(h[i]).index);
    [h[i].data, h[k].data] = [h[k].data, h[i].data];
  },
  'a token is changed': (h, pick) => { choice(h[pick(says)]).delta.content = 'x '; },
  'half a character': (h, pick) => {
    choice(h[pick(says)]).delta.content = '\ufffd';
  },
  'a token of another stream': (h, pick) => {
    const i = pick(says);
    const other = h.find((l) => says(l) && l.r !== h[i].r
      && choice(l).delta.content !== choice(h[i]).delta.content);
    choice(h[i]).delta = copy(choice(other)).delta;
  },
  'a token of the other choice': (h, pick) => {
    const i = pick((l) => says(l) && choice(l).delta.content.startsWith('b'));
    choice(h[i]).index = 1;
  },
  'a choice that nobody asked for': (h, pick) => {
    choice(h[pick(says)]).index = 2;
  },
  'a token that was not told of': (h, pick) => {
    choice(h[pick(says)]).logprobs = null;
  },
  'a choice has no end': (h, pick) => h.splice(pick(finishes), 1),
  'a choice ends twice': (h, pick) => {
    const i = pick(finishes);
    h.splice(i, 0, copy(h[i]));
  },
  'a choice ends otherwise': (h, pick) => {
    choice(h[pick(finishes)]).finish_reason = 'tool_calls';
  },
  'text behind an end': (h, pick) => {
    const i = pick(finishes);
    const last = h.findLastIndex((l) => says(l) && l.r === h[i].r
      && choice(l).index === choice(h[i]).index);
    [h[i].data, h[last].data] = [h[last].data, h[i].data];
  },
  'usage counts one token more': (h, pick) => {
    const { usage } = h[pick(uses)].data;
    usage.completion_tokens++;
    usage.total_tokens++;
  },
  'usage counts the prompt twice': (h, pick) => {
    h[pick(uses)].data.usage.prompt_tokens *= 2;
  },
  'usage is missing': (h, pick) => h.splice(pick(uses), 1),
  'usage comes twice': (h, pick) => {
    const i = pick(uses);
    h.splice(i, 0, copy(h[i]));
  },
  'no [DONE]': (h, pick) => h.splice(pick(kind('done')), 1),
  'something behind [DONE]': (h, pick) => {
    const i = pick(kind('done'));
    h.splice(i + 1, 0, copy(h[h.findIndex((l) => l.kind === 'event'
      && l.r === h[i].r)]));
  },
  'an error event': (h, pick) => {
    h[pick(says)].data = { error: { code: 'engine_unavailable' } };
  },
  'another id': (h, pick) => { h[pick(kind('event'))].data.id = 'chatcmpl-x'; },
  'another model': (h, pick) => { h[pick(kind('event'))].data.model = 'n'; },
  'an id that another request has': (h, pick) => {
    const i = pick(kind('answer'));
    const [a, b] = h.filter(kind('answer'));
    (h[i] === a ? a : b).data.id = (h[i] === a ? b : a).data.id;
  },
  'a status': (h, pick) => { h[pick(kind('head'))].status = 503; },
  'a stream that is cut': (h, pick) => { h[pick(kind('end'))].cut = true; },
  'one that waits for ever': (h, pick) => h.splice(pick(kind('end')), 1),
  'a whole answer without its last word': (h, pick) => {
    const { message } = h[pick(kind('answer'))].data.choices[0];
    message.content = message.content.slice(0, -3);
  },
};

test(`the checker finds each of ${Object.keys(FAULTS).length} faults`, () => {
  for (let seed = 0; seed < 25; seed++) {
    assert.deepEqual(check(right(dice(seed)), WANTS), [], `seed ${seed}`);
  }
  for (const [name, plant] of Object.entries(FAULTS)) {
    for (let seed = 0; seed < 25; seed++) {
      const roll = dice(seed);
      const h = right(roll);
      const pick = (where) => {
        const places = h.flatMap((l, i) => (where(l) ? [i] : []));
        return places[roll(places.length)];
      };
      plant(h, pick);
      assert.notDeepEqual(check(h, WANTS), [], `${name}, seed ${seed}`);
    }
  }
});

// ---- the engines ----------------------------------------------------------

const SECONDS = Number(process.env.HISTORY_SECONDS || 6);
const CPU = { kv_policy: 'full', kv_memory: '64m', max_num_seqs: 16 };

const BODIES = Object.fromEntries(Array.from({ length: 6 }, (_, i) => [`body${i}`, {
  model: 'pocket', messages: [{ role: 'user', content: story(i) }],
  max_tokens: 60 + 20 * i, ignore_eos: true, temperature: 0.9, seed: 300 + i,
  logprobs: true, n: i % 3 === 2 ? 2 : 1,
  ...(i % 2 ? {} : { stream: true, stream_options: { include_usage: true } }),
}]));

const drain = (...args) => execFileSync(path.join(BUILD, 'bin/tokenring'),
  ['drain', ...args], { stdio: 'ignore', timeout: 60000 });

const NEMESIS = [
  ['kill', async (stack, engine) => {
    await engine.kill();
    await engine.start();
  }],
  ['stop', async (stack, engine) => {
    engine.signal('SIGSTOP');
    await sleep(2700);
    engine.signal('SIGCONT');
  }],
  ['drain', async (stack, engine) => {
    drain('--move', engine.socket);
    drain('--undo', engine.socket);
  }],
  ['terminate', async (stack, engine) => {
    await engine.kill('SIGTERM');
    await engine.start();
  }],
  ['reload', (stack) => stack.reload()],
];

const NGINX = { pass: 'fleet',
  http: 'tokenring_engine fleet unix:DIR/main.sock unix:DIR/second.sock;',
  location: 'tokenring_migrate 100 timeout=60s strict;' };

// Each body asked alone: what is right.
async function learn(url) {
  const wants = {};
  for (const [key, body] of Object.entries(BODIES)) {
    const alone = new History();
    await alone.ask(url, key, body);
    wants[key] = wanted(alone.lines);
    assert.deepEqual(check(alone.lines, wants), []);
  }
  return wants;
}

// Clients ask, once(client) each of them again and again, while the engines are
// disturbed; then the history is read.
async function disturbed(stack, history, nemesis, wants, once) {
  const engines = [stack.engine, stack.others[0]];
  const deadline = Date.now() + SECONDS * 1000;
  let over = false;
  const clients = Array.from({ length: 6 }, async (_, i) => {
    for (let k = i; !over; k++) await once(`body${k % 6}`);
  });
  const roll = dice(Number(process.env.HISTORY_SEED || 1));
  let turns = 0;
  while (Date.now() < deadline || turns < nemesis.length) {
    const [what, act] = nemesis[turns < nemesis.length ? turns
      : roll(nemesis.length)];
    await sleep(roll(300));
    history.put({ kind: 'nemesis', what });
    await act(stack, engines[turns++ % 2]);
    await until(async () => (await stack.metrics())
      .value('tokenring_connected_workers') >= 2, 'both are there');
  }
  over = true;
  await Promise.all(clients);
  const faults = check(history.lines, wants);
  if (faults.length) {
    const log = path.join(BUILD, 'history.jsonl');
    fs.writeFileSync(log, history.lines.map((l) => `${JSON.stringify(l)}\n`)
      .join(''));
    assert.fail(`${log}: ${faults.slice(0, 20).join('\n')}`);
  }
  const m = await stack.metrics();
  assert.ok(m.value('tokenring_gateway_migrations_total') > 0);
  await stack.idle();
}

async function withEngines(options, run) {
  const brief = { ...CPU, drain_timeout: '0s', ...options.engine };
  const stack = await Stack.start({ ...NGINX, ...options, engine: brief,
    engines: { second: brief } });
  stack.complaints = () => [];
  try {
    await stack.connected(2);
    const url = `${stack.url}/v1/chat/completions`;
    await run(stack, url, await learn(url));
  } finally {
    for (const e of [stack.engine, ...stack.others]) {
      if (e.pid) e.signal('SIGCONT');
    }
    await stack.stop();
  }
}

test('a history of disturbed engines is right', () =>
  withEngines({}, async (stack, url, wants) => {
    const history = new History();
    await disturbed(stack, history, NEMESIS, wants,
      (key) => history.ask(url, key, BODIES[key]));
  }));

// Streams that are stored: somebody follows each of them from its first moment on,
// and somebody reads it when it is over.
test('a history of stored streams, and of who follows them, is right', async () => {
  const redis = await Redis.start();
  const stuck = ['redis', async () => {
    process.kill(redis.pid, 'SIGSTOP');
    await sleep(500);
    process.kill(redis.pid, 'SIGCONT');
  }];
  const stop = NEMESIS.find(([what]) => what === 'stop');
  try {
    await withEngines({
      engine: { redis: redis.address },
      http: `${NGINX.http} tokenring_redis ${redis.address} timeout=5s;`,
      location: `${NGINX.location} tokenring_resumable on;`,
    }, async (stack, url, wants) => {
      const history = new History();
      const read = (id, key, r) => history.follow(
        `${stack.url}/v1/requests/${id}/stream`, key, BODIES[key].n, r);
      await disturbed(stack, history, [...NEMESIS, stuck, stop], wants,
        async (key) => {
          let follower = null, id;
          const r = await history.ask(url, key, BODIES[key], (name, number) => {
            id = name;
            if (BODIES[key].stream) follower = read(name, key, number);
          });
          await follower;
          if (BODIES[key].stream) await read(id, key, r);
        });
    });
  } finally {
    process.kill(redis.pid, 'SIGCONT');
    await redis.stop();
  }
});
