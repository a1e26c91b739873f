'use strict';
//
// Runs compare.py: our Jinja and Python's give the same texts and refusals.

const { test } = require('node:test');
const assert = require('node:assert/strict');
const path = require('node:path');
const { spawnSync } = require('node:child_process');
const { ready } = require('../e2e/lib/ready');

const ROOT = path.resolve(__dirname, '../..');
const BUILD = path.resolve(ROOT, process.env.B || 'build');
// Debian's own: jinja2 is a Debian package of it
const PYTHON = process.env.PYTHON || '/usr/bin/python3';

ready([[path.join(BUILD, 'tests/jinja_render'), 'make unit']]);

test('templates render as with Python\'s jinja2', t => {
  const packages = spawnSync(path.join(__dirname, 'packages.sh'),
                             { encoding: 'utf8' });
  const run = spawnSync(PYTHON, [path.join(__dirname, 'compare.py')], {
    encoding: 'utf8', maxBuffer: 1 << 28, env: { ...process.env, B: BUILD },
  });

  for (const line of `${packages.stdout}${run.stdout}`.trim().split('\n')) {
    t.diagnostic(line);
  }
  assert.equal(run.status, 0, run.stdout + run.stderr);
});
