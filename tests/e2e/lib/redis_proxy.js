'use strict';
//
// A network between somebody and Redis, which does as it is told:
//
//   pass         what comes
//   stall        takes everything and gives nothing; stall-up and stall-down in
//                one direction only
//   half         cuts a message of some size in its middle, and the connection
//   drip         gives everything in drops of `drop` bytes
//   refuse       takes nobody
//
// cut() ends every connection that there is.  With keep, what a client gave up
// stays open on the side of Redis.

const net = require('node:net');

class Proxy {
  // redis: where it listens, {port}
  static start(redis) {
    const p = new Proxy();
    p.drop = 1;
    p.pairs = new Set();
    p.mode = 'pass';
    p.server = net.createServer((a) => p.join(a, redis));
    return new Promise((resolve) => {
      p.server.listen(0, '127.0.0.1', () => {
        p.address = `127.0.0.1:${p.server.address().port}`;
        resolve(p);
      });
    });
  }

  join(a, redis) {
    if (this.mode === 'refuse') {
      a.destroy();
      return;
    }
    const b = net.connect(redis.port, '127.0.0.1');
    a.setNoDelay(true);
    b.setNoDelay(true);
    const pair = { a, b };
    this.pairs.add(pair);
    const end = () => { a.destroy(); b.destroy(); this.pairs.delete(pair); };
    for (const [from, to, mute] of [[a, b, 'up'], [b, a, 'down']]) {
      from.on('data', (data) => {
        if (this.mode === 'stall' || this.mode === `stall-${mute}`) {
          from.pause();
          return; // and what was read is gone with the connection
        }
        if (this.mode === 'drip') {
          for (let i = 0; i < data.length; i += this.drop) {
            to.write(data.subarray(i, i + this.drop));
          }
          return;
        }
        if (this.mode === 'half' && data.length > 100) {
          to.write(data.subarray(0, data.length >> 1), end);
          return;
        }
        to.write(data);
      });
      from.on('error', () => {});
      from.on('close', () => { if (!this.keep || from === b) end(); });
    }
  }

  cut() { for (const { a, b } of [...this.pairs]) { a.destroy(); b.destroy(); } }

  stop() { this.cut(); this.server.close(); }
}

module.exports = { Proxy };
