'use strict';
//
// The official OpenAI client against Tokenring: what a user's program does.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { Stack, until } = require('../lib/stack');
const { goldens, story } = require('../lib/prompts');
const OpenAI = require('openai');

let stack;
let client;

before(async () => {
  stack = await Stack.start();
  client = new OpenAI({
    baseURL: `${stack.url}/v1`, apiKey: 'unused', maxRetries: 0,
  });
});
after(() => stack.end());

const hello = [{ role: 'user', content: 'Hello!' }];
const ask = (more = {}) => ({
  model: 'pocket', messages: hello, temperature: 0, max_tokens: 40, ...more,
});

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

const textOf = (chunks, index = 0) => chunks.flatMap((c) => c.choices)
  .filter((c) => c.index === index)
  .map((c) => (c.delta ? c.delta.content ?? '' : c.text)).join('');

test('models: list and retrieve', async () => {
  const list = await client.models.list();
  assert.equal(list.object, 'list');
  assert.deepEqual(list.data.map((m) => m.id), ['pocket']);
  const [model] = list.data;
  assert.equal(model.object, 'model');
  assert.equal(typeof model.owned_by, 'string');
  assert.ok(Number.isInteger(model.created) && model.created > 1.6e9);
  const one = await client.models.retrieve('pocket');
  assert.equal(one.id, 'pocket');
  await assert.rejects(client.models.retrieve('other'), OpenAI.NotFoundError);
});

test('chat: a whole answer', async () => {
  const answer = await client.chat.completions.create(ask());
  assert.equal(answer.object, 'chat.completion');
  assert.equal(answer.model, 'pocket');
  assert.match(answer.id, /^chatcmpl-\S+$/);
  assert.ok(Math.abs(answer.created - Date.now() / 1000) < 120);
  assert.equal(answer.choices.length, 1);
  const [choice] = answer.choices;
  assert.equal(choice.index, 0);
  assert.equal(choice.finish_reason, 'stop');
  assert.equal(choice.message.role, 'assistant');
  assert.equal(choice.message.content, goldens[0].continuation);
  assert.equal(answer.usage.prompt_tokens, goldens[0].ids.length);
  // The end-of-turn token is generated, too.
  assert.ok(answer.usage.completion_tokens
    - goldens[0].continuation_ids.length <= 1);
  assert.equal(answer.usage.total_tokens,
    answer.usage.prompt_tokens + answer.usage.completion_tokens);
});

test('chat: the stream says the same', async () => {
  const whole = await client.chat.completions.create(ask());
  const chunks = await collect(await client.chat.completions.create(
    ask({ stream: true })));
  assert.equal(textOf(chunks), whole.choices[0].message.content);
  assert.equal(chunks.at(-1).choices[0].finish_reason, 'stop');
  assert.ok(chunks.every((c) => c.id === chunks[0].id));
});

test('chat: usage at the end of a stream', async () => {
  const whole = await client.chat.completions.create(ask());
  const chunks = await collect(await client.chat.completions.create(
    ask({ stream: true, stream_options: { include_usage: true } })));
  const last = chunks.at(-1);
  assert.deepEqual(last.choices, []);
  assert.equal(last.usage.prompt_tokens, whole.usage.prompt_tokens);
  assert.equal(last.usage.completion_tokens, whole.usage.completion_tokens);
  assert.equal(last.usage.total_tokens, whole.usage.total_tokens);
  assert.ok(chunks.slice(0, -1).every((c) => c.usage == null));
});

for (const kind of ['chat', 'completions']) {
  test(`${kind}: usage in every chunk`, async () => {
    const make = (more) => (kind === 'chat'
      ? client.chat.completions.create(ask(more))
      : client.completions.create({ model: 'pocket', prompt: story(3),
        temperature: 0, max_tokens: 12, ...more }));
    const options = { continuous_usage_stats: true };
    const chunks = await collect(await make({ stream: true,
      stream_options: { include_usage: true, ...options } }));
    const last = chunks.pop().usage;
    let before = kind === 'chat' ? 0 : 1;
    for (const { usage } of chunks) {
      assert.equal(usage.prompt_tokens, last.prompt_tokens);
      assert.ok(usage.completion_tokens >= before, JSON.stringify(usage));
      before = usage.completion_tokens;
      assert.equal(usage.total_tokens, last.prompt_tokens + before);
      assert.equal(usage.kv_cache, undefined);
    }
    assert.equal(before, last.completion_tokens);
    // without include_usage the chunk that has nothing else stays away
    const bare = await collect(await make({ stream: true,
      stream_options: options }));
    assert.equal(bare.at(-1).choices.length, 1);
    assert.equal(bare.at(-1).usage.completion_tokens, before);
  });
}

test('chat: the streaming helper gathers the final message', async () => {
  const runner = client.chat.completions.stream(ask());
  assert.equal(await runner.finalContent(), goldens[0].continuation);
});

test('chat: text parts; several are lines', async () => {
  const say = async (content) => (await client.chat.completions.create(ask({
    messages: [{ role: 'user', content }],
  }))).choices[0].message.content;
  assert.equal(await say([{ type: 'text', text: 'Hello!' }]),
    goldens[0].continuation);
  assert.equal(await say([
    { type: 'text', text: 'What does this program print?\n\na = 3' },
    { type: 'text', text: 'print a' },
  ]), await say('What does this program print?\n\na = 3\nprint a'));
});

test('chat: max_completion_tokens ends with "length"', async () => {
  const answer = await client.chat.completions.create({
    model: 'pocket', messages: hello, temperature: 0, max_completion_tokens: 3,
  });
  assert.equal(answer.choices[0].finish_reason, 'length');
  assert.equal(answer.usage.completion_tokens, 3);
});

test('chat: n choices, each with its own seed, each reproducible', async () => {
  const body = ask({
    messages: [{ role: 'user', content: story(3) }],
    n: 3, temperature: 1, seed: 11, max_tokens: 24,
  });
  const one = await client.chat.completions.create(body);
  const two = await client.chat.completions.create(body);
  assert.deepEqual(one.choices.map((c) => c.index), [0, 1, 2]);
  assert.deepEqual(one.choices.map((c) => c.message.content),
    two.choices.map((c) => c.message.content));
  assert.ok(new Set(one.choices.map((c) => c.message.content)).size > 1);
  const streamed = await collect(await client.chat.completions.create(
    { ...body, stream: true }));
  for (const choice of one.choices) {
    assert.equal(textOf(streamed, choice.index), choice.message.content);
  }
});

test('chat: another seed, another story', async () => {
  const body = (seed) => ask({
    messages: [{ role: 'user', content: story(5) }],
    temperature: 1, seed, max_tokens: 32,
  });
  const texts = await Promise.all([1, 1, 2, 3].map(async (seed) =>
    (await client.chat.completions.create(body(seed)))
      .choices[0].message.content));
  assert.equal(texts[0], texts[1]);
  assert.ok(new Set(texts).size > 1);
});

test('chat: a top_p of 0 leaves the best token alone', async () => {
  const [best, left] = await Promise.all([
    client.chat.completions.create(ask({})),
    client.chat.completions.create(ask({ temperature: 1.5, top_p: 0 })),
  ]);
  assert.equal(left.choices[0].message.content,
    best.choices[0].message.content);
});

test('chat: a stop string ends the text before it', async () => {
  const whole = goldens[0].continuation;
  const stop = 'Pocket';
  const answer = await client.chat.completions.create(ask({ stop: [stop] }));
  assert.equal(answer.choices[0].finish_reason, 'stop');
  assert.equal(answer.choices[0].message.content,
    whole.slice(0, whole.indexOf(stop)));
  const chunks = await collect(await client.chat.completions.create(
    ask({ stop, stream: true })));
  assert.equal(textOf(chunks), answer.choices[0].message.content);
});

test('chat: logprobs', async () => {
  const answer = await client.chat.completions.create(ask({
    logprobs: true, top_logprobs: 3, max_tokens: 6,
  }));
  const { content } = answer.choices[0].logprobs;
  assert.equal(content.length, 6);
  assert.equal(content.map((t) => t.token).join(''),
    answer.choices[0].message.content);
  for (const token of content) {
    assert.ok(token.logprob <= 0);
    assert.equal(Buffer.from(token.bytes).toString('utf8'), token.token);
    assert.equal(token.top_logprobs.length, 3);
    // Greedy: the chosen token is the likeliest.
    assert.equal(token.top_logprobs[0].token, token.token);
    assert.equal(token.top_logprobs[0].logprob, token.logprob);
    const all = token.top_logprobs.map((t) => t.logprob);
    assert.deepEqual(all, [...all].sort((a, b) => b - a));
  }
  const chunks = await collect(await client.chat.completions.create(ask({
    logprobs: true, top_logprobs: 3, max_tokens: 6, stream: true,
  })));
  assert.deepEqual(
    chunks.flatMap((c) => c.choices)
      .flatMap((c) => (c.logprobs ? c.logprobs.content : [])), content);
});

test('completions: prompt as text, ids, arrays of both', async () => {
  const golden = goldens[3];
  const text = 'Sort these words';
  const byText = await client.completions.create({
    model: 'pocket', prompt: text, max_tokens: 8, temperature: 0,
  });
  assert.equal(byText.object, 'text_completion');
  assert.match(byText.id, /^cmpl-\S+$/);
  const byIds = await client.completions.create({
    model: 'pocket', prompt: golden.ids, max_tokens: 64, temperature: 0,
  });
  assert.equal(byIds.choices[0].text, golden.continuation);
  assert.equal(byIds.usage.prompt_tokens, golden.ids.length);
  const many = await client.completions.create({
    model: 'pocket', prompt: [text, 'Tell me'], max_tokens: 8, temperature: 0,
  });
  assert.deepEqual(many.choices.map((c) => c.index), [0, 1]);
  assert.equal(many.choices[0].text, byText.choices[0].text);
  const manyIds = await client.completions.create({
    model: 'pocket', prompt: [golden.ids, goldens[0].ids], max_tokens: 64,
    temperature: 0,
  });
  assert.deepEqual(manyIds.choices.map((c) => c.text),
    [golden.continuation, goldens[0].continuation]);
  assert.equal(manyIds.usage.prompt_tokens,
    golden.ids.length + goldens[0].ids.length);
});

// "anchor, camel, maple, piano, tulip", two tokens a word but for the last.
test('completions: stop_token_ids, min_tokens, ignore_eos, logit_bias',
  async () => {
    const golden = goldens[3];
    const [anchor, , camel, , maple] = golden.continuation_ids;
    const say = async (more) => {
      const { choices: [choice], usage } = await client.completions.create({
        model: 'pocket', prompt: golden.ids, max_tokens: 20, temperature: 0,
        ...more,
      });
      return { text: choice.text, reason: choice.finish_reason,
        tokens: usage.completion_tokens };
    };
    // the token that ends it is counted, and is not text
    assert.deepEqual(await say({ stop_token_ids: [maple, camel] }),
      { text: 'anchor,', reason: 'stop', tokens: 3 });
    assert.deepEqual(await say({ stop_token_ids: [maple], min_tokens: 4 }),
      { text: 'anchor, camel,', reason: 'stop', tokens: 5 });
    // too early, it is another token's turn
    const later = await say({ stop_token_ids: [maple], min_tokens: 5 });
    assert.ok(later.tokens > 5, JSON.stringify(later));
    assert.match(later.text, /^anchor, camel,(?! maple)/);

    const n = golden.continuation_ids.length;
    assert.deepEqual(await say({}),
      { text: golden.continuation, reason: 'stop', tokens: n + 1 });
    const on = await say({ ignore_eos: true });
    assert.equal(on.reason, 'length');
    assert.equal(on.tokens, 20);
    const least = await say({ min_tokens: n + 3 });
    assert.ok(least.tokens > n + 3, JSON.stringify(least));

    const other = await say({ logit_bias: { [anchor]: -100 } });
    assert.doesNotMatch(other.text, /^anchor/);
    const same = await say({ logit_bias: { [camel]: 100 }, max_tokens: 4 });
    assert.equal(same.text, ' camel'.repeat(4));
  });

test('completions: echo, with logprobs of the prompt', async () => {
  const prompt = 'Once upon a time';
  const plain = await client.completions.create({
    model: 'pocket', prompt, max_tokens: 5, temperature: 0,
  });
  const echoed = await client.completions.create({
    model: 'pocket', prompt, max_tokens: 5, temperature: 0, echo: true,
    logprobs: 2,
  });
  const [choice] = echoed.choices;
  assert.equal(choice.text, prompt + plain.choices[0].text);
  const lp = choice.logprobs;
  const n = echoed.usage.prompt_tokens + echoed.usage.completion_tokens;
  assert.equal(lp.tokens.length, n);
  assert.equal(lp.token_logprobs.length, n);
  assert.equal(lp.top_logprobs.length, n);
  assert.equal(lp.text_offset.length, n);
  assert.equal(lp.token_logprobs[0], null);
  assert.ok(lp.token_logprobs.slice(1).every((v) => v <= 0));
  // offsets are into the text, in which BOS has no part
  assert.equal(lp.tokens[0], '<|begin_of_text|>');
  lp.tokens.slice(1).forEach((token, i) => assert.equal(token,
    choice.text.slice(lp.text_offset[i + 1]).slice(0, token.length)));
});

test('completions: top_logprobs has the sampled token, best or not', async () => {
  const answer = await client.completions.create({
    model: 'pocket', prompt: 'Once upon a time', temperature: 2, seed: 5,
    logprobs: 1, max_tokens: 40,
  });
  const lp = answer.choices[0].logprobs;
  lp.tokens.forEach((token, i) => assert.equal(lp.top_logprobs[i][token],
    lp.token_logprobs[i]));
  assert.ok(lp.top_logprobs.some((t) => Object.keys(t).length === 2));
});

test('completions: the stream says the same', async () => {
  const body = {
    model: 'pocket', prompt: 'Once upon a time', max_tokens: 20, temperature: 0,
  };
  const whole = await client.completions.create(body);
  const chunks = await collect(await client.completions.create(
    { ...body, stream: true }));
  assert.equal(textOf(chunks), whole.choices[0].text);
  assert.equal(chunks.at(-1).choices[0].finish_reason, 'length');
});

test('errors: a wrong value is a BadRequestError that names the field', async () => {
  await assert.rejects(client.chat.completions.create(ask({ temperature: 9 })),
    (e) => {
      assert.ok(e instanceof OpenAI.BadRequestError);
      assert.equal(e.status, 400);
      assert.equal(e.type, 'invalid_request_error');
      assert.equal(e.param, 'temperature');
      assert.match(e.message, /temperature/);
      assert.ok(e.requestID);
      return true;
    });
});

test('errors: too long a prompt says context_length_exceeded', async () => {
  await assert.rejects(client.completions.create({
    model: 'pocket', prompt: new Array(5000).fill(300), max_tokens: 1,
  }), (e) => e instanceof OpenAI.BadRequestError
    && e.code === 'context_length_exceeded');
});

test('errors: an unknown model is a NotFoundError', async () => {
  await assert.rejects(client.chat.completions.create(ask({ model: 'gpt-4' })),
    (e) => e instanceof OpenAI.NotFoundError && e.code === 'model_not_found'
      && e.param === 'model');
});

test('errors: also when a stream was asked for', async () => {
  await assert.rejects(
    client.chat.completions.create(ask({ stream: true, top_p: 'high' })),
    (e) => e instanceof OpenAI.BadRequestError && e.param === 'top_p');
});

// Answers that take minutes, for what must be running when it is aborted.
function paced(body) {
  return async () => {
    const slow = await Stack.start({
      engine: { backend: 'null', null_rate: 50 },
    });
    try {
      await body(slow, new OpenAI({
        baseURL: `${slow.url}/v1`, apiKey: 'unused', maxRetries: 0,
      }));
      assert.deepEqual(slow.complaints(), []);
    } finally {
      await slow.stop();
    }
  };
}

test('aborting a stream reaches the engine, and the log counts exactly', paced(
  async (slow, other) => {
    const stream = await other.chat.completions.create(ask({
      messages: [{ role: 'user', content: story(1) }],
      stream: true, max_tokens: 20000, ignore_eos: true,
    }), { headers: { 'X-Mark': 'abort-stream' } });
    let seen = 0;
    for await (const chunk of stream) {
      if (chunk.choices[0]?.delta?.content && ++seen === 5) break;
    }
    stream.controller.abort();
    await slow.idle();
    const [line] = await slow.logged('abort-stream');
    const made = (await slow.metrics())
      .value('tokenring_generation_tokens_total');
    assert.equal(line.status, 499);
    assert.equal(line.finish_reason, 'aborted');
    assert.ok(Number(line.completion_tokens) >= 5);
    assert.equal(Number(line.completion_tokens), made);
    assert.ok(made < 20000);
  }));

test('aborting a request that does not stream reaches it, too', paced(
  async (slow, other) => {
    const controller = new AbortController();
    const pending = other.chat.completions.create(ask({
      messages: [{ role: 'user', content: story(2) }],
      max_tokens: 20000, ignore_eos: true,
    }), { signal: controller.signal, headers: { 'X-Mark': 'abort-whole' } });
    pending.catch(() => {});
    await until(async () => (await slow.metrics())
      .value('tokenring_num_requests_running') === 1, 'running');
    controller.abort();
    await assert.rejects(pending, OpenAI.APIUserAbortError);
    await slow.idle();
    const [line] = await slow.logged('abort-whole');
    assert.equal(line.status, 499);
    assert.ok(Number(line.completion_tokens) < 20000);
  }));

test('many clients at once, each gets its own answer', async () => {
  const answers = await Promise.all(Array.from({ length: 24 }, (_, i) =>
    client.chat.completions.create(ask({
      messages: goldens[i % goldens.length].messages,
      max_tokens: goldens[i % goldens.length].continuation_ids.length,
    }))));
  answers.forEach((answer, i) => {
    assert.equal(answer.choices[0].message.content,
      goldens[i % goldens.length].continuation);
  });
});

test('a request id of the client comes back', async () => {
  const { response } = await client.chat.completions.create(
    ask({ max_tokens: 1 }), { headers: { 'X-Request-Id': 'mine-42' } })
    .withResponse();
  assert.equal(response.headers.get('x-request-id'), 'mine-42');
});
