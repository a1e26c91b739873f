'use strict';
//
// A conversation of three rounds of tools: what the model says in it
// (lib/scripted.js), the cities that its calls ask for, and how the AI SDK goes
// through it.  Its last answer is 'Mild everywhere.'

const assert = require('node:assert/strict');
const { generateText, streamText, tool, stepCountIs } = require('ai');
const { z } = require('zod');
const { call } = require('./scripted');

const rounds = ['City 1', 'City 2', 'City 3'].map((city, i) =>
  `<think>\nNumber ${i}.\n</think>\n\n${call('get_weather', { city })}${
    i === 1 ? `\n${call('get_weather', { city: 'Oslo' })}` : ''}`);
rounds.push('<think>\nDone.\n</think>\n\nMild everywhere.');
const cities = ['City 1', 'City 2', 'Oslo', 'City 3'];

// All rounds with a model of a provider's; returns the SDK's steps.
async function aiSdkRounds(model, streamed, more = {}) {
  const seen = [];
  const options = {
    model,
    prompt: 'What is it like?',
    stopWhen: stepCountIs(6),
    tools: {
      get_weather: tool({
        description: 'The weather of a city.',
        inputSchema: z.object({ city: z.string() }),
        execute: async ({ city }) => { seen.push(city); return 'mild'; },
      }),
    },
    ...more,
  };
  const result = streamed ? streamText(options) : await generateText(options);
  assert.equal(await result.text, 'Mild everywhere.');
  const steps = await result.steps;
  assert.deepEqual(steps.map((s) => s.finishReason),
    ['tool-calls', 'tool-calls', 'tool-calls', 'stop']);
  assert.deepEqual(seen, cities);
  return steps;
}

module.exports = { rounds, cities, aiSdkRounds };
