'use strict';
//
// What clients parse by a schema of theirs: OpenAI's responses.parse and
// Anthropic's messages.parse, with models/pocket, whose answers are held to it.

const { test, before, after } = require('node:test');
const assert = require('node:assert/strict');
const OpenAI = require('openai');
const { Anthropic } = require('@anthropic-ai/sdk');
const { zodTextFormat } = require('openai/helpers/zod');
const { zodOutputFormat } = require('@anthropic-ai/sdk/helpers/zod');
const { z } = require('zod');
const { Stack } = require('../lib/stack');

const Place = z.object({
  kind: z.enum(['town', 'village']),
  people: z.number().int().min(1).max(999),
  old: z.boolean(),
});
const ask = 'Tell me of a place.';
let stack;

before(async () => { stack = await Stack.start(); });
after(async () => { if (stack) await stack.stop(); });

test('responses.parse', async () => {
  const client = new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: 'none' });
  const r = await client.responses.parse({ model: 'pocket', input: ask,
    temperature: 0, max_output_tokens: 200, text: { format: zodTextFormat(Place, 'place') } });
  assert.equal(r.status, 'completed');
  assert.deepEqual(Place.parse(r.output_parsed), r.output_parsed);
});

test('messages.parse', async () => {
  const client = new Anthropic({ baseURL: stack.url, apiKey: 'none' });
  const r = await client.messages.parse({ model: 'pocket', max_tokens: 200,
    temperature: 0, messages: [{ role: 'user', content: ask }],
    output_config: { format: zodOutputFormat(Place) } });
  assert.equal(r.stop_reason, 'end_turn');
  assert.deepEqual(Place.parse(r.parsed_output), r.parsed_output);
});

test('a schema that cannot be held is refused', async () => {
  const client = new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: 'none' });
  await assert.rejects(client.responses.create({ model: 'pocket', input: ask,
    text: { format: { type: 'json_schema', name: 'x', strict: true,
      schema: { not: {} } } } }), /'not'.*not supported/);
});
