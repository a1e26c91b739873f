/*
 * tokenring eval: how right a model's answers stay under KV policies, and how
 * much memory each takes.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "eval_report.h"
#include "eval_session.h"
#include "cli/terminal.h"

static struct {
    tr_eval_options_t eval;
    tr_option_list_t policies;
    const char *json, *svg, *title;
} g = { .eval = TR_EVAL_DEFAULTS };

static tr_option_t options[] = {
    TR_EVAL_OPTIONS(g.eval),
    TR_EVAL_REUSE_OPTIONS(g.eval),
    TR_EVAL_TEXT_OPTIONS(g.eval),
    TR_EVAL_ROW("The policies", 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0),
    TR_EVAL_ROW("policy", 'p', TR_OPTION_LIST, &g.policies, "SPEC",
                "NAME or NAME:KEY=VALUE,.., may be repeated; others are "
                "compared with the first (default full, diffkv, "
                "uniform:levels=8/4 and 4/2)",
                0, 0),
    TR_EVAL_ROW("Output", 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0),
    TR_EVAL_ROW("json", 0, TR_OPTION_TEXT, &g.json, "OUT",
                "write the results as JSON to this file, - for standard output",
                0, 0),
    TR_EVAL_ROW("svg", 0, TR_OPTION_TEXT, &g.svg, "OUT",
                "a plot of accuracy over memory", 0, 0),
    TR_EVAL_ROW("title", 0, TR_OPTION_TEXT, &g.title, "TEXT", "of the plot", 0,
                0),
    { NULL, 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL, false }
};

const tr_command_t tr_eval_command = {
    "tokenring eval [options] -m DIR -c FILE -p SPEC ..",
    "Answers cases with known answers under several KV policies, each prompt\n"
    "computed once, and reports accuracy, memory and paired differences.  A\n"
    "case is a line {\"messages\": [..] or \"prompt\": \"..\", \"answer\": "
    "\"..\",\n\"match\": \"exact\"}; docs/eval.md shows how to turn GSM8K, "
    "MATH,\nLongBench and RULER into such lines.",
    "  tokenring eval -m /srv/models/X -c gsm8k.jsonl\n"
    "  tokenring eval -m models/pocket -c dev.jsonl -p full "
    "-p diffkv:alpha_high=3,alpha_low=0\n"
    "  tokenring eval -m models/pocket -c test.jsonl --keep-turns --resume "
    "r.jsonl --json out.json --svg out.svg\n"
    "  tokenring eval -m models/pocket --perplexity text.txt -p full -p kivi",
    options
};

/* "-": standard output. */
static FILE *
open_output(const char *path)
{
    FILE *f = strcmp(path, "-") == 0 ? stdout : fopen(path, "we");

    if (f == NULL) {
        fprintf(stderr, "tokenring eval: cannot write %s: %s\n", path,
                strerror(errno));
    }
    return f;
}

static int
close_output(FILE *f, const char *path)
{
    if ((f == stdout ? fflush(f) : fclose(f)) != 0) {
        fprintf(stderr, "tokenring eval: cannot write %s: %s\n", path,
                strerror(errno));
        return -1;
    }
    return 0;
}

static json_t *
list_json(const tr_option_list_t *list)
{
    json_t *a = json_array();

    for (unsigned i = 0; i < list->n; i++) {
        json_array_append_new(a, json_string(list->item[i]));
    }
    return a;
}

static const char *const *
labels(const tr_eval_session_t *s)
{
    return (const char *const *) s->engine.label;
}

/* What was asked, so that the figures can be made again. */
static json_t *
run_json(const tr_eval_session_t *s, int argc, char **argv)
{
    json_t *root = json_object(), *words = json_array();
    const tr_eval_progress_t *p = &s->spent;

    for (int i = 0; i < argc; i++) {
        json_array_append_new(words, json_string(argv[i]));
    }
    json_object_set_new(root, "command", words);
    json_object_set_new(root, "model", json_string(g.eval.dir));
    json_object_set_new(root, "cases", json_integer((json_int_t) s->cases.n));
    json_object_set_new(root, "case_files", list_json(&g.eval.cases));
    json_object_set_new(root, "answers",
                        json_integer((json_int_t) s->results.n_jobs));
    json_object_set_new(root, "keep_turns", json_boolean(g.eval.keep_turns));
    json_object_set_new(root, "shared_prefix",
                        json_boolean(g.eval.shared_prefix));
    json_object_set_new(root, "regenerate", json_boolean(g.eval.regenerate));
    json_object_set_new(root, "resumed", json_integer(s->found));
    json_object_set_new(root, "seconds", json_real(p->seconds));
    json_object_set_new(root, "prompt_tokens",
                        json_integer((json_int_t) p->prompt_tokens));
    json_object_set_new(root, "answer_tokens",
                        json_integer((json_int_t) p->tokens));
    return root;
}

static int
write_json(const tr_eval_session_t *s, int argc, char **argv)
{
    FILE *f = open_output(g.json);
    json_t *root;
    int rc;

    if (f == NULL) {
        return -1;
    }
    root = run_json(s, argc, argv);
    tr_eval_json(&s->results, labels(s), root);
    rc = json_dumpf(root, f, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    json_decref(root);
    fputc('\n', f);
    return close_output(f, g.json) != 0 || rc != 0 ? -1 : 0;
}

static int
report(const tr_eval_session_t *s, int argc, char **argv)
{
    int rc = 0;

    /* JSON on standard output is alone there */
    tr_eval_print(&s->results, labels(s),
                  g.json != NULL && strcmp(g.json, "-") == 0 ? stderr : stdout);
    if (g.json != NULL) {
        rc |= write_json(s, argc, argv);
    }
    if (g.svg != NULL) {
        FILE *f = open_output(g.svg);

        if (f == NULL) {
            return -1;
        }
        tr_eval_plot(&s->results, labels(s),
                     g.title != NULL ? g.title : "Right answers over KV memory",
                     f);
        rc |= close_output(f, g.svg);
    }
    return rc;
}

static int
check_options(void)
{
    if (g.eval.dir == NULL) {
        return tr_usage_error(&tr_eval_command, "give the model: -m DIR");
    }
    if (g.eval.cases.n == 0 && g.eval.text == NULL) {
        return tr_usage_error(&tr_eval_command,
                              "give cases (-c FILE) or a text "
                              "(--perplexity TEXT)");
    }
    if (g.eval.keep_turns + g.eval.shared_prefix + g.eval.regenerate > 1) {
        return tr_usage_error(&tr_eval_command,
                              "give one of --keep-turns, --shared-prefix and "
                              "--regenerate");
    }
    if (g.eval.kl && (g.eval.text == NULL || g.eval.batch > TR_KL_BATCH)) {
        return tr_usage_error(&tr_eval_command,
                              "--kl goes with --perplexity TEXT, and with a "
                              "--batch of at most %u",
                              TR_KL_BATCH);
    }
    if (g.eval.text != NULL && (g.eval.shared_prefix || g.eval.regenerate)) {
        return tr_usage_error(&tr_eval_command,
                              "--shared-prefix and --regenerate ask questions: "
                              "leave out --perplexity");
    }
    if (g.policies.n == 0) {
        g.policies.item[g.policies.n++] = "full";
        g.policies.item[g.policies.n++] = "diffkv";
        g.policies.item[g.policies.n++] = "uniform:levels=8/4";
        g.policies.item[g.policies.n++] = "uniform:levels=4/2";
    }
    return 0;
}

int
tr_cmd_eval(int argc, char **argv)
{
    tr_eval_session_t s = { 0 };
    tr_error_t err = { 0 };
    tr_status_t rc;
    int status;

    if (tr_options_only(&tr_eval_command, argc, argv, &status) != 0
        || (status = check_options()) != 0) {
        return status;
    }
    tr_interrupt_catch();
    rc = tr_eval_session_run(&s, &g.eval, g.policies.item, g.policies.n, &err);
    if (rc != TR_OK) {
        fprintf(stderr, "tokenring eval: %s\n", err.text);
    }
    status = rc == TR_OK ? 0 : rc == TR_ERR_CLOSED ? 130 : 1;
    if ((rc == TR_OK || rc == TR_ERR_CLOSED) && s.results.n_jobs != 0
        && report(&s, argc, argv) != 0) {
        status = 1;
    }
    tr_eval_session_close(&s);
    return status;
}
