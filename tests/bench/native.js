'use strict';
//
// Runs a benchmark that is a program of its own and, with --json FILE, keeps
// its figures and its table with command, commit and hardware, as the other
// benchmarks do.  Other options are passed on to it.

const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { BUILD, ROOT, save } = require('./lib.js');

function runProgram(program, title) {
  const args = process.argv.slice(2);
  const at = args.indexOf('--json');
  const file = at < 0 ? null : args.splice(at, 2)[1];
  const figures = path.join(os.tmpdir(), `tokenring-${program}-${process.pid}.json`);
  const script = path.relative(ROOT, process.argv[1]);

  const run = spawnSync(path.join(BUILD, 'bench', program),
    [...args, '--json', figures],
    { cwd: ROOT, encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] });
  process.stdout.write(run.stdout || '');
  if (run.status === 0 && file) {
    save(file, title, [`node ${script}`, ...process.argv.slice(2)].join(' '),
      run.stdout, JSON.parse(fs.readFileSync(figures, 'utf8')));
  }
  fs.rmSync(figures, { force: true });
  process.exit(run.status ?? 1);
}

module.exports = { runProgram };
