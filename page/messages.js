// Messages as elements.  What people and models wrote goes through text nodes
// (dom.js, markdown.js).

import { make, setText } from './dom.js';
import { count } from './format.js';
import { render } from './markdown.js';

// A pasted or chosen document, folded.
function document_(doc) {
  return make('details', { class: 'document' },
    make('summary', {}, make('b', {}, doc.name),
      make('span', { class: 'fine' }, size(doc.text))),
    make('pre', { tabindex: 0 }, doc.text));
}

export function size(text) {
  const words = (text.match(/\S+/g) || []).length;
  return `${count(words)} words`;
}

export function user(message) {
  const text = make('div', { class: 'words' }, message.text);
  return make('li', { class: 'message user' },
    make('span', { class: 'hidden' }, 'You:'),
    ...message.docs.map(document_), message.text ? text : null);
}

// An answer: think(more) and add(more) as it grows, then close(trouble).  What the
// model reasoned is open until its answer begins.
export class Answer {
  constructor() {
    this.text = '';
    this.body = make('div', { class: 'answer', 'aria-busy': 'true' });
    this.note = make('span', { class: 'fine' });
    this.waits = make('p', { class: 'waits' }, make('i'), make('i'), make('i'),
      make('span', { class: 'hidden' }, 'The model reads.'));
    this.foot = make('div', { class: 'foot' }, this.note);
    this.el = make('li', { class: 'message model' },
      make('span', { class: 'hidden' }, 'Answer:'), this.waits, this.body, this.foot);
    this.pending = 0;
  }

  begun() {
    if (this.waits) this.waits.remove();
    this.waits = null;
  }

  think(more) {
    this.begun();
    if (!this.thought) {
      this.thought = make('pre', { tabindex: 0 });
      this.thinking = make('details', { class: 'document thinking', open: true },
        make('summary', {}, make('b', {}, 'Reasoning')), this.thought);
      this.body.before(this.thinking);
    }
    this.thought.append(more);
    this.thought.scrollTop = this.thought.scrollHeight;
    if (this.grown) this.grown();
  }

  add(more) {
    this.begun();
    if (this.thinking && !this.text) this.thinking.open = false;
    this.text += more;
    if (!this.pending) {
      this.pending = requestAnimationFrame(() => this.show());
    }
  }

  show() {
    this.pending = 0;
    render(this.body, this.text);
    if (this.grown) this.grown();
  }

  say(text) {
    setText(this.note, text);
  }

  // trouble: an error's words, or ''
  close(trouble) {
    cancelAnimationFrame(this.pending);
    this.show();
    this.begun();
    this.body.removeAttribute('aria-busy');
    if (trouble) this.body.after(make('p', { class: 'alert', 'data-level': 'bad', role: 'alert' }, trouble));
    this.foot.prepend(
      this.text ? make('button', { class: 'link', type: 'button', 'data-copy': 'answer' }, 'Copy') : '',
      make('button', { class: 'link', type: 'button', 'data-again': true }, 'Try again'));
  }
}

// navigator.clipboard is there in secure contexts alone.
export async function copy(text, button) {
  const said = button.textContent;
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = make('textarea', { class: 'hidden', readonly: true });
    box.value = text;
    document.body.append(box);
    box.select();
    done = document.execCommand('copy');
    box.remove();
    button.focus();
  }
  setText(button, done ? 'Copied' : 'Not copied');
  setTimeout(() => setText(button, said), 1500);
}
