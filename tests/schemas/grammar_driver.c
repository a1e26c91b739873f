/*
 * Constrained decoding for scripts: a line of JSON in, a line out.
 *
 *   {"kind": "schema", "text": "...", "flags": 1, "texts": ["..."]}
 *     -> {"accepts": [true, ...]}     or {"error": "..."}
 *   {..., "walks": 10, "seed": 1, "steps": 200, "bias": 0.3}
 *     -> {"walks": ["...", ...], "cut": 3}   texts of random walks over masks
 *        that came to an end; cut: those that did not within so many tokens.
 *        bias: how often the end is taken where it may be.
 *   {..., "tokens": [[1, 2], ...]}
 *     -> {"masks": ["0f00...", ...]}   behind each list, the mask in hexadecimal
 *
 *   grammar_driver DIR      the tokenizer of a model's directory
 *   grammar_driver --bytes  a vocabulary of the 256 bytes
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/grammar/grammar.h"

#define TEXT_MAX (1u << 20)

typedef struct {
    tr_vocabulary_t *vocabulary;
    tr_grammar_scratch_t *scratch;
    tr_tokenizer_t *tokenizer; /* NULL: bytes */
    uint32_t vocab, words;
    int32_t end;
    void *memory;
    uint32_t *mask;
} driver_t;

static const char *
one_byte(void *arg, int32_t id, uint32_t *len)
{
    static char byte[1];

    (void) arg;
    byte[0] = (char) id;
    *len = id < 256;
    return byte;
}

static const char *
token_bytes(const driver_t *d, int32_t id, uint32_t *len)
{
    return d->tokenizer == NULL
               ? one_byte(NULL, id, len)
               : tr_tokenizer_token_bytes(d->tokenizer, id, len);
}

static bool
accepts(driver_t *d, tr_grammar_t *g, const char *text, size_t len)
{
    tr_matcher_t m;
    bool good;

    if (tr_matcher_init(&m, g, tr_frame_pool_init(d->memory, 1)) != TR_OK) {
        return false;
    }
    good = tr_matcher_bytes(&m, d->scratch, text, len) == TR_OK && m.can_end;
    tr_matcher_drop(&m);
    return good;
}

/* A token of the mask, each as likely as any other. */
static int32_t
draw(const driver_t *d, unsigned *seed)
{
    uint32_t n = 0, k;

    for (uint32_t i = 0; i < d->words; i++) {
        n += (uint32_t) __builtin_popcount(d->mask[i]);
    }
    k = (uint32_t) rand_r(seed) % n;
    for (uint32_t i = 0; i < d->words; i++) {
        uint32_t bits = d->mask[i];

        for (; bits != 0; bits &= bits - 1) {
            if (k-- == 0) {
                return (int32_t) (i * 32 + (uint32_t) __builtin_ctz(bits));
            }
        }
    }
    return -1;
}

/* NULL: it did not come to its end, or *error says what went wrong. */
static char *
walk(driver_t *d, tr_grammar_t *g, unsigned *seed, uint32_t steps, double bias,
     const char **error)
{
    char *text = malloc(TEXT_MAX);
    size_t len = 0;
    tr_matcher_t m;
    tr_status_t rc = tr_matcher_init(&m, g, tr_frame_pool_init(d->memory, 1));

    for (uint32_t i = 0; rc == TR_OK && i < steps; i++) {
        const char *bytes;
        uint32_t n;
        int32_t token;

        rc = tr_matcher_mask(&m, d->scratch, &d->end, 1, d->mask);
        if (rc != TR_OK) {
            *error = "no mask";
            break;
        }
        token = m.can_end && rand_r(seed) < bias * RAND_MAX ? d->end
                                                            : draw(d, seed);
        if (token == d->end) {
            tr_matcher_drop(&m);
            text[len] = '\0';
            return text;
        }
        bytes = token_bytes(d, token, &n);
        if (len + n + 1 > TEXT_MAX) {
            break;
        }
        memcpy(text + len, bytes, n);
        len += n;
        rc = tr_matcher_token(&m, d->scratch, token);
        if (rc != TR_OK) {
            *error = "a token of the mask was refused";
        }
    }
    tr_matcher_drop(&m);
    free(text);
    return NULL;
}

static void
walks(driver_t *d, tr_grammar_t *g, const json_t *job, json_t *out)
{
    json_int_t n = json_integer_value(json_object_get(job, "walks"));
    unsigned seed = (unsigned) json_integer_value(json_object_get(job, "seed"));
    uint32_t steps = (uint32_t) json_integer_value(
        json_object_get(job, "steps"));
    double bias = json_number_value(json_object_get(job, "bias"));
    json_t *texts = json_array();
    json_int_t cut = 0;

    for (json_int_t i = 0; i < n; i++) {
        const char *error = NULL;
        char *text = walk(d, g, &seed, steps, bias, &error);

        if (error != NULL) {
            json_object_set_new(out, "error", json_string(error));
        } else if (text == NULL) {
            cut++;
        } else if (json_array_append_new(texts, json_string(text)) != 0) {
            json_object_set_new(out, "error", json_string("no UTF-8"));
        }
        free(text);
    }
    json_object_set_new(out, "walks", texts);
    json_object_set_new(out, "cut", json_integer(cut));
}

static json_t *
mask_behind(driver_t *d, tr_grammar_t *g, const json_t *tokens)
{
    char *hex = malloc((size_t) d->words * 8 + 1);
    tr_matcher_t m;
    json_t *out;
    tr_status_t rc = tr_matcher_init(&m, g, tr_frame_pool_init(d->memory, 1));

    for (size_t i = 0; rc == TR_OK && i < json_array_size(tokens); i++) {
        rc = tr_matcher_token(&m, d->scratch,
                              (int32_t) json_integer_value(
                                  json_array_get(tokens, i)));
    }
    if (rc == TR_OK) {
        rc = tr_matcher_mask(&m, d->scratch, &d->end, 1, d->mask);
    }
    for (uint32_t i = 0; i < d->words; i++) {
        sprintf(hex + 8 * (size_t) i, "%08" PRIx32, d->mask[i]);
    }
    out = rc == TR_OK ? json_string(hex) : json_null();
    tr_matcher_drop(&m);
    free(hex);
    return out;
}

static json_t *
answer(driver_t *d, const json_t *job)
{
    static const char *const kinds[] = { "json", "schema", "regex", "choice",
                                         "ebnf" };
    const char *kind = json_string_value(json_object_get(job, "kind"));
    json_t *text = json_object_get(job, "text"), *out = json_object(), *item;
    json_t *list = json_array();
    tr_grammar_spec_t spec = { .text = json_string_value(text),
                               .len = json_string_length(text),
                               .flags = (unsigned) json_integer_value(
                                   json_object_get(job, "flags")),
                               .param = "field",
                               .name = "test" };
    tr_grammar_t *g;
    tr_error_t err = { 0 };
    size_t i;

    for (i = 0; i < 5; i++) {
        if (kind != NULL && strcmp(kinds[i], kind) == 0) {
            spec.kind = (enum tr_grammar_kind) i;
        }
    }
    if (tr_grammar_compile(d->vocabulary, &spec, &g, &err) != TR_OK) {
        json_object_set_new(out, "error", json_string(err.text));
        json_decref(list);
        return out;
    }
    json_array_foreach (json_object_get(job, "texts"), i, item) {
        json_array_append_new(list, json_boolean(
                                        accepts(d, g, json_string_value(item),
                                                json_string_length(item))));
    }
    json_object_set_new(out, "accepts", list);
    json_object_set_new(out, "dropped", json_integer(tr_grammar_dropped(g)));
    if (json_object_get(job, "walks") != NULL) {
        walks(d, g, job, out);
    }
    list = json_array();
    json_array_foreach (json_object_get(job, "tokens"), i, item) {
        json_array_append_new(list, mask_behind(d, g, item));
    }
    json_object_set_new(out, "masks", list);
    tr_grammar_unref(g);
    return out;
}

int
main(int argc, char **argv)
{
    driver_t d = { 0 };
    char *line = NULL;
    size_t cap = 0;
    tr_error_t err;

    if (argc != 2) {
        fprintf(stderr, "usage: grammar_driver DIR | --bytes\n");
        return 2;
    }
    if (strcmp(argv[1], "--bytes") == 0) {
        d.vocab = 257;
        d.end = 256;
        d.vocabulary = tr_vocabulary_new(d.vocab, one_byte, NULL);
    } else {
        if (tr_tokenizer_load(argv[1], &d.tokenizer, &err) != TR_OK) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        d.vocab = tr_tokenizer_vocab_size(d.tokenizer) + 1;
        d.end = (int32_t) d.vocab - 1; /* one that no tokenizer has */
        d.vocabulary = tr_vocabulary_of(d.tokenizer, d.vocab);
    }
    d.scratch = tr_grammar_scratch_new(d.vocabulary);
    d.words = tr_vocabulary_words(d.vocabulary);
    d.memory = malloc(tr_frame_pool_size(1));
    d.mask = calloc(d.words, 4);
    while (getline(&line, &cap, stdin) > 0) {
        json_t *job = json_loads(line, JSON_ALLOW_NUL, NULL), *out;

        out = answer(&d, job);
        json_dumpf(out, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(out);
        json_decref(job);
    }
    free(line);
    free(d.memory);
    free(d.mask);
    tr_grammar_scratch_free(d.scratch);
    tr_vocabulary_free(d.vocabulary);
    tr_tokenizer_free(d.tokenizer);
    return 0;
}
