'use strict';
// bench_weights: a step by what weights are kept in.
require('./native.js').runProgram('bench_weights',
  'Weights on the CPU: 16 bits, INT8, INT4');
