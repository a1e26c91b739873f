'use strict';
// bench_policy: a policy and its pages within decode steps and prefills.
require('./native.js').runProgram('bench_policy',
  'KV policy and pages: their share of a step');
