/*
 * service_tier: how soon a request is served beside others (wire.h, tr_tier).  A
 * client may ask for less than its plan has; who asks for more gets what the plan
 * has, and is told so, as OpenAI does.
 */
#include "openai_internal.h"

#include <string.h>

/* Anthropic's name is of its endpoint alone, as the others are of OpenAI's. */
static const struct {
    const char *name;
    uint8_t tier; /* 0: that of the plan */
    bool anthropic, openai;
} tiers[] = { { "auto", 0, true, true },
              { "default", TR_TIER_DEFAULT, false, true },
              { "flex", TR_TIER_FLEX, false, true },
              { "priority", TR_TIER_PRIORITY, false, true },
              { "scale", TR_TIER_DEFAULT, false, true },
              { "standard_only", TR_TIER_DEFAULT, true, false } };

tr_status_t
tr_openai_read_tier(const json_t *root, tr_request_t *r, tr_error_t *err)
{
    const json_t *value = tr_json_field(root, "service_tier");
    bool anthropic = r->endpoint == TR_ENDPOINT_MESSAGES;
    uint8_t most = r->plan_tier != 0 ? r->plan_tier : TR_TIER_DEFAULT;
    size_t i;

    r->tier = most;
    if (value == NULL) {
        return TR_OK;
    }
    if (!json_is_string(value)) {
        return tr_json_wrong_type(err, "service_tier", "a string", value);
    }
    for (i = 0; i < sizeof(tiers) / sizeof(tiers[0]); i++) {
        if ((anthropic ? tiers[i].anthropic : tiers[i].openai)
            && strcmp(json_string_value(value), tiers[i].name) == 0) {
            r->tier = tiers[i].tier != 0 && tiers[i].tier < most ? tiers[i].tier
                                                                 : most;
            r->names_tier = true;
            return TR_OK;
        }
    }
    return tr_error_set(err, TR_ERR_INVALID, "service_tier",
                        "Invalid 'service_tier': '%.64s'. Expected %s.",
                        json_string_value(value),
                        anthropic ? "'auto' or 'standard_only'"
                                  : "'auto', 'default', 'flex', 'priority' or "
                                    "'scale'");
}

const char *
tr_openai_tier_name(const tr_request_t *r)
{
    switch (r->tier) {
    case TR_TIER_FLEX:
        return "flex";
    case TR_TIER_PRIORITY:
        return "priority";
    default:
        return "default";
    }
}
