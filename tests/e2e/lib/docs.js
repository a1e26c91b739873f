'use strict';
//
// Fenced blocks of a document: {title, language, mark, text, line}.  title is
// the heading above; of "```nginx weights", nginx is the language and weights the
// mark.  note is what a comment "<!-- ... -->" in the line above says.

const fs = require('node:fs');
const path = require('node:path');

const ROOT = path.resolve(__dirname, '../../..');

function blocks(file) {
  const out = [];
  let title = '';
  let block = null;
  let before = '';
  for (const [i, line] of fs.readFileSync(path.join(ROOT, file), 'utf8')
    .split('\n').entries()) {
    if (/^```/.test(line)) {
      if (block) {
        out.push(block);
        block = null;
      } else {
        const [language = '', ...mark] = line.slice(3).trim().split(' ');
        const note = /^<!-- (.*) -->$/.exec(before);
        block = { file, title, language, mark: mark.join(' '), text: '',
          line: i + 1, note: note ? note[1] : '' };
      }
    } else if (block) {
      block.text += `${line}\n`;
    } else if (/^#+ /.test(line)) {
      title = line.replace(/^#+ /, '');
    }
    if (!block) before = line;
  }
  return out;
}

const PAGES = ['README.md', ...fs.readdirSync(path.join(ROOT, 'docs'))
  .filter((name) => name.endsWith('.md')).map((name) => `docs/${name}`)];

module.exports = { ROOT, PAGES, blocks };
