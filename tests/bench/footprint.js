'use strict';
//
// What Tokenring costs when it does nothing: time from start to ready, resident
// memory beyond the model and the KV pool, and CPU while idle (engine, NGINX
// master and worker, with a connected channel and after real work).

const fs = require('node:fs');
const path = require('node:path');
const lib = require('./lib.js');

const usage = `Usage: node tests/bench/footprint.js [options]
  --idle S      seconds of idling (default 10)
  --starts N    engine starts to time (default 5)
  --json FILE   write the results there, and a table beside them (.md)
`;
const options = lib.options({ idle: 10, starts: 5, json: '' }, usage);

const KV_MIB = 256;

function status(pid, key) {
  const text = fs.readFileSync(`/proc/${pid}/status`, 'utf8');
  return Number(text.match(new RegExp(`^${key}:\\s+(\\d+)`, 'm'))[1]) / 1024;
}

// utime + stime in clock ticks (1/100 s).
function ticks(pid) {
  const stat = fs.readFileSync(`/proc/${pid}/stat`, 'utf8');
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return Number(fields[11]) + Number(fields[12]);
}

// What is resident of the KV pool: of mappings at least as large as it.  Pages
// of it that no token ever needed are not.
function kvResidentMib(pid) {
  let size = 0;
  let resident = 0;
  for (const line of fs.readFileSync(`/proc/${pid}/smaps`, 'utf8').split('\n')) {
    const [, key, kib] = line.match(/^(Size|Rss): +(\d+) kB/) || [];
    if (key === 'Size') size = Number(kib);
    if (key === 'Rss' && size >= KV_MIB * 1024) resident += Number(kib);
  }
  return resident / 1024;
}

function weightsMib() {
  return fs.readdirSync(lib.POCKET).filter((f) => f.endsWith('.safetensors'))
    .reduce((n, f) => n + fs.statSync(path.join(lib.POCKET, f)).size, 0)
    / 2 ** 20;
}

// A round of real requests, so that nothing is measured before it was used.
async function work(port) {
  const ask = () => fetch(`http://127.0.0.1:${port}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'pocket', max_tokens: 32,
      messages: [{ role: 'user', content: 'Tell me a story about a fox.' }] }),
  }).then(async (res) => {
    const text = await res.text();
    if (res.status !== 200) throw new Error(`HTTP ${res.status}: ${text}`);
  });
  await Promise.all(Array.from({ length: 16 }, ask));
}

async function idle(processes) {
  const look = () => Object.fromEntries(Object.entries(processes).map(
    ([name, pid]) => [name, { ns: lib.sum(lib.cpuNs(pid)), ticks: ticks(pid) }]));
  await lib.sleep(1000);
  const before = look();
  await lib.sleep(options.idle * 1000);
  const after = look();
  return Object.fromEntries(Object.keys(processes).map((name) => [name, {
    ticks: after[name].ticks - before[name].ticks,
    usPerSecond: (after[name].ns - before[name].ns) / 1e3 / options.idle,
  }]));
}

async function main() {
  const readyMs = [];
  for (let i = 0; i < options.starts; i++) {
    const engine = await lib.startEngine(lib.makeDir(),
      { kv_memory: `${KV_MIB}m` });
    readyMs.push(engine.readyMs);
    await lib.stop(engine);
  }
  const dir = lib.makeDir();
  const engine = await lib.startEngine(dir, { kv_memory: `${KV_MIB}m` });
  const nginx = await lib.startNginx(dir, 'nginx', {
    main: process.env.TR_MODULE === 'static' ? ''
      : `load_module ${lib.MODULE};`,
    http: `  tokenring_engine main unix:${engine.socket};`,
    location: 'tokenring_pass main;',
  });
  await lib.waitHealthy(nginx.port);
  await work(nginx.port);
  const rss = status(engine.pid, 'VmRSS');
  const model = weightsMib();
  const kv = kvResidentMib(engine.pid);
  const resident = { rssMib: rss, modelMib: model, kvMib: KV_MIB,
    kvResidentMib: kv, restMib: rss - model - kv, peakMib: status(engine.pid, 'VmHWM'),
    workerMib: status(nginx.worker, 'VmRSS') };
  const idling = await idle({ engine: engine.pid, 'nginx worker': nginx.worker,
    'nginx master': nginx.pid });
  await lib.stop(nginx, 'SIGQUIT');
  await lib.stop(engine);

  const ready = lib.median(readyMs);
  const text = [
    `engine start to ready             ${ready.toFixed(0)} ms `
      + `(median of ${readyMs.length})  ${held(ready <= 1000, 'under 1 s')}`,
    `engine resident                   ${rss.toFixed(1)} MiB = model `
      + `${model.toFixed(1)} + ${kv.toFixed(1)} of the KV pool's ${KV_MIB} + `
      + `${resident.restMib.toFixed(1)}  `
      + held(resident.restMib <= 64, 'rest at most 64 MiB'),
    ...Object.entries(idling).map(([name, i]) =>
      `idle ${options.idle} s, ${name}`.padEnd(34)
      + `${i.ticks} ticks, ${i.usPerSecond.toFixed(1)} us/s  `
      + held(i.ticks <= 1, 'none')),
  ].join('\n');
  process.stdout.write(`${text}\n`);
  if (options.json) {
    lib.save(path.resolve(options.json), 'Footprint: start, memory, idle CPU',
      `node tests/bench/footprint.js ${process.argv.slice(2).join(' ')}`.trim(),
      `${text}\n`, { readyMs, resident, idle: idling });
  }
}

function held(yes, target) {
  return `target ${target}: ${yes ? 'held' : 'MISSED'}`;
}

main().catch((error) => {
  process.stderr.write(`${error.message}\n`);
  process.exit(1);
});
