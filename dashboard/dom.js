// Elements without HTML: every text goes through a text node, so that no model
// name or request id can become markup.

// make('td', {class: 'num'}, 'text', child, ...)
export function make(tag, attributes = {}, ...children) {
  const el = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    el.setAttribute(key, value === true ? '' : String(value));
  }
  el.append(...children.filter((c) => c !== null && c !== undefined));
  return el;
}

export function $(id) {
  return document.getElementById(id);
}

// Touching nothing when nothing changed keeps selections, and readers quiet.
export function setText(el, text) {
  if (el.textContent !== text) el.textContent = text;
}

export function setData(el, key, value) {
  if (el.dataset[key] !== value) el.dataset[key] = value;
}

// A row for each item, kept from one update to the next by its key.
// item -> key(item); create(item) makes the row, update(row, item) fills it.
export function rows(parent, items, key, create, update) {
  const old = new Map();
  for (const row of [...parent.children]) {
    // Two items had one key: the second one's row is made anew.
    if (old.has(row.dataset.key)) row.remove();
    else old.set(row.dataset.key, row);
  }
  let at = parent.firstElementChild;
  for (const item of items) {
    const k = key(item);
    let row = old.get(k);
    old.delete(k);
    if (!row) {
      row = create(item);
      row.dataset.key = k;
    }
    if (row === at) {
      at = at.nextElementSibling;
    } else {
      parent.insertBefore(row, at);
    }
    update(row, item);
  }
  for (const row of old.values()) row.remove();
}
