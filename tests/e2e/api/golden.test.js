'use strict';
//
// models/pocket through the whole product: chat and completions answer with
// the continuations that the reference implementation gave (golden.json), also
// where these call tools or think first.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const { Stack } = require('../lib/stack');
const { post, stream } = require('../lib/http');
const { goldens, agentGoldens } = require('../lib/prompts');

let stack;

before(async () => { stack = await Stack.start(); });
after(() => stack.stop());

goldens.forEach((golden, i) => {
  const n = golden.continuation_ids.length;
  const ended = n < 64;

  test(`golden ${i}: chat`, async () => {
    const r = await post(`${stack.url}/v1/chat/completions`, {
      model: 'pocket', messages: golden.messages, temperature: 0,
      max_tokens: ended ? 64 : n,
    });
    assert.equal(r.status, 200, r.text);
    const body = r.json();
    assert.equal(body.choices[0].message.content, golden.continuation);
    assert.equal(body.choices[0].finish_reason, ended ? 'stop' : 'length');
    assert.equal(body.usage.prompt_tokens, golden.ids.length);
  });

  test(`golden ${i}: the same, streamed, from token ids`, async () => {
    const s = await stream(`${stack.url}/v1/completions`, {
      model: 'pocket', prompt: golden.ids, temperature: 0, stream: true,
      max_tokens: ended ? 64 : n,
    }).finished;
    assert.equal(s.text(), golden.continuation);
  });
});

// What the API's message says, as the model wrote it.
function written(message) {
  const calls = (message.tool_calls || []).map(({ function: f }) =>
    `<tool_call>\n{"name": "${f.name}", "arguments": ${f.arguments}}\n`
    + '</tool_call>');
  const reasoning = message.reasoning_content === undefined ? ''
    : `${message.reasoning_content}\n</think>\n\n`;
  return reasoning + (message.content || '') + calls.join('\n');
}

agentGoldens.forEach((golden, i) => {
  test(`golden ${i} of an agent`, async () => {
    const messages = golden.messages.map((m) => ({
      ...m,
      ...(m.role === 'tool' ? { tool_call_id: 'call_0' } : {}),
      ...(m.tool_calls ? { tool_calls: m.tool_calls.map((c) => ({
        ...c, id: 'call_0',
        function: { ...c.function,
          arguments: asPython(c.function.arguments) },
      })) } : {}),
    }));
    const r = await post(`${stack.url}/v1/chat/completions`, {
      model: 'pocket', messages, temperature: 0, max_tokens: 200,
      ...(golden.tools ? { tools: golden.tools } : {}),
      chat_template_kwargs: {
        enable_thinking: Boolean(golden.enable_thinking),
      },
    });
    assert.equal(r.status, 200, r.text);
    const body = r.json();
    assert.equal(body.usage.prompt_tokens, golden.ids.length);
    assert.equal('reasoning_content' in body.choices[0].message,
      Boolean(golden.enable_thinking));
    assert.ok(written(body.choices[0].message)
      .startsWith(golden.continuation.slice(0, 150)),
      JSON.stringify(body.choices[0].message));
  });
});

// An object of strings, as Python's json.dumps writes it.
function asPython(object) {
  return `{${Object.entries(object).map(([k, v]) =>
    `${JSON.stringify(k)}: ${JSON.stringify(v)}`).join(', ')}}`;
}

test('the demo answers right', async () => {
  const document = `Here are some notes.

Notes

[Mon] The amber key from Penholm costs 793 crowns.
[Tue] The train to Wesford leaves at 17:51.
[Wed] The yellow hammer is stored on shelf C67.
[Thu] Hilda and Juno walked to the harbour together.
[Fri] The password for the red library is breeze-lagoon-78.`;
  const questions = {
    'Where is the yellow hammer stored?':
      'The yellow hammer is stored on shelf C67.',
    'When does the train to Wesford leave?':
      'The train to Wesford leaves at 17:51.',
  };
  for (const [question, answer] of Object.entries(questions)) {
    const r = await post(`${stack.url}/v1/chat/completions`, {
      model: 'pocket', temperature: 0, max_tokens: 40,
      messages: [{
        role: 'user',
        content: `${document}\n\nUse the notes to answer: ${question}`,
      }],
    });
    assert.equal(r.json().choices[0].message.content, answer);
  }
});
