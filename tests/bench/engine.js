'use strict';
// bench_engine: prefill, decode, pages.
require('./native.js').runProgram('bench_engine',
  'Engine: prefill, decode, pages');
