'use strict';

// Checks the documentation: each link in a tracked .md file leads to a file
// that is there, each #anchor to a heading of that file, and each path that the
// text names (tests/e2e/lib/stack.js, engine/kv/*) to something in the tree.
// A function that the text names (`tr_loop_submit`) is somewhere in the sources.
// Prints what does not hold; addresses on the web are not looked at.
//
//   node scripts/check-links.js [FILE...]    all .md files, or these

const fs = require('fs');
const path = require('path');
const { execFileSync } = require('child_process');

const root = path.join(__dirname, '..');
const tracked = execFileSync('git', ['ls-files', '-z'], { cwd: root })
  .toString().split('\0').filter((f) => f && fs.existsSync(
    path.join(root, f)));
const tops = ['cli', 'conf', 'dashboard', 'docker', 'docs', 'engine', 'include',
  'kernels', 'mk', 'models', 'ngx_module', 'scripts', 'tests'];
const named = new RegExp(
  `(?<![\\w./:~-])(?:${tops.join('|')})/[\\w./*-]*[\\w/*]`, 'g');
// What the CHANGELOG tells of was there at its time.
const history = ['CHANGELOG.md'];
const known = new Set();
for (const file of tracked.filter((f) => /\.(c|h|cu|cuh)$/.test(f))) {
  for (const [word] of fs.readFileSync(path.join(root, file), 'utf8')
    .matchAll(/\b(?:tr|ngx_http_tokenring)_\w+/g)) known.add(word);
}

// Whether the tree has PATH, a file or a folder; * stands for any characters.
function exists(name) {
  const clean = name.replace(/\/$/, '');
  if (!clean.includes('*')) {
    return tracked.some((f) => f === clean || f.startsWith(`${clean}/`));
  }
  const shape = new RegExp(`^${clean.split('*').map((s) => s
    .replace(/[.+?^${}()|[\]\\]/g, '\\$&')).join('[^/]*')}(/|$)`);
  return tracked.some((f) => shape.test(f));
}

// The anchors of a page, as GitHub makes them of its headings.
function anchors(text) {
  const seen = new Map();
  return new Set(text.replace(/^```[\s\S]*?^```/gm, '').split('\n')
    .filter((line) => /^#{1,6} /.test(line)).map((line) => {
      const slug = line.replace(/^#+ +/, '').toLowerCase()
        .replace(/[^\p{L}\p{N} _-]/gu, '').replace(/ /g, '-');
      const n = seen.get(slug) || 0;
      seen.set(slug, n + 1);
      return n ? `${slug}-${n}` : slug;
    }));
}

function check(file) {
  const text = fs.readFileSync(path.join(root, file), 'utf8');
  let fenced = false;
  text.split('\n').forEach((line, i) => {
    const say = (what) => console.log(`${file}:${i + 1}: ${what}`);
    if (/^```/.test(line)) fenced = !fenced;
    if (fenced) return;
    const prose = line.replace(/`[^`]*`/g, '');
    for (const [, target] of prose.matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^[a-z]+:/.test(target)) continue;
      const [to, anchor] = target.split('#');
      const page = to === '' ? file : path.join(path.dirname(file), to);
      if (!exists(page)) say(`no ${page}`);
      else if (anchor && !anchors(fs.readFileSync(path.join(root, page),
        'utf8')).has(anchor)) say(`no heading #${anchor} in ${page}`);
    }
    if (history.includes(file)) return;
    const words = line.replace(/\]\([^)]*\)/g, ']');
    for (const [name] of words.matchAll(named)) {
      if (!/[A-Z]{3}/.test(path.basename(name, '.md')) && !exists(name)) {
        say(`no ${name}`);
      }
    }
    for (const [, name] of line.matchAll(
      /`((?:tr|ngx_http_tokenring)_\w+)`/g)) {
      if (!known.has(name)) say(`no ${name} in the sources`);
    }
  });
}

const files = process.argv.length > 2 ? process.argv.slice(2) : tracked;
files.filter((f) => f.endsWith('.md')).forEach(check);
