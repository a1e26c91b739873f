# The NGINX module for the nginx that is installed: build/module.  Debian's
# nginx-dev has the sources' headers and the flags that its binary was built
# with; configure runs once, and again when `config` changes.
#
# make test-nginx builds it in another source tree; see mk/nginx.mk.

MODULE_DIR := $B/module
MODULE_OUT := $(MODULE_DIR)/ngx_http_tokenring_module.so
MODULE_SRC := $(wildcard ngx_module/*/*.[ch] include/tokenring/*.h)
NGINX_DEV  ?= /usr/share/nginx/src
MODULE_FLAGS = $(CFLAGS) -Wall -Wextra -Wno-unused-parameter \
               -Wno-unused-function -Werror -fPIC

# Configure runs on one core: first, it is beside what else is built.
configured: $(MODULE_DIR)/Makefile
module: $(MODULE_OUT)

# Debian's tree is read-only for users and has no place for objects of a
# dynamic module but --builddir, which must be absolute.
$(MODULE_DIR)/Makefile: config mk/module.mk
	@[ -f $(NGINX_DEV)/conf_flags ] || { \
	    echo "$(NGINX_DEV) is missing: install nginx-dev (make deps)" >&2; \
	    exit 1; }
	@mkdir -p $(MODULE_DIR)
	@echo "  CONF  module"
	@# what configure finds is in the objects, too
	@rm -rf $(MODULE_DIR)/addon
	$Qdir=$$PWD && out=$$(realpath $(MODULE_DIR)) && cd $(NGINX_DEV) && \
	    bash -c '. ./conf_flags && ./configure \
	        --with-cc-opt="$(MODULE_FLAGS)" --with-ld-opt="$(LDFLAGS)" \
	        "$${NGX_CONF_FLAGS[@]}" \
	        --add-dynamic-module="$$1" --builddir="$$2"' \
	        configure "$$dir" "$$out" >"$$out/configure.log" 2>&1 || \
	    { tail -20 "$$out/configure.log" >&2; rm -f "$$out/Makefile"; exit 1; }

$(MODULE_OUT): $(MODULE_DIR)/Makefile $(MODULE_SRC)
	@echo "  MOD   $@"
	$Qout=$$(realpath $(MODULE_DIR)) && \
	    $(MAKE) -s --no-print-directory -C $(NGINX_DEV) -f "$$out/Makefile" \
	        modules >"$$out/make.log" 2>&1 || \
	    { cat "$$out/make.log" >&2; exit 1; }
	@touch $@

# The scripted engine that the module's tests talk to.
fake-engine: $B/tests/fake_engine

$B/tests/fake_engine: $(patsubst %.c,$B/obj/%.o,$(wildcard tests/e2e/fake_engine/*.c))
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$Q$(CC) $(CFLAGS) -o $@ $^ -lm $(LDFLAGS)

# A clock for the Redis of tests; not with what we have sanitized.
fake-clock: $B/tests/fake_clock.so

$B/tests/fake_clock.so: tests/e2e/lib/fake_clock.c
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$Q$(CC) -std=gnu11 -Wall -Wextra -Werror -O2 -fPIC -shared -o $@ $<

.PHONY: configured fake-engine fake-clock
