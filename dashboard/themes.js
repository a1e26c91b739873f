// The button that switches between light and dark.  theme.js has set what was
// chosen before; without a choice the system's preference holds.

import { setText } from './dom.js';

const root = document.documentElement;
const dark = window.matchMedia('(prefers-color-scheme: dark)');

function isDark() {
  return root.dataset.theme ? root.dataset.theme === 'dark' : dark.matches;
}

// changed() is called now, and whenever the colours are others.
export function themeButton(button, changed) {
  const show = () => {
    setText(button, isDark() ? 'Light' : 'Dark');
    button.setAttribute('aria-label',
      `Switch to the ${isDark() ? 'light' : 'dark'} theme`);
    changed();
  };
  button.addEventListener('click', () => {
    root.dataset.theme = isDark() ? 'light' : 'dark';
    try {
      localStorage.setItem('tokenring-theme', root.dataset.theme);
    } catch {
      // It holds until the page is left.
    }
    show();
  });
  dark.addEventListener('change', show);
  show();
}
