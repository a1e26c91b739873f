/*
 * The table and bodies of endpoint.h, which includes this.
 */
#ifndef TOKENRING_ENDPOINT_INLINE_H
#define TOKENRING_ENDPOINT_INLINE_H

#include <string.h>

#include <tokenring/endpoint.h>

static inline const tr_endpoint_info_t *
tr_endpoint_info(unsigned endpoint)
{
    static const tr_endpoint_info_t table[TR_ENDPOINTS] = {
        [TR_ENDPOINT_CHAT] = { "chat", "chat/completions", 1 },
        [TR_ENDPOINT_COMPLETIONS] = { "completions", "completions", 1 },
        [TR_ENDPOINT_TOKENIZE] = { "tokenize", "tokenize", 0 },
        [TR_ENDPOINT_DETOKENIZE] = { "detokenize", "detokenize", 0 },
        [TR_ENDPOINT_RENDER] = { "render", "chat/completions/render", 0 },
        [TR_ENDPOINT_MESSAGES] = { "messages", "messages", 1 },
        [TR_ENDPOINT_RESPONSES] = { "responses", "responses", 1 },
        [TR_ENDPOINT_EMBEDDINGS] = { "embeddings", "embeddings", 0 },
        [TR_ENDPOINT_COUNT_TOKENS] = { "count_tokens", "messages/count_tokens",
                                       0 },
    };

    return endpoint < TR_ENDPOINTS && table[endpoint].name != NULL
               ? &table[endpoint]
               : NULL;
}

static inline int
tr_endpoint_is(const char *text, const char *bytes, size_t len)
{
    return strlen(text) == len && memcmp(text, bytes, len) == 0;
}

static inline unsigned
tr_endpoint_by_name(const char *name, size_t len)
{
    const tr_endpoint_info_t *info;
    unsigned i;

    for (i = 1; i < TR_ENDPOINTS; i++) {
        info = tr_endpoint_info(i);
        if (info != NULL && tr_endpoint_is(info->name, name, len)) {
            return i;
        }
    }
    return 0;
}

static inline unsigned
tr_endpoint_by_path(const char *path, size_t len)
{
    const tr_endpoint_info_t *info;
    unsigned i;

    for (i = 1; i < TR_ENDPOINTS; i++) {
        info = tr_endpoint_info(i);
        if (info != NULL && tr_endpoint_is(info->path, path, len)) {
            return i;
        }
    }
    return 0;
}

#endif
