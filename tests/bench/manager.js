'use strict';
// bench_manager: what the manager of KV pages takes.
require('./native.js').runProgram('bench_manager',
  'KV pages: planning and granting');
