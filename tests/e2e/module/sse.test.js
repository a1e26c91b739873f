'use strict';
//
// The shape of every answer, field by field: what other people's clients rely
// on.  Facts from the OpenAI API: the first chunk of a choice carries the role
// and empty content; finish_reason is null until a chunk of its own with an
// empty delta; usage comes in a chunk without choices; then [DONE].

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { Stack } = require('../lib/stack');
const { post, stream, request } = require('../lib/http');
const { goldens, chat, story } = require('../lib/prompts');

let stack;
let chatUrl;
let textUrl;

before(async () => {
  stack = await Stack.start({
    location: 'tokenring_keepalive_comment 200ms;',
  });
  chatUrl = `${stack.url}/v1/chat/completions`;
  textUrl = `${stack.url}/v1/completions`;
});
after(() => stack.end());

const keys = (value, ...wanted) => assert.deepEqual(
  Object.keys(value).sort(), wanted.sort(), JSON.stringify(value));

function checkUsage(usage) {
  assert.ok(Number.isInteger(usage.prompt_tokens));
  assert.ok(Number.isInteger(usage.completion_tokens));
  assert.equal(usage.total_tokens,
    usage.prompt_tokens + usage.completion_tokens);
}

function checkHead(event, object, first) {
  assert.equal(event.object, object);
  assert.equal(event.id, first.id);
  assert.equal(event.created, first.created);
  assert.equal(event.model, 'pocket');
}

// One choice's chunks, in order, against the grammar role, content*, finish.
function checkChatChoice(events, index) {
  const mine = events.filter((e) => e.choices.some((c) => c.index === index));
  assert.ok(mine.length >= 2);
  mine.forEach((event, i) => {
    assert.equal(event.choices.length, 1, 'one choice a chunk');
    const [choice] = event.choices;
    const lp = 'logprobs' in choice ? ['logprobs'] : [];
    keys(choice, 'index', 'delta', 'finish_reason', ...lp);
    if (i === 0) {
      assert.deepEqual(choice.delta, { role: 'assistant', content: '' });
      assert.equal(choice.finish_reason, null);
    } else if (i === mine.length - 1) {
      assert.deepEqual(choice.delta, {});
      assert.match(choice.finish_reason, /^(stop|length)$/);
    } else {
      keys(choice.delta, 'content');
      assert.ok(choice.delta.content.length > 0 || choice.logprobs);
      assert.equal(choice.finish_reason, null);
    }
  });
  return mine;
}

test('chat stream: headers', async () => {
  const s = stream(chatUrl, chat('Hello!', { stream: true }));
  await s.finished;
  assert.equal(s.status, 200);
  assert.match(s.headers['content-type'], /^text\/event-stream(; charset=utf-8)?$/);
  assert.match(s.headers['cache-control'], /no-cache|no-store/);
  assert.ok(s.headers['x-request-id']);
  assert.equal(s.headers['content-length'], undefined);
  assert.ok(s.done);
});

test('chat stream: role, content, finish, [DONE]', async () => {
  const s = await stream(chatUrl, chat('Hello!', { stream: true })).finished;
  checkChatChoice(s.events, 0);
  for (const event of s.events) {
    checkHead(event, 'chat.completion.chunk', s.events[0]);
    assert.ok(!event.usage, 'usage only when asked for');
  }
  assert.equal(s.events.at(-1).choices[0].finish_reason, 'stop');
  assert.equal(s.text(), goldens[0].continuation);
  assert.ok(s.raw.endsWith('data: [DONE]\n\n'));
});

test('chat stream: usage comes last, without choices', async () => {
  const s = await stream(chatUrl, chat('Hello!', {
    stream: true, stream_options: { include_usage: true },
  })).finished;
  const last = s.events.at(-1);
  assert.deepEqual(last.choices, []);
  checkHead(last, 'chat.completion.chunk', s.events[0]);
  checkUsage(last.usage);
  checkChatChoice(s.events.slice(0, -1), 0);
  for (const event of s.events.slice(0, -1)) {
    assert.equal(event.usage ?? null, null);
  }
});

test('chat stream: n choices, each with its own grammar', async () => {
  const s = await stream(chatUrl, chat(story(7), {
    stream: true, n: 4, temperature: 1, seed: 5, max_tokens: 12,
  })).finished;
  for (let i = 0; i < 4; i++) checkChatChoice(s.events, i);
  assert.ok(s.done);
});

test('chat stream: max_tokens 1', async () => {
  const s = await stream(chatUrl, chat('Hello!', {
    stream: true, max_tokens: 1,
  })).finished;
  const mine = checkChatChoice(s.events, 0);
  assert.equal(mine.at(-1).choices[0].finish_reason, 'length');
});

test('chat: a whole answer, field by field', async () => {
  const r = await post(chatUrl, chat('Hello!'));
  assert.equal(r.status, 200);
  assert.match(r.headers['content-type'], /^application\/json/);
  assert.equal(Number(r.headers['content-length']), Buffer.byteLength(r.text));
  const body = r.json();
  for (const key of ['id', 'object', 'created', 'model', 'choices', 'usage']) {
    assert.ok(key in body, key);
  }
  const [choice] = body.choices;
  for (const key of ['index', 'message', 'finish_reason', 'logprobs']) {
    assert.ok(key in choice, key);
  }
  assert.equal(choice.logprobs, null);
  assert.equal(choice.message.role, 'assistant');
  checkUsage(body.usage);
});

test('completion stream: text, finish, [DONE]', async () => {
  const s = await stream(textUrl, {
    model: 'pocket', prompt: 'Once upon a time', max_tokens: 12, temperature: 0,
    stream: true,
  }).finished;
  s.events.forEach((event, i) => {
    checkHead(event, 'text_completion', s.events[0]);
    const [choice] = event.choices;
    assert.equal(typeof choice.text, 'string');
    assert.equal(choice.index, 0);
    if (i === s.events.length - 1) {
      assert.equal(choice.finish_reason, 'length');
    } else {
      assert.equal(choice.finish_reason, null);
      assert.equal(choice.logprobs ?? null, null);
    }
  });
  assert.ok(s.done);
});

test('completion stream: several prompts', async () => {
  const s = await stream(textUrl, {
    model: 'pocket', prompt: goldens.slice(0, 4).map((g) => g.ids),
    max_tokens: 64, temperature: 0, stream: true,
    stream_options: { include_usage: true },
  }).finished;
  goldens.slice(0, 4).forEach((golden, i) => {
    assert.equal(s.text(i), golden.continuation);
  });
  checkUsage(s.events.at(-1).usage);
});

test('text survives JSON: quotes, backslashes, control, non-ASCII', async () => {
  // The model echoes nothing, so look at what echo gives back.
  const prompt = 'quote " slash \\ tab \t line\n bell \u0007 é 漢 🙂 \u2028';
  const r = await post(textUrl, {
    model: 'pocket', prompt, echo: true, max_tokens: 1, temperature: 0,
  });
  assert.equal(r.status, 200, r.text);
  assert.ok(r.json().choices[0].text.startsWith(prompt));
  const s = await stream(textUrl, {
    model: 'pocket', prompt, echo: true, max_tokens: 1, temperature: 0,
    stream: true,
  }).finished;
  assert.ok(s.text().startsWith(prompt));
});

test('a character is never split between chunks', async () => {
  const s = await stream(textUrl, {
    model: 'pocket', prompt: '🙂漢é'.repeat(20), echo: true, max_tokens: 40,
    temperature: 2, seed: 3, stream: true, ignore_eos: true,
  }).finished;
  for (const event of s.events) {
    for (const choice of event.choices) {
      assert.ok(choice.text.isWellFormed?.() ?? true, choice.text);
      assert.equal(Buffer.from(choice.text, 'utf8').toString('utf8'), choice.text);
    }
  }
  assert.ok(s.text().startsWith('🙂漢é'.repeat(20)));
});

test('errors: the shape, with a request id', async () => {
  const r = await post(chatUrl, '{');
  assert.equal(r.status, 400);
  assert.match(r.headers['content-type'], /^application\/json/);
  const body = r.json();
  keys(body, 'error');
  keys(body.error, 'message', 'type', 'param', 'code');
  assert.ok(r.headers['x-request-id']);
});

test('errors: another method, another path', async () => {
  const get = await request(chatUrl);
  assert.equal(get.status, 405);
  assert.equal(get.json().error.type, 'invalid_request_error');
  assert.match(get.headers.allow || '', /POST/);
  const other = await post(`${stack.url}/v1/audio/speech`, {});
  assert.equal(other.status, 404);
  assert.equal(other.json().error.type, 'invalid_request_error');
});

test('models: shape, and HEAD', async () => {
  const r = await request(`${stack.url}/v1/models`);
  assert.equal(r.status, 200);
  keys(r.json(), 'object', 'data');
  const head = await request(`${stack.url}/v1/models`, { method: 'HEAD' });
  assert.equal(head.status, 200);
  assert.equal(head.text, '');
});
