// The parts of the page that are words: the KV figures, the strip of numbers,
// the fleet, the requests, one request.

import { $, make, rows, setData, setText } from './dom.js';
import * as f from './format.js';
import { MOURN, RECENT, view } from './fleet.js';
import { latest } from './series.js';
import { levelColour } from './palette.js';

// Rows of requests, until more are asked for.
const FEW = 12;

// Glyphs tell states apart without colour.
const STATES = {
  loading: ['▲', 'loading', 'warn'],
  ready: ['●', 'ready', 'good'],
  draining: ['▲', 'draining', 'warn'],
  failed: ['✕', 'failed', 'bad'],
  late: ['▲', 'late', 'warn'],
  gone: ['✕', 'gone', 'bad'],
  stopped: ['○', 'stopped', 'plain'],
  unknown: ['○', 'not known', 'plain'],
  queued: ['○', 'queued', 'plain'],
  prefill: ['◐', 'prefill', 'busy'],
  decode: ['◕', 'decode', 'busy'],
  detached: ['◕', 'detached', 'busy'],
  done: ['●', 'done', 'good'],
  cancelled: ['–', 'cancelled', 'plain'],
};

function badge(state) {
  const el = make('span', { class: 'badge' },
    make('span', { class: 'glyph', 'aria-hidden': 'true' }), make('span', {}));
  setBadge(el, state);
  return el;
}

function setBadge(el, state) {
  const [glyph, word, tone] = STATES[state] || ['○', String(state), 'plain'];
  setData(el, 'tone', tone);
  setText(el.firstElementChild, glyph);
  setText(el.lastElementChild, word);
}

// ---- the KV cache -----------------------------------------------------------

// shown: what is drawn; recent: its last seconds, for the figures of now.
export function kv(shown, recent, chart, scope) {
  const pick = (of) => chart.pick(of(shown), of(recent));
  const held = pick((s) => s.held);
  const full = pick((s) => s.full);
  const pool = pick((s) => s.pool);
  const tokens = pick((s) => s.kvTokens);
  // Over all requests since the engines' start: what runs now swings with every
  // prompt that is not compressed yet.
  const { since } = recent;
  const ratio = since.held > 0 && since.full > 0 ? since.full / since.held
    : held > 0 && full > 0 ? full / held : NaN;
  setText($('kv-scope'), scope);
  setText($('saving'), f.times(ratio));
  setData($('saving'), 'known', String(f.known(ratio)));
  setText($('saving-word'), !f.known(ratio) ? ''
    : ratio >= 1.05 ? 'less memory than FP16' : 'of what FP16 would need');
  let note = 'No token is cached now.';
  if (held > 0 && full > 0) {
    note = `${chart.at ? 'Held then' : 'Now'}: ${f.bytes(held)}, where FP16 would need `
      + `${f.bytes(full)} for the same ${f.count(tokens)} tokens.`;
  } else if (!f.known(held)) {
    note = 'No figures.';
  }
  setText($('saving-since'), since.held > 0
    ? `Over ${f.count(since.requests)} request${since.requests === 1 ? '' : 's'}`
      + ' since start.' : '');
  setText($('saving-note'), note);
  const items = shown.order.map((name) => ({ name, colour: levelColour(name),
    pages: pick((s) => s.levelPages.get(name)),
    bytes: pick((s) => s.levels.get(name)) }));
  const cached = pick((s) => s.cached);
  if (cached > 0) {
    items.push({ name: 'prefixes', colour: 'var(--kept)', pages: NaN,
      bytes: cached });
  }
  const swapped = pick((s) => s.swapped);
  if (swapped > 0) {
    items.push({ name: 'swapped out', colour: 'var(--swap)', pages: NaN,
      bytes: swapped });
  }
  rows($('levels'), items, (l) => l.name, (l) => make('tr', {},
    make('th', { scope: 'row' },
      make('span', { class: 'swatch', 'aria-hidden': 'true' }), l.name),
    make('td', {}), make('td', {})), (row, l) => {
    row.querySelector('.swatch').style.background = l.colour;
    setText(row.children[1], f.count(l.pages));
    setText(row.children[2], f.bytes(l.bytes));
  });
  const parts = [];
  if (pool > 0 && f.known(held)) {
    parts.push(`${f.percent((held - (swapped || 0)) / pool)} of the pool's ${f.bytes(pool)}`);
  }
  if (chart.at) parts.push(`at ${f.clock(chart.at)}`);
  setText($('kv-time'), parts.join(' · '));
  chart.el.setAttribute('aria-label', `KV cache over time: ${note}`);
}

// ---- the strip --------------------------------------------------------------

export function strip(s, fleet) {
  const answered = fleet.answered();
  const sum = (test) => (answered ? Object.entries(answered)
    .filter(([status]) => test(status)).reduce((n, [, k]) => n + k, 0) : NaN);
  const items = [
    ['Running', f.count(latest(s.running)), 'requests'],
    ['Waiting', f.count(latest(s.waiting)), 'requests'],
    ['Tokens out', f.short(latest(s.tokensOut)), 'per second'],
    ['Tokens in', f.short(latest(s.tokensIn)), 'per second'],
    ['First token', f.duration(latest(s.ttft.p95)), 'p95, last minute'],
    ['Finished', f.count(latest(s.ended)), failures(s)],
    ['Refused (429)', f.count(sum((status) => status === '429')), 'here, last minute'],
    ['Errors (5xx)', f.count(sum((status) => status[0] === '5')), 'here, last minute'],
    ['Preempted', f.count(latest(s.preempted)), 'last minute'],
  ];
  rows($('strip'), items, (i) => i[0], (i) => make('div', { class: 'figure' },
    make('span', { class: 'figure-name' }, i[0]), make('b', {}),
    make('span', { class: 'figure-unit' })), (row, i) => {
    setText(row.children[1], i[1]);
    setText(row.children[2], i[2]);
  });
}

function failures(s) {
  const n = latest(s.failed);
  return n > 0 ? `last minute, ${f.count(n)} failed` : 'last minute';
}

// ---- tenants ----------------------------------------------------------------

// Those who used most first.  There are none unless tokenring_tenants shows them.
// What is no tenant's name is set off from names: someone may be called "none".
const NOBODY = new Map([['', 'none'], ['other', 'others']]);

export function tenants(fleet) {
  const list = [...fleet.tenants].sort((a, b) =>
    b.prompt_tokens + b.completion_tokens - a.prompt_tokens - a.completion_tokens
      || (a.name < b.name ? -1 : 1));
  $('tenants-card').hidden = list.length === 0;
  rows($('tenants'), list, (t) => t.name, (t) => make('tr', {},
    make('th', { scope: 'row' }, NOBODY.has(t.name) ? make('em', {}, NOBODY.get(t.name)) : t.name),
    ...Array.from({ length: 4 }, () => make('td', { class: 'num' }))), (row, t) => {
    [t.requests, t.limited, t.prompt_tokens, t.completion_tokens].forEach((n, i) =>
      setText(row.children[i + 1], f.count(n)));
  });
}

// ---- the fleet --------------------------------------------------------------

export function engineState(e, fleet) {
  if (!fleet.up) return 'unknown';
  if (e.state !== 'ready') return e.state;
  return fleet.now - e.seen > 3500 ? 'late' : 'ready';
}

// To choose one, where there are several.
export function models(list, chosen) {
  $('model-pick').hidden = list.length < 2;
  rows($('model'), ['', ...list], (m) => m, (m) =>
    make('option', { value: m }, m || 'All models'), () => {});
  if ($('model').value !== chosen) $('model').value = chosen;
}

// onPick(name): show this engine alone, or all again.
export function engines(fleet, picked, model, onPick) {
  const box = $('fleet');
  const list = fleet.sorted().filter((e) => !model || e.model === model);
  box.hidden = list.length === 0;
  rows(box, list, (e) => e.name, (e) => {
    const row = make('button', { class: 'engine', type: 'button' },
      make('span', { class: 'engine-head' },
        make('span', { class: 'engine-name' }), badge('gone')),
      make('span', { class: 'engine-model' }),
      make('span', { class: 'engine-heart' }),
      make('span', { class: 'engine-load' }),
      make('span', { class: 'meter' }),
      make('span', { class: 'engine-kv' }),
      make('span', { class: 'engine-weights' }));
    row.addEventListener('click', () => onPick(e.name));
    return row;
  }, (row, e) => {
    const state = engineState(e, fleet);
    setData(row, 'state', state);
    row.setAttribute('aria-pressed', String(picked === e.name));
    setText(row.querySelector('.engine-name'), e.name);
    setBadge(row.querySelector('.badge'), state);
    // A policy's settings are many: they are there for who points at it.
    const policy = e.card.kv_policy || '';
    const model = row.querySelector('.engine-model');
    setText(model, [e.card.model || 'model not known', e.card.backend,
      policy.split(':')[0]].filter(Boolean).join(' · '));
    if (model.title !== policy) model.title = policy;
    setText(row.querySelector('.engine-heart'), state === 'gone'
      ? (e.seen ? `no heartbeat for ${f.age(fleet.now - e.seen)}` : 'not connected')
      : state === 'stopped' ? 'starts for a request'
        : state === 'unknown' ? `last heard of at ${f.clock(e.seen)}`
          : `heartbeat ${f.age(fleet.now - e.seen)} ago${e.card.host ? `, ${e.card.host}` : ''}`);
    const s = e.alive ? e.last : null;
    const gpu = s ? [f.known(s.gpu) ? f.percent(s.gpu) : '',
      f.known(s.watts) ? `${f.count(s.watts)} W` : ''].filter(Boolean).join(', ') : '';
    setText(row.querySelector('.engine-load'), s
      ? `${f.count(s.running)} running, ${f.count(s.waiting)} waiting${gpu ? ` · GPU ${gpu}` : ''}`
      : '');
    meter(row.querySelector('.meter'), e, s);
    const used = s ? s.kvUsed.reduce((a, b) => a + b, 0) : NaN;
    setText(row.querySelector('.engine-kv'), s && e.pages > 0
      ? `${f.percent(used / e.pages)} of ${f.bytes(e.pages * e.pageBytes)}${
        s.kvHost > 0 ? ` · ${f.bytes(s.kvHost)} of prefixes in host memory` : ''}${
        s.kvFiles > 0 ? ` · ${f.bytes(s.kvFiles)} of prefixes in files` : ''}${
        s.kvLoses ? ' · KV policy loses answers' : ''}` : '');
    setText(row.querySelector('.engine-weights'), e.alive ? weights(e.card) : '');
  });
}

// What the checkpoint holds, and what it costs: "Weights 12.8 GiB (16 bits: 38.9
// GiB) · MXFP4 4.25 bits".
function weights(card) {
  const bytes = Number(card.weights_bytes);
  const full = 2 * Number(card.parameters);
  if (!(bytes > 0)) return '';
  return `Weights ${f.bytes(bytes)}${
    full > bytes * 1.05 ? ` (16 bits: ${f.bytes(full)})` : ''}${
    card.weights ? ` · ${card.weights}` : ''}`;
}

// The pool as a bar, level by level.
function meter(el, e, s) {
  const items = !s || !(e.pages > 0) ? [] : [...e.levels
    .map((name, l) => ({ name, colour: levelColour(name),
      part: (s.kvUsed[l] || 0) / e.pages })),
  { name: 'prefixes', colour: 'var(--kept)', part: (s.kvCached || 0) / e.pages }]
    .filter((i) => i.part > 0);
  rows(el, items, (i) => i.name, () => make('i', {}), (i, item) => {
    i.style.width = `${(item.part * 100).toFixed(2)}%`;
    i.style.background = item.colour;
    i.title = `${item.name}: ${f.percent(item.part)}`;
  });
}

// ---- recent requests --------------------------------------------------------

// The whole saving of one request: what it holds, in its place of FP16.
function ratioBar(v) {
  const bar = make('span', { class: 'ratio', 'aria-hidden': 'true' }, make('i', {}));
  bar.firstElementChild.style.width = `${Math.min(100, v.ratio * 100)}%`;
  return bar;
}

export function requests(fleet, picked, model, all) {
  const known = fleet.recent().filter((r) => (!picked || r.engine === picked)
    && (!model || r.model === model)).slice(0, RECENT);
  $('requests-card').hidden = fleet.local;
  const list = known.slice(0, all ? RECENT : FEW).map((r) => view(r, fleet));
  $('requests-empty').hidden = list.length > 0;
  $('requests-more').hidden = known.length <= FEW;
  setText($('requests-more'), all ? 'Show fewer' : `Show ${known.length}`);
  rows($('requests'), list, (v) => v.id, (v) => make('tr', {},
    make('th', { scope: 'row' }, make('a', { class: 'mono',
      href: `#/requests/${encodeURIComponent(v.id)}` }, v.id.slice(0, 8))),
    make('td', {}, badge(v.state)), make('td', { class: 'wide' }),
    make('td', { class: 'num' }), make('td', { class: 'num wide' }),
    make('td', { class: 'num' }), make('td', { class: 'num wide' }),
    make('td', { class: 'num' }), make('td', { class: 'num kv-cell' })),
  (row, v) => {
    const [, state, engine, age, prompt, output, first, took, held] = row.children;
    setBadge(state.firstElementChild, v.state);
    setData(row, 'final', String(v.final));
    setText(engine, v.engine);
    setText(age, f.age(v.age));
    setText(prompt, f.count(v.prompt));
    setText(output, f.count(v.output));
    setText(first, f.duration(v.ttft));
    setText(took, f.duration(v.duration));
    const text = f.known(v.ratio) ? v.ratio.toFixed(2) : f.DASH;
    if (held.dataset.ratio !== text) {
      held.dataset.ratio = text;
      held.replaceChildren(...(f.known(v.ratio) ? [ratioBar(v)] : []),
        make('span', {}, text));
    }
  });
}

// ---- one request ------------------------------------------------------------

// The phases that it went through, with their ends; the last may still run.
function phases(v, now) {
  const end = f.known(v.finished) ? v.finished : v.final ? NaN : now;
  const marks = [['queued', v.created], ['prefill', v.started],
    ['decode', v.first]].filter(([, t]) => f.known(t));
  return marks.map(([name, from], i) => {
    const to = i + 1 < marks.length ? marks[i + 1][1] : end;
    return { name, from, to, took: to - from };
  }).filter((p) => p.took >= 0);
}

export function request(box, raw, fleet, trouble) {
  const back = make('p', {}, make('a', { href: '#/', class: 'back' }, '← All requests'));
  if (!raw) {
    box.replaceChildren(make('section', { class: 'card' }, back,
      make('h2', {}, 'Request'), make('p', { class: 'empty' }, trouble || 'Loading …')));
    return;
  }
  const v = view(raw, fleet);
  const parts = phases(v, fleet.now);
  const total = parts.reduce((sum, p) => sum + p.took, 0);
  const line = make('div', { class: 'timeline' });
  const names = make('ol', { class: 'phases' });
  for (const p of parts) {
    const bar = make('i', { class: `phase ${p.name}` });
    bar.style.flexGrow = String(Math.max(p.took, total / 200));
    line.append(bar);
    names.append(make('li', {}, make('span', { class: `swatch phase ${p.name}`,
      'aria-hidden': 'true' }), make('span', {}, p.name), make('b', {}, f.duration(p.took)),
    make('span', { class: 'fine' }, `from ${f.clock(p.from)}`)));
  }
  if (v.final) {
    names.append(make('li', {}, badge(v.state), make('b', {}, f.duration(total)),
      make('span', { class: 'fine' }, f.known(v.finished) ? `at ${f.clock(v.finished)}` : '')));
  }
  box.replaceChildren(make('section', { class: 'card' }, back,
    make('div', { class: 'title' }, make('h2', { class: 'mono' }, v.id), badge(v.state)),
    v.error ? make('p', { class: 'alert', 'data-level': 'bad' },
      [raw.error_status, v.error].filter(Boolean).join(': ')) : null,
    trouble ? make('p', { class: 'alert', 'data-level': 'warn' }, trouble) : null,
    make('h3', {}, 'Timeline'), line, names,
    ...shares(v), make('h3', {}, 'Facts'), facts(v)));
}

// What its cache holds: while it runs, as of the last second.
function shares(v) {
  const out = [make('h3', {}, v.final ? 'KV cache at its end' : 'KV cache now')];
  if (!f.known(v.ratio)) {
    out.push(make('p', { class: 'empty' }, v.final ? 'No figures.'
      : 'No figures yet: they come with its output.'));
    return out;
  }
  out.push(make('p', {}, make('b', {}, `${f.bytes(v.held)} instead of ${f.bytes(v.full)}`),
    v.full >= v.held * 1.05 ? `, ${f.times(v.full / v.held)} less than FP16` : ''));
  const counted = v.tokens.every(f.known);
  const bar = make('div', { class: 'share' });
  const names = make('ul', { class: 'phases' });
  const parts = counted ? [['full', v.tokens[0], 'at 16 bits'],
    ['high', v.tokens[1], 'at the best level'], ['low', v.tokens[2], 'at a lower one'],
    ['pruned', v.tokens[3], 'not kept']]
    : [['high', v.high, 'kept at the best level'], ['low', v.low, 'kept at a lower one'],
      ['pruned', v.pruned, 'not kept']];
  for (const [name, value, words] of parts) {
    if (!f.known(value)) continue;
    const i = make('i', { class: `kept ${name}`, hidden: !(value > 0) });
    i.style.flexGrow = String(value);
    bar.append(i);
    names.append(make('li', {}, make('span', { class: `swatch kept ${name}`,
      'aria-hidden': 'true' }), make('span', {}, words),
    make('b', {}, counted ? `${f.count(value)} tokens` : f.percent(value, 1))));
  }
  out.push(bar, names);
  return out;
}

function facts(v) {
  const r = v.raw;
  const per = v.output > 1 && f.known(v.finished) && f.known(v.first)
    ? (v.finished - v.first) / (v.output - 1) : NaN;
  const list = [
    ['Model', v.model], ['Engine', v.engine], ['Endpoint', r.endpoint],
    ['X-Request-Id', r.request_id], ['Arrived', f.known(v.created)
      ? new Date(v.created).toLocaleString('sv-SE') : ''],
    ['Time to first token', f.duration(v.ttft)],
    ['Time per output token', f.duration(per)],
    ['Prompt', tokens(v.prompt, r.cached_tokens)],
    ['Output', tokens(v.output)], ['Choices', r.choices],
    ['Finish reason', r.finish_reason], ['Preemptions', r.preemptions],
    ['KV policy', r.kv_policy],
    ['Resumable', r.resumable === '1' ? 'yes' : 'no'],
    ['State as JSON', `GET /v1/requests/${v.id}`],
  ];
  const dl = make('dl', { class: 'facts' });
  for (const [name, value] of list) {
    if (!value || value === f.DASH) continue;
    dl.append(make('dt', {}, name), make('dd', {}, value));
  }
  return dl;
}

function tokens(n, cached) {
  if (!f.known(n)) return '';
  return `${f.count(n)} tokens${Number(cached) > 0 ? `, ${f.count(Number(cached))} of them cached` : ''}`;
}

// ---- what is wrong ----------------------------------------------------------

export function alerts(fleet, stream) {
  const list = [];
  if (stream === 'lost') {
    list.push(['bad', 'No connection to NGINX. The figures below are the last that came; trying again.']);
  } else if (fleet.redis === 'away') {
    list.push(['bad', `Redis is away${fleet.reason ? ` (${fleet.reason})` : ''}. Serving goes on without it; `
      + 'the figures below are the last that came.']);
  } else if (fleet.up) {
    for (const e of fleet.sorted()) {
      const state = engineState(e, fleet);
      if (state === 'gone' && !e.seen) {
        list.push(['bad', `Engine ${e.name} is not connected.`]);
      } else if (state === 'gone' && fleet.now - e.seen < MOURN) {
        list.push(['bad', `Engine ${e.name} has gone. Its last heartbeat was at ${f.clock(e.seen)}.`]);
      } else if (state === 'failed') {
        list.push(['bad', `Engine ${e.name} has failed.`]);
      }
    }
    if (fleet.local) {
      list.push(['note', 'These are the engines of this NGINX, since this page was opened. '
        + 'With a Redis (tokenring_redis here, redis in engine.conf) it also shows the past '
        + 'hour, requests and what became of them, and the engines of other hosts.']);
    } else if (fleet.engines.size === 0) {
      list.push(['warn', 'No engine has written to Redis yet.']);
    }
  }
  // No text that changes by itself: it is read out when it does.
  rows($('alerts'), list, (a) => a[1], (a) =>
    make('p', { class: 'alert', 'data-level': a[0] }, a[1]), () => {});
}
