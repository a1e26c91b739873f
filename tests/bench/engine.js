'use strict';
//
// Runs bench_engine and, with --json FILE, keeps its figures and its table with
// command, commit and hardware, as the other benchmarks do.  Other options are
// passed on to it.

const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { BUILD, ROOT, save } = require('./lib.js');

const args = process.argv.slice(2);
const at = args.indexOf('--json');
const file = at < 0 ? null : args.splice(at, 2)[1];
const figures = path.join(os.tmpdir(), `tokenring-engine-${process.pid}.json`);

const run = spawnSync(path.join(BUILD, 'bench/bench_engine'),
  [...args, '--json', figures],
  { cwd: ROOT, encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] });
process.stdout.write(run.stdout || '');
if (run.status === 0 && file) {
  save(file, 'Engine: prefill, decode, pages',
    ['node tests/bench/engine.js', ...process.argv.slice(2)].join(' '),
    run.stdout, JSON.parse(fs.readFileSync(figures, 'utf8')));
}
fs.rmSync(figures, { force: true });
process.exit(run.status ?? 1);
