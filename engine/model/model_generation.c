/*
 * How a model's generation ends, and how its authors want it sampled: end tokens
 * of config.json and generation_config.json, and the sampling defaults of the
 * latter (model_config.h).
 */
#include "model_config_internal.h"

#include <math.h>

#include "engine/config/log.h"

/* ---- end tokens ----------------------------------------------------------- */

static void
add_eos(tr_config_reader_t *r, tr_model_config_t *c, const char *file,
        json_t *v)
{
    json_int_t id = json_integer_value(v);

    if (r->rc != TR_OK) {
        return;
    }
    if (!json_is_integer(v)) {
        char shown[TR_CONFIG_SHOWN];

        tr_config_show(v, shown);
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "eos_token_id",
                             "%s: eos_token_id holds %s, expected a token id "
                             "below %u",
                             file, shown, c->recipe.vocab);
        return;
    }
    if (id < 0 || id >= (json_int_t) c->recipe.vocab) {
        /* the model cannot say it: nothing is lost without it */
        tr_log(TR_LEVEL_WARN,
               "ignored an end token that the model does not have file=%s "
               "eos_token_id=%lld vocabulary=%u",
               file, (long long) id, c->recipe.vocab);
        return;
    }
    for (uint32_t i = 0; i < c->n_eos; i++) {
        if (c->eos[i] == id) {
            return;
        }
    }
    if (c->n_eos == TR_EOS_MAX) {
        r->rc = tr_error_set(r->err, TR_ERR_FORMAT, "eos_token_id",
                             "%s: more than %d end tokens", file, TR_EOS_MAX);
        return;
    }
    c->eos[c->n_eos++] = (int32_t) id;
}

/* One id or a list of them. */
void
tr_config_eos(tr_config_reader_t *r, tr_model_config_t *c, const char *file,
              json_t *root)
{
    json_t *v = tr_config_field(r, root, "eos_token_id");

    if (!json_is_array(v)) {
        if (v != NULL) {
            add_eos(r, c, file, v);
        }
        return;
    }
    for (size_t i = 0; i < json_array_size(v); i++) {
        add_eos(r, c, file, json_array_get(v, i));
    }
}

/* ---- sampling ----------------------------------------------------------- */

/* As vLLM: of these, what the file has. */
static const struct {
    const char *name;
    size_t offset;
    double min, max;
} numbers[] = {
    { "temperature", offsetof(tr_generation_t, temperature), 0, 2 },
    { "top_p", offsetof(tr_generation_t, top_p), 0, 1 },
    { "top_k", offsetof(tr_generation_t, top_k), -1, INT32_MAX },
    { "min_p", offsetof(tr_generation_t, min_p), 0, 1 },
    { "repetition_penalty", offsetof(tr_generation_t, repetition_penalty), 1e-6,
      10 },
};

void
tr_generation_init(tr_generation_t *g)
{
    *g = (tr_generation_t){ NAN, NAN, NAN, NAN, NAN };
}

static void
read_sampling(tr_config_reader_t *r, json_t *root, tr_generation_t *g)
{
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        json_t *v = tr_config_field(r, root, numbers[i].name);
        double number = json_number_value(v);
        char shown[TR_CONFIG_SHOWN];

        if (v == NULL) {
            continue;
        }
        if (!json_is_number(v) || !(number >= numbers[i].min)
            || !(number <= numbers[i].max)) {
            tr_config_show(v, shown);
            tr_log(TR_LEVEL_WARN,
                   "ignored a sampling default file=generation_config.json "
                   "%s=%s expected=\"%g to %g\"",
                   numbers[i].name, shown, numbers[i].min, numbers[i].max);
            continue;
        }
        *(double *) (void *) ((char *) g + numbers[i].offset) = number;
    }
}

/* Absent is fine; its end tokens join those of config.json, and what it
 * says about sampling is the default of requests. */
void
tr_config_generation(tr_config_reader_t *r, const char *dir,
                     tr_model_config_t *c)
{
    tr_error_t ignored;
    json_t *root = NULL;
    tr_status_t rc = tr_config_load_json(dir, "generation_config.json", &root,
                                         &ignored);

    if (rc == TR_ERR_NOT_FOUND) {
        return;
    }
    if (rc != TR_OK) {
        r->rc = rc;
        *r->err = ignored;
        return;
    }
    tr_config_eos(r, c, "generation_config.json", root);
    read_sampling(r, root, &c->generation);
    json_decref(root);
}
