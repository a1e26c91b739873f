'use strict';
//
// Tool calls and reasoning end to end: a model that says what a script has
// (lib/scripted.js), through detokeniser, dialect, rings and HTTP, to OpenAI's
// own client.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { execFile } = require('node:child_process');
const path = require('node:path');
const OpenAI = require('openai');
const { scripted, call } = require('../lib/scripted');
const { BUILD } = require('../lib/stack');
const { post, stream } = require('../lib/http');

const tool = (name, properties = { city: { type: 'string' } }) => ({
  type: 'function',
  function: { name, description: `Does ${name}.`,
    parameters: { type: 'object', properties } },
});
const tools = [tool('get_weather'), tool('get_time')];
const ask = [{ role: 'user', content: 'What is it like in Paris?' }];

// What the model says, in the order of the tests below.
const SAYS = [];
const says = (...texts) => { SAYS.push(...texts); };
let stack, client, model;

before(async () => {
  await new Promise(setImmediate); // all of this file has been read
  stack = await scripted(SAYS);
  client = new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: 'none' });
  model = (await client.models.list()).data[0].id;
});

after(async () => { if (stack) await stack.stop(); });

const create = (more) => client.chat.completions.create({
  model, messages: ask, tools, ...more });

// A stream's chunks put together as a client does.
function joined(chunks) {
  const out = { content: '', reasoning: '', calls: [], finish: null };
  for (const chunk of chunks) {
    for (const { delta, finish_reason } of chunk.choices) {
      out.content += delta.content || '';
      out.reasoning += delta.reasoning_content || '';
      for (const c of delta.tool_calls || []) {
        if (c.id !== undefined) {
          assert.equal(c.index, out.calls.length);
          assert.equal(c.type, 'function');
          assert.equal(c.function.arguments, '');
          out.calls.push({ id: c.id, name: c.function.name, arguments: '' });
        } else {
          assert.deepEqual(Object.keys(c).sort(), ['function', 'index']);
          assert.deepEqual(Object.keys(c.function), ['arguments']);
          out.calls[c.index].arguments += c.function.arguments;
        }
      }
      out.finish = finish_reason || out.finish;
    }
  }
  return out;
}

const paris = { city: 'Paris "é" \\ <b>' };
says(call('get_weather', paris));
test('one call, whole', async () => {
  const r = await create({});
  const { message, finish_reason } = r.choices[0];
  assert.equal(finish_reason, 'tool_calls');
  assert.equal(message.content, null);
  assert.equal(message.tool_calls.length, 1);
  assert.match(message.tool_calls[0].id, /^call_[0-9A-Za-z]{24}$/);
  assert.equal(message.tool_calls[0].type, 'function');
  assert.equal(message.tool_calls[0].function.name, 'get_weather');
  assert.equal(message.tool_calls[0].function.arguments, JSON.stringify(paris));
});

const two = `Let me see.\n${call('get_weather', paris)}\n${
  call('get_time', {})}`;
says(two, two);
test('two calls behind content: streamed is whole', async () => {
  const whole = (await create({})).choices[0];
  const s = await stream(`${stack.url}/v1/chat/completions`, {
    model, messages: ask, tools, stream: true }).finished;
  assert.equal(s.done, true);
  const told = joined(s.events);
  assert.equal(told.content, 'Let me see.');
  assert.equal(told.finish, 'tool_calls');
  assert.equal(whole.message.content, told.content);
  assert.equal(new Set([...whole.message.tool_calls, ...told.calls]
    .map((c) => c.id)).size, 4);
  assert.deepEqual(whole.message.tool_calls.map((c) => c.function),
    told.calls.map(({ name, arguments: args }) => ({ name, arguments: args })));
});

says('<tool_call>\nno JSON\n</tool_call>', `I say ${call('x', {})}`);
test('what is no call, and a call without tools, is content', async () => {
  const r = await create({});
  assert.equal(r.choices[0].message.content,
    '<tool_call>\nno JSON\n</tool_call>');
  assert.equal(r.choices[0].message.tool_calls, undefined);
  assert.equal(r.choices[0].finish_reason, 'stop');
  const plain = await create({ tools: undefined });
  assert.equal(plain.choices[0].message.content, `I say ${call('x', {})}`);
});

says(call('get_time', {}));
test('tool_choice none: the tools are shown, and none is called', async () => {
  const r = await create({ tool_choice: 'none', max_tokens: 40 });
  assert.equal(r.choices[0].message.tool_calls, undefined);
  assert.ok(!r.choices[0].message.content.includes('<tool_call>'));
});

says(two);
test('parallel_tool_calls false: the first call ends the answer', async () => {
  const r = await create({ parallel_tool_calls: false });
  assert.equal(r.choices[0].message.tool_calls.length, 1);
  assert.equal(r.choices[0].finish_reason, 'tool_calls');
});

says(two);
test('length wins', async () => {
  const r = await create({ max_tokens: 45 });
  assert.equal(r.choices[0].finish_reason, 'length');
  assert.equal(r.choices[0].message.tool_calls.length, 1);
});

says(`<think>\nHm, <b>.\n</think>\n\nIt is mild.`,
  `Hm.\n</think>\n\n${call('get_time', {})}`,
  `Hm.\n</think>\n\n${call('get_time', {})}`);
test('reasoning', async () => {
  const r = await create({ tools: undefined });
  assert.equal(r.choices[0].message.reasoning_content, 'Hm, <b>.');
  assert.equal(r.choices[0].message.content, 'It is mild.');
  const n = r.usage.completion_tokens_details.reasoning_tokens;
  assert.ok(n > 3 && n < r.usage.completion_tokens, `${n} tokens`);
  // the prompt opens it
  const think = { chat_template_kwargs: { enable_thinking: true } };
  const inside = (await create(think)).choices[0].message;
  assert.equal(inside.reasoning_content, 'Hm.');
  assert.equal(inside.content, null);
  assert.equal(inside.tool_calls[0].function.name, 'get_time');
  const s = await stream(`${stack.url}/v1/chat/completions`, {
    model, messages: ask, tools, stream: true, ...think }).finished;
  const told = joined(s.events);
  assert.equal(told.reasoning, 'Hm.');
  assert.equal(told.content, '');
  assert.deepEqual(told.calls.map((c) => c.name), ['get_time']);
});

says('<think>\nHm.\n</think>\n\nMild.', '<think>\nHm.\n</think>\n\nMild.');
test('include_reasoning false', async () => {
  const r = await create({ tools: undefined, include_reasoning: false });
  assert.equal(r.choices[0].message.reasoning_content, undefined);
  assert.equal(r.choices[0].message.content, 'Mild.');
  assert.ok(r.usage.completion_tokens_details.reasoning_tokens > 3);
  const s = await stream(`${stack.url}/v1/chat/completions`, {
    model, messages: ask, stream: true, include_reasoning: false }).finished;
  assert.deepEqual([joined(s.events).reasoning, joined(s.events).content],
    ['', 'Mild.']);
});

says('<think>\nstop END\n</think>\n\nNow END it.', 'yes END');
test('stop strings and log probabilities are those of content', async () => {
  const r = await create({ tools: undefined, stop: ['END'], logprobs: true });
  assert.equal(r.choices[0].message.reasoning_content, 'stop END');
  assert.equal(r.choices[0].message.content, 'Now ');
  assert.equal(r.choices[0].finish_reason, 'stop');
  assert.ok(r.choices[0].logprobs.content.length
    < r.usage.completion_tokens - r.usage.completion_tokens_details
      .reasoning_tokens + 1);
  await create({ tools: undefined });
});

says('Hm, that is long and takes many more tokens than there are.', 'Mild.',
  'Mild.');
test('what was cut within reasoning goes back as it came', async () => {
  const cut = (await create({ tools: undefined, max_tokens: 6,
    chat_template_kwargs: { enable_thinking: true } })).choices[0];
  assert.equal(cut.finish_reason, 'length');
  assert.equal(cut.message.content, null);
  assert.ok(cut.message.reasoning_content.length > 3);
  const again = await create({ tools: undefined,
    messages: [...ask, cut.message, ...ask] });
  assert.equal(again.choices[0].message.content, 'Mild.');
  // as does a refusal of another server
  const refused = await create({ tools: undefined, messages: [...ask,
    { role: 'assistant', content: null, refusal: 'No.' }, ...ask,
    { role: 'assistant', content: [{ type: 'refusal', refusal: 'No.' }] },
    ...ask] });
  const said = { role: 'assistant', content: 'No.' };
  const tokens = await post(`${stack.url}/v1/tokenize`, {
    messages: [...ask, said, ...ask, said, ...ask] });
  assert.equal(refused.usage.prompt_tokens, tokens.json().count);
});

// JSON has numbers of any size, and so have schemas and calls
const huge = '123456789012345678901';
says(`<tool_call>\n{"name": "get_weather", "arguments": {"n": ${huge}}}\n`
  + '</tool_call>', 'Mild.');
test('numbers beyond 64 bits in a schema, in a call, and in a history', async () => {
  const sized = [{ type: 'function', function: { name: 'get_weather',
    parameters: { type: 'object', properties: { n: { type: 'integer',
      maximum: 'HUGE' } } } } }];
  const send = (messages) => post(`${stack.url}/v1/chat/completions`,
    JSON.stringify({ model, messages, tools: sized })
      .replace('"HUGE"', huge));
  const first = await send(ask);
  assert.equal(first.status, 200, first.text);
  const { message } = first.json().choices[0];
  assert.equal(message.tool_calls[0].function.arguments, `{"n": ${huge}}`);
  const next = await send([...ask, message, { role: 'tool', content: 'mild',
    tool_call_id: message.tool_calls[0].id }]);
  assert.equal(next.status, 200, next.text);
  assert.equal(next.json().choices[0].message.content, 'Mild.');
});

const round = (n) => call('get_weather', { city: `City ${n}` });
says(round(1), `${round(2)}\n${call('get_time', { city: 'X' })}`, round(3),
  'It is mild everywhere.');
says(round(1), `${round(2)}\n${call('get_time', { city: 'X' })}`, round(3),
  'It is mild everywhere.');
for (const streamed of [false, true]) {
  test(`OpenAI's runTools: three rounds${streamed ? ', streamed' : ''}`,
    async () => {
      const seen = [];
      const fn = (name) => ({
        type: 'function',
        function: {
          name, description: name, parse: JSON.parse,
          parameters: { type: 'object',
            properties: { city: { type: 'string' } } },
          function: (args) => {
            seen.push([name, args.city]);
            return `${name} of ${args.city}`;
          },
        },
      });
      const runner = client.chat.completions.runTools({
        model, messages: ask, stream: streamed,
        tools: [fn('get_weather'), fn('get_time')],
      });
      assert.equal(await runner.finalContent(), 'It is mild everywhere.');
      assert.deepEqual(seen, [['get_weather', 'City 1'],
        ['get_weather', 'City 2'], ['get_time', 'X'],
        ['get_weather', 'City 3']]);
    });
}

says('<think>\nHm.\n</think>\n\nMild.', '<think>\nHm.\n</think>\n\nMild.',
  '<think>\nHm.\n</think>\n\nMild.');
test('the command line: the answer, and reasoning beside it', async () => {
  const run = (...args) => new Promise((resolve) => {
    execFile(path.join(BUILD, 'bin/tokenring'), ['generate', ...args, '--chat',
      '-p', 'How is it?'], (error, stdout, stderr) => {
      assert.equal(error, null, stderr);
      resolve(stdout);
    });
  });
  const { socket } = stack.engine;
  assert.equal(await run('--engine', socket), 'Mild.\n');
  const r = JSON.parse(await run('--engine', socket, '--json'));
  assert.deepEqual([r.text, r.reasoning], ['Mild.', 'Hm.']);
  const over = JSON.parse(await run('--url', stack.url, '--json'));
  assert.deepEqual([over.text, over.reasoning], ['Mild.', 'Hm.']);
});

says(two, two);
test('n choices', async () => {
  const r = await create({ n: 2 });
  const ids = r.choices.flatMap((c) => c.message.tool_calls.map((t) => t.id));
  assert.equal(new Set(ids).size, 4);
});

// ---- refused --------------------------------------------------------------

const bad = [
  ['tools that are no list', { tools: 'x' }, 'tools', /array/],
  ['a tool without type', { tools: [{}] }, 'tools[0].type', /string/],
  ['another type', { tools: [{ type: 'web_search' }] }, 'tools[0].type',
    /'web_search'.*only 'function'/],
  ['no name', { tools: [{ type: 'function', function: {} }] },
    'tools[0].function.name', /string/],
  ['a bad name', { tools: [tool('a b')] }, 'tools[0].function.name',
    /letters, digits/],
  ['a long name', { tools: [tool('a'.repeat(65))] }, 'tools[0].function.name',
    /64/],
  ['one name twice', { tools: [tool('a'), tool('a')] },
    'tools[1].function.name', /another tool/],
  ['too many', { tools: Array.from({ length: 257 }, (_, i) => tool(`t${i}`)) },
    'tools', /256/],
  ['parameters that are no schema', { tools: [{ type: 'function',
    function: { name: 'a', parameters: [] } }] },
  'tools[0].function.parameters', /object/],
  ['a named choice of no tool', { tools, tool_choice: { type: 'function',
    function: { name: 'x' } } }, 'tool_choice', /'x' not found/],
  ['a choice that names nothing', { tools, tool_choice: {} }, 'tool_choice',
    /names a function/],
  ['strict that is no boolean', { tools: [{ type: 'function',
    function: { name: 'a', strict: 1 } }] }, 'tools[0].function.strict',
  /boolean/],
  ['another mode', { tools, tool_choice: { type: 'allowed_tools',
    allowed_tools: { mode: 'x', tools: [] } } },
  'tool_choice.allowed_tools.mode', /'x'/],
  ['an unknown choice', { tools, tool_choice: 'any' }, 'tool_choice', /'any'/],
  ['an allowed tool that is none', { tools, tool_choice: {
    type: 'allowed_tools', allowed_tools: { mode: 'auto',
      tools: [{ type: 'function', name: 'x' }] } } },
  'tool_choice.allowed_tools', /'x' not found/],
  ['a choice without tools', { tool_choice: 'required' }, 'tool_choice',
    /only allowed when 'tools'/],
  ['reasoning in the content', { separate_reasoning: false },
    'separate_reasoning', /include_reasoning/],
  ['both forms', { tools, functions: [{ name: 'f' }] }, 'functions', /both/],
  ['arguments that are no JSON', { messages: [...ask, { role: 'assistant',
    content: null, tool_calls: [{ id: 'a', type: 'function',
      function: { name: 'f', arguments: '{' } }] }] }, 'messages', /not valid JSON/],
  ['calls of a user', { messages: [{ role: 'user', content: 'x',
    tool_calls: [{ id: 'a', type: 'function',
      function: { name: 'f', arguments: '{}' } }] }] },
  'messages[0].tool_calls', /assistant/],
  ['a refusal beside content', { messages: [{ role: 'assistant',
    content: 'x', refusal: 'y' }] }, 'messages[0].refusal', /both/],
  ['a refusal of a user', { messages: [{ role: 'user', content: [
    { type: 'refusal', refusal: 'x' }] }] }, 'messages[0].content[0].type',
  /'refusal'/],
  ['null content without calls', { messages: [{ role: 'assistant',
    content: null }] }, 'messages[0].content', /null/],
];

for (const [name, fields, param, message] of bad) {
  test(`refused: ${name}`, async () => {
    const r = await post(`${stack.url}/v1/chat/completions`,
      { model, messages: ask, ...fields });
    assert.equal(r.status, 400, r.text);
    assert.equal(r.json().error.param, param);
    assert.match(r.json().error.message, message);
  });
}

test('older forms, and allowed_tools, make the prompt that today\'s make',
  async () => {
    const tokens = async (body) => {
      const r = await post(`${stack.url}/v1/chat/completions`,
        { model, messages: ask, max_tokens: 1, ...body });
      assert.equal(r.status, 200, r.text);
      return r.json().usage.prompt_tokens;
    };
    const f = tools[1].function;
    const result = { role: 'tool', tool_call_id: 'call_1', content: 'noon' };
    const made = [{ role: 'assistant', content: null, tool_calls: [{
      id: 'call_1', type: 'function',
      function: { name: 'get_time', arguments: '{"city":"X"}' } }] }, result];
    const older = [{ role: 'assistant', content: null, function_call: {
      name: 'get_time', arguments: '{"city":"X"}' } },
    { role: 'function', name: 'get_time', content: 'noon' }];
    assert.equal(await tokens({ functions: [f], function_call: 'auto' }),
      await tokens({ tools: [tools[1]] }));
    assert.equal(await tokens({ tools, tool_choice: { type: 'allowed_tools',
      allowed_tools: { mode: 'auto', tools: [{ type: 'function',
        function: { name: 'get_time' } }] } } }),
    await tokens({ tools: [tools[1]] }));
    assert.equal(await tokens({ messages: [...ask, ...older] }),
      await tokens({ messages: [...ask, ...made] }));
    assert.ok(await tokens({ messages: [...ask, ...made] })
      > await tokens({}) + 20);
  });
