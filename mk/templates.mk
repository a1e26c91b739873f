# Chat templates compared with Python's jinja2 (tests/templates).  Included by
# the Makefile.  TEMPLATE_CORPUS=DIR: a folder with templates/*.jinja and
# conversations.json that are compared too, and whose forms of tool calls
# test_dialect and test_hold look for; by default ../shared/corpus, where that
# is there.

TMPL := tests/templates
export TEMPLATE_CORPUS ?= $(abspath $(wildcard ../shared/corpus))

.PHONY: test-templates
test-templates: $B/tests/jinja_render
	$QB="$B" node --test $(TMPL)

unit: $B/tests/jinja_render

$B/tests/jinja_render: $B/obj/$(TMPL)/jinja_render.o $B/libtokenring.a
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$Q$(CC) $(CFLAGS) -pthread -o $@ $^ $(LIBS) $(LDFLAGS)
