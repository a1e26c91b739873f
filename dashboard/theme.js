// Light or dark, before anything is drawn: what was chosen here, else what the
// system prefers.  Not a module, since those run after the first paint.
'use strict';
(function () {
  let choice = null;
  try {
    choice = localStorage.getItem('tokenring-theme');
  } catch {
    // No storage: the system's preference then.
  }
  if (choice === 'light' || choice === 'dark') {
    document.documentElement.dataset.theme = choice;
  }
}());
