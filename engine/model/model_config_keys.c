/*
 * No key of config.json goes unread.
 *
 * A key that this program does not know may change what the model computes, and
 * then every answer is quietly wrong.  So the reader remembers which keys it
 * asked for, and in the end each other one must be without effect: in a list
 * here, of a value that switches nothing on (null, false, 0, "", [], {}), of the
 * one value that is neutral, or named by the administrator (ignore_config).
 */
#include "model_config_internal.h"

#include <string.h>

#include "engine/config/log.h"

/* ---- what was read -------------------------------------------------------- */

void
tr_config_watch(tr_config_reader_t *r, const char *name, json_t *object)
{
    tr_config_watched_t *w = &r->watched[r->n_watched];

    if (!json_is_object(object) || r->n_watched == TR_CONFIG_WATCHED) {
        return;
    }
    w->name = name;
    w->object = object;
    w->read = json_object(); /* NULL: nothing counts as read, the load fails */
    r->n_watched++;
}

json_t *
tr_config_field(tr_config_reader_t *r, json_t *object, const char *key)
{
    json_t *v = json_object_get(object, key);

    for (uint32_t i = 0; i < r->n_watched; i++) {
        if (r->watched[i].object == object) {
            json_object_set_new(r->watched[i].read, key, json_true());
        }
    }
    return json_is_null(v) ? NULL : v;
}

void
tr_config_unwatch(tr_config_reader_t *r)
{
    while (r->n_watched > 0) {
        json_decref(r->watched[--r->n_watched].read);
    }
}

/* ---- what needs no reading ------------------------------------------------ */

/* Of training, of storage, of the program that wrote the file, or of parts of a
 * model that are not run here (images, sounds, heads that predict several
 * tokens).  A star stands for anything, at one end. */
static const char *const without_effect[] = {
    "_*", /* transformers' own notes */
    "*_dropout",
    "*_pdrop",
    "dropout",
    "*_loss_coef",
    "*_loss_weight",
    "*aux_loss*",
    "*_jitter_noise",
    "initializer_*",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "return_dict",
    "return_dict_in_generate",
    "torchscript",
    "torch_dtype",
    "dtype",
    "architectures",
    "auto_map",
    "name_or_path",
    "transformers_version",
    "use_bfloat16",
    "finetuning_task",
    "problem_type",
    "task_specific_params",
    "tokenizer_class",
    "prefix",
    "id2label",
    "label2id",
    "num_labels",
    "pad_token_id",
    "sep_token_id",
    "unk_token_id",
    "pad_token",
    "eos_token",
    "bos_token",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "forced_*",
    "begin_suppress_tokens",
    "suppress_tokens",
    "bad_words_ids",
    "pruned_heads",
    "chunk_size_feed_forward",
    "attn_implementation",
    "cache_implementation",
    "use_flash_attn",
    "use_flash_attention",
    "unsloth_*",
    "model_name",
    "gradient_checkpointing",
    "pretraining_tp",
    "quantization", /* mlx's twin */
    "num_nextn_predict_layers",
    "num_mtp_*",
    "mtp_*",
    "finetuned",
    "original_max_position_embeddings", /* read where a table needs it */
    "initial_context_length",
    /* how transformers 4 kept generation */
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "max_length",
    "max_new_tokens",
    "min_length",
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "length_penalty",
    "repetition_penalty",
    "diversity_penalty",
    "early_stopping",
    "exponential_decay_length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "remove_invalid_values",
    "output_scores",
};

/* Around a text model's config: what belongs to pictures and sounds. */
static const char *const around_text[] = {
    "vision_*",
    "*_vision_*",
    "image_*",
    "*_image_*",
    "audio_*",
    "video_*",
    "projector_*",
    "multimodal_projector_bias",
    "mm_tokens_per_image",
    "boi_token_index",
    "eoi_token_index",
    "boi_token_id",
    "eoi_token_id",
    "spatial_merge_size",
    "text_config",
    "model_type",
    "downsample_*",
};

/* Keys of other families, where this value says what ours do anyway. */
static const struct {
    const char *key;
    double value;
} neutral[] = {
    { "embedding_multiplier", 1 },
    { "residual_multiplier", 1 },
    { "logits_scaling", 1 },
    { "logit_scale", 1 },
    { "factor", 1 },
    { "attention_factor", 1 },
};

/* `pattern` has at most one star at each end. */
static bool
matches(const char *pattern, const char *key)
{
    size_t n = strlen(pattern), k = strlen(key);
    bool head = pattern[0] == '*', tail = n > 1 && pattern[n - 1] == '*';

    if (!head && !tail) {
        return strcmp(pattern, key) == 0;
    }
    n -= (size_t) head + (size_t) tail;
    pattern += head;
    if (head && tail) {
        return memmem(key, k, pattern, n) != NULL;
    }
    return k >= n && memcmp(key + (head ? k - n : 0), pattern, n) == 0;
}

static bool
listed(const char *const *list, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++) {
        if (matches(list[i], key)) {
            return true;
        }
    }
    return false;
}

#define LISTED(list, key) listed(list, sizeof(list) / sizeof(list[0]), key)

/* Nothing is switched on by it. */
static bool
empty(const json_t *v)
{
    return json_is_null(v) || json_is_false(v)
           || (json_is_number(v) && json_number_value(v) == 0)
           || (json_is_string(v) && json_string_length(v) == 0)
           || (json_is_array(v) && json_array_size(v) == 0)
           || (json_is_object(v) && json_object_size(v) == 0);
}

static bool
is_neutral(const char *key, const json_t *v)
{
    for (size_t i = 0; i < sizeof(neutral) / sizeof(neutral[0]); i++) {
        if (strcmp(neutral[i].key, key) == 0 && json_is_number(v)
            && json_number_value(v) == neutral[i].value) {
            return true;
        }
    }
    return false;
}

/* Is `key` one of the names in the setting, separated by blanks or commas? */
static bool
ignored(const char *names, const char *key)
{
    size_t n = strlen(key);

    for (const char *p = names; p != NULL && *p != '\0';) {
        size_t len = strcspn(p, " ,");

        if (len == n && memcmp(p, key, n) == 0) {
            return true;
        }
        p += len + strspn(p + len, " ,");
    }
    return false;
}

/* ---- the verdict ---------------------------------------------------------- */

static bool
is_known(const tr_config_reader_t *r, const tr_config_watched_t *w,
         const char *key, const json_t *v)
{
    return json_object_get(w->read, key) != NULL || empty(v)
           || LISTED(without_effect, key)
           || (w->object == r->outer && LISTED(around_text, key))
           || is_neutral(key, v) || ignored(r->ignore, key);
}

void
tr_config_check_unread(tr_config_reader_t *r)
{
    char shown[TR_CONFIG_SHOWN];
    const char *key;
    json_t *v;

    for (uint32_t i = 0; i < r->n_watched; i++) {
        const tr_config_watched_t *w = &r->watched[i];

        json_object_foreach (w->object, key, v) {
            if (r->rc != TR_OK || is_known(r, w, key, v)) {
                continue;
            }
            tr_config_show(v, shown);
            r->rc = tr_error_set(
                r->err, TR_ERR_UNSUPPORTED, key,
                "config.json: %s%s%.64s is %s, which this engine does not "
                "know; name it in ignore_config if it has no effect",
                w->name, *w->name ? "." : "", key, shown);
        }
    }
}
