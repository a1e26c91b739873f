# The benchmarks: `make bench`.  Included by the Makefile.

BENCH_BIN := $B/bench/upstream $B/bench/sse_load

$B/bench/%: tests/bench/%.c engine/null_trace.h
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$Q$(CC) $(TR_CFLAGS) -O2 -g -o $@ $<

.PHONY: bench bench-tools
bench-tools: $(BENCH_BIN)
