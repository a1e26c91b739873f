/*
 * Renders templates for compare.py.  One JSON object a line on standard input,
 * one answer a line on standard output, the same order:
 *
 *   {"template": T, "context": {...}, "now": UNIX}  ->  {"text": T} or
 *                                                       {"error": E}
 *
 * With "repeat": N the rendering is done N times, and the answer has the
 * median's microseconds ("us"), and its steps and bytes of memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/template/jinja_run.h"

typedef struct {
    const json_t *context;
} fill_t;

static void
fill(tr_jinja_render_t *r, void *arg)
{
    const char *key;
    json_t *value;

    json_object_foreach ((json_t *) ((fill_t *) arg)->context, key, value) {
        tr_jinja_set(r, key, tr_jinja_from_json(r, value, TR_JINJA_U));
    }
}

static double
now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double) ts.tv_sec * 1e6 + (double) ts.tv_nsec / 1e3;
}

static int
by_size(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return x < y ? -1 : x > y;
}

static json_t *
render(const tr_jinja_t *t, const json_t *q)
{
    json_int_t repeat = json_integer_value(json_object_get(q, "repeat"));
    fill_t f = { json_object_get(q, "context") };
    tr_jinja_limits_t limits = { .memory = (size_t) 1 << 30,
                                 .now = (time_t) json_integer_value(
                                     json_object_get(q, "now")) };
    size_t runs = repeat > 0 ? (size_t) repeat : 1;
    double *us = calloc(runs, sizeof(*us));
    json_t *out = NULL;
    tr_error_t err;

    for (size_t i = 0; i < runs; i++) {
        tr_jinja_render_t *r = tr_jinja_render_new(t, &limits);
        double begun = now_us();
        tr_jinja_text_t text;
        tr_status_t rc = tr_jinja_render(r, fill, &f, &text, &err);

        us[i] = now_us() - begun;
        if (i + 1 == runs) {
            out = rc == TR_OK ? json_pack("{s:o, s:I, s:I}", "text",
                                          json_stringn(text.text, text.len),
                                          "steps", (json_int_t) text.steps,
                                          "memory", (json_int_t) r->arena.total)
                              : json_pack("{s:s}", "error", err.text);
        }
        tr_jinja_render_free(r);
    }
    qsort(us, runs, sizeof(*us), by_size);
    json_object_set_new(out, "us", json_real(us[runs / 2]));
    free(us);
    return out;
}

static void
answer(const char *line, size_t len)
{
    json_error_t problem;
    json_t *q = json_loadb(line, len, JSON_ALLOW_NUL, &problem), *out;
    const json_t *source = json_object_get(q, "template");
    tr_jinja_t *t;
    tr_error_t err;

    if (q == NULL) {
        fprintf(stderr, "jinja_render: %s\n", problem.text);
        exit(2);
    }
    if (tr_jinja_parse(json_string_value(source), json_string_length(source),
                       "template", &t, &err)
        == TR_OK) {
        out = render(t, q);
        tr_jinja_free(t);
    } else {
        out = json_pack("{s:s, s:b}", "error", err.text, "parse", 1);
    }
    json_dumpf(out, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(out);
    json_decref(q);
}

int
main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    while ((n = getline(&line, &cap, stdin)) > 0) {
        answer(line, (size_t) n);
    }
    free(line);
    return 0;
}
