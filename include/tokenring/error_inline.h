/*
 * Bodies of error.h, which includes this.
 */
#ifndef TOKENRING_ERROR_INLINE_H
#define TOKENRING_ERROR_INLINE_H

#include <tokenring/error.h>

#define TR_TYPE_NONE ""
#define TR_TYPE_BAD "invalid_request_error"
#define TR_TYPE_RATE "rate_limit_error"
#define TR_TYPE_SERVER "server_error"

static inline tr_status_info_t
tr_status_info(tr_status_t status)
{
    switch (status) {
#define TR_STATUS_CASE(name, value, http, type, code, level)   \
    case value:                                                \
        return (tr_status_info_t){ http, TR_TYPE_##type, code, \
                                   TR_LEVEL_##level, #name };
        TR_STATUS_TABLE(TR_STATUS_CASE)
#undef TR_STATUS_CASE
    default:
        return (tr_status_info_t){ 500, TR_TYPE_SERVER, "internal_error",
                                   TR_LEVEL_ERROR, "TR_ERR_INTERNAL" };
    }
}

#endif
