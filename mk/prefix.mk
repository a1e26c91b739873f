# Random operations on the prefix tree and the pages that it keeps, and kills while
# it is written to files, many of them: make test has a few thousand, and a few.
# Then many requests in pools in which every admission evicts.
# Included by the Makefile.

PREFIX_OPS      ?= 1000000
PREFIX_KILLS    ?= 200
PREFIX_REQUESTS ?= 100000

PREFIX_TESTS := test_prefix test_kv_prefix test_kv_device_prefix test_loop_kept

.PHONY: test-prefix
test-prefix: $(PREFIX_TESTS:%=$B/tests/%) $B/tests/test_store_kill \
    $B/tests/test_scheduler_reuse
	@for t in $(PREFIX_TESTS); do \
	    TR_PREFIX_OPS=$(PREFIX_OPS) $B/tests/$$t || exit 1; done
	@TR_STORE_KILLS=$(PREFIX_KILLS) $B/tests/test_store_kill
	@TR_REUSE_REQUESTS=$(PREFIX_REQUESTS) $B/tests/test_scheduler_reuse
