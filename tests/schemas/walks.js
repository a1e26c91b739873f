'use strict';
//
// Random walks over masks: whatever a grammar lets a model write and end, two
// validators that nobody here wrote accept: ajv, and Python's jsonschema.
//
//   node walks.js      SCHEMAS=DIR B=DIR WALKS=5 EVERY=1
//
// SCHEMAS: a folder of schemas, or of files {"schema": ...} as jsonschemabench's
// maskbench/data has them.  EVERY=20 takes each twentieth file.  A validator may
// not take a schema: such are counted as skipped.  Fails when one of them has
// checked nothing.

const fs = require('fs');
const path = require('path');
const { spawnSync } = require('child_process');

const ROOT = path.resolve(__dirname, '../..');
const BUILD = path.resolve(ROOT, process.env.B || 'build');
const AJV = path.join(ROOT, 'tests/e2e/node_modules/ajv');
const Ajv7 = require(AJV);
const Ajv2020 = require(path.join(AJV, 'dist/2020'));

const WALKS = Number(process.env.WALKS || 5);
const EVERY = Number(process.env.EVERY || 1);

function load() {
  const dir = process.env.SCHEMAS;
  return fs.readdirSync(dir).filter((name) => name.endsWith('.json')).sort()
    .filter((_, i) => i % EVERY === 0)
    .map((name) => {
      const json = JSON.parse(fs.readFileSync(path.join(dir, name)));
      return { name, schema: json.schema === undefined ? json : json.schema };
    });
}

function drive(list) {
  const jobs = list.map(({ schema }, i) => JSON.stringify({ kind: 'schema',
    flags: 1, text: JSON.stringify(schema), walks: WALKS, seed: i + 1,
    steps: 400, bias: 0.5 }));
  const child = spawnSync(path.join(BUILD, 'tests/grammar_driver'),
    [path.join(ROOT, 'models/pocket')], { input: `${jobs.join('\n')}\n`,
      maxBuffer: 1 << 30, encoding: 'utf8' });
  if (child.status !== 0) {
    throw new Error(`grammar_driver: ${child.status} ${child.signal} `
      + child.stderr);
  }
  return child.stdout.trim().split('\n').map((line) => JSON.parse(line));
}

const BESIDE = ['type', 'enum', 'const', 'properties', 'required', 'not',
  'additionalProperties', 'patternProperties', 'minProperties',
  'maxProperties', 'items', 'minItems', 'maxItems', 'uniqueItems', 'minLength',
  'maxLength', 'pattern', 'format', 'minimum', 'maximum', 'exclusiveMinimum',
  'exclusiveMaximum', 'multipleOf', 'anyOf', 'oneOf', 'allOf'];

// Up to draft 7 nothing counts beside a $ref, which ajv does not know any more.
function alone(schema) {
  if (Array.isArray(schema)) return schema.map(alone);
  if (schema === null || typeof schema !== 'object') return schema;
  const drop = typeof schema.$ref === 'string' ? BESIDE : [];
  return Object.fromEntries(Object.entries(schema)
    .filter(([key]) => !drop.includes(key)).map(([key, value]) =>
      [key, key === 'enum' || key === 'const' ? value : alone(value)]));
}

// undefined: ajv does not take the schema.
function checker(schema) {
  const Ajv = /2020-12|2019-09/.test(schema.$schema || '') ? Ajv2020 : Ajv7;
  const { $schema, id, $id, ...rest } = schema;
  try {
    return new Ajv({ strict: false, validateFormats: false, logger: false,
      validateSchema: false }).compile(
        /draft-0[3-7]/.test($schema || '') ? alone(rest) : rest);
  } catch (e) {
    return undefined;
  }
}

const PYTHON = `
import json, sys
import jsonschema

# White space to a pattern's \\s, of which Python does not know this one.
def spaced(value):
    if isinstance(value, str):
        return value.replace('\\ufeff', ' ')
    if isinstance(value, list):
        return [spaced(v) for v in value]
    if isinstance(value, dict):
        return {spaced(k): spaced(v) for k, v in value.items()}
    return value

for line in sys.stdin:
    job = json.loads(line)
    schema = job['schema']
    wrong = []
    try:
        cls = jsonschema.validators.validator_for(
            schema, default=jsonschema.Draft202012Validator)
        checker = cls(schema)
        for text in job['texts']:
            error = next(checker.iter_errors(spaced(json.loads(text))), None)
            if error is not None:
                wrong.append([text, error.message[:200]])
    except Exception as e:
        print(json.dumps({'skipped': str(e)[:100]}))
        continue
    print(json.dumps({'wrong': wrong}))
`;

function python(list) {
  const input = list.map((job) => JSON.stringify(job)).join('\n');
  const child = spawnSync(process.env.PYTHON || '/usr/bin/python3',
    ['-W', 'ignore', '-c', PYTHON],
    { input: `${input}\n`, maxBuffer: 1 << 30, encoding: 'utf8' });
  if (child.status !== 0) throw new Error(child.stderr);
  return child.stdout.trim().split('\n').map((line) => JSON.parse(line));
}

const list = load();
const answers = drive(list);
const counts = { schemas: list.length, refused: 0, finished: 0, cut: 0,
  ajv: 0, python: 0, skippedByAjv: 0, skippedByPython: 0 }; // schemas
const wrong = [];
const jobs = [];
answers.forEach((answer, i) => {
  const { name, schema } = list[i];
  if (answer.walks === undefined) {
    counts.refused++;
    return;
  }
  if (answer.error) wrong.push(`${name}: ${answer.error}`);
  counts.finished += answer.walks.length;
  counts.cut += answer.cut;
  const check = checker(schema);
  if (!check) counts.skippedByAjv++;
  for (const text of check ? answer.walks : []) {
    let value;
    try {
      value = JSON.parse(text);
    } catch (e) {
      wrong.push(`${name}: no JSON: ${text}`);
      continue;
    }
    counts.ajv++;
    if (!check(value)) {
      wrong.push(`${name}: ajv: ${JSON.stringify(check.errors[0])}: ${text}`);
    }
  }
  jobs.push({ name, schema, texts: answer.walks });
});
python(jobs).forEach((answer, i) => {
  for (const [text, error] of answer.wrong || []) {
    wrong.push(`${jobs[i].name}: jsonschema: ${error}: ${text}`);
  }
  if (answer.wrong) counts.python += jobs[i].texts.length;
  else counts.skippedByPython++;
});
for (const line of wrong.slice(0, 40)) console.log(line.slice(0, 600));
console.log(JSON.stringify(counts));
if (counts.ajv === 0 || counts.python === 0) {
  console.log('walks.js: nothing was checked');
  process.exitCode = 1;
}
if (wrong.length) process.exitCode = 1;
