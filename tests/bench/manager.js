'use strict';
// bench_manager: the manager of KV pages against a plain one.
require('./native.js').runProgram('bench_manager',
  'KV pages: planning and granting');
