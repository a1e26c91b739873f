// Numbers as people read them.  What is not known is a dash, never a zero.

export const DASH = '–';

const whole = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });

export function known(x) {
  return typeof x === 'number' && Number.isFinite(x);
}

export function count(x) {
  return known(x) ? whole.format(x) : DASH;
}

// Three significant digits at most, so that columns stay narrow.
export function short(x) {
  if (!known(x)) return DASH;
  const a = Math.abs(x);
  if (a >= 1e6) return `${(x / 1e6).toFixed(a < 1e7 ? 2 : 1)}M`;
  if (a >= 1e4) return `${(x / 1e3).toFixed(1)}k`;
  if (a >= 100 || Number.isInteger(x)) return whole.format(x);
  return x.toFixed(1);
}

export function bytes(x) {
  if (!known(x)) return DASH;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  let v = x;
  while (Math.abs(v) >= 1024 && unit < units.length - 1) {
    v /= 1024;
    unit++;
  }
  const digits = unit === 0 || Math.abs(v) >= 100 ? 0 : Math.abs(v) >= 10 ? 1 : 2;
  return `${v.toFixed(digits)} ${units[unit]}`;
}

// Of milliseconds.
export function duration(ms) {
  if (!known(ms) || ms < 0) return DASH;
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${ms.toFixed(0)} ms`;
  if (ms < 10000) return `${(ms / 1000).toFixed(2)} s`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  const s = Math.round(ms / 1000);
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}

// How long ago, in whole units: it is read at a glance.
export function age(ms) {
  if (!known(ms)) return DASH;
  const s = Math.max(0, ms) / 1000;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

export function percent(x, digits = 0) {
  return known(x) ? `${(x * 100).toFixed(digits)}%` : DASH;
}

export function times(x) {
  return known(x) ? `${x.toFixed(x < 9.95 ? 1 : 0)}×` : DASH;
}

export function clock(ms, seconds = true) {
  return new Date(ms).toLocaleTimeString('en-GB', seconds
    ? { hour: '2-digit', minute: '2-digit', second: '2-digit' }
    : { hour: '2-digit', minute: '2-digit' });
}

// Marks of an axis: as short as they go.
export function tick(v) {
  if (v >= 1e6) return `${+(v / 1e6).toFixed(2)}M`;
  if (v >= 1e3) return `${+(v / 1e3).toFixed(2)}k`;
  return `${+v.toFixed(2)}`;
}

export function tickBytes(v) {
  if (v === 0) return '0';
  const [number, unit] = bytes(v).split(' ');
  return `${Number(number)} ${unit}`;
}

export function tickTime(ms) {
  if (ms === 0) return '0';
  return ms >= 1000 ? `${+(ms / 1000).toFixed(2)} s` : `${+ms.toFixed(2)} ms`;
}
