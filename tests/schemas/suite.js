'use strict';
//
// JSON-Schema-Test-Suite against our grammars: an instance is accepted if and
// only if it is valid, or the schema is one that we refuse, and then it stands
// in refusals.json; or the test is in exceptions.json, with the reason.
//
//   node suite.js [--update] [--verbose]     SUITE=DIR B=DIR
//
// An object's keys may come in any order in a test; ours are those of the
// schema.  So an instance counts as accepted when one of its orders is.

const fs = require('fs');
const path = require('path');
const { spawnSync } = require('child_process');

const ROOT = path.resolve(__dirname, '../..');
const BUILD = path.resolve(ROOT, process.env.B || 'build');
const SUITE = process.env.SUITE;
const DRAFTS = { 'draft2020-12': undefined,
  draft7: 'http://json-schema.org/draft-07/schema#' };
const ORDERS = 720;

// All orders of the keys of all objects in a value, as texts; at most ORDERS.
function orders(value) {
  if (Array.isArray(value)) {
    return product(value.map(orders)).map((list) => `[${list.join(',')}]`);
  }
  if (value === null || typeof value !== 'object') {
    return [JSON.stringify(value)];
  }
  const keys = Object.keys(value);
  const members = keys.map((key) => orders(value[key])
    .map((text) => `${JSON.stringify(key)}:${text}`));
  const out = [];
  for (const order of permutations(keys.map((_, i) => i))) {
    for (const list of product(order.map((i) => members[i]))) {
      out.push(`{${list.join(',')}}`);
      if (out.length >= ORDERS) return out;
    }
  }
  return out;
}

function product(lists) {
  return lists.reduce((all, list) => all.flatMap((head) =>
    list.map((item) => [...head, item])).slice(0, ORDERS), [[]]);
}

function permutations(list) {
  if (list.length > 6) return [list];
  if (list.length < 2) return [list];
  return list.flatMap((x, i) => permutations(
    [...list.slice(0, i), ...list.slice(i + 1)]).map((p) => [x, ...p]));
}

function groups() {
  const out = [];
  for (const [draft, uri] of Object.entries(DRAFTS)) {
    const folder = path.join(SUITE, 'tests', draft);
    for (const file of fs.readdirSync(folder).sort()) {
      if (!file.endsWith('.json')) continue;
      const list = JSON.parse(fs.readFileSync(path.join(folder, file)));
      for (const group of list) {
        let schema = group.schema;
        if (uri && schema && typeof schema === 'object'
            && !schema.$schema) {
          schema = { $schema: uri, ...schema };
        }
        out.push({ draft, file: file.replace('.json', ''), group, schema });
      }
    }
  }
  return out;
}

function run(jobs) {
  const lines = jobs.map((job) => JSON.stringify(job)).join('\n');
  const child = spawnSync(process.env.DRIVER
    || path.join(BUILD, 'tests/grammar_driver'), ['--bytes'],
  { input: `${lines}\n`, maxBuffer: 1 << 30, encoding: 'utf8' });
  if (child.status !== 0) {
    throw new Error(`grammar_driver: ${child.status} ${child.signal} `
      + child.stderr);
  }
  return child.stdout.trim().split('\n').map((line) => JSON.parse(line));
}

function main() {
  const update = process.argv.includes('--update');
  const known = JSON.parse(fs.readFileSync(path.join(__dirname,
    'refusals.json')));
  const exceptions = JSON.parse(fs.readFileSync(path.join(__dirname,
    'exceptions.json')));
  const all = groups();
  const jobs = all.map(({ schema, group }) => ({ kind: 'schema', flags: 1,
    text: JSON.stringify(schema),
    texts: group.tests.flatMap((test) => orders(test.data)) }));
  const answers = run(jobs);
  const refused = {};
  const counts = { schemas: all.length, refused: 0, tests: 0, wrong: 0,
    exceptions: 0 };
  const wrong = [];

  all.forEach(({ draft, file, group }, i) => {
    const answer = answers[i];
    const name = `${file}: ${group.description}`;
    if (answer.error !== undefined) {
      counts.refused++;
      // nothing valid: to say so at once is right, too
      if (/no text could match/.test(answer.error)
          && group.tests.every((test) => !test.valid)) return;
      const why = answer.error.replace(/^Invalid schema for field 'test': /,
        '');
      (refused[draft] = refused[draft] || {})[name] = why;
      return;
    }
    let at = 0;
    for (const test of group.tests) {
      const n = orders(test.data).length;
      const got = answer.accepts.slice(at, at + n).some(Boolean);
      at += n;
      counts.tests++;
      if (got === test.valid) continue;
      const reason = exceptions[`${name}: ${test.description}`]
        || exceptions[name] || exceptions[file];
      if (reason) {
        counts.exceptions++;
        continue;
      }
      counts.wrong++;
      wrong.push(`${draft} ${name}: ${test.description}: `
        + `${JSON.stringify(test.data)} valid ${test.valid}, accepted ${got}`);
    }
  });
  if (update) {
    fs.writeFileSync(path.join(__dirname, 'refusals.json'),
      `${JSON.stringify(refused, null, 1)}\n`);
  } else {
    for (const draft of Object.keys(DRAFTS)) {
      const [a, b] = [refused[draft] || {}, known[draft] || {}];
      for (const name of new Set([...Object.keys(a), ...Object.keys(b)])) {
        if (a[name] !== b[name]) {
          wrong.push(`${draft} ${name}: refused with ${a[name]}, `
            + `the list says ${b[name]}`);
        }
      }
    }
  }
  for (const line of wrong) console.log(line);
  console.log(JSON.stringify(counts));
  process.exitCode = wrong.length ? 1 : 0;
}

if (require.main === module) main();
module.exports = { run, orders };
