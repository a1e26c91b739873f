/*
 * kv_choose.h: the text, the candidates, and the choice.
 */
#include "kv_choose.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"
#include "engine/kv/policy/kv_policy_file.h"
#include "engine/model/cpu/model.h"
#include "engine/tokenizer/tokenizer.h"
#include "kv_measure.h"

/* Cheapest first.  A name alone has the settings that the model brings. */
static const char *const candidates[] = {
    "uniform:levels=4/2", "diffkv",
    "diffkv:sinks=4,window=32,window_level=16/16", "uniform:levels=8/4",
    "uniform:levels=8/8"
};
#define CANDIDATES (sizeof(candidates) / sizeof(candidates[0]))
#define MEASURED (2 * CANDIDATES) /* each may have a lowest level besides */

/* Prose, speech, numbers, code, a table, a list. */
static const char built_in[] =
    "The harbour of Vessen was begun in 1684, when a Dutch merchant named "
    "Pieter "
    "Aalders drove two hundred oak piles into the north shore. Ships carried "
    "salt, timber and wool to the south; on their way back they brought wine, "
    "oranges, paper and letters. By 1750 the town had 3,412 inhabitants, two "
    "schools and a printing press, and the toll for a ship of eighty tons was "
    "12 guilders and 7 stuivers.\n\n"
    "\"Who pays for the light?\" asked the captain. The keeper shrugged. \"The "
    "council, in good years. In bad years I do.\" He poured the oil slowly, so "
    "that none of it was lost, and wrote the time into his book: 21:40, wind "
    "from "
    "the west, visibility four miles.\n\n"
    "# Tolls of a day\n"
    "def toll(tons, cargo):\n"
    "    rate = {'salt': 0.14, 'timber': 0.09, 'wine': 0.31}.get(cargo, 0.2)\n"
    "    return round(tons * rate, 2)\n\n"
    "total = 0\n"
    "for tons, cargo in [(80, 'salt'), (125, 'timber'), (40, 'wine')]:\n"
    "    total += toll(tons, cargo)\n"
    "print(total)  # 11.2 + 11.25 + 12.4 = 34.85\n\n"
    "| ship | master | tons | arrived |\n"
    "|---|---|---|---|\n"
    "| Anna Maria | J. Holm | 80 | 3 May 1751 |\n"
    "| De Hoop | C. Visser | 125 | 5 May 1751 |\n"
    "| Fortuna | P. Lund | 40 | 11 May 1751 |\n\n"
    "Question: Which ship brought wine, and what did its master pay? Answer: "
    "The "
    "Fortuna, of 40 tons, whose master P. Lund paid 12.40. Question: When was "
    "the "
    "harbour begun, and by whom? Answer: In 1684, by Pieter Aalders.\n\n"
    "To mend a net: 1. Spread it on the floor and look for the holes. 2. Cut "
    "the "
    "torn meshes away until every edge has three knots. 3. Tie the twine to "
    "the "
    "first knot, pass it around the gauge, and draw it tight. 4. Go on from "
    "left "
    "to right; count the meshes of each row. 5. Burn the loose ends.\n\n"
    "A wave of length L in deep water travels with the speed c = sqrt(g L / (2 "
    "pi)); for L = 100 m and g = 9.81 m/s^2 that is 12.5 m/s. When it comes to "
    "the shore it slows down, becomes shorter and higher, and breaks where the "
    "depth is about 1.3 times its height. El puerto se abre al norte; la marea "
    "sube dos metros. Der Leuchtturm brennt seit 1702, und sein Licht reicht "
    "sechzehn Meilen weit.\n\n"
    "{\"name\": \"Vessen\", \"founded\": 1684, \"piles\": 200, \"keepers\": "
    "[\"Aalders\", \"Bakker\", \"Smit\"], \"open\": true, \"depth_m\": 6.5}\n\n"
    "In the winter of 1762 the ice came so far into the bay that people walked "
    "to "
    "the island. The council met eleven times. It bought 60 loads of peat, "
    "lent "
    "the fishermen 900 guilders without interest, and had the masts of three "
    "ships cut down for fuel. In March the ice broke in one night, with a "
    "noise "
    "that was heard in Aldren, nine miles away; it took the oldest part of the "
    "pier along, and forty-one of Aalders' piles. Nobody was hurt. The new "
    "part "
    "was built of stone, and it stands to this day.\n";

bool
tr_kv_chooses(const tr_config_t *config)
{
    return strcmp(config->kv_policy, "auto") == 0;
}

/* ---- the text ----------------------------------------------------------- */

/* The model's own text, to be freed; *text NULL: it has none. */
static tr_status_t
read_text(const char *dir, char **text, size_t *n, tr_error_t *err)
{
    char path[TR_CONFIG_PATH + sizeof(TR_KV_CHOOSE_FILE) + 1];
    FILE *f;

    *text = NULL;
    snprintf(path, sizeof(path), "%s/" TR_KV_CHOOSE_FILE, dir);
    f = fopen(path, "rb");
    if (f == NULL) {
        return TR_OK;
    }
    *text = malloc(TR_KV_CHOOSE_FILE_MAX + 1);
    *n = *text != NULL ? fread(*text, 1, TR_KV_CHOOSE_FILE_MAX + 1, f) : 0;
    if (*text == NULL || ferror(f) || *n > TR_KV_CHOOSE_FILE_MAX) {
        fclose(f);
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "kv_policy auto: %s cannot be read, or has more "
                            "than"
                            " %u bytes",
                            path, TR_KV_CHOOSE_FILE_MAX);
    }
    fclose(f);
    return TR_OK;
}

static tr_status_t
encode(const char *dir, const char *text, size_t n, tr_ids_t *ids,
       tr_error_t *err)
{
    tr_tokenizer_scratch_t *scratch = NULL;
    tr_tokenizer_t *tokenizer = NULL;
    tr_status_t rc = tr_tokenizer_load(dir, &tokenizer, err);

    if (rc == TR_OK) {
        scratch = tr_tokenizer_scratch_new(tokenizer);
        rc = scratch != NULL ? tr_tokenizer_encode(tokenizer, scratch, text, n,
                                                   TR_ENCODE_SPECIAL, ids, err)
                             : tr_error_set(err, TR_ERR_NOMEM, "kv_policy",
                                            "out of memory");
    }
    tr_tokenizer_scratch_free(scratch);
    tr_tokenizer_free(tokenizer);
    return rc;
}

/* Are sequences long enough to measure on?  If not: why are they short? */
static tr_status_t
check_length(const tr_kv_subject_t *m, const tr_config_t *config,
             tr_error_t *err)
{
    const tr_recipe_t *r = m->recipe;
    const char *key = "kv_memory";

    if (m->max_len >= TR_KV_CHOOSE_TOKENS_MIN) {
        return TR_OK;
    }
    if (m->max_len == config->max_model_len) {
        key = "max_model_len";
    } else if (m->max_len == r->max_positions) {
        key = "the model";
    }
    return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                        "kv_policy auto: %s allows sequences of %u tokens,"
                        " expected %u or more, to measure on",
                        key, m->max_len, TR_KV_CHOOSE_TOKENS_MIN);
}

/* Tokens to measure on; ids->data is to be freed. */
static tr_status_t
take_tokens(const tr_kv_subject_t *m, const char *dir, tr_ids_t *ids,
            const char **from, tr_error_t *err)
{
    size_t n = sizeof(built_in) - 1;
    char *own;
    tr_status_t rc = read_text(dir, &own, &n, err);

    *from = own != NULL ? TR_KV_CHOOSE_FILE : "the built-in text";
    if (rc == TR_OK) {
        rc = encode(dir, own != NULL ? own : built_in, n, ids, err);
    }
    if (rc != TR_OK && own != NULL) {
        tr_error_t story = *err;

        tr_error_set(err, rc, "kv_policy",
                     "kv_policy auto: " TR_KV_CHOOSE_FILE ": %s", story.text);
    }
    free(own);
    ids->len = ids->len < TR_KV_CHOOSE_TOKENS ? ids->len : TR_KV_CHOOSE_TOKENS;
    ids->len = ids->len < m->max_len ? ids->len : m->max_len;
    if (rc == TR_OK && ids->len < TR_KV_CHOOSE_TOKENS_MIN) {
        rc = tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                          "kv_policy auto: %s has %u tokens for this model,"
                          " expected %u or more",
                          *from, ids->len, TR_KV_CHOOSE_TOKENS_MIN);
    }
    for (uint32_t i = 0; rc == TR_OK && i < ids->len; i++) {
        if (ids->data[i] < 0 || (uint32_t) ids->data[i] >= m->recipe->vocab) {
            rc = tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                              "kv_policy auto: token %d of %s is outside the"
                              " model's vocabulary of %u",
                              ids->data[i], *from, m->recipe->vocab);
        }
    }
    return rc;
}

/* ---- the choice --------------------------------------------------------- */

/* What is measured, and what came of it. */
typedef struct {
    tr_kv_policy_t *policy[MEASURED];
    tr_kv_guard_error_t error[MEASURED];
    double memory[MEASURED];
    uint32_t n;
    uint32_t lowest[CANDIDATES]; /* of `policy`; 0: it has one level only */
} choice_t;

/* A policy with its lowest level alone, all else as it is: to be measured, too. */
static tr_status_t
add_lowest(choice_t *x, const tr_kv_subject_t *m, const char *dir,
           uint32_t candidate, tr_error_t *err)
{
    const char *spec = x->policy[candidate]->spec;
    const char *levels = strstr(spec, "levels=");
    const char *last = levels + strcspn(levels, ",");
    char text[TR_KV_SPEC_MAX + 1];
    tr_kv_source_t source;

    while (last[-1] != '+' && last[-1] != '=') {
        last--;
    }
    levels += strlen("levels=");
    snprintf(text, sizeof(text), "%.*s%s", (int) (levels - spec), spec, last);
    x->lowest[candidate] = x->n++;
    return tr_kv_policy_open(dir, text, m->recipe->layers, m->recipe->kv_heads,
                             m->recipe->head_dim,
                             &x->policy[x->lowest[candidate]], &source, err);
}

static tr_status_t
open_candidates(choice_t *x, const tr_kv_subject_t *m, const char *dir,
                tr_error_t *err)
{
    tr_status_t rc = TR_OK;

    x->n = CANDIDATES;
    for (uint32_t i = 0; i < CANDIDATES && rc == TR_OK; i++) {
        tr_kv_source_t source;

        rc = tr_kv_policy_open(dir, candidates[i], m->recipe->layers,
                               m->recipe->kv_heads, m->recipe->head_dim,
                               &x->policy[i], &source, err);
        if (rc == TR_OK && x->policy[i]->n_levels > 1) {
            rc = add_lowest(x, m, dir, i, err);
        }
    }
    return rc;
}

static bool
suits(const choice_t *x, uint32_t i)
{
    uint32_t lowest = x->lowest[i];

    return x->error[i].keys <= TR_KV_CHOOSE_KEYS
           && x->error[i].values <= TR_KV_CHOOSE_VALUES
           && (lowest == 0 || x->error[lowest].keys <= TR_KV_CHOOSE_LOWEST);
}

/* ` NAME 2.8% and 23% (lowest level alone 7.5%, memory 0.25)` */
static int
say(const choice_t *x, uint32_t i, char *out, size_t size)
{
    char lowest[48] = "";

    if (x->lowest[i] != 0) {
        snprintf(lowest, sizeof(lowest), "lowest level alone %.1f%%, ",
                 100 * x->error[x->lowest[i]].keys);
    }
    return snprintf(out, size, "%s %s %.1f%% and %.0f%% (%smemory %.2f)",
                    i == 0 ? "" : ",", candidates[i], 100 * x->error[i].keys,
                    100 * x->error[i].values, lowest, x->memory[i]);
}

static void
choose(const choice_t *x, const char *from, uint32_t tokens,
       tr_kv_choice_t *out)
{
    const char *taken = NULL;
    size_t n = 0;
    int more = snprintf(out->why, sizeof(out->why),
                        "%u tokens of %s; attention may move by %.1f%% with"
                        " compressed keys, %.0f%% with values, %.0f%% with keys"
                        " at the lowest level alone:",
                        tokens, from, 100 * TR_KV_CHOOSE_KEYS,
                        100 * TR_KV_CHOOSE_VALUES, 100 * TR_KV_CHOOSE_LOWEST);

    for (uint32_t i = 0; more > 0; i++) {
        n += (size_t) more;
        if (i == CANDIDATES || n >= sizeof(out->why) || taken != NULL) {
            break;
        }
        taken = suits(x, i) ? candidates[i] : NULL;
        more = say(x, i, out->why + n, sizeof(out->why) - n);
    }
    taken = taken != NULL ? taken : "full";
    memcpy(out->spec, taken, strlen(taken) + 1);
}

tr_status_t
tr_kv_choose_for(const tr_kv_subject_t *m, const tr_config_t *config,
                 tr_kv_choice_t *out, tr_error_t *err)
{
    choice_t x = { .n = 0 };
    tr_ids_t ids = { 0 };
    const char *from;
    tr_status_t rc = check_length(m, config, err);

    if (rc == TR_OK) {
        rc = take_tokens(m, config->model, &ids, &from, err);
    }
    if (rc == TR_OK) {
        rc = open_candidates(&x, m, config->model, err);
    }
    if (rc == TR_OK) {
        rc = m->measure(m->arg, (const tr_kv_policy_t *const *) x.policy, x.n,
                        ids.data, ids.len, x.error, x.memory, err);
    }
    if (rc == TR_OK) {
        choose(&x, from, ids.len, out);
        tr_log(TR_LEVEL_NOTICE, "kv_policy auto took %s: %s", out->spec,
               out->why);
    }
    for (uint32_t i = 0; i < x.n; i++) {
        tr_kv_policy_free(x.policy[i]);
    }
    free(ids.data);
    return rc;
}

static tr_status_t
measure_model(void *arg, const tr_kv_policy_t *const *policies,
              uint32_t n_policies, const int32_t *tokens, uint32_t n,
              tr_kv_guard_error_t *error, double *memory, tr_error_t *err)
{
    return tr_kv_measure(arg, policies, n_policies, tokens, n, error, memory,
                         err);
}

tr_status_t
tr_kv_choose(tr_model_t *m, const tr_config_t *config, tr_kv_choice_t *out,
             tr_error_t *err)
{
    const tr_kv_subject_t s = { &m->config.recipe, m->max_len, measure_model,
                                m };

    return tr_kv_choose_for(&s, config, out, err);
}

void
tr_kv_chosen(const tr_config_t *config, const tr_kv_choice_t *choice,
             tr_config_t *out)
{
    *out = *config;
    snprintf(out->kv_policy, sizeof(out->kv_policy), "%s", choice->spec);
}
