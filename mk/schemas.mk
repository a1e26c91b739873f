# Constrained decoding against references that nobody here wrote
# (tests/schemas/run.sh says which).  SUITE=DIR: a checkout of json-schema-org/
# JSON-Schema-Test-Suite; without it, build/schemas has one, cloned when it is
# not there.  SCHEMAS=DIR: schemas for random answers (guidance-ai/
# jsonschemabench).

SCHEMA_TESTS := tests/schemas

.PHONY: test-schemas test-strict test-whole
test-schemas: $B/tests/grammar_driver $(NODE)
	$QB="$B" SUITE="$(SUITE)" SCHEMAS="$(SCHEMAS)" $(SCHEMA_TESTS)/run.sh

# 10,000 strict answers of models/pocket at temperature 2, checked by ajv.
test-strict: all $(NODE)
	$QB="$B" STRICT=$${STRICT:-10000} node --test tests/e2e/api/structured.test.js

# 2,000 random requests to each endpoint: whole answers are streamed ones.
test-whole: all $(NODE)
	$QB="$B" WHOLE=$${WHOLE:-2000} node --test tests/e2e/api/whole.test.js

unit: $B/tests/grammar_driver

$B/tests/grammar_driver: $B/obj/$(SCHEMA_TESTS)/grammar_driver.o $B/libtokenring.a
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$Q$(CC) $(CFLAGS) -pthread -o $@ $^ $(LIBS) $(LDFLAGS)
