'use strict';
//
// Run from a fresh clone, a test says what to do first, in one line, instead of
// failing over what is not there yet.

const fs = require('node:fs');
const path = require('node:path');

const ROOT = path.resolve(__dirname, '../../..');

// what: [[file, the command that makes it], ...]; ends the process.
function ready(what) {
  const missing = what.filter(([file]) => !fs.existsSync(file));
  if (missing.length === 0) return;
  const files = missing.map(([file]) => path.relative(ROOT, file)
    .replace(/node_modules\/.*/, 'node_modules')).join(', ');
  const commands = [...new Set(missing.map(([, command]) => command))].sort()
    .reverse();
  console.error(`Not there yet: ${files}. Run first, in the repository's `
    + `folder: ${commands.join(' && ')}`);
  process.exit(1);
}

module.exports = { ready };
