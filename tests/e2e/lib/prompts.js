'use strict';
//
// Things to ask models/pocket: its goldens, and prompts that it answers at
// length.

const fs = require('node:fs');
const path = require('node:path');
const { POCKET } = require('./stack');

const all = JSON.parse(
  fs.readFileSync(path.join(POCKET, 'golden.json'), 'utf8')).prompts;

// Plain conversations, and those with tools or reasoning.
const special = (g) => Boolean(g.tools || g.enable_thinking);
const goldens = all.filter((g) => !special(g));
const agentGoldens = all.filter(special);

const names = ['Mira', 'Fern', 'Ada', 'Hazel', 'Ivy', 'Juno', 'Lena', 'Nora',
  'Tobin', 'Alder', 'Bram', 'Cole', 'Dario', 'Emil', 'Finn', 'Gus'];
const animals = ['fox', 'owl', 'cat', 'dog', 'goat'];
const things = ['silver key', 'red lamp', 'green map', 'brass bell'];

// The i-th of a row of different requests for a story.
function story(i) {
  return `Tell me a story about a ${animals[i % animals.length]} named `
    + `${names[Math.floor(i / animals.length) % names.length]} and a `
    + `${things[i % things.length]}.`;
}

function chat(text, more = {}) {
  return {
    model: 'pocket', temperature: 0, max_tokens: 32,
    messages: [{ role: 'user', content: text }], ...more,
  };
}

// A chat that goes on for `tokens` tokens whatever the model says.
function endless(i, tokens, more = {}) {
  return chat(story(i), {
    stream: true, max_tokens: tokens, ignore_eos: true, ...more,
  });
}

module.exports = { goldens, agentGoldens, story, chat, endless };
