'use strict';
//
// Debian's chromium, driven by playwright-core.  A page that is opened here
// remembers everything that must not happen: errors in the console, exceptions,
// violations of its policy, requests to another host.

const { chromium } = require('playwright-core');
const { PATIENCE } = require('./stack');

const CHROMIUM = process.env.TR_CHROMIUM || '/usr/bin/chromium';
const PHONE = { width: 390, height: 844 };
const DESK = { width: 1280, height: 900 };

class Browser {
  static async start() {
    const browser = new Browser();
    // Nothing but the pages under test: no updates, no synchronisation.
    browser.process = await chromium.launch({
      executablePath: CHROMIUM, headless: true, args: ['--no-sandbox',
        '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-sync',
        '--disable-background-networking', '--disable-component-update'],
    });
    return browser;
  }

  // expected: of what is said in the console while a server is away.
  async open(url, { viewport = DESK, scheme = 'light', ...more } = {}) {
    const context = await this.process.newContext({ viewport,
      colorScheme: scheme, reducedMotion: 'reduce', ...more });
    context.setDefaultTimeout(60000 * PATIENCE);
    const page = await context.newPage();
    page.complaints = [];
    page.foreign = [];
    const { host } = new URL(url);
    page.on('console', (m) => {
      if (m.type() === 'error' || m.type() === 'warning') {
        page.complaints.push(m.text());
      }
    });
    page.on('pageerror', (e) => page.complaints.push(String(e)));
    page.on('request', (r) => {
      const to = new URL(r.url());
      if (to.protocol !== 'data:' && to.host !== host) page.foreign.push(r.url());
    });
    await page.addInitScript(() => {
      window.violations = [];
      document.addEventListener('securitypolicyviolation', (e) =>
        window.violations.push(`${e.violatedDirective} ${e.blockedURI}`));
    });
    await page.goto(url);
    return page;
  }

  async stop() { await this.process.close(); }
}

// Waits until the page, asked by test(argument), says something true.
function when(page, test, argument, seconds = 60) {
  return page.waitForFunction(test, argument,
    { timeout: seconds * 1000 * PATIENCE, polling: 100 });
}

const live = (page) => when(page,
  () => document.documentElement.dataset.live === 'true');

module.exports = { Browser, PHONE, DESK, when, live };
