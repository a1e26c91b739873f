# The tokenizer and the chat templates against their reference implementations,
# which npm brings (tests/unit/tokenizer/reference).

TOKREF      := tests/unit/tokenizer/reference
TOKREF_NODE := $(TOKREF)/node_modules/.package-lock.json

.PHONY: test-tokenizer-reference
test-tokenizer-reference: $B/tests/tokenize_driver $(TOKREF_NODE)
	$Qcd $(TOKREF) && B="$B" node --test

unit: $B/tests/tokenize_driver
test deps: $(TOKREF_NODE)

$(TOKREF_NODE): $(TOKREF)/package.json $(TOKREF)/package-lock.json | $(STAMP)/test
	@echo "  NPM   $(TOKREF)"
	@cd $(TOKREF) && npm ci --silent --no-progress && touch ../../../../$@

$B/tests/tokenize_driver: $B/obj/$(TOKREF)/driver.o $B/libtokenring.a
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$Q$(CC) $(CFLAGS) -pthread -o $@ $^ $(LIBS) $(LDFLAGS)
