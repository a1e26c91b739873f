'use strict';
//
// What a token of plain streams takes in the engine of this build, over that of
// another one: CPU time of the whole process, and instructions.  Nobody asks
// for tools, schemas, ids or log probabilities.
//
// CPU time: both engines run all the time, and get the same load by turns, so that
// what else the machine does meets both; the ratio is taken within a pair of turns.
// Pairs are taken until the standard error of their mean is small enough.  With
// one thread an engine does not spin beside others.
//
// Instructions: valgrind counts them, and they do not depend on what else the
// machine does.  Of two runs, one with twice the tokens; the difference is what
// tokens take.  CPUs with AVX-512 show their kernels of AVX2 there.

const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const lib = require('./lib.js');

const usage = `Usage: node tests/bench/before.js --before BUILD [options]
  --before BUILD    build folder of the other commit, with engine and cli
  --count WHAT      time (default) or instructions
  --backend NAME    cpu (default) or null
  --streams N       streams at once (default 16)
  --tokens N        of each stream in a turn (default 60)
  --error P         time: percent that the standard error is to be (default 0.1)
  --turns N         time: pairs of turns at most (default 2000)
  --seconds S       time: no pair begins after so long (default 600)
  --now KEY=VALUE   a setting that only this build has (load_format=copy)
`;
const options = lib.options({ before: '', count: 'time', backend: 'cpu',
  streams: 16, tokens: 60, error: 0.1, turns: 2000,
  seconds: 600, now: '' }, usage);
const WARM = 3;

async function startSide(dir, name, build, extra, wrap) {
  const side = { name, build, socket: path.join(dir, `${name}.sock`),
    log: path.join(dir, `${name}.log`) };
  const conf = path.join(dir, `${name}.conf`);
  const settings = { model: lib.POCKET, socket: side.socket, socket_mode: '0600',
    backend: options.backend, threads: 1, kv_policy: 'full', kv_memory: '256m',
    ...(options.backend === 'null' ? { null_rate: 100000 } : {}), ...extra };
  fs.writeFileSync(conf, Object.entries(settings)
    .map(([key, value]) => `${key} ${value}\n`).join(''));
  const command = [...wrap, path.join(build, 'bin/tokenring-engine'), '-c', conf];
  side.child = await lib.start(command[0], command.slice(1), side.log,
    () => lib.connects(side.socket));
  return side;
}

// The load, of so many tokens a stream.
function load(side, tokens) {
  const run = spawnSync(path.join(side.build, 'bin/tokenring'), ['bench',
    '-e', side.socket, '-c', options.streams, '-N', options.streams,
    '-P', 8, '-O', tokens].map(String), { encoding: 'utf8' });
  if (!run.stdout.includes(`${options.streams} good, 0 bad`)) {
    throw new Error(`${side.name}: ${run.stdout}${run.stderr}`);
  }
  return options.streams * tokens;
}

// ns of CPU for each token of a turn.
function turn(side) {
  const before = lib.sum(lib.cpuNs(side.child.pid));
  const tokens = load(side, options.tokens);
  return (lib.sum(lib.cpuNs(side.child.pid)) - before) / tokens;
}

function mean(values) {
  const m = lib.sum(values) / values.length;
  const v = lib.sum(values.map((x) => (x - m) ** 2)) / (values.length - 1);
  return { mean: m, error: Math.sqrt(v / values.length) };
}

// Without the tenth that lies farthest from the middle on each side: turns that
// something else met.
function trimmed(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const cut = Math.floor(sorted.length / 10);
  return mean(sorted.slice(cut, sorted.length - cut));
}

async function time(dir, builds, extra) {
  const [before, now] = [await startSide(dir, 'before', builds[0], {}, []),
    await startSide(dir, 'now', builds[1], extra, [])];
  const ratios = [], took = { before: [], now: [] };
  const end = Date.now() + 1000 * options.seconds;
  let so = { mean: NaN, error: Infinity };
  for (let i = 0; i < options.turns + WARM && Date.now() < end; i++) {
    const ns = {};
    for (const side of i % 2 ? [before, now] : [now, before]) {
      ns[side.name] = turn(side);
    }
    if (i < WARM) continue;
    ratios.push(ns.before / ns.now);
    for (const name of Object.keys(took)) took[name].push(ns[name]);
    if (ratios.length >= 30) so = trimmed(ratios);
    if (100 * so.error <= options.error) break;
  }
  console.log(`${options.streams} streams, backend ${options.backend}: `
    + `${(lib.median(took.before) / 1000).toFixed(2)} us of CPU a token before, `
    + `${(lib.median(took.now) / 1000).toFixed(2)} now; tokens for the same CPU `
    + `time, now over before: ${so.mean.toFixed(4)} +- ${so.error.toFixed(4)} `
    + `(${ratios.length} pairs of turns)`);
  await lib.stop(before.child);
  await lib.stop(now.child);
}

// Instructions of a whole run.
async function counted(dir, name, build, extra, tokens) {
  const side = await startSide(dir, name, build, extra, ['valgrind',
    '--tool=callgrind', '--callgrind-out-file=/dev/null']);
  load(side, tokens);
  await lib.stop(side.child);
  return Number(/Collected : (\d+)/.exec(fs.readFileSync(side.log, 'utf8'))[1]);
}

async function instructions(dir, builds, extra) {
  const each = [];
  for (const [i, build] of builds.entries()) {
    const [once, twice] = [
      await counted(dir, `${i}-once`, build, i ? extra : {}, options.tokens),
      await counted(dir, `${i}-twice`, build, i ? extra : {}, 2 * options.tokens)];
    each.push((twice - once) / options.streams / options.tokens);
  }
  console.log(`${options.streams} streams, backend ${options.backend}: `
    + `${Math.round(each[0])} instructions a token before, `
    + `${Math.round(each[1])} now; before over now ${(each[0] / each[1]).toFixed(4)}`);
}

async function main() {
  const dir = lib.makeDir();
  const [key, value] = options.now.split('=');
  const builds = [path.resolve(options.before), lib.BUILD];
  if (!options.before) throw new Error(usage);
  await (options.count === 'time' ? time : instructions)(dir, builds,
    key ? { [key]: value } : {});
}

main().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
