# hiredis: always linked; with TLS where hiredis_ssl is found (1.0 and later,
# built with it; Debian 12 has 0.14, which knows none).

REDIS_TLS  := $(shell printf '\043include <hiredis/hiredis_ssl.h>\n' \
                | $(CC) -E -xc - >/dev/null 2>&1 && echo yes)
REDIS_LIBS := -lhiredis $(if $(REDIS_TLS),-lhiredis_ssl -lssl -lcrypto)

ifneq ($(REDIS_TLS),)
$B/obj/engine/redis_link.o: CFLAGS += -DTR_REDIS_TLS
endif
