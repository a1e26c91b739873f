// Answers of a model as elements: paragraphs, headings, lists, quotes, tables,
// code.  Every text goes through a text node and nothing is ever parsed as HTML;
// links are made for http and https alone.  Blocks that have not changed keep
// their elements, so that a selection survives while an answer grows.

import { make } from './dom.js';

const DEEPEST = 6;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^( {0,12})([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const ROW = /^\s*\|.*\|\s*$/;
const DIVIDER = /^\s*\|(?:\s*:?-+:?\s*\|)+\s*$/;

// ---- blocks -----------------------------------------------------------------

function begins(lines, i) {
  const line = lines[i];
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line)
    || ITEM.test(line) || QUOTE.test(line)
    || (ROW.test(line) && DIVIDER.test(lines[i + 1] || ''));
}

// A block is its kind and the lines that it stands on: [kind, from, to).
function blockAt(lines, i) {
  const line = lines[i];
  let to = i + 1;
  const fence = FENCE.exec(line);
  if (fence) {
    const end = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}\\s*$`);
    while (to < lines.length && !end.test(lines[to])) to++;
    return ['code', i, Math.min(lines.length, to + 1)];
  }
  if (HEADING.test(line)) return ['heading', i, to];
  if (RULE.test(line)) return ['rule', i, to];
  if (QUOTE.test(line)) {
    while (to < lines.length && QUOTE.test(lines[to])) to++;
    return ['quote', i, to];
  }
  if (ROW.test(line) && DIVIDER.test(lines[i + 1] || '')) {
    while (to < lines.length && ROW.test(lines[to])) to++;
    return ['table', i, to];
  }
  if (ITEM.test(line)) {
    // Items, what is indented below them, and single blank lines between.
    while (to < lines.length && (ITEM.test(lines[to]) || /^ {2,}\S/.test(lines[to])
      || (lines[to].trim() === '' && to + 1 < lines.length
        && (ITEM.test(lines[to + 1]) || /^ {2,}\S/.test(lines[to + 1]))))) to++;
    return ['list', i, to];
  }
  while (to < lines.length && lines[to].trim() !== '' && !begins(lines, to)) to++;
  return ['text', i, to];
}

function blocks(lines) {
  const out = [];
  for (let i = 0; i < lines.length;) {
    if (lines[i].trim() === '') {
      i++;
      continue;
    }
    const [kind, from, to] = blockAt(lines, i);
    out.push({ kind, lines: lines.slice(from, to) });
    i = to;
  }
  return out;
}

// ---- inline -----------------------------------------------------------------

const INLINE = /(`+)([^`]|[^`].*?[^`])\1(?!`)|\*\*(\S(?:[^*]*\S)?)\*\*|(?<![\w*])\*([^\s*](?:[^*]*[^\s*])?)\*(?![\w*])|(?<!\w)_([^\s_](?:[^_]*[^\s_])?)_(?!\w)|\[([^[\]]+)\]\((https?:\/\/[^\s()]+)\)/g;

function inline(text, depth = 0) {
  if (depth > 3) return [text];
  const out = [];
  let at = 0;
  for (const m of text.matchAll(INLINE)) {
    if (m.index > at) out.push(text.slice(at, m.index));
    at = m.index + m[0].length;
    if (m[1]) {
      out.push(make('code', {}, m[2]));
    } else if (m[3]) {
      out.push(make('strong', {}, ...inline(m[3], depth + 1)));
    } else if (m[4] || m[5]) {
      out.push(make('em', {}, ...inline(m[4] || m[5], depth + 1)));
    } else {
      out.push(make('a', { href: m[7], rel: 'noopener noreferrer nofollow',
        target: '_blank', title: m[7] }, m[6]));
    }
  }
  if (at < text.length) out.push(text.slice(at));
  return out;
}

// ---- elements ---------------------------------------------------------------

function list(lines, depth) {
  const [, indent, mark] = ITEM.exec(lines[0]);
  const ordered = /\d/.test(mark);
  const el = make(ordered ? 'ol' : 'ul', {
    start: ordered && parseInt(mark, 10) !== 1 ? parseInt(mark, 10) : null });
  let item = null;
  const close = () => {
    if (!item) return;
    // What is below an item is a text of its own, less its indentation.
    const margin = Math.min(...item.filter((l) => l.trim())
      .slice(1).map((l) => /^ */.exec(l)[0].length), 99);
    const rest = item.slice(1).map((l) => l.slice(margin));
    const first = [];
    while (rest.length && rest[0].trim() !== '' && !begins(rest, 0)) {
      first.push(rest.shift());
    }
    el.append(make('li', {}, ...inline([item[0], ...first].join('\n')),
      ...blocks(rest).map((b) => element(b, depth + 1))));
  };
  for (const line of lines) {
    const m = ITEM.exec(line);
    if (m && m[1].length < indent.length + 2) {
      close();
      item = [m[3]];
    } else {
      item.push(line);
    }
  }
  close();
  return el;
}

function table(lines) {
  const cells = (line) => line.trim().slice(1, -1).split('|').map((c) => c.trim());
  const row = (line, tag) => make('tr', {}, ...cells(line)
    .map((c) => make(tag, tag === 'th' ? { scope: 'col' } : {}, ...inline(c))));
  return make('div', { class: 'wide-table', tabindex: 0 }, make('table', {},
    make('thead', {}, row(lines[0], 'th')),
    make('tbody', {}, ...lines.slice(2).map((l) => row(l, 'td')))));
}

function code(lines) {
  const [, fence, language] = FENCE.exec(lines[0]);
  const last = lines[lines.length - 1];
  const closed = lines.length > 1 && last.trim().startsWith(fence);
  const text = lines.slice(1, closed ? -1 : undefined).join('\n');
  return make('figure', { class: 'code' },
    make('figcaption', {}, make('span', {}, language || 'text'),
      make('button', { class: 'link', type: 'button', 'data-copy': 'code' }, 'Copy')),
    make('pre', { tabindex: 0 }, make('code', {}, text)));
}

function element({ kind, lines }, depth = 0) {
  if (depth > DEEPEST) return make('p', {}, lines.join('\n'));
  switch (kind) {
    case 'code': return code(lines);
    case 'heading': {
      const [, marks, words] = HEADING.exec(lines[0]);
      return make(`h${Math.min(6, marks.length + 2)}`, {}, ...inline(words));
    }
    case 'rule': return make('hr');
    case 'quote': return make('blockquote', {}, ...blocks(lines
      .map((l) => QUOTE.exec(l)[1])).map((b) => element(b, depth + 1)));
    case 'table': return table(lines);
    case 'list': return list(lines, depth);
    default: return make('p', {}, ...inline(lines.join('\n')));
  }
}

const sources = new WeakMap();

// Makes `el` show `text`; called again and again as it grows.
export function render(el, text) {
  const parts = blocks(text.split(/\r?\n/));
  let at = el.firstElementChild;
  for (const part of parts) {
    const source = `${part.kind}\n${part.lines.join('\n')}`;
    if (at && sources.get(at) === source) {
      at = at.nextElementSibling;
      continue;
    }
    const fresh = element(part);
    sources.set(fresh, source);
    if (at) {
      at.replaceWith(fresh);
    } else {
      el.append(fresh);
    }
    at = fresh.nextElementSibling;
  }
  while (at) {
    const next = at.nextElementSibling;
    at.remove();
    at = next;
  }
}
