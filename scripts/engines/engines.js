// The engines behind this page, and a button that stops each of them: so one can
// watch an answer go on at the other.  Only `make up ENGINES=2` puts this file
// beside the page; nothing that is installed has it, or what the button asks.

import { make, rows, setData, setText } from './dom.js';

const EVERY = 500; // ms

const note = make('p', { class: 'fine', role: 'status' });
const list = make('ul', { class: 'engines-list' });
document.querySelector('.bar').after(
  make('section', { class: 'engines', 'aria-label': 'Engines' }, list, note));

// {family: [{replica, value}]} of what /metrics says.
function samples(text) {
  const all = new Map();
  for (const [, family, labels, value] of text
    .matchAll(/^(tokenring_\w+)(?:\{(.*)\})? ([\d.e+-]+)$/gm)) {
    const [, replica] = /replica="(\d+)"/.exec(labels || '') || [];
    if (!all.has(family)) all.set(family, []);
    all.get(family).push({ replica, value: Number(value) });
  }
  return all;
}

function state({ up, running }) {
  if (!up) return ['stopped', 'stopped'];
  return running ? ['busy', `${running} running`] : ['idle', 'idle'];
}

function tell(text, bad = false) {
  setText(note, text);
  setData(note, 'level', bad ? 'bad' : 'note');
}

async function stop(n) {
  try {
    const res = await fetch(`engines/${n}/stop`, { method: 'POST' });
    if (!res.ok) {
      tell('Engines can be stopped by a page at 127.0.0.1 or localhost only.', true);
    }
  } catch {
    tell('There is no connection to the server.', true);
  }
}

function row(engine) {
  const button = make('button', { class: 'quiet', type: 'button',
    'aria-label': `Stop engine ${engine.n}`,
    title: 'Kills its process. It is started again after five seconds.' },
  'Stop this engine');
  button.addEventListener('click', () => stop(engine.n));
  return make('li', { class: 'engine' }, make('b', {}, `Engine ${engine.n}`),
    make('span', {}), button);
}

function show(all) {
  const of = (family, replica) => (all.get(family) || [])
    .filter((s) => s.replica === replica).reduce((sum, s) => sum + s.value, 0);
  const engines = (all.get('tokenring_up') || []).map(({ replica, value }) => ({
    n: Number(replica) + 1, up: value === 1,
    running: of('tokenring_num_requests_running', replica)
      + of('tokenring_num_requests_waiting', replica) }));
  rows(list, engines, (e) => String(e.n), row, (el, engine) => {
    const [kind, words] = state(engine);
    setData(el, 'state', kind);
    setText(el.querySelector('span'), words);
    el.querySelector('button').disabled = !engine.up;
  });
  const moved = of('tokenring_gateway_migrations_total', undefined);
  tell(moved ? `${moved} ${moved === 1 ? 'answer has' : 'answers have'} gone on at another engine.`
    : 'Stop the one that is writing: the answer goes on at the other.');
}

async function look() {
  if (!document.hidden) {
    try {
      const res = await fetch('metrics', { cache: 'no-store' });
      if (res.ok) show(samples(await res.text()));
    } catch {
      // NGINX is away; the chat says so.
    }
  }
  setTimeout(look, EVERY);
}

look();
