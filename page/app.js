// The chat page: a conversation with a model of this server, and beside it the
// KV cache that remembers it.  State lives in this page alone: `turns` is the
// conversation, `request` the answer that is coming, if one is.

import * as api from './api.js';
import { $, make, rows, setText } from './dom.js';
import { known } from './format.js';
import { Memory, sentence, figures } from './memory.js';
import { Answer, copy, size, user } from './messages.js';
import { QUESTION, notes } from './sample.js';
import { themeButton } from './themes.js';

// What is pasted and longer than this becomes a document beside the text.
const LONG = 1500;

const memory = new Memory();
let turns = [];         // {role, text, docs, el, answer}
let docs = [];          // of the message that is being written
let known_models = [];
let request = null;     // {abort, answer}

// ---- settings ---------------------------------------------------------------

const chosen = () => known_models.find((m) => m.id === $('model').value)
  || { id: $('model').value, length: 0, policies: [] };

const thinks = () => $('think').getAttribute('aria-pressed') === 'true';

function think(yes) {
  $('think').setAttribute('aria-pressed', String(yes));
}

function settings() {
  const out = { model: chosen().id };
  const temperature = parseFloat($('temperature').value);
  const most = parseInt($('max-tokens').value, 10);
  if (known(temperature)) out.temperature = temperature;
  if (most > 0) out.max_tokens = most;
  out.chat_template_kwargs = { enable_thinking: thinks() };
  const { policies } = chosen();
  // The server's own is not asked for: it may allow nobody to choose.
  if ($('policy').value && $('policy').value !== policies[0]) {
    out.kv_policy = $('policy').value;
  }
  return out;
}

// "diffkv", and the settings where two have the same name.
function short(policy, all) {
  const name = policy.split(':')[0];
  return all.filter((p) => p.split(':')[0] === name).length > 1 ? policy : name;
}

function options(select, values, label, value) {
  select.replaceChildren(...values.map((v) =>
    make('option', { value: v, title: v }, label(v))));
  if (values.includes(value)) select.value = value;
  select.disabled = values.length < 2;
}

function show_policies() {
  const { policies } = chosen();
  options($('policy'), policies, (p) => short(p, policies), $('policy').value);
  $('policy-pick').hidden = policies.length < 2;
}

async function load_models() {
  try {
    known_models = await api.models($('key').value);
    options($('model'), known_models.map((m) => m.id), (m) => m, $('model').value);
    setText($('welcome-title'), known_models.length === 1
      ? `Talk to ${known_models[0].id}` : 'What shall we talk about?');
    trouble('');
  } catch (error) {
    trouble(error.message, error.status === 401 || error.status === 403);
  }
  show_policies();
  ready();
}

// What is wrong before anything was asked.
function trouble(text, key = false) {
  const old = $('trouble');
  if (old) old.remove();
  if (!text) return;
  const again = make('button', { class: 'link', type: 'button' },
    key ? 'Enter a key' : 'Try again');
  again.addEventListener('click', key ? open_settings : load_models);
  $('welcome').prepend(make('p', { class: 'alert', id: 'trouble', role: 'alert',
    'data-level': 'bad' }, `${text} `, again));
}

function open_settings() {
  $('settings').showModal();
  $('system').focus();
}

// ---- the message that is being written --------------------------------------

function ready() {
  const empty = $('prompt').value.trim() === '' && docs.length === 0;
  const send = $('send');
  send.classList.toggle('stops', Boolean(request));
  send.setAttribute('aria-label', request ? 'Stop' : 'Send');
  send.title = request ? 'Stop (Esc)' : 'Send';
  send.disabled = !request && (empty || !chosen().id);
  $('new').hidden = turns.length === 0;
}

function grow() {
  const box = $('prompt');
  box.style.height = 'auto';
  box.style.height = `${Math.min(box.scrollHeight, Math.round(innerHeight * .36))}px`;
}

function show_docs() {
  $('chips').hidden = docs.length === 0;
  rows($('chips'), docs, (d) => d.key, (d) => {
    const away = make('button', { class: 'away', type: 'button',
      'aria-label': `Remove ${d.name}` }, '×');
    away.addEventListener('click', () => {
      docs = docs.filter((x) => x !== d);
      show_docs();
      ready();
      $('prompt').focus();
    });
    return make('li', { class: 'chip' }, make('b', {}, d.name),
      make('span', { class: 'fine' }, size(d.text)), away);
  }, () => {});
}

let keys = 0;
function add_document(name, text) {
  if (!text.trim()) return;
  docs = [...docs, { name, text: text.replace(/\s+$/, ''), key: String(++keys) }];
  show_docs();
  ready();
}

async function add_files(files) {
  for (const file of files) {
    const text = await file.text();
    if (text.includes('\0')) {
      setText($('status'), `${file.name} is not a text file.`);
    } else {
      add_document(file.name, text);
    }
  }
  $('prompt').focus();
}

function write(text) {
  $('prompt').value = text;
  grow();
  ready();
  $('prompt').focus();
}

// ---- the conversation -------------------------------------------------------

function messages() {
  const system = $('system').value.trim();
  return [
    ...(system ? [{ role: 'system', content: system }] : []),
    ...turns.filter((t) => t.role === 'user' || t.answer.text)
      .map((t) => ({ role: t.role, content: t.role === 'user'
        ? [...t.docs.map((d) => d.text), t.text].filter(Boolean).join('\n\n')
        : t.answer.text })),
  ];
}

const scroller = $('scroller');
let follows = true;
scroller.addEventListener('scroll', () => {
  follows = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
}, { passive: true });

function follow() {
  if (follows) scroller.scrollTop = scroller.scrollHeight;
}

function show_system() {
  const text = $('system').value.trim();
  $('system-line').hidden = !text || turns.length === 0;
  setText($('system-line'), `System prompt: ${text}`);
}

function send() {
  const text = $('prompt').value.trim();
  if (request || !chosen().id || (!text && docs.length === 0)) return;
  const turn = { role: 'user', text, docs };
  turn.el = user(turn);
  turns.push(turn);
  $('log').append(turn.el);
  docs = [];
  show_docs();
  write('');
  $('welcome').hidden = true;
  follows = true;
  ask();
}

// The same question again, without what was answered last.
function again() {
  if (request) return;
  const last = turns[turns.length - 1];
  if (last && last.role === 'assistant') {
    last.answer.el.remove();
    turns.pop();
  }
  ask();
}

const WHY = { length: 'cut at the longest answer', content_filter: 'filtered' };

async function ask() {
  const body = { ...settings(), messages: messages() };
  const abort = new AbortController();
  const answer = new Answer();
  const state = { began: performance.now(), first: NaN, last: NaN, usage: null,
    pieces: 0, reason: '' };
  const { length } = chosen();
  // Rates count from the first token: what the prompt took is told apart.
  const more = () => {
    const n = state.usage && state.usage.completion_tokens > 0
      ? state.usage.completion_tokens : state.pieces;
    const seconds = (state.last - state.first) / 1000;
    return { length, first: state.first - state.began,
      rate: n > 8 && seconds > 0.25 ? (n - 1) / seconds : NaN,
      policy: body.kv_policy || chosen().policies[0] || '' };
  };
  const arrived = () => {
    state.last = performance.now();
    if (!known(state.first)) state.first = state.last;
    state.pieces++;
  };
  answer.grown = follow;
  for (const old of $('log').querySelectorAll('[data-again]')) old.remove();
  request = { abort, answer };
  turns.push({ role: 'assistant', answer });
  $('log').append(answer.el);
  show_system();
  memory.begin(more().policy);
  ready();
  follow();
  setText($('status'), 'The model answers.');
  let wrong = '';
  try {
    await api.chat(body, { key: $('key').value, signal: abort.signal, on: {
      reasoning(piece) {
        arrived();
        answer.think(piece);
      },
      text(piece) {
        arrived();
        answer.add(piece);
      },
      usage(usage) {
        state.usage = usage;
        memory.update(usage, more());
      },
      finish(reason) { state.reason = reason; },
    } });
  } catch (error) {
    if (error.name !== 'AbortError') {
      wrong = error.message;
      if (error.status === 401) wrong += ' Settings have a field for a key.';
    } else {
      state.reason = 'stopped';
    }
  }
  request = null;
  answer.close(wrong);
  answer.say([state.reason === 'stopped' ? 'stopped' : WHY[state.reason] || '',
    state.usage ? sentence(figures(state.usage)) : ''].filter(Boolean).join(' · '));
  memory.end(state.usage, more());
  setText($('status'), wrong || (state.reason === 'stopped' ? 'Stopped.'
    : 'The answer is complete.'));
  ready();
  follow();
}

function stop() {
  if (request) request.abort.abort();
}

function begin_anew() {
  stop();
  turns = [];
  $('log').replaceChildren();
  $('welcome').hidden = false;
  memory.clear();
  show_system();
  ready();
  $('prompt').focus();
}

// ---- ideas ------------------------------------------------------------------

const IDEAS = [
  ['Find a fact in a long document', 'About 3,000 tokens of notes, and one question', () => {
    docs = [];
    add_document('Notes of a village', notes());
    write(QUESTION);
  }],
  ['Work out a sum', '4827 + 391, thinking first', () => {
    think(true);
    write('What is 4827 + 391?');
  }],
  ['Tell me a story', 'about a fox named Tobin and a silver key', () =>
    write('Tell me a story about a fox named Tobin and a silver key.')],
  ['Sort a list of words', 'alphabetically: tulip, anchor, piano', () =>
    write('Sort these words alphabetically: tulip, anchor, piano')],
];

for (const [title, note, act] of IDEAS) {
  const button = make('button', { class: 'idea', type: 'button' },
    make('b', {}, title), make('span', {}, note));
  button.addEventListener('click', act);
  $('ideas').append(make('li', {}, button));
}

// ---- events -----------------------------------------------------------------

$('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  if (request) stop();
  else send();
});

$('think').addEventListener('click', () => {
  think(!thinks());
  $('prompt').focus();
});

$('prompt').addEventListener('input', () => {
  grow();
  ready();
});

$('prompt').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});

document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && request && !$('settings').open) stop();
});

$('prompt').addEventListener('paste', (event) => {
  const text = event.clipboardData ? event.clipboardData.getData('text/plain') : '';
  if (text.length <= LONG) return;
  event.preventDefault();
  add_document(docs.length ? `Pasted text ${docs.length + 1}` : 'Pasted text', text);
});

$('attach').addEventListener('click', () => $('file').click());
$('file').addEventListener('change', () => {
  add_files([...$('file').files]);
  $('file').value = '';
});
$('composer').addEventListener('dragover', (event) => event.preventDefault());
$('composer').addEventListener('drop', (event) => {
  if (event.dataTransfer.files.length === 0) return;
  event.preventDefault();
  add_files([...event.dataTransfer.files]);
});

$('log').addEventListener('click', (event) => {
  const button = event.target.closest('button');
  if (!button) return;
  if ('again' in button.dataset) {
    again();
  } else if (button.dataset.copy === 'code') {
    copy(button.closest('.code').querySelector('pre').textContent, button);
  } else if (button.dataset.copy === 'answer') {
    const turn = turns.find((t) => t.answer && t.answer.el.contains(button));
    if (turn) copy(turn.answer.text, button);
  }
});

$('model').addEventListener('change', () => {
  show_policies();
  ready();
});
$('new').addEventListener('click', begin_anew);
$('settings-open').addEventListener('click', open_settings);
$('settings').addEventListener('close', () => {
  show_system();
  if (known_models.length === 0) load_models();
  $('prompt').focus();
});

themeButton($('theme'), () => {});
load_models();
grow();
$('prompt').focus({ preventScroll: true });
