'use strict';
//
// /v1/messages, Anthropic's API: what a script says (lib/scripted.js), to that
// API's own client and to the AI SDK's provider for it.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { Anthropic } = require('@anthropic-ai/sdk');
const { createAnthropic } = require('@ai-sdk/anthropic');
const { betaZodTool } = require('@anthropic-ai/sdk/helpers/beta/zod');
const { z } = require('zod');
const { scripted, call } = require('../lib/scripted');
const { rounds, cities, aiSdkRounds } = require('../lib/rounds');
const { post, request } = require('../lib/http');

const define = (name) => ({
  name, description: `Does ${name}.`,
  input_schema: { type: 'object', properties: { city: { type: 'string' } } },
});
const tools = [define('get_weather'), define('get_time')];
const messages = [{ role: 'user', content: 'What is it like in Paris?' }];
const model = 'scripted';

// What the model says, in the order of the tests below.
const SAYS = [];
const says = (...texts) => { SAYS.push(...texts); };
let stack, client;

before(async () => {
  await new Promise(setImmediate); // all of this file has been read
  stack = await scripted(SAYS);
  client = new Anthropic({ baseURL: stack.url, apiKey: 'none' });
});

after(async () => { if (stack) await stack.stop(); });

const create = (more) => client.messages.create({
  model, messages, max_tokens: 500, ...more });
const raw = (body, headers) => post(`${stack.url}/v1/messages`,
  { model, messages, max_tokens: 500, ...body }, headers);

// Tokens of the prompt, cached or not.
const read = (usage) => usage.input_tokens + usage.cache_read_input_tokens;

// A stream's events, each with the type that its event line has.
function events(text) {
  return text.split('\n\n').filter(Boolean).map((block) => {
    const [, name, data] = /^event: (\w+)\ndata: (.*)$/.exec(block)
      || assert.fail(`no event: ${block}`);
    const event = JSON.parse(data);
    assert.equal(event.type, name);
    return event;
  });
}

says('Mild "é" <b>.');
test('text, whole', async () => {
  const r = await create({ system: 'Be brief.' });
  assert.match(r.id, /^msg_[0-9a-f]{32}$/);
  assert.equal(r.type, 'message');
  assert.equal(r.role, 'assistant');
  assert.equal(r.model, model);
  assert.deepEqual(r.content, [{ type: 'text', text: 'Mild "é" <b>.' }]);
  assert.equal(r.stop_reason, 'end_turn');
  assert.equal(r.stop_sequence, null);
  assert.ok(r.usage.input_tokens > 5 && r.usage.output_tokens > 3);
  assert.ok(r._request_id);
});

const paris = { city: 'Paris "é" \\ <b>', n: [1.5, null, {}] };
const two = `<think>\nHm, <b>.\n</think>\n\nLet me see.\n${
  call('get_weather', paris)}\n${call('get_time', {})}`;
says(two, two, two);
test('thinking, text and calls: streamed is whole', async () => {
  const whole = await create({ tools });
  assert.deepEqual(whole.content.map((b) => b.type),
    ['thinking', 'text', 'tool_use', 'tool_use']);
  assert.equal(whole.content[0].thinking, 'Hm, <b>.');
  assert.ok(whole.content[0].signature);
  assert.equal(whole.content[1].text, 'Let me see.');
  assert.deepEqual(whole.content[2].input, paris);
  assert.deepEqual(whole.content[3].input, {});
  assert.deepEqual(whole.content.slice(2).map((b) => [b.name, b.caller]),
    [['get_weather', { type: 'direct' }], ['get_time', { type: 'direct' }]]);
  assert.equal(whole.stop_reason, 'tool_use');
  const n = whole.usage.output_tokens_details.thinking_tokens;
  assert.ok(n > 3 && n < whole.usage.output_tokens, `${n} tokens`);

  const seen = [];
  const stream = client.messages.stream({ model, messages, max_tokens: 500,
    tools }).on('streamEvent', (e) => seen.push(e));
  const told = await stream.finalMessage();
  const said = (m) => [m.role, m.model, m.stop_reason, m.stop_sequence,
    m.content.map((b) => ({ ...b, id: '' })), m.usage.output_tokens,
    m.usage.output_tokens_details, read(m.usage)];
  assert.notEqual(told.id, whole.id);
  assert.deepEqual(said(told), said(whole));

  // Every event of the API in its order, blocks numbered and closed.
  const r = events((await raw({ tools, stream: true })).text);
  assert.deepEqual(r.map((e) => e.type), seen.map((e) => e.type));
  assert.deepEqual([r[0].type, ...r.slice(-2).map((e) => e.type)],
    ['message_start', 'message_delta', 'message_stop']);
  assert.deepEqual(r[0].message.content, []);
  assert.equal(read(r[0].message.usage), read(whole.usage));
  assert.equal(read(r.at(-2).usage), read(whole.usage));
  let open = -1, blocks = 0;
  for (const e of r.slice(1, -2)) {
    if (e.type === 'content_block_start') {
      assert.equal(open, -1);
      assert.equal(e.index, blocks);
      open = blocks++;
    } else {
      assert.equal(e.index, open);
      if (e.type === 'content_block_stop') open = -1;
      else assert.equal(e.type, 'content_block_delta');
    }
  }
  assert.equal(open, -1);
  assert.equal(blocks, 4);
});

says('One END two', 'One END two');
test('stop_sequences: which one it was', async () => {
  const r = await create({ stop_sequences: ['never', 'END'] });
  assert.deepEqual(r.content, [{ type: 'text', text: 'One ' }]);
  assert.equal(r.stop_reason, 'stop_sequence');
  assert.equal(r.stop_sequence, 'END');
  const told = await client.messages.stream({ model, messages, max_tokens: 500,
    stop_sequences: ['never', 'END'] }).finalMessage();
  assert.deepEqual([told.content[0].text, told.stop_reason, told.stop_sequence],
    ['One ', 'stop_sequence', 'END']);
});

const long = { city: 'a long name '.repeat(20) };
says(call('get_weather', long), '<tool_call>\n{"name": "get_time", '
  + '"arguments": {"a": 1 2}}\n</tool_call>', 'Much more than that.');
test('max_tokens, within a call too: input stays an object', async () => {
  const cut = await create({ tools, max_tokens: 60 });
  assert.equal(cut.stop_reason, 'max_tokens');
  assert.equal(cut.content[0].type, 'tool_use');
  const said = cut.content[0].input.INVALID_JSON;
  assert.ok(said.length > 5 && JSON.stringify(long).startsWith(said), said);
  const wrong = await create({ tools });
  assert.deepEqual(wrong.content[0].input, { INVALID_JSON: '{"a": 1 2}' });
  assert.equal((await create({ max_tokens: 2 })).stop_reason, 'max_tokens');
});

says('No call.', two, '<think>\nHm.\n</think>\n\nMild.');
test('tool_choice and thinking.display', async () => {
  const none = await create({ tools, tool_choice: { type: 'none' } });
  assert.deepEqual(none.content, [{ type: 'text', text: 'No call.' }]);
  const one = await create({ tools, tool_choice: { type: 'auto',
    disable_parallel_tool_use: true } });
  assert.equal(one.content.filter((b) => b.type === 'tool_use').length, 1);
  const hidden = await create({ thinking: { type: 'disabled',
    display: 'omitted' } });
  assert.deepEqual(hidden.content, [{ type: 'text', text: 'Mild.' }]);
});

for (const streamed of [false, true]) {
  says(...rounds);
  test(`three rounds of tools${streamed ? ', streamed' : ''}`, async () => {
    const history = [...messages];
    const seen = [];
    for (let round = 0; round < 5; round++) {
      const params = { model, messages: history, max_tokens: 500, tools };
      const r = streamed ? await client.messages.stream(params).finalMessage()
        : await client.messages.create(params);
      history.push({ role: 'assistant', content: r.content });
      const calls = r.content.filter((b) => b.type === 'tool_use');
      if (calls.length === 0) break;
      seen.push(...calls.map((b) => b.input.city));
      history.push({ role: 'user', content: [
        ...calls.map((b) => ({ type: 'tool_result', tool_use_id: b.id,
          content: [{ type: 'text', text: 'mild' }] })),
        { type: 'text', text: 'And now?' }] });
    }
    assert.deepEqual(seen, cities);
    assert.equal(history.at(-1).content.at(-1).text, 'Mild everywhere.');
  });
}

for (const streamed of [false, true]) {
  says(...rounds);
  test(`AI SDK: three rounds${streamed ? ', streamed' : ''}`, async () => {
    const provider = createAnthropic({ baseURL: `${stack.url}/v1`,
      apiKey: 'none' });
    const steps = await aiSdkRounds(provider(model), streamed);
    assert.deepEqual(steps.map((s) => s.reasoningText),
      ['Number 0.', 'Number 1.', 'Number 2.', 'Done.']);
  });
}

// It keeps its conversation in a thread, and goes on without one where the
// server says that it has none.
for (const streamed of [false, true]) {
  says(...rounds);
  test(`toolRunner: three rounds${streamed ? ', streamed' : ''}`, async () => {
    const seen = [];
    const runner = client.beta.messages.toolRunner({ model, messages,
      max_tokens: 500, stream: streamed, tools: [betaZodTool({
        name: 'get_weather', description: 'The weather of a city.',
        inputSchema: z.object({ city: z.string() }),
        run: async ({ city }) => {
          seen.push(city);
          return [{ type: 'text', text: 'mild' }];
        } })] });
    let last;
    for await (const turn of runner) {
      last = streamed ? await turn.finalMessage() : turn;
    }
    assert.deepEqual(seen, cities);
    assert.equal(last.content.at(-1).text, 'Mild everywhere.');
  });
}

const thought = 'one two three four five six seven eight nine ten';
says(`\n${thought}`, '\nHm.\n</think>\n\nMild.');
test('thinking.budget_tokens closes thinking there', async () => {
  const end = await post(`${stack.url}/v1/tokenize`, { prompt: '</think>',
    add_special_tokens: false });
  const think = (n) => create({ thinking: { type: 'enabled',
    budget_tokens: n } });
  const r = await think(4);
  assert.deepEqual(r.content.map((b) => b.type), ['thinking', 'text']);
  assert.match(r.content[0].thinking, /^one t/);
  assert.ok(!r.content[0].thinking.includes('nine'));
  assert.match(r.content[1].text, /ten/); // what the model says next
  assert.equal(r.usage.output_tokens_details.thinking_tokens,
    4 + end.json().count);
  const enough = await think(1024);
  assert.equal(enough.content[0].thinking, 'Hm.');
  assert.equal(enough.content[1].text, 'Mild.');
});

test('abort: the engine stops, and the next answer comes', async () => {
  const slow = await scripted(['word '.repeat(400), 'Mild.'],
    { engine: { null_rate: 20 } });
  try {
    const other = new Anthropic({ baseURL: slow.url, apiKey: 'none' });
    const stream = other.messages.stream({ model, messages, max_tokens: 2000 },
      { headers: { 'X-Mark': 'abort' } });
    await assert.rejects(async () => {
      for await (const e of stream) {
        if (e.type === 'content_block_delta') stream.abort();
      }
      await stream.finalMessage();
    }, Anthropic.APIUserAbortError);
    await slow.idle();
    const [line] = await slow.logged('abort');
    assert.equal(line.finish_reason, 'aborted');
    const next = await other.messages.create({ model, messages,
      max_tokens: 2000 });
    assert.equal(next.content[0].text, 'Mild.');
  } finally {
    await slow.stop();
  }
});

const prompt = async (body) => (await client.messages.countTokens({
  model, messages, ...body })).input_tokens;
const chat = async (body) => {
  const r = await post(`${stack.url}/v1/tokenize`, { messages, ...body });
  assert.equal(r.status, 200, r.text);
  return r.json().count;
};
test('count_tokens, and what prompts are made of', async () => {
  assert.equal(await prompt({}), await chat({}));
  const system = { role: 'system', content: 'Be brief.' };
  assert.equal(await prompt({ system: 'Be brief.' }),
    await chat({ messages: [system, ...messages] }));
  assert.equal(await prompt({ system: [
    { type: 'text', text: 'x-anthropic-billing-header: a=1;' },
    { type: 'text', text: 'Be brief.', cache_control: { type: 'ephemeral' } }] }),
  await chat({ messages: [system, ...messages] }));
  assert.equal(await prompt({ system: [
    { type: 'text', text: 'x-anthropic-billing-header: a=1;' }] }),
  await chat({}));
  assert.equal(await prompt({ tools }), await chat({ tools: tools.map((t) => ({
    type: 'function', function: { name: t.name, description: t.description,
      parameters: t.input_schema } })) }));
  const made = { id: 'toolu_1', name: 'get_time', input: { city: 'X' } };
  assert.equal(await prompt({ messages: [...messages,
    { role: 'assistant', content: [
      { type: 'thinking', thinking: 'Hm.', signature: 'x' },
      { type: 'text', text: 'So.' }, { type: 'tool_use', ...made }] },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'toolu_1',
      content: 'noon' }] },
    { role: 'user', content: 'And?' }] }),
  await chat({ messages: [...messages,
    { role: 'assistant', content: 'So.', reasoning_content: 'Hm.', tool_calls: [{
      id: 'toolu_1', type: 'function', function: { name: 'get_time',
        arguments: '{"city":"X"}' } }] },
    { role: 'tool', tool_call_id: 'toolu_1', content: 'noon' },
    { role: 'user', content: 'And?' }] }));
  // neighbours are one message; an answer's beginning is continued
  assert.equal(await prompt({ messages: [{ role: 'user', content: 'a' },
    { role: 'user', content: 'b' }] }),
  await chat({ messages: [{ role: 'user', content: [{ type: 'text', text: 'a' },
    { type: 'text', text: 'b' }] }] }));
  const begun = [...messages, { role: 'assistant', content: 'It is' }];
  assert.equal(await prompt({ messages: begun }), await chat({ messages: begun,
    add_generation_prompt: false, continue_final_message: true }));
  assert.ok(await prompt({ thinking: { type: 'enabled' } }) > await prompt({
    thinking: { type: 'disabled' } }));
  assert.equal(await prompt({ messages: [...messages, { role: 'assistant',
    content: '' }] }), await prompt({}));
  // a system message among the others; what another server encrypted
  const late = { role: 'system', content: 'Be brief.' };
  assert.equal(await prompt({ messages: [...messages, { role: 'assistant',
    content: [{ type: 'redacted_thinking', data: 'x' },
      { type: 'text', text: 'So.' }] },
  { ...late, content: [{ type: 'text', text: late.content }],
    clear_at: 'never', output_config: {} }, { role: 'user', content: 'b' }] }),
  await chat({ messages: [...messages, { role: 'assistant', content: 'So.' },
    late, { role: 'user', content: 'b' }] }));
  // examples of an input belong to its schema
  const [first] = tools;
  const examples = [{ city: 'Oslo' }];
  assert.equal(await prompt({ tools: [{ ...first, input_examples: examples,
    allowed_callers: ['direct'], eager_input_streaming: true }] }),
  await chat({ tools: [{ type: 'function', function: { name: first.name,
    description: first.description,
    parameters: { ...first.input_schema, examples } } }] }));
});

// ---- refused --------------------------------------------------------------

const bad = [
  ['messages that are no list', { messages: 'x' }, /'messages'.*array/],
  ['no messages', { messages: [] }, /'messages'.*empty/],
  ['a role', { messages: [{ role: 'tool', content: 'x' }] },
    /'messages\[0\].role': 'tool'. Expected 'user', 'assistant' or 'system'/],
  ['a system message for a while', { messages: [...messages, { role: 'system',
    content: 'x', clear_at: 'next_user_message' }] },
  /'messages\[1\].clear_at': 'next_user_message'.*'never'/],
  ['a system message that sets something', { messages: [...messages, {
    role: 'system', content: 'x', output_config: { effort: 'low' } }] },
  /'messages\[1\].output_config': use/],
  ['a caller', { tools: [{ ...tools[0], allowed_callers: ['code'] }] },
    /'tools\[0\].allowed_callers'.*'direct'/],
  ['examples', { tools: [{ ...tools[0], input_examples: {} }] },
    /'tools\[0\].input_examples'.*array/],
  ['an image', { messages: [{ role: 'user', content: [
    { type: 'text', text: 'x' }, { type: 'image', source: {} }] }] },
  /'messages\[0\].content\[1\].type': 'image'.*text only/],
  ['a call of a user', { messages: [{ role: 'user', content: [
    { type: 'tool_use', id: 'a', name: 'b', input: {} }] }] },
  /'messages\[0\].content\[0\].type': 'tool_use'/],
  ['a result without id', { messages: [{ role: 'user', content: [
    { type: 'tool_result' }] }] }, /content\[0\].tool_use_id'.*string/],
  ['an image as a result', { messages: [{ role: 'user', content: [
    { type: 'tool_result', tool_use_id: 'a', content: [
      { type: 'image' }] }] }] },
  /'messages\[0\].content\[0\].content\[0\].type': 'image'/],
  ['input that is no object', { messages: [{ role: 'assistant', content: [
    { type: 'tool_use', id: 'a', name: 'b', input: '{}' }] }] },
  /content\[0\].input'.*object/],
  ['a server\'s tool', { tools: [{ type: 'web_search_20250305',
    name: 'web_search' }] }, /'tools\[0\].type': 'web_search_20250305'/],
  ['a tool without schema', { tools: [{ name: 'a' }] },
    /tools\[0\].input_schema/],
  ['a tool\'s name', { tools: [{ ...tools[0], name: 'a b' }] },
    /'tools\[0\].name': 'a b'/],
  ['a deep schema', { tools: [{ ...tools[0], input_schema: {
    n: Array(300).fill(0).reduce((inner) => ({ n: inner }), {}) } }],
  tool_choice: { type: 'any' } },
  /'tools\[0\].input_schema' is nested deeper/],
  ['a schema', { output_config: { format: { type: 'json_schema',
    schema: { not: {} } } } },
  /Invalid schema for output_config.format 'output': 'not'/],
  ['thinking to go on from', { messages: [...messages, { role: 'assistant',
    content: [{ type: 'thinking', thinking: 'Hm.', signature: 'x' }] }] },
  /ends with thinking and no text/],
  ['a choice', { tools, tool_choice: { type: 'some' } },
    /'tool_choice.type': 'some'/],
  ['stop_sequences', { stop_sequences: ['a', ''] }, /stop_sequences\[1\]/],
  ['a budget of nothing', { thinking: { type: 'enabled', budget_tokens: 0 } },
    /'thinking.budget_tokens': 0. Expected 1 to/],
  ['a budget that is no integer', { thinking: { type: 'enabled',
    budget_tokens: '9' } }, /'thinking.budget_tokens'.*integer/],
  ['a budget of what has none', { thinking: { type: 'adaptive',
    budget_tokens: 1024 } }, /'thinking.budget_tokens' belongs to/],
  ['a kind of thinking', { thinking: { type: 'loud' } },
    /'thinking.type': 'loud'/],
  ['an effort', { output_config: { effort: 'low' } },
    /'output_config.effort': 'low'/],
  ['what output_config has not', { output_config: { voice: 1 } },
    /'output_config.voice'/],
  ['a chat\'s field', { stop: ['x'] }, /'stop': use 'stop_sequences'/],
  ['two answers', { n: 2 }, /'n': a message has one answer/],
  ['a temperature', { temperature: 3 }, /'temperature'.*2/],
  ['JSON', '{', /JSON/],
];

for (const [name, fields, message] of bad) {
  test(`refused: ${name}`, async () => {
    const r = typeof fields === 'string'
      ? await post(`${stack.url}/v1/messages`, fields) : await raw(fields);
    assert.equal(r.status, 400, r.text);
    const { type, error, request_id: id } = r.json();
    assert.equal(type, 'error');
    assert.equal(error.type, 'invalid_request_error');
    assert.match(error.message, message);
    assert.equal(id, r.headers['request-id']);
  });
}

test('errors by path: another model, method, type', async () => {
  await assert.rejects(create({ model: 'other' }), (e) => {
    assert.ok(e instanceof Anthropic.NotFoundError);
    assert.equal(e.error.error.type, 'not_found_error');
    assert.ok(e.requestID);
    return true;
  });
  for (const path of ['messages', 'messages/count_tokens']) {
    const get = await request(`${stack.url}/v1/${path}`);
    assert.deepEqual([get.status, get.json().type], [405, 'error']);
    const text = await post(`${stack.url}/v1/${path}`, { model, messages },
      { 'Content-Type': 'text/plain' });
    assert.deepEqual([text.status, text.json().error.type],
      [415, 'invalid_request_error']);
  }
  const chatty = await post(`${stack.url}/v1/chat/completions`, {});
  assert.equal(chatty.status, 400);
  assert.equal(chatty.json().error.type, 'invalid_request_error');
  assert.equal(chatty.json().type, undefined);
});
