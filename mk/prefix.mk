# Random operations on the prefix tree and the pages that it keeps, many of them:
# make test has a few thousand.  Included by the Makefile.

PREFIX_OPS ?= 1000000

.PHONY: test-prefix
test-prefix: $B/tests/test_prefix $B/tests/test_kv_prefix \
             $B/tests/test_kv_device_prefix $B/tests/test_loop_kept
	@TR_PREFIX_OPS=$(PREFIX_OPS) $B/tests/test_prefix
	@TR_PREFIX_OPS=$(PREFIX_OPS) $B/tests/test_kv_prefix
	@TR_PREFIX_OPS=$(PREFIX_OPS) $B/tests/test_kv_device_prefix
	@TR_PREFIX_OPS=$(PREFIX_OPS) $B/tests/test_loop_kept
