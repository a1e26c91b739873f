/*
 * The fields of /v1/embeddings: a row for each that is honoured, refused by name or
 * ignored (openai_fields.h).  Of those that no request has in common with another
 * endpoint's, most tell how texts are cut, which is never done here.
 */
#include "openai_fields.h"

#define SUPPORTED(name) TR_FIELD_ROW(name, EMBEDDINGS, SUPPORTED, "", NULL)
#define IGNORED(name) TR_FIELD_ROW(name, EMBEDDINGS, IGNORED, "", NULL)
#define REFUSED(name, why, harmless) \
    TR_FIELD_ROW(name, EMBEDDINGS, REFUSED, why, harmless)

#define NO_CHAT "use 'input'"

static const tr_field_t fields[] = {
    SUPPORTED("model"),
    SUPPORTED("input"),
    SUPPORTED("encoding_format"),
    SUPPORTED("dimensions"),
    SUPPORTED("add_special_tokens"),
    REFUSED("messages", NO_CHAT, NULL),
    REFUSED("prompt", NO_CHAT, NULL),
    REFUSED("input_type", "write what a text is for into it", NULL),
    REFUSED("task", "write what a text is for into it", NULL),
    REFUSED("truncate", "texts are not cut", NULL),
    REFUSED("truncate_prompt_tokens", "texts are not cut", NULL),
    REFUSED("normalize", "the model's modules.json says it", NULL),
    REFUSED("stream", "an answer comes whole", NULL),
    REFUSED("lora_path", "adapters are not supported", NULL),
    IGNORED("user"),
    IGNORED("metadata"),
    IGNORED("priority"),
};

const tr_field_t *
tr_embeddings_fields(size_t *n)
{
    *n = sizeof(fields) / sizeof(fields[0]);
    return fields;
}
