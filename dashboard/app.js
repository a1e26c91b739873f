// The page: one stream of events in, everything redrawn once a second.

import { Fleet, FINAL, SPARSE } from './fleet.js';
import { series } from './series.js';
import { Lines, Pool } from './charts.js';
import { forget } from './palette.js';
import { $, setData, setText } from './dom.js';
import { themeButton } from './themes.js';
import * as f from './format.js';
import * as views from './views.js';

const fleet = new Fleet();
let picked = null;        // one engine's name, or all
let model = '';           // of the engines shown; empty: all
let span = 300;           // seconds shown
let all = false;          // recent requests, or the first few
let stream = 'connecting';
let opened = null;        // the request whose page is open
let detail = null;        // its hash
let trouble = '';

// ---- charts -----------------------------------------------------------------

const pool = new Pool($('chart-kv'), f.bytes);
const latency = [
  { name: 'p50', colour: 'line-strong', width: 2 },
  { name: 'p95', colour: 'line-mid' },
  { name: 'p99', colour: 'line-weak', dash: [3, 3] },
];
const charts = {
  requests: new Lines($('chart-requests'), $('keys-requests'), [
    { name: 'running', colour: 'line-strong', width: 2, fill: 'fill' },
    { name: 'waiting', colour: 'accent' }], f.count, f.tick),
  tokens: new Lines($('chart-tokens'), $('keys-tokens'), [
    { name: 'out', colour: 'line-strong', width: 2, fill: 'fill' },
    { name: 'in', colour: 'line-mid', dash: [3, 3] }], f.short, f.tick),
  ttft: new Lines($('chart-ttft'), $('keys-ttft'), latency, f.duration, f.tickTime),
  inter: new Lines($('chart-inter'), $('keys-inter'), latency, f.duration, f.tickTime),
  e2e: new Lines($('chart-e2e'), $('keys-e2e'), latency, f.duration, f.tickTime),
};
let shown = null;         // what is drawn
let recent = null;        // its last seconds, one by one: the figures of now

function drawFigures() {
  const engines = fleet.sorted().filter((e) => (!picked || e.name === picked)
    && (!model || e.model === model));
  const drawn = (seconds, step) =>
    series(engines, fleet.bounds, fleet.now, seconds, step);
  shown = drawn(span, span > 600 ? SPARSE : 1);
  recent = span > 600 ? drawn(SPARSE, 1) : shown;
  pool.show(shown, recent);
  drawKv();
  views.strip(recent, fleet);
  const show = (chart, of) => chart.show(shown.x, of(shown), of(recent));
  show(charts.requests, (s) => [s.running, s.waiting]);
  show(charts.tokens, (s) => [s.tokensOut, s.tokensIn]);
  for (const key of ['ttft', 'inter', 'e2e']) {
    show(charts[key], (s) => [s[key].p50, s[key].p95, s[key].p99]);
  }
}

function drawKv() {
  if (!shown) return;
  views.kv(shown, recent, pool, picked ? `of ${picked}` : model ? `of ${model}` : '');
}

pool.onHover = drawKv;

// Time stands still with the last figures when nothing new comes.
function draw() {
  if (document.hidden) return;
  const fed = fleet.fresh > 0;
  const live = stream === 'open' && fleet.up;
  if (live && fed && !opened) drawFigures();
  views.alerts(fleet, stream);
  if (fed) {
    if (model && !fleet.models.includes(model)) model = '';
    views.models(fleet.models, model);
    views.engines(fleet, picked, model, pick);
    views.tenants(fleet);
    views.requests(fleet, picked, model, all);
  }
  if (opened) views.request($('request-page'), detail, fleet, trouble);
  const [state, words] = stream === 'lost' ? ['bad', 'Disconnected']
    : stream !== 'open' || !fed ? ['connecting', 'Connecting']
      : fleet.local ? ['good', 'Live, this NGINX']
        : fleet.up ? ['good', 'Live'] : ['bad', 'Redis away'];
  setData($('live'), 'state', state);
  setText($('live-text'), words);
  document.documentElement.dataset.live = String(live && fed);
}

function pick(name) {
  picked = picked === name ? null : name;
  draw();
}

// ---- the stream -------------------------------------------------------------

let source = null;

// EventSource tries again by itself, but not after an error status.
function connect() {
  if (source) source.close();
  const mine = new EventSource(span > 600 ? 'events?hour' : 'events');
  source = mine;
  let pending = false;
  source.onopen = () => { stream = 'open'; };
  source.onmessage = (message) => {
    stream = 'open';
    fleet.apply(JSON.parse(message.data));
    if (pending) return;
    pending = true;
    // Many events of one snapshot are one picture.
    setTimeout(() => { pending = false; draw(); }, 30);
  };
  source.onerror = () => {
    if (source !== mine) return;
    stream = 'lost';
    draw();
    if (source.readyState === EventSource.CLOSED) {
      setTimeout(() => { if (source === mine) connect(); }, 2000);
    }
  };
}

// Ages go on, and silence shows, also without events.
setInterval(() => {
  if (stream === 'open' && fleet.fresh && Date.now() - fleet.fresh > 5000) {
    stream = 'lost';
  }
  draw();
}, 1000);

// ---- one request ------------------------------------------------------------

async function load() {
  const id = opened;
  if (!id) return;
  try {
    const res = await fetch(`requests/${id}`, { cache: 'no-store' });
    const body = res.ok ? await res.json() : null;
    if (opened !== id) return;
    if (body) {
      detail = body;
      trouble = '';
    } else {
      trouble = res.status === 404 ? 'No request of this id is in Redis (any more).'
        : 'Redis is away: what is shown may be old.';
    }
  } catch {
    if (opened === id) trouble = 'No connection to NGINX.';
  }
  draw();
}

setInterval(() => {
  if (opened && !(detail && FINAL.has(detail.state) && !trouble)) load();
}, 1000);

function route() {
  const match = /^#\/requests\/([0-9a-f]{32})$/.exec(location.hash);
  opened = match ? match[1] : null;
  detail = opened ? fleet.requests.get(opened) || null : null;
  trouble = '';
  $('fleet-page').hidden = Boolean(opened);
  $('request-page').hidden = !opened;
  $('span').hidden = Boolean(opened);
  $('model-pick').classList.toggle('away', Boolean(opened));
  document.title = opened ? `${opened.slice(0, 8)} – Tokenring` : 'Tokenring';
  window.scrollTo(0, 0);
  load();
  draw();
}

window.addEventListener('hashchange', route);
document.addEventListener('visibilitychange', draw);

// ---- span and theme ---------------------------------------------------------

$('requests-more').addEventListener('click', () => {
  all = !all;
  draw();
});

let past = false;          // the hour has been asked for
$('span').addEventListener('change', (event) => {
  span = Number(event.target.value);
  if (span > 600 && !past) {
    past = true;
    connect();
  }
  drawFigures();
});

$('model').addEventListener('change', () => {
  model = $('model').value;
  if (picked && model && fleet.engine(picked).model !== model) picked = null;
  drawFigures();
  draw();
});

themeButton($('theme'), () => {
  forget();
  pool.redraw();
  for (const chart of Object.values(charts)) chart.redraw();
  draw();
});
route();
connect();
