/*
 * Masks and compile times of constrained decoding over real schemas.
 *
 *   bench_grammar TOKENIZER_DIR SCHEMA_DIR
 *
 * SCHEMA_DIR has files of guidance-ai/jsonschemabench (maskbench/data):
 * {"schema": ..., "tests": [{"valid": true, "data": ...}]}.  Each schema is
 * compiled once; the tokens of each valid instance (keys in the schema's order)
 * are followed, and the mask before each is timed, as a new grammar meets them.
 * Then hostile schemas (hostile_schemas.h) are compiled, each alone.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "engine/grammar/grammar.h"
#include "tests/unit/fixtures/hostile_schemas.h"

typedef struct {
    double *data;
    size_t n, cap;
} list_t;

typedef struct {
    tr_tokenizer_t *tokenizer;
    tr_tokenizer_scratch_t *encoder;
    tr_vocabulary_t *vocabulary;
    tr_grammar_scratch_t *scratch;
    uint32_t vocab;
    void *memory;
    uint32_t *mask;
    list_t masks, compiles, refusals; /* us */
    uint32_t instances, whole;
    double slowest;
    char where[256]; /* the slowest mask */
} bench_t;

static double
now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double) t.tv_sec * 1e6 + (double) t.tv_nsec * 1e-3;
}

static void
add(list_t *l, double v)
{
    if (l->n == l->cap) {
        l->cap = l->cap * 2 + 1024;
        l->data = realloc(l->data, l->cap * sizeof(*l->data));
    }
    l->data[l->n++] = v;
}

static int
by_size(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

static void
report(const char *name, list_t *l)
{
    double sum = 0;

    if (l->n == 0) {
        return;
    }
    qsort(l->data, l->n, sizeof(*l->data), by_size);
    for (size_t i = 0; i < l->n; i++) {
        sum += l->data[i];
    }
    printf("%-22s n %8zu  mean %9.1f  median %9.1f  p99 %9.1f  max %9.1f us\n",
           name, l->n, sum / (double) l->n, l->data[l->n / 2],
           l->data[(size_t) ((double) l->n * 0.99)], l->data[l->n - 1]);
}

/* A copy of a value whose keys come in the order of its schema. */
static json_t *
in_order(json_t *value, json_t *schema)
{
    json_t *out, *item, *properties = json_object_get(schema, "properties");
    const char *key;
    size_t i;

    if (json_is_array(value)) {
        out = json_array();
        json_array_foreach (value, i, item) {
            json_array_append_new(out,
                                  in_order(item,
                                           json_object_get(schema, "items")));
        }
        return out;
    }
    if (!json_is_object(value)) {
        return json_incref(value);
    }
    out = json_object();
    json_object_foreach (properties, key, item) {
        json_t *member = json_object_get(value, key);

        if (member != NULL) {
            json_object_set_new(out, key, in_order(member, item));
        }
    }
    json_object_foreach (value, key, item) {
        if (json_object_get(out, key) == NULL) {
            json_object_set_new(out, key,
                                in_order(item,
                                         json_object_get(schema, "additionalPro"
                                                                 "perties")));
        }
    }
    return out;
}

static void
follow(bench_t *b, tr_grammar_t *g, const char *text, const char *file)
{
    tr_ids_t ids = { 0 };
    tr_matcher_t m;
    tr_error_t err;
    uint32_t i;

    if (tr_tokenizer_encode(b->tokenizer, b->encoder, text, strlen(text),
                            TR_ENCODE_MIDDLE, &ids, &err)
            != TR_OK
        || tr_matcher_init(&m, g, tr_frame_pool_init(b->memory, 1)) != TR_OK) {
        free(ids.data);
        return;
    }
    b->instances++;
    for (i = 0; i < ids.len; i++) {
        double from = now_us(), took;
        tr_status_t rc = tr_matcher_mask(&m, b->scratch, NULL, 0, b->mask);

        took = now_us() - from;
        if (rc != TR_OK) {
            break;
        }
        add(&b->masks, took);
        if (took > b->slowest) {
            b->slowest = took;
            snprintf(b->where, sizeof(b->where), "%.100s, token %u", file, i);
        }
        if (!(b->mask[ids.data[i] / 32] >> (ids.data[i] % 32) & 1)
            || tr_matcher_token(&m, b->scratch, ids.data[i]) != TR_OK) {
            break;
        }
    }
    b->whole += i == ids.len && m.can_end;
    tr_matcher_drop(&m);
    free(ids.data);
}

static void
run(bench_t *b, const char *path, const char *file)
{
    json_t *root = json_load_file(path, 0, NULL), *test;
    json_t *schema = json_object_get(root, "schema");
    char *text = schema == NULL ? NULL : json_dumps(schema, JSON_COMPACT);
    tr_grammar_spec_t spec = { .kind = TR_GRAMMAR_SCHEMA,
                               .text = text,
                               .len = text == NULL ? 0 : strlen(text),
                               .param = "schema" };
    tr_grammar_t *g;
    tr_error_t err;
    double from = now_us();
    size_t i;

    if (text == NULL
        || tr_grammar_compile(b->vocabulary, &spec, &g, &err) != TR_OK) {
        add(&b->refusals, now_us() - from);
        free(text);
        json_decref(root);
        return;
    }
    add(&b->compiles, now_us() - from);
    json_array_foreach (json_object_get(root, "tests"), i, test) {
        if (json_is_true(json_object_get(test, "valid"))) {
            json_t *value = in_order(json_object_get(test, "data"), schema);
            char *instance = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);

            follow(b, g, instance, file);
            free(instance);
            json_decref(value);
        }
    }
    tr_grammar_unref(g);
    free(text);
    json_decref(root);
}

static void
run_hostile(bench_t *b)
{
    const size_t n = sizeof(hostile) / sizeof(hostile[0]);
    char *text = malloc(HOSTILE_TEXT + 1);
    const char *dearest = "";
    double most = 0;
    list_t took = { 0 };

    for (size_t i = 0; i < n; i++) {
        tr_grammar_spec_t spec = { .kind = TR_GRAMMAR_SCHEMA,
                                   .text = text,
                                   .param = "schema" };
        tr_grammar_t *g;
        tr_error_t err;
        double from;

        write_schema(text, &hostile[i]);
        spec.len = strlen(text);
        spec.flags = hostile[i].drops ? 0 : TR_GRAMMAR_REFUSE;
        from = now_us();
        if (tr_grammar_compile(b->vocabulary, &spec, &g, &err) == TR_OK) {
            tr_grammar_unref(g);
        }
        from = now_us() - from;
        add(&took, from);
        if (from > most) {
            most = from;
            dearest = hostile[i].name;
        }
    }
    report("compile, hostile", &took);
    printf("the dearest hostile schema: %s\n", dearest);
    free(took.data);
    free(text);
}

int
main(int argc, char **argv)
{
    bench_t b = { 0 };
    tr_error_t err;
    struct dirent *entry;
    char path[1024];
    double from;
    DIR *dir;

    if (argc != 3) {
        fprintf(stderr, "usage: bench_grammar TOKENIZER_DIR SCHEMA_DIR\n");
        return 2;
    }
    if (tr_tokenizer_load(argv[1], &b.tokenizer, &err) != TR_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    b.encoder = tr_tokenizer_scratch_new(b.tokenizer);
    b.vocab = (tr_tokenizer_vocab_size(b.tokenizer) + 127) / 128 * 128;
    from = now_us();
    b.vocabulary = tr_vocabulary_of(b.tokenizer, b.vocab);
    printf("vocabulary of %u tokens as a trie: %.0f ms\n", b.vocab,
           (now_us() - from) * 1e-3);
    b.scratch = tr_grammar_scratch_new(b.vocabulary);
    b.memory = malloc(tr_frame_pool_size(1));
    b.mask = calloc(tr_vocabulary_words(b.vocabulary), 4);
    dir = opendir(argv[2]);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.') {
            snprintf(path, sizeof(path), "%s/%s", argv[2], entry->d_name);
            run(&b, path, entry->d_name);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    report("mask", &b.masks);
    report("compile", &b.compiles);
    report("compile, refused", &b.refusals);
    run_hostile(&b);
    printf("instances %u, followed to the end %u; slowest mask: %s\n",
           b.instances, b.whole, b.where);
    return 0;
}
