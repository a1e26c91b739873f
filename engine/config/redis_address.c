/*
 * Parses the setting `redis` (redis_address.h).
 */
#include "redis_address.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool
tr_redis_parse_address(const char *text, tr_redis_address_t *out)
{
    const char *colon, *end;
    size_t n;
    long port;
    char *rest;

    out->port = 0;
    if (strncmp(text, "unix:", 5) == 0) {
        return snprintf(out->host, sizeof(out->host), "%s", text + 5)
                   < (int) sizeof(out->host)
               && text[5] != '\0';
    }
    if (text[0] == '[') {
        text++;
        end = strchr(text, ']');
        if (end == NULL || (end[1] != '\0' && end[1] != ':')) {
            return false;
        }
        colon = end[1] == ':' ? end + 1 : NULL;
    } else {
        colon = strchr(text, ':');
        end = colon != NULL ? colon : text + strlen(text);
    }
    n = (size_t) (end - text);
    if (n == 0 || n >= sizeof(out->host) || strpbrk(text, "/ \t@") != NULL) {
        return false;
    }
    memcpy(out->host, text, n);
    out->host[n] = '\0';
    out->port = 6379;
    if (colon != NULL) {
        port = strtol(colon + 1, &rest, 10);
        if (rest == colon + 1 || *rest != '\0' || port < 1 || port > 65535) {
            return false;
        }
        out->port = (int) port;
    }
    return true;
}
