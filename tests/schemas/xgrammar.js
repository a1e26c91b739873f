'use strict';
//
// The same EBNF in XGrammar (npm @mlc-ai/web-xgrammar) and here: along random
// answers the masks over the vocabulary of models/pocket are equal.
//
//   node xgrammar.js      XGRAMMAR=DIR of the npm package, B=DIR

const fs = require('fs');
const os = require('os');
const path = require('path');
const { spawnSync } = require('child_process');

const ROOT = path.resolve(__dirname, '../..');
const BUILD = path.resolve(ROOT, process.env.B || 'build');
const PACKAGE = process.env.XGRAMMAR
  || path.join(ROOT, 'build/schemas/node_modules/@mlc-ai/web-xgrammar');
const STEPS = 14;
const WALKS = 6;

const grammars = [
  'root ::= "a" | "ab" | [c-f]+ "x"?',
  'root ::= item ("," " "? item)*\nitem ::= [a-z]+ "=" [0-9]{1,3}',
  'root ::= "(" root ")" | "[" root "]" | "x"',
  'root ::= ([^"\\\\\\n] | "\\\\" [n"])* "\\""',
  'root ::= sentence+\nsentence ::= word (" " word)* ". "\nword ::= [A-Za-z]+',
  'root ::= expr\nexpr ::= term (("+" | "-") term)*\n'
    + 'term ::= [0-9]+ | "(" expr ")"',
  'root ::= obj\nobj ::= "{" (pair ("," pair)*)? "}"\n'
    + 'pair ::= str ":" val\nval ::= obj | str | [0-9]+\n'
    + 'str ::= "\\"" [a-zA-Z ]* "\\""',
];

// Bytes that no UTF-8 has: XGrammar lets [^..] begin with them.
const NEVER = /[\u00c0\u00c1\u00f5-\u00ff]/;

// The package is one UMD file, which Node takes as CommonJS by its name alone.
function load() {
  const file = path.join(fs.mkdtempSync(path.join(os.tmpdir(), 'xgrammar-')),
    'xgrammar.cjs');
  fs.copyFileSync(path.join(PACKAGE, 'lib/index.js'), file);
  return require(file);
}

function vocabulary() {
  const json = JSON.parse(fs.readFileSync(path.join(ROOT,
    'models/pocket/tokenizer.json')));
  const words = [];
  const special = new Set();
  for (const [word, id] of Object.entries(json.model.vocab)) {
    words[id] = word;
    if (NEVER.test(word)) special.add(id);
  }
  for (const token of json.added_tokens) {
    words[token.id] = token.content;
    if (token.special) special.add(token.id);
  }
  return { words, special };
}

// A small generator, so that walks are the same each time.
function random(seed) {
  let x = seed * 2654435761 % 4294967296;
  return (n) => {
    x = (x * 1664525 + 1013904223) % 4294967296;
    return Math.floor(x / 4294967296 * n);
  };
}

async function main() {
  const xg = load();
  const { words, special } = vocabulary();
  const end = words.length; // a stop token of our own, as grammar_driver has
  const info = await xg.TokenizerInfo.createTokenizerInfo([...words, '</end>'],
    'byte_level', false, end + 1, [end]);
  const compiler = await xg.GrammarCompiler.createGrammarCompiler(info);
  const allowed = (mask, id) => (mask[id >> 5] >>> (id & 31) & 1) === 1;
  let compared = 0;
  const wrong = [];
  for (const [number, grammar] of grammars.entries()) {
    const compiled = await compiler.compileGrammar(grammar);
    const theirs = [];
    const prefixes = [];
    for (let w = 0; w < WALKS; w++) {
      const matcher = await xg.GrammarMatcher.createGrammarMatcher(compiled);
      const draw = random(number * WALKS + w + 1);
      const tokens = [];
      for (let i = 0; i < STEPS; i++) {
        const mask = await matcher.getNextTokenBitmask();
        const choices = [];
        for (let id = 0; id < end; id++) {
          if (!special.has(id) && allowed(mask, id)) choices.push(id);
        }
        theirs.push({ choices, end: allowed(mask, end) });
        prefixes.push([...tokens]);
        if (choices.length === 0) break;
        tokens.push(choices[draw(choices.length)]);
        matcher.acceptToken(tokens[tokens.length - 1]);
      }
      matcher.dispose();
    }
    const child = spawnSync(path.join(BUILD, 'tests/grammar_driver'),
      [path.join(ROOT, 'models/pocket')],
      { input: `${JSON.stringify({ kind: 'ebnf', text: grammar,
        tokens: prefixes })}\n`, maxBuffer: 1 << 28, encoding: 'utf8' });
    if (child.status !== 0) {
      throw new Error(`grammar_driver: ${child.status} ${child.signal} `
        + child.stderr);
    }
    const { masks, error } = JSON.parse(child.stdout);
    if (error) throw new Error(`${grammar}: ${error}`);
    masks.forEach((hex, i) => {
      const ours = [];
      const bit = (id) => parseInt(hex.substr((id >> 5) * 8, 8), 16)
        >>> (id & 31) & 1;
      for (let id = 0; hex && id < end; id++) {
        if (!special.has(id) && bit(id)) ours.push(id);
      }
      compared++;
      if (!hex || ours.join() !== theirs[i].choices.join()
          || (bit(end) === 1) !== theirs[i].end) {
        const a = ours.filter((id) => !theirs[i].choices.includes(id));
        const b = theirs[i].choices.filter((id) => !ours.includes(id));
        wrong.push(`${JSON.stringify(grammar)} behind `
          + `${JSON.stringify(prefixes[i].map((id) => words[id]).join(''))}: `
          + `only ours ${JSON.stringify(a.slice(0, 5).map((id) => words[id]))}`
          + `, only theirs `
          + `${JSON.stringify(b.slice(0, 5).map((id) => words[id]))}`);
      }
    });
  }
  for (const line of wrong.slice(0, 20)) console.log(line);
  console.log(JSON.stringify({ compared, wrong: wrong.length }));
  process.exitCode = wrong.length ? 1 : 0;
}

main();
