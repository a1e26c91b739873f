// The KV cache of the conversation, beside it: how much memory is held and what
// 16 bits would take, tokens by how exactly they are kept, and how both grew
// with the conversation.  All of it comes from the usage that the
// server sends along with the text (docs/api.md).

import { $, make, rows, setData, setText } from './dom.js';
import { DASH, count, duration, known, percent, times } from './format.js';

const SVG = 'http://www.w3.org/2000/svg';
const KINDS = ['full', 'high', 'low', 'pruned'];
const POINTS = 400;
// What the picture looks like before there are figures: [tokens, held, full].
const SKETCH = [[1, 25, 100]];

const number = (x) => (typeof x === 'number' && Number.isFinite(x) ? x : NaN);

// Two amounts in the larger one's unit: ['4.9', '12.1', 'MiB'].
export function pair(a, b) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (Math.max(a, b) >= 1024 ** (unit + 1) && unit < units.length - 1) unit++;
  const show = (x) => {
    const v = x / 1024 ** unit;
    return v.toFixed(unit === 0 || v >= 100 ? 0 : v >= 1 ? 1 : 2);
  };
  return [show(a), show(b), units[unit]];
}

// What a usage says of the cache; NaN and null where it says nothing.
export function figures(usage) {
  const kv = usage.kv_cache || null;
  const total = number(usage.total_tokens);
  const out = { tokens: total, held: NaN, full: NaN, kinds: null, policy: '' };
  if (!kv) return out;
  out.held = number(kv.bytes);
  out.full = number(kv.fp16_bytes);
  out.policy = typeof kv.policy === 'string' ? kv.policy : '';
  if (kv.tokens && typeof kv.tokens === 'object') {
    out.kinds = Object.fromEntries(KINDS.map((k) => [k, number(kv.tokens[k]) || 0]));
  } else if (known(number(kv.share_high))) {
    // Older servers: shares, at the end.
    out.kinds = { full: 0 };
    for (const k of KINDS.slice(1)) {
      out.kinds[k] = Math.round((number(kv[`share_${k}`]) || 0) * total);
    }
  }
  return out;
}

// "3,100 tokens: 4.9 MiB instead of 12.1"
export function sentence(f) {
  const words = `${count(f.tokens)} tokens`;
  if (!(f.held > 0 && f.full > 0)) return words;
  const [held, full, unit] = pair(f.held, f.full);
  return `${words}: ${held} ${unit} instead of ${full}`;
}

// What each kind is called, with the bits where the policy's name has them.
function names(policy) {
  const levels = (/levels=([\d/+]+)/.exec(policy) || [])[1];
  const of = (i) => {
    const level = levels ? levels.split('+')[i] : '';
    return level ? level.split('/').join('-bit keys, ') + '-bit values' : '';
  };
  return { full: ['16 bits', ''], high: ['High precision', of(0)],
    low: ['Low precision', of(1)], pruned: ['Dropped', ''] };
}

// ---- the picture ------------------------------------------------------------

function draw(tag, attributes, ...children) {
  const el = document.createElementNS(SVG, tag);
  for (const [k, v] of Object.entries(attributes)) el.setAttribute(k, v);
  el.append(...children);
  return el;
}

// Memory over tokens: the line of 16 bits, and under it what is held.  Up to
// the end of the first prompt there are no figures: the lines are broken.
class Picture {
  constructor(box) {
    this.box = box;
    this.points = [];
    this.saved = draw('path', { class: 'saved' });
    this.area = draw('path', { class: 'held-area' });
    this.held = draw('path', { class: 'held-line' });
    this.full = draw('path', { class: 'full-line' });
    this.before = [draw('path', { class: 'full-line before' }),
      draw('path', { class: 'held-line before' })];
    this.base = draw('path', { class: 'base-line' });
    this.dots = [draw('circle', { class: 'full-dot', r: 3.5 }),
      draw('circle', { class: 'held-dot', r: 3.5 })];
    this.words = [draw('text', { class: 'full-word' }, 'at 16 bits'),
      draw('text', { class: 'held-word' }, 'held'),
      draw('text', { class: 'tokens-word', 'text-anchor': 'end' })];
    const tile = draw('pattern', { id: 'hatch', width: 6, height: 6,
      patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' },
    draw('rect', { class: 'hatch-ground', width: 6, height: 6 }),
    draw('path', { class: 'hatch-line', d: 'M0 0V6' }));
    this.svg = draw('svg', { role: 'img', 'aria-label': 'Memory as the conversation grows' },
      draw('defs', {}, tile), this.base, this.saved, this.area, ...this.before,
      this.full, this.held, ...this.dots, ...this.words);
    box.append(this.svg);
    new ResizeObserver(() => this.show()).observe(box);
  }

  clear() {
    this.points = [];
    this.show();
  }

  add(tokens, held, full) {
    // A conversation holds more the longer it is.  What does not fit that was a
    // prompt before it was compressed, or an answer that was taken back.
    while (this.points.length) {
      const last = this.points[this.points.length - 1];
      if (last[0] < tokens && last[1] <= held) break;
      this.points.pop();
    }
    this.points.push([tokens, held, full]);
    if (this.points.length > POINTS) {
      this.points = this.points.filter((p, i) =>
        i % 2 === 0 || i > this.points.length - 3);
    }
    this.show();
  }

  show() {
    const w = this.box.clientWidth;
    const h = this.box.clientHeight;
    if (w < 120 || h < 60) return;
    const some = this.points.length > 0;
    const points = some ? this.points : SKETCH;
    const right = w - 66;
    const bottom = h - 20;
    const last = points[points.length - 1];
    const most = Math.max(1, ...points.map((p) => Math.max(p[1], p[2]))) * 1.04;
    const x = (t) => 1 + (right - 1) * (last[0] ? t / last[0] : 0);
    const y = (v) => bottom - (bottom - 8) * (v / most);
    const line = (i) => points.map((p) =>
      `L${x(p[0]).toFixed(1)} ${y(p[i]).toFixed(1)}`).join('');
    const back = (i) => [...points].reverse().map((p) =>
      `L${x(p[0]).toFixed(1)} ${y(p[i]).toFixed(1)}`).join('');
    const start = `M1 ${bottom}`;
    this.svg.setAttribute('viewBox', `0 0 ${w} ${h}`);
    this.svg.dataset.some = String(some);
    this.base.setAttribute('d', `M0 ${bottom + .5}H${right}`);
    this.full.setAttribute('d', line(2).replace('L', 'M'));
    this.held.setAttribute('d', line(1).replace('L', 'M'));
    for (const [i, path] of this.before.entries()) {
      path.setAttribute('d', `${start}L${x(points[0][0])} ${y(points[0][2 - i])}`);
    }
    this.area.setAttribute('d', `${start}${line(1)}L${right} ${bottom}Z`);
    this.saved.setAttribute('d', `${start}${line(2)}${back(1)}Z`);
    let upper = y(last[2]);
    let lower = y(last[1]);
    this.dots[0].setAttribute('cx', right);
    this.dots[0].setAttribute('cy', upper);
    this.dots[1].setAttribute('cx', right);
    this.dots[1].setAttribute('cy', lower);
    // Names beside the ends of the lines, never one on the other.
    const near = 16 - Math.abs(lower - upper);
    if (near > 0) {
      const sign = lower >= upper ? 1 : -1;
      upper -= sign * near / 2;
      lower += sign * near / 2;
    }
    for (const [i, at] of [upper, lower].entries()) {
      this.words[i].setAttribute('x', right + 10);
      this.words[i].setAttribute('y', at + 4);
    }
    this.words[2].setAttribute('x', right);
    this.words[2].setAttribute('y', h - 4);
    this.words[2].textContent = some ? `${count(last[0])} tokens` : '';
  }
}

// ---- the panel --------------------------------------------------------------

export class Memory {
  constructor() {
    this.picture = new Picture($('picture'));
    this.last = null;
    this.bars = [$('tiers'), $('brief-tiers')];
    for (const bar of this.bars) {
      for (const k of KINDS) bar.append(make('i', { class: `kept ${k}`, hidden: true }));
    }
    $('memory-brief').addEventListener('click', () => {
      const open = $('memory').classList.toggle('open');
      $('memory-brief').setAttribute('aria-expanded', String(open));
      this.picture.show();
    });
    this.clear();
  }

  clear() {
    this.last = null;
    this.picture.clear();
    setData($('memory'), 'state', 'empty');
    setText($('brief'), 'The KV cache of this conversation');
    setText($('held'), DASH);
    setText($('instead'), 'What the model keeps in memory to remember what was said, '
      + 'and what it would take at 16 bits.');
    this.tiers(null, '');
    rows($('facts'), [], (x) => x, () => make('dt'), () => {});
    setText($('memory-note'), '');
  }

  // A turn begins, under this policy.
  begin(policy) {
    if (policy !== this.policy) this.picture.clear();
    this.policy = policy;
    this.live = false;
    setData($('memory'), 'state', 'live');
  }

  // more: {length of the context, rate in tokens/s, first in ms, policy}
  update(usage, more) {
    const f = figures(usage);
    this.last = f;
    if (f.held > 0 && f.full > 0) {
      const [held, full, unit] = pair(f.held, f.full);
      const ratio = f.full / f.held;
      $('held').replaceChildren(held, make('small', {}, unit));
      $('instead').replaceChildren('instead of ', make('b', {}, `${full} ${unit}`),
        ' at 16 bits', make('span', {}, ratio >= 1.05
          ? `${count(f.tokens)} tokens, ${times(ratio)} less`
          : `${count(f.tokens)} tokens`));
      this.picture.add(f.tokens, f.held, f.full);
    } else if (known(f.tokens) && !this.live) {
      setText($('held'), count(f.tokens));
      $('instead').replaceChildren('tokens of this conversation');
    }
    this.live = this.live || f.held > 0;
    setText($('brief'), sentence(f));
    this.tiers(f.kinds, f.policy);
    this.facts(f, more);
    setText($('memory-note'), f.held > 0 && f.held >= f.full * 0.95 && f.tokens < 400
      ? 'A short text fills its pages only in part. Savings begin at some hundred tokens.'
      : '');
  }

  end(usage, more) {
    if (usage) this.update(usage, more);
    setData($('memory'), 'state', this.last ? 'known' : 'empty');
    if (usage && !usage.kv_cache) {
      setText($('memory-note'), 'This server does not tell what its KV cache holds.');
    }
  }

  tiers(kinds, policy) {
    const sum = kinds ? KINDS.reduce((n, k) => n + kinds[k], 0) : 0;
    for (const bar of this.bars) {
      KINDS.forEach((k, i) => {
        const el = bar.children[i];
        const n = kinds ? kinds[k] : 0;
        el.hidden = !(n > 0);
        el.style.flexGrow = String(sum > 0 ? n / sum : 0);
      });
    }
    const words = names(policy);
    rows($('kinds'), KINDS, (k) => k, (k) => make('tr', {},
      make('th', { scope: 'row' },
        make('span', { class: `swatch kept ${k}`, 'aria-hidden': 'true' }),
        make('span', {}), make('span', { class: 'fine' })),
      make('td', {}), make('td', {})), (row, k) => {
      setText(row.firstElementChild.children[1], words[k][0]);
      setText(row.firstElementChild.children[2], words[k][1]);
      setText(row.children[1], kinds ? count(kinds[k]) : DASH);
      setText(row.children[2], sum > 0 ? percent(kinds[k] / sum) : '');
    });
  }

  facts(f, more) {
    const policy = (f.policy || more.policy || '');
    const list = [
      ['Policy', policy.split(':')[0], policy],
      ['Context', more.length > 0 && known(f.tokens)
        ? `${count(f.tokens)} of ${count(more.length)}` : '', ''],
      ['Speed', known(more.rate) ? `${count(more.rate)} tokens/s` : '', ''],
      ['First token', known(more.first) ? `after ${duration(more.first)}` : '', ''],
    ].filter(([, value]) => value);
    rows($('facts'), list, (l) => l[0], (l) => make('div', {},
      make('dt', {}, l[0]), make('dd', {})), (row, l) => {
      setText(row.lastElementChild, l[1]);
      if (row.lastElementChild.title !== l[2]) row.lastElementChild.title = l[2];
    });
  }
}
