'use strict';
//
// /v1/responses, OpenAI's newer API: what a script says (lib/scripted.js), to
// OpenAI's client, its agents, and the AI SDK's provider.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const OpenAI = require('openai');
const { createOpenAI } = require('@ai-sdk/openai');
const agents = require('@openai/agents');
const { scripted, call } = require('../lib/scripted');
const { rounds, cities, aiSdkRounds } = require('../lib/rounds');
const { post, stream } = require('../lib/http');

const define = (name) => ({
  type: 'function', name, description: `Does ${name}.`, strict: false,
  parameters: { type: 'object', properties: { city: { type: 'string' } } },
});
const tools = [define('get_weather'), define('get_time')];
const input = 'What is it like in Paris?';
const model = 'scripted';

// What the model says, in the order of the tests below.
const SAYS = [];
const says = (...texts) => { SAYS.push(...texts); };
let stack, client;

before(async () => {
  await new Promise(setImmediate); // all of this file has been read
  stack = await scripted(SAYS);
  client = new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: 'none' });
  agents.setDefaultOpenAIClient(client);
  agents.setTracingDisabled(true);
});

after(async () => { if (stack) await stack.stop(); });

const create = (more) => client.responses.create({ model, input, ...more });
const raw = (body) => post(`${stack.url}/v1/responses`, { model, input,
  ...body });

says('Mild "é" <b>.');
test('text, whole, and what a response repeats', async () => {
  const asked = { instructions: 'Be "brief".', temperature: 0.7, top_p: 0.9,
    max_output_tokens: 50, metadata: { a: 'é', b: '2' }, user: 'u',
    parallel_tool_calls: false, tools: [...tools, { type: 'web_search' }],
    tool_choice: 'auto', reasoning: { effort: 'medium', summary: 'auto' },
    text: { format: { type: 'text' }, verbosity: 'medium' } };
  const r = await create(asked);
  assert.match(r.id, /^resp_[0-9a-f]{32}$/);
  assert.equal(r.object, 'response');
  assert.equal(r.status, 'completed');
  assert.equal(r.model, model);
  assert.ok(Math.abs(r.created_at - Date.now() / 1000) < 60);
  assert.equal(r.output_text, 'Mild "é" <b>.');
  assert.deepEqual(r.output, [{ id: `${r.id.replace('resp', 'msg')}_0`,
    type: 'message', status: 'completed', role: 'assistant', content: [{
      type: 'output_text', text: 'Mild "é" <b>.', annotations: [],
      logprobs: [] }] }]);
  const { tools: told, ...rest } = asked;
  for (const [name, value] of Object.entries(rest)) {
    assert.deepEqual(r[name], value, name);
  }
  assert.deepEqual(told.slice(0, 2), r.tools);
  assert.deepEqual([r.error, r.incomplete_details, r.previous_response_id,
    r.store, r.truncation], [null, null, null, false, 'disabled']);
  assert.equal(r.usage.total_tokens, r.usage.input_tokens
    + r.usage.output_tokens);
  assert.ok(r.usage.output_tokens > 3);
});

const paris = { city: 'Paris "é" \\ <b>', n: [1.5, null, {}] };
const two = `<think>\nHm, <b>.\n</think>\n\nLet me see.\n${
  call('get_weather', paris)}\n${call('get_time', {})}`;
const without = (id, value) => JSON.parse(JSON.stringify(value)
  .replaceAll(id.replace('resp_', ''), 'ID')
  .replace(/call_[0-9A-Za-z]{24}/g, 'CALL'));
says(two, two, two);
test('reasoning, text and calls: every event, and streamed is whole', async () => {
  const whole = await create({ tools });
  assert.deepEqual(whole.output.map((o) => o.type),
    ['reasoning', 'message', 'function_call', 'function_call']);
  assert.deepEqual(whole.output[0].content, [{ type: 'reasoning_text',
    text: 'Hm, <b>.' }]);
  assert.equal(whole.output_text, 'Let me see.');
  assert.equal(whole.output[2].arguments, JSON.stringify(paris));
  assert.match(whole.output[2].call_id, /^call_[0-9A-Za-z]{24}$/);
  assert.deepEqual(whole.output.slice(2).map((o) => o.name),
    ['get_weather', 'get_time']);
  assert.ok(whole.usage.output_tokens_details.reasoning_tokens > 3);

  const told = await client.responses.stream({ model, input, tools })
    .finalResponse();
  assert.deepEqual(without(told.id, told.output.map(
    ({ parsed_arguments, ...o }) => (o.content ? { ...o,
      content: o.content.map(({ parsed, ...c }) => c) } : o))),
  without(whole.id, whole.output));

  const s = await stream(`${stack.url}/v1/responses`, { model, input, tools,
    stream: true }).finished;
  assert.equal(s.done, false, 'no [DONE]');
  assert.deepEqual(s.events.map((e) => e.sequence_number),
    s.events.map((_, i) => i));
  const types = s.events.map((e) => e.type.replace('response.', ''));
  assert.deepEqual(types.slice(0, 2), ['created', 'in_progress']);
  assert.equal(types.at(-1), 'completed');
  const text = (kind) => ['output_item.added', 'content_part.added',
    `${kind}.delta`, `${kind}.done`, 'content_part.done', 'output_item.done'];
  const args = ['output_item.added', 'function_call_arguments.delta',
    'function_call_arguments.done', 'output_item.done'];
  const last = s.events.at(-1).response;
  const id = last.id.replace('resp_', '');
  [text('reasoning_text'), text('output_text'), args, args].forEach((want, i) => {
    const own = s.events.filter((e) => e.output_index === i);
    const item = last.output[i];
    assert.deepEqual(own.map((e) => e.type.replace('response.', ''))
      .filter((t, k, all) => t !== all[k - 1]), want);
    for (const e of own) {
      assert.equal(e.item_id || e.item.id, item.id);
      if ('content_index' in e) assert.equal(e.content_index, 0);
    }
    const said = own.map((e) => e.delta || '').join('');
    assert.equal(said, item.arguments ?? item.content[0].text);
    const done = own.find((e) => /\.done$/.test(e.type));
    assert.equal(done.text ?? done.arguments, said);
    assert.deepEqual(own.at(-1).item, item);
    assert.equal(own[0].item.status, 'in_progress');
    assert.equal(item.id, `${['rs', 'msg', 'fc', 'fc'][i]}_${id}_${i}`);
  });
  assert.equal(s.events[0].response.status, 'in_progress');
  assert.deepEqual(s.events[0].response.output, []);
  assert.deepEqual(without(last.id, last.output), without(whole.id,
    whole.output));
});

says('Much more than that.', 'Much more than that.');
test('incomplete', async () => {
  const r = await create({ max_output_tokens: 2 });
  assert.equal(r.status, 'incomplete');
  assert.deepEqual(r.incomplete_details, { reason: 'max_output_tokens' });
  assert.equal(r.output[0].status, 'incomplete');
  const s = await stream(`${stack.url}/v1/responses`, { model, input,
    max_output_tokens: 2, stream: true }).finished;
  assert.equal(s.events.at(-1).type, 'response.incomplete');
});

for (const streamed of [false, true]) {
  says(...rounds);
  test(`three rounds of tools${streamed ? ', streamed' : ''}`, async () => {
    const history = [{ role: 'user', content: input }];
    const seen = [];
    let text;
    for (let round = 0; round < 5; round++) {
      const params = { model, input: history, tools };
      const r = streamed ? await client.responses.stream(params).finalResponse()
        : await client.responses.create(params);
      history.push(...r.output);
      text = r.output.at(-1).content?.[0].text;
      const calls = r.output.filter((o) => o.type === 'function_call');
      if (calls.length === 0) break;
      for (const c of calls) {
        seen.push(JSON.parse(c.arguments).city);
        history.push({ type: 'function_call_output', call_id: c.call_id,
          output: 'mild' });
      }
    }
    assert.deepEqual(seen, cities);
    assert.equal(text, 'Mild everywhere.');
  });
}

for (const streamed of [false, true]) {
  says(...rounds);
  test(`AI SDK: three rounds${streamed ? ', streamed' : ''}`, async () => {
    const provider = createOpenAI({ baseURL: `${stack.url}/v1`,
      apiKey: 'none' });
    await aiSdkRounds(provider(model), streamed,
      { providerOptions: { openai: { store: false } } });
  });
}

for (const streamed of [false, true]) {
  says(...rounds);
  test(`OpenAI's agents: three rounds${streamed ? ', streamed' : ''}`,
    async () => {
      const seen = [];
      const agent = new agents.Agent({ name: 'Weather', model,
        instructions: 'Say what it is like.',
        tools: [agents.tool({ name: 'get_weather', strict: false,
          description: 'The weather of a city.',
          parameters: { type: 'object', required: [],
            additionalProperties: true,
            properties: { city: { type: 'string' } } },
          execute: async ({ city }) => { seen.push(city); return 'mild'; } })],
      });
      const result = await agents.run(agent, input, { stream: streamed });
      if (streamed) await result.completed;
      assert.equal(result.finalOutput, 'Mild everywhere.');
      assert.deepEqual(seen, cities);
    });
}

test('abort: the engine stops', async () => {
  const slow = await scripted(['word '.repeat(400)],
    { engine: { null_rate: 20 } });
  try {
    const other = new OpenAI({ baseURL: `${slow.url}/v1`, apiKey: 'none' });
    const s = await other.responses.create({ model, input, stream: true },
      { headers: { 'X-Mark': 'abort' } });
    for await (const e of s) {
      if (e.type === 'response.output_text.delta') break;
    }
    await slow.idle();
    const [line] = await slow.logged('abort');
    assert.equal(line.finish_reason, 'aborted');
  } finally {
    await slow.stop();
  }
});

const chat = async (messages, more) => {
  const r = await post(`${stack.url}/v1/tokenize`, { messages, ...more });
  assert.equal(r.status, 200, r.text);
  return r.json().count;
};
const prompt = async (body) => (await create({ ...body, max_output_tokens: 1 }))
  .usage.input_tokens;
says(...'123456'.split(''));
test('what prompts are made of', async () => {
  const user = { role: 'user', content: input };
  assert.equal(await prompt({}), await chat([user]));
  assert.equal(await prompt({ instructions: 'Be brief.' }),
    await chat([{ role: 'system', content: 'Be brief.' }, user]));
  assert.equal(await prompt({ input: [
    { role: 'developer', content: 'Be brief.' },
    { type: 'message', role: 'user', content: [
      { type: 'input_text', text: input }] }] }),
  await chat([{ role: 'developer', content: 'Be brief.' }, user]));
  const made = { call_id: 'call_1', name: 'get_time', arguments: '{"city":"X"}' };
  assert.equal(await prompt({ input: [user,
    { type: 'reasoning', id: 'rs_1', summary: [], content: [
      { type: 'reasoning_text', text: 'Hm.' }] },
    { type: 'message', role: 'assistant', content: [
      { type: 'output_text', text: 'So.', annotations: [] }] },
    { type: 'function_call', ...made },
    { type: 'function_call_output', call_id: 'call_1', output: 'noon' }] }),
  await chat([user, { role: 'assistant', content: 'So.',
    reasoning_content: 'Hm.', tool_calls: [{ id: 'call_1', type: 'function',
      function: { name: made.name, arguments: made.arguments } }] },
  { role: 'tool', tool_call_id: 'call_1', content: 'noon' }]));
  const functions = tools.map(({ type, ...f }) => ({ type, function: f }));
  assert.equal(await prompt({ tools: [{ type: 'web_search' }, ...tools] }),
    await chat([user], { tools: functions }));
  assert.equal(await prompt({ tools: [{ type: 'web_search' }],
    include: ['web_search_call.action.sources',
      'reasoning.encrypted_content'] }), await chat([user]));
});

// ---- refused --------------------------------------------------------------

const bad = [
  ['no input', { input: null }, 'input', /string or an array/],
  ['empty input', { input: [] }, 'input', /empty/],
  ['an item', { input: [{ type: 'web_search_call' }] }, 'input[0].type',
    /'web_search_call'/],
  ['a reference', { input: [{ type: 'item_reference', id: 'msg_1' }] },
    'input[0].id', /'store': false/],
  ['a role', { input: [{ role: 'tool', content: 'x' }] }, 'input[0].role',
    /'tool'/],
  ['an image', { input: [{ role: 'user', content: [{ type: 'input_image' }] }] },
    'input[0].content[0].type', /text only/],
  ['a call without name', { input: [{ type: 'function_call', call_id: 'a',
    arguments: '{}' }] }, 'input[0].name', /string/],
  ['an output without id', { input: [{ type: 'function_call_output',
    output: 'a' }] }, 'input[0].call_id', /string/],
  ['store', { store: true }, 'store', /not kept \(this needs a Redis\); use false/],
  ['a previous response', { previous_response_id: 'resp_1' },
    'previous_response_id', /whole conversation/],
  ['a conversation', { conversation: 'conv_1' }, 'conversation', /use 'previous_response_id'/],
  ['background', { background: true }, 'background', /use false/],
  ['truncation', { truncation: 'auto' }, 'truncation', /edited/],
  ['include', { include: ['message.output_text.logprobs'] }, 'include[0]',
    /encrypted_content/],
  ['a chosen tool of another type', { tools, tool_choice: {
    type: 'web_search' } }, 'tool_choice.type', /'web_search'/],
  ['verbosity', { text: { verbosity: 'low' } }, 'text.verbosity', /'low'/],
  ['a format', { text: { format: { type: 'xml' } } }, 'text.format.type',
    /'xml'/],
  ['a name of a format', { text: { format: { type: 'json_schema', name: 'a b',
    schema: {} } } }, 'text.format.name', /'text.format.name': "a b"/],
  ['a schema', { text: { format: { type: 'json_schema', name: 'a', strict: true,
    schema: { not: {} } } } }, 'text.format',
  /Invalid schema for text.format 'a': 'not'/],
  ['a tool\'s name', { tools: [{ ...tools[0], name: 'a b' }] },
    'tools[0].name', /'tools\[0\].name': 'a b'/],
  ['a tool\'s schema', { tools: [{ ...tools[0], strict: true,
    parameters: { type: 'object', not: {} } }] }, 'tools[0].parameters',
  /Invalid schema for function 'get_weather': 'not'/],
  ['effort', { reasoning: { effort: 'low' } }, 'reasoning.effort', /'low'/],
  ['a chat\'s field', { max_tokens: 5 }, 'max_tokens',
    /use 'max_output_tokens'/],
  ['tokens', { max_output_tokens: 0 }, 'max_output_tokens', />= 1/],
];

for (const [name, fields, param, message] of bad) {
  test(`refused: ${name}`, async () => {
    const r = await raw(fields);
    assert.equal(r.status, 400, r.text);
    assert.equal(r.json().error.param, param);
    assert.match(r.json().error.message, message);
  });
}

test('errors are those of the client', async () => {
  await assert.rejects(create({ model: 'other' }), OpenAI.NotFoundError);
});
