'use strict';
//
// docker/Dockerfile as data: stages and their steps, and what can be said of
// them without a container engine.  It reads the instructions that we use and
// refuses any other, so that nothing goes unchecked.

const fs = require('node:fs');
const path = require('node:path');

const ROOT = path.resolve(__dirname, '../..');
const FILE = path.join(ROOT, 'docker/Dockerfile');
const KNOWN = ['FROM', 'ARG', 'RUN', 'COPY', 'WORKDIR', 'USER', 'ENV', 'EXPOSE',
  'STOPSIGNAL', 'HEALTHCHECK', 'ENTRYPOINT', 'CMD'];

// [{ line, word, rest }], continuation lines joined, comments left out.
function instructions(text) {
  const out = [];
  let held = '';
  let first = 0;
  text.split('\n').forEach((raw, i) => {
    if (/^\s*#/.test(raw)) return;
    if (held === '') first = i + 1;
    if (raw.endsWith('\\')) {
      held += `${raw.slice(0, -1)} `;
      return;
    }
    const whole = (held + raw).trim();
    held = '';
    if (whole === '') return;
    const m = /^([A-Z]+)\s+([\s\S]*)$/.exec(whole);
    if (!m || !KNOWN.includes(m[1])) {
      throw new Error(`Dockerfile:${first}: cannot read "${whole}"`);
    }
    out.push({ line: first, word: m[1], rest: m[2] });
  });
  return out;
}

function copyOf(rest, line) {
  const words = rest.split(/\s+/);
  const copy = { from: null, sources: [], to: '' };
  while (words[0].startsWith('--')) {
    const m = /^--from=(\S+)$/.exec(words.shift());
    if (!m) throw new Error(`Dockerfile:${line}: an option that is not known`);
    [, copy.from] = m;
  }
  copy.to = words.pop();
  copy.sources = words;
  if (copy.sources.length === 0) {
    throw new Error(`Dockerfile:${line}: COPY without a source`);
  }
  return copy;
}

// { args, stages: [{ name, from, line, steps }] }; a step is an instruction,
// COPY with its parts in `copy`.
function parse(text = fs.readFileSync(FILE, 'utf8')) {
  const args = {};
  const stages = [];
  for (const step of instructions(text)) {
    if (step.word === 'ARG' && stages.length === 0) {
      const m = /^(\w+)=(\S+)$/.exec(step.rest);
      if (!m) throw new Error(`Dockerfile:${step.line}: ARG without a default`);
      [, , args[m[1]]] = m;
      continue;
    }
    if (step.word === 'FROM') {
      const m = /^(\S+) AS (\S+)$/.exec(step.rest);
      if (!m) throw new Error(`Dockerfile:${step.line}: FROM image AS name`);
      stages.push({
        name: m[2], line: step.line, steps: [],
        from: m[1].replace(/\$\{(\w+)\}/g, (_, name) => args[name]),
      });
      continue;
    }
    if (step.word === 'COPY') step.copy = copyOf(step.rest, step.line);
    stages.at(-1).steps.push(step);
  }
  return { args, stages };
}

// What a stage is made of: its own steps after those of the stages below.
function lineage(file, name) {
  const stage = file.stages.find((s) => s.name === name);
  if (!stage) throw new Error(`no stage "${name}" in the Dockerfile`);
  const below = file.stages.some((s) => s.name === stage.from)
    ? lineage(file, stage.from) : { image: stage.from, steps: [] };
  return { image: below.image, steps: [...below.steps, ...stage.steps] };
}

// The last of an instruction, which is the one that counts.
function last(file, name, word) {
  const steps = lineage(file, name).steps.filter((s) => s.word === word);
  return steps.length ? steps.at(-1).rest : null;
}

// A RUN line calls our scripts, make with targets that exist, or one of these.
const PLAIN = new Set(['install', 'rm']);

function lintRun(step, targets, complain) {
  for (const command of step.rest.split(/\s*(?:&&|;|\|\|)\s*/)) {
    const words = command.split(/\s+/);
    if (words[0].includes('/')) {
      const file = path.join(ROOT, words[0]);
      if (!fs.existsSync(file)) {
        complain(step, `there is no ${words[0]}`);
      } else if (!(fs.statSync(file).mode & 0o100)) {
        complain(step, `${words[0]} is not executable`);
      }
    } else if (words[0] === 'make') {
      for (const word of words.slice(1)) {
        if (/^-|=/.test(word)) continue;
        if (!targets.has(word)) complain(step, `make has no target ${word}`);
      }
    } else if (!PLAIN.has(words[0])) {
      complain(step, `"${words[0]}" belongs in a script`);
    }
  }
}

function makeTargets() {
  const files = [path.join(ROOT, 'Makefile'),
    ...fs.readdirSync(path.join(ROOT, 'mk')).map((f) =>
      path.join(ROOT, 'mk', f))];
  return new Set(files.flatMap((f) => [...fs.readFileSync(f, 'utf8')
    .matchAll(/^([a-z][a-z -]*):(?!=)/gm)].flatMap((m) => m[1].split(' '))));
}

// Lines of what is wrong; none is what one wants.
function lint(file, { finals }) {
  const bad = [];
  const complain = (at, what) => bad.push(`Dockerfile:${at.line}: ${what}`);
  const targets = makeTargets();
  const names = file.stages.map((s) => s.name);
  file.stages.forEach((stage, i) => {
    if (!names.slice(0, i).includes(stage.from)
        && !/^[\w./-]+:[\w.-]+$/.test(stage.from)) {
      complain(stage, `${stage.from} has no tag`);
    }
    if (/:latest$/.test(stage.from)) complain(stage, 'latest is no version');
    for (const step of stage.steps) {
      if (step.word === 'RUN') lintRun(step, targets, complain);
      if (step.word !== 'COPY') continue;
      if (step.copy.from) {
        if (!names.slice(0, i).includes(step.copy.from)) {
          complain(step, `no stage ${step.copy.from} before this one`);
        }
        continue;
      }
      for (const source of step.copy.sources) {
        if (!fs.existsSync(path.join(ROOT, source))) {
          complain(step, `there is no ${source}`);
        }
      }
    }
  });
  for (const name of finals) {
    const at = file.stages.find((s) => s.name === name);
    if (!at) {
      bad.push(`Dockerfile: no target ${name}`);
      continue;
    }
    const user = last(file, name, 'USER');
    if (!/^[1-9]\d*:[1-9]\d*$/.test(user || '')) {
      complain(at, `${name} runs as ${user || 'root'}, not as numbers`);
    }
    for (const word of ['HEALTHCHECK', 'ENTRYPOINT', 'STOPSIGNAL']) {
      if (last(file, name, word) === null) {
        complain(at, `${name} has no ${word}`);
      }
    }
    for (const word of ['ENTRYPOINT', 'CMD']) {
      const value = last(file, name, word);
      if (value !== null && !Array.isArray(tryJson(value))) {
        complain(at, `${word} of ${name} is not in the form of a list`);
      }
    }
  }
  return bad;
}

function tryJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

module.exports = { parse, lint, lineage, last, ROOT };
