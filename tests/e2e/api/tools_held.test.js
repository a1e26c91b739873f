'use strict';
//
// Answers that are held to calls: tool_choice required and named, allowed tools,
// strict tools; budgets of reasoning.  First a model that says what a script has
// (lib/scripted.js), through the clients that people use; then models/pocket at
// temperature 2, which has never seen a tool: whatever it finishes is a call of
// the request's tools, with arguments that ajv accepts.  HELD=N answers of each
// kind (60).

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const Ajv = require('ajv/dist/2020');
const OpenAI = require('openai');
const { generateText, tool: sdkTool } = require('ai');
const { createOpenAICompatible } = require('@ai-sdk/openai-compatible');
const { ChatOpenAI } = require('@langchain/openai');
const { z } = require('zod');
const { scripted, call, TEMPLATE } = require('../lib/scripted');
const { Stack, POCKET } = require('../lib/stack');
const { post, stream } = require('../lib/http');

const HELD = Number(process.env.HELD || 60);

const fn = (name, parameters, strict) => ({ type: 'function',
  function: { name, description: `Does ${name}.`, parameters,
    ...(strict === undefined ? {} : { strict }) } });
const city = { type: 'object', properties: { city: { type: 'string' } },
  required: ['city'] };
const tools = [fn('get_weather', city), fn('get_time', city)];
const ask = [{ role: 'user', content: 'What is it like in Paris?' }];
const named = (name) => ({ type: 'function', function: { name } });

// ---- scripted ---------------------------------------------------------------

const SAYS = [];
const says = (...texts) => { SAYS.push(...texts); };
let stack, pocket, dir, client;

before(async () => {
  await new Promise(setImmediate); // all of this file has been read
  stack = await scripted(SAYS, { engine: {
    reasoning_effort_budgets: 'low=4 high=500' } });
  client = new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: 'none' });
  dir = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenring-held-'));
  for (const f of fs.readdirSync(POCKET)) {
    fs.symlinkSync(path.join(POCKET, f), path.join(dir, f));
  }
  fs.writeFileSync(path.join(dir, 'chat_template.jinja'), TEMPLATE);
  pocket = await Stack.start({ engine: { model: dir, max_num_seqs: 32,
    kv_memory: '256m', max_queue: 512 } });
});

after(async () => {
  if (stack) await stack.stop();
  if (pocket) await pocket.stop();
  if (dir) fs.rmSync(dir, { recursive: true, force: true });
});

const create = (more) => client.chat.completions.create({
  model: 'scripted', messages: ask, tools, ...more });

says(`<think>\nHm.\n</think>\n\n${call('get_time', { city: 'Paris' })}`,
  `${call('get_weather', { city: 'A' })}\n${call('get_time', { city: 'B' })}`,
  `${call('get_weather', { city: 'A' })}\n${call('get_time', { city: 'B' })}`);
test('required: what the model says, where it is calls', async () => {
  const one = (await create({ tool_choice: 'required' })).choices[0];
  assert.equal(one.finish_reason, 'tool_calls');
  assert.equal(one.message.reasoning_content, 'Hm.');
  assert.equal(one.message.content, null);
  assert.deepEqual(one.message.tool_calls.map((c) => c.function),
    [{ name: 'get_time', arguments: '{"city":"Paris"}' }]);
  const two = (await create({ tool_choice: 'required' })).choices[0];
  assert.deepEqual(two.message.tool_calls.map((c) => c.function.name),
    ['get_weather', 'get_time']);
  const first = (await create({ tool_choice: 'required',
    parallel_tool_calls: false })).choices[0];
  assert.deepEqual(first.message.tool_calls.map((c) => c.function.name),
    ['get_weather']);
  assert.equal(first.finish_reason, 'tool_calls');
});

says(call('get_weather', { city: 'Oslo' }), call('get_weather', { city: 'X' }));
test('a named tool: its call alone, and the end is a stop', async () => {
  const r = (await create({ tool_choice: named('get_weather') })).choices[0];
  assert.equal(r.finish_reason, 'stop');
  assert.deepEqual(r.message.tool_calls.map((c) => c.function),
    [{ name: 'get_weather', arguments: '{"city":"Oslo"}' }]);
  const older = await client.chat.completions.create({ model: 'scripted',
    messages: ask, functions: tools.map((t) => t.function),
    function_call: { name: 'get_weather' } });
  assert.equal(older.choices[0].message.tool_calls[0].function.arguments,
    '{"city":"X"}');
});

says('No, I will not call anything at all.', call('get_time', { city: 'Y' }),
  'The <b>mark</b> is <tool_call>, you see.');
test('what the model would rather say does not come', async () => {
  // another tool's name is not allowed
  const r = (await create({ tool_choice: 'required', max_tokens: 200 }))
    .choices[0];
  assert.equal(r.message.content, null);
  const other = (await create({ tool_choice: named('get_weather'),
    max_tokens: 60 })).choices[0];
  assert.equal(other.message.tool_calls[0].function.name, 'get_weather');
  const none = (await create({ tool_choice: 'none', max_tokens: 40 }))
    .choices[0];
  assert.match(none.message.content, /^The <b>mark<\/b> is /);
  assert.ok(!none.message.content.includes('<tool_call>'));
  assert.equal(none.message.tool_calls, undefined);
});

const strict = [fn('get_weather', { type: 'object', required: ['city', 'unit'],
  properties: { city: { type: 'string' }, unit: { enum: ['C', 'F'] } } }, true)];
says('It is <mild>, {"name": 1}.',
  `Let me see.\n${call('get_weather', { city: 'A', unit: 'C' })}`,
  call('get_weather', { city: 'A', unit: 'K', more: 1 }));
test('strict under auto: content is free, calls are held', async () => {
  const free = (await create({ tools: strict })).choices[0];
  assert.equal(free.message.content, 'It is <mild>, {"name": 1}.');
  assert.equal(free.finish_reason, 'stop');
  const good = (await create({ tools: strict })).choices[0];
  assert.equal(good.message.content, 'Let me see.');
  assert.equal(good.message.tool_calls[0].function.arguments,
    '{"city":"A","unit":"C"}');
  const bad = (await create({ tools: strict, max_tokens: 80 })).choices[0];
  const text = bad.message.tool_calls[0].function.arguments;
  assert.match(text, /^\{"city":"A","unit":"[CF]"/);
});

says(...Array.from({ length: 3 }, () => call('get_weather', { city: 'Oslo' })),
  call('get_weather', { city: 'Rome' }), call('get_weather', { city: 'Rome' }),
  'It is mild.');
test('OpenAI\'s runTools, AI SDK and LangChain', async () => {
  const ran = [];
  const runner = client.chat.completions.runTools({ model: 'scripted',
    messages: ask, tool_choice: named('get_weather'),
    tools: [{ type: 'function', function: { name: 'get_weather', parse:
      JSON.parse, parameters: city, description: 'Weather.',
    function: (args) => { ran.push(args.city); return 'mild'; } } }] });
  await runner.done();
  assert.deepEqual(ran, ['Oslo']);

  const model = createOpenAICompatible({ name: 'tokenring',
    baseURL: `${stack.url}/v1` })('scripted');
  const weather = { get_weather: sdkTool({ description: 'Weather.',
    inputSchema: z.object({ city: z.string() }) }) };
  for (const toolChoice of ['required', { type: 'tool',
    toolName: 'get_weather' }]) {
    const r = await generateText({ model, tools: weather, toolChoice,
      prompt: 'How is it?' });
    assert.deepEqual(r.toolCalls.map((c) => [c.toolName, c.input]),
      [['get_weather', { city: 'Oslo' }]]);
  }

  const chat = new ChatOpenAI({ model: 'scripted', apiKey: 'none',
    configuration: { baseURL: `${stack.url}/v1` } });
  const answer = await chat.bindTools([tools[0]], { tool_choice: 'any',
    strict: true }).invoke('How is it?');
  assert.deepEqual(answer.tool_calls.map((c) => [c.name, c.args]),
    [['get_weather', { city: 'Rome' }]]);
  const made = await chat.withStructuredOutput(z.object({ city: z.string() }),
    { name: 'get_weather', method: 'functionCalling' }).invoke('How is it?');
  assert.deepEqual(made, { city: 'Rome' });
  const free = await chat.bindTools([tools[0]], { strict: true })
    .invoke('How is it?');
  assert.equal(free.content, 'It is mild.');
});

says(call('get_time', { city: 'P' }));
test('allowed_tools with mode required', async () => {
  const r = (await create({ tool_choice: { type: 'allowed_tools',
    allowed_tools: { mode: 'required', tools: [named('get_time')] } } }))
    .choices[0];
  assert.equal(r.message.tool_calls[0].function.name, 'get_time');
  assert.equal(r.finish_reason, 'tool_calls');
});

const thought = 'one two three four five six seven eight nine ten';
says(`<think>\n${thought}\n</think>\n\nMild.`, `\n${thought}`,
  `<think>\nHm.\n</think>\n\nMild.`,
  '<think>\nHm, {.\n</think>\n\n{"city": "Oslo"}', thought);
test('thinking_token_budget closes reasoning exactly there', async () => {
  const end = await post(`${stack.url}/v1/tokenize`, { prompt: '</think>',
    add_special_tokens: false });
  const closing = end.json().count;
  const spent = async (more) => {
    const r = await create({ tools: undefined, ...more });
    return [r.choices[0].message, r.usage.completion_tokens_details
      .reasoning_tokens];
  };
  const think = { chat_template_kwargs: { enable_thinking: true } };
  // opened by the model: the token that completes its mark counts as reasoning,
  // but not for the budget
  const [own, tokens] = await spent({ thinking_token_budget: 4 });
  assert.equal(tokens, 1 + 4 + closing);
  assert.match(own.reasoning_content, /^one t/);
  assert.ok(!own.reasoning_content.includes('nine'));
  assert.match(own.content, /ten/); // what the model says next
  // opened by the prompt
  const [none, few] = await spent({ thinking_token_budget: 0, ...think });
  assert.equal(none.reasoning_content, undefined);
  assert.equal(few, closing);
  const [enough] = await spent({ thinking_token_budget: 500 });
  assert.deepEqual([enough.reasoning_content, enough.content],
    ['Hm.', 'Mild.']);
  // and before what is held
  const schema = { type: 'json_schema', json_schema: { name: 'c',
    strict: true, schema: city } };
  const [made] = await spent({ response_format: schema });
  assert.equal(made.reasoning_content, 'Hm, {.');
  assert.equal(made.content, '{"city": "Oslo"}');
  const [cut] = await spent({ response_format: schema, max_tokens: 40,
    thinking_token_budget: 3, ...think });
  assert.match(cut.content, /^\{/);
  const bad = await post(`${stack.url}/v1/chat/completions`, { messages: ask,
    thinking_token_budget: -1 });
  assert.equal(bad.status, 400);
  assert.equal(bad.json().error.param, 'thinking_token_budget');
});

// the mark's place is taken by a text that ends with it
test('reasoning_end stands where a budget is spent', async () => {
  const end = '\nThat must do.\n</think>';
  const ends = await scripted([`\n${thought}`, thought, thought], { engine: {
    reasoning_end: `"${end.replaceAll('\n', '\\n')}"` } });
  try {
    const closing = (await post(`${ends.url}/v1/tokenize`, { prompt: end,
      add_special_tokens: false })).json().count;
    const schema = { type: 'json_schema', json_schema: { name: 'c',
      strict: true, schema: city } };
    for (const [budget, more] of [[4, {}], [0, {}],
      [3, { response_format: schema }]]) {
      const r = await post(`${ends.url}/v1/chat/completions`, {
        messages: ask, thinking_token_budget: budget, max_tokens: 60,
        chat_template_kwargs: { enable_thinking: true }, ...more });
      assert.equal(r.status, 200, r.text);
      const { choices: [{ message }], usage } = r.json();
      assert.ok(message.reasoning_content.endsWith('That must do.'), r.text);
      assert.equal(usage.completion_tokens_details.reasoning_tokens,
        budget + closing);
      assert.match(message.content, more.response_format ? /^\{/ : /ten|one/);
    }
  } finally {
    await ends.stop();
  }
  for (const text of ['That must do.', '</think> and more',
    '</think> </think>']) {
    await assert.rejects(Stack.start({ engine: {
      reasoning_end: `"${text}"` } }), /reasoning_end: expected/);
  }
});

says(thought, 'Hm.\n</think>\n\nMild.', thought, thought, thought);
test('reasoning_effort as a budget, in every API', async () => {
  const closing = (await post(`${stack.url}/v1/tokenize`, {
    prompt: '</think>', add_special_tokens: false })).json().count;
  const chat = (body) => post(`${stack.url}/v1/chat/completions`, {
    messages: ask, max_tokens: 30, ...body });
  const reasoned = (r) => (r.json().usage.completion_tokens_details
    || { reasoning_tokens: 0 }).reasoning_tokens;
  const low = await chat({ reasoning_effort: 'low' });
  assert.equal(reasoned(low), 4 + closing, low.text);
  assert.match(low.json().choices[0].message.reasoning_content, /^one/);
  const high = await chat({ reasoning_effort: 'high' });
  assert.equal(high.json().choices[0].message.reasoning_content, 'Hm.');
  const own = await chat({ reasoning_effort: 'low',
    chat_template_kwargs: { enable_thinking: false } });
  assert.equal(reasoned(own), 0); // the client says that none is wanted
  const response = await post(`${stack.url}/v1/responses`, { input: 'Paris?',
    max_output_tokens: 30, reasoning: { effort: 'low' } });
  assert.equal(response.json().usage.output_tokens_details.reasoning_tokens,
    4 + closing, response.text);
  const message = await post(`${stack.url}/v1/messages`, { messages: ask,
    max_tokens: 30, output_config: { effort: 'low' } });
  assert.equal(message.json().content[0].type, 'thinking', message.text);
  for (const [body, text] of [
    [{ reasoning_effort: 'medium' }, /does not use it/],
    [{ reasoning_effort: 'low', thinking_token_budget: 3 }, /both/]]) {
    const r = await chat(body);
    assert.equal(r.status, 400);
    assert.equal(r.json().error.param, 'reasoning_effort');
    assert.match(r.json().error.message, text);
  }
});

const format = { type: 'json_schema', json_schema: { name: 'c', strict: true,
  schema: { ...city, additionalProperties: false } } };
const mild = '{"city": "Oslo"}', calls = [call('get_weather', { city: 'A' }),
  call('get_time', { city: 'B' })].join('\n');
says(mild, `<think>\nHm.\n</think>\n\n${mild}`, calls, calls, calls, calls,
  'It is mild in Oslo.', mild, calls);
test('response_format beside tools: what it says, or calls', async () => {
  const ask2 = async (more) => (await create({ response_format: format,
    ...more })).choices[0];
  const made = await ask2();
  assert.deepEqual([made.message.content, made.finish_reason,
    made.message.tool_calls], [mild, 'stop', undefined]);
  const thought2 = (await ask2()).message;
  assert.deepEqual([thought2.reasoning_content, thought2.content],
    ['Hm.', mild]);
  const called = await ask2();
  assert.equal(called.message.content, null);
  assert.equal(called.finish_reason, 'tool_calls');
  assert.deepEqual(called.message.tool_calls.map((c) => c.function.name),
    ['get_weather', 'get_time']);
  const one = await ask2({ parallel_tool_calls: false });
  assert.deepEqual(one.message.tool_calls.map((c) => c.function.arguments),
    ['{"city":"A"}']);
  const required = await ask2({ tool_choice: 'required' });
  assert.equal(required.message.tool_calls.length, 2);
  const named2 = await ask2({ tool_choice: named('get_weather') });
  assert.equal(named2.message.tool_calls.length, 1);
  // prose is neither
  const held = await ask2({ max_tokens: 60 });
  assert.match(held.message.content ?? '{"', /^\{ ?(\n *)?"/);
  const none = await ask2({ tool_choice: 'none' });
  assert.equal(none.message.content, mild);
  const parsed = await client.chat.completions.parse({ model: 'scripted',
    messages: ask, tools: tools.map((t) => ({ ...t, function: {
      ...t.function, strict: true, parameters: { ...city,
        additionalProperties: false } } })), response_format: format });
  assert.deepEqual(parsed.choices[0].message.tool_calls.map((c) =>
    c.function.parsed_arguments), [{ city: 'A' }, { city: 'B' }]);
});

says(mild, calls, mild, calls);
test('... and in the other APIs', async () => {
  const respond = async () => (await post(`${stack.url}/v1/responses`, {
    input: 'Paris?', text: { format: { type: 'json_schema', name: 'c',
      strict: true, schema: format.json_schema.schema } },
    tools: tools.map((t) => ({ type: 'function', ...t.function,
      strict: false })) })).json();
  const text = await respond();
  assert.deepEqual(text.output.map((i) => i.type), ['message'],
    JSON.stringify(text));
  assert.equal(text.output[0].content[0].text, mild);
  assert.deepEqual((await respond()).output.map((i) => i.name),
    ['get_weather', 'get_time']);
  const message = async () => (await post(`${stack.url}/v1/messages`, {
    max_tokens: 90, messages: ask, output_config: { format: {
      type: 'json_schema', schema: format.json_schema.schema } },
    tools: tools.map((t) => ({ name: t.function.name,
      input_schema: t.function.parameters })) })).json();
  assert.deepEqual((await message()).content, [{ type: 'text', text: mild }]);
  const used = await message();
  assert.equal(used.stop_reason, 'tool_use');
  assert.deepEqual(used.content.map((b) => [b.name, b.input]),
    [['get_weather', { city: 'A' }], ['get_time', { city: 'B' }]]);
});

// ---- random -----------------------------------------------------------------

const schemas = {
  person: { type: 'object', required: ['name', 'age'], properties: {
    name: { type: 'string', maxLength: 8 },
    age: { type: 'integer', minimum: 0, maximum: 120 } } },
  pick: { type: 'object', required: ['kind', 'at'], properties: {
    kind: { enum: ['cat', 'dog'] }, note: { type: ['string', 'null'],
      maxLength: 4 },
    at: { $ref: '#/$defs/point' } }, $defs: { point: { type: 'object',
    properties: { x: { type: 'number', minimum: -1, maximum: 1 } },
    required: ['x'] } } },
  nothing: { type: 'object', properties: {} },
};
const closed = (s) => (s && typeof s === 'object' && !Array.isArray(s)
  ? Object.fromEntries(Object.entries({ ...s, ...(s.type === 'object'
    ? { additionalProperties: false } : {}) }).map(([k, v]) => [k, closed(v)]))
  : s);
const ajv = new Ajv({ strict: false });
const checks = Object.fromEntries(Object.entries(schemas).map(([name, s]) =>
  [name, ajv.compile(closed(s))]));
const three = Object.entries(schemas).map(([name, s]) => fn(name, s, true));

const chat = (fields) => post(`${pocket.url}/v1/chat/completions`, {
  messages: ask, tools: three, temperature: 2, max_tokens: 200, ...fields });

async function crowd(n, job) {
  let next = 0;
  await Promise.all(Array.from({ length: 32 }, async () => {
    while (next < n) await job(next++);
  }));
}

function check(calls) {
  for (const { function: f } of calls) {
    assert.ok(checks[f.name], `a tool of the request: ${f.name}`);
    assert.ok(checks[f.name](JSON.parse(f.arguments)), `${f.name}: ${
      f.arguments}: ${JSON.stringify(checks[f.name].errors)}`);
  }
}

for (const [kind, fields, finish] of [
  ['required', { tool_choice: 'required' }, 'tool_calls'],
  ['one call', { tool_choice: 'required', parallel_tool_calls: false },
    'tool_calls'],
  ['named', { tool_choice: named('pick') }, 'stop'],
]) {
  test(`${HELD} random answers: ${kind}`, async () => {
    let finished = 0;
    await crowd(HELD, async (seed) => {
      const answer = await chat({ seed, ...fields });
      assert.equal(answer.status, 200, answer.text);
      const { message, finish_reason: reason } = answer.json().choices[0];
      if (reason === 'length') return; // a call that was begun is content
      assert.equal(message.content, null);
      finished++;
      assert.equal(reason, finish);
      check(message.tool_calls);
      if (kind !== 'required') assert.equal(message.tool_calls.length, 1);
      if (kind === 'named') {
        assert.equal(message.tool_calls[0].function.name, 'pick');
      }
    });
    // one call after the other is hardly over at that temperature
    assert.ok(finished > HELD / (kind === 'required' ? 60 : 8),
      `${finished} of ${HELD} finished`);
    await pocket.idle();
  });
}

test(`${HELD} random answers: a schema or calls`, async () => {
  const seen = { stop: 0, tool_calls: 0 };
  const [mark] = (await post(`${pocket.url}/v1/tokenize`, {
    prompt: '<tool_call>', add_special_tokens: false })).json().tokens;
  await crowd(HELD, async (seed) => {
    // this model would always rather call
    const answer = await chat({ seed, parallel_tool_calls: false,
      logit_bias: seed % 2 ? { [mark]: -20 } : {},
      response_format: { type: 'json_schema', json_schema: { name: 'person',
        strict: true, schema: schemas.person } } });
    assert.equal(answer.status, 200, answer.text);
    const { message, finish_reason: reason } = answer.json().choices[0];
    if (reason === 'length') return;
    seen[reason]++;
    if (reason === 'tool_calls') check(message.tool_calls);
    else assert.ok(checks.person(JSON.parse(message.content)), message.content);
  });
  assert.ok(seen.stop > 0 && seen.tool_calls > 0, JSON.stringify(seen));
  await pocket.idle();
});

test('streamed is whole, in every choice', async () => {
  const body = { tool_choice: 'required', parallel_tool_calls: false, seed: 5,
    n: 8 };
  const whole = (await chat(body)).json();
  assert.equal(whole.choices.length, 8);
  const called = whole.choices.filter((c) => c.message.tool_calls).length;
  assert.ok(called > 1, `${called} of 8 are calls`);
  const s = await stream(`${pocket.url}/v1/chat/completions`, {
    messages: ask, tools: three, temperature: 2, max_tokens: 200, stream: true,
    ...body }).finished;
  assert.ok(s.done);
  for (const choice of whole.choices) {
    const calls = [];
    for (const { choices } of s.events) {
      for (const c of choices.filter((x) => x.index === choice.index)) {
        for (const d of c.delta.tool_calls || []) {
          if (d.id !== undefined) calls.push({ name: d.function.name, args: '' });
          else calls[d.index].args += d.function.arguments;
        }
      }
    }
    assert.deepEqual(calls, (choice.message.tool_calls || []).map((c) => (
      { name: c.function.name, args: c.function.arguments })));
  }
});

test('random reasoning within a budget, and calls behind it', async () => {
  let finished = 0;
  await crowd(32, async (seed) => {
    const answer = await chat({ seed, tool_choice: 'required',
      parallel_tool_calls: false, thinking_token_budget: seed,
      chat_template_kwargs: { enable_thinking: true } });
    assert.equal(answer.status, 200, answer.text);
    const { choices: [{ message, finish_reason: reason }], usage }
      = answer.json();
    assert.ok(usage.completion_tokens_details.reasoning_tokens <= seed + 8);
    if (reason === 'length') return;
    assert.ok(message.tool_calls.length > 0);
    check(message.tool_calls);
    finished++;
  });
  assert.ok(finished > 3, `${finished} of 32 finished`);
  await pocket.idle();
});

test('what cannot be held', async () => {
  const unique = { type: 'object', properties: { l: { type: 'array',
    uniqueItems: true } } };
  const refused = await chat({ tools: [...three, fn('u', unique, true)] });
  assert.equal(refused.status, 400, refused.text);
  assert.equal(refused.json().error.param, 'tools[3].function.parameters');
  assert.equal(refused.json().error.message, 'Invalid schema for function '
    + '\'u\': \'uniqueItems\' at /properties/l is not supported.');
  // without strict it is left out, and one that is none is any object
  const loose = await chat({ tools: [fn('u', unique), fn('v', { type: 'object',
    properties: { a: { type: 'odd' } } })], tool_choice: 'required' });
  assert.equal(loose.status, 200, loose.text);
  const endless = await chat({ tool_choice: 'required', ignore_eos: true });
  assert.equal(endless.status, 400);
  assert.equal(endless.json().error.param, 'ignore_eos');
  await pocket.idle();
  assert.deepEqual(pocket.complaints(), []);
});
