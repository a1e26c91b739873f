# hiredis: always linked; with TLS where hiredis_ssl is found (1.0 and later,
# built with it; Debian 12 has 0.14, which knows none) and OpenSSL beside it.
# REDIS_TLS= leaves it out.

REDIS_TLS  ?= $(shell printf '\043include <hiredis/hiredis_ssl.h>\n\043include <openssl/ssl.h>\n' \
                | $(CC) $(CFLAGS) -E -xc - >/dev/null 2>&1 && echo yes)
REDIS_LIBS := $(if $(REDIS_TLS),-lhiredis_ssl) -lhiredis $(if $(REDIS_TLS),-lssl -lcrypto)

ifneq ($(REDIS_TLS),)
$B/obj/engine/redis/redis_tls.o $B/obj/engine/config/config_finish.o: \
    TR_CFLAGS += -DTR_REDIS_TLS
endif
