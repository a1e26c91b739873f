# Engines that are killed, stopped and drained under clients for a while, and the
# checker of what these saw: make test has a few seconds of it.  Included by the
# Makefile.

HISTORY_SECONDS ?= 600
HISTORY_SEED    ?= 1

.PHONY: test-histories
test-histories: engine cli module
	@B="$B" HISTORY_SECONDS=$(HISTORY_SECONDS) HISTORY_SEED=$(HISTORY_SEED) \
	    node --test tests/e2e/fleet/histories.test.js
