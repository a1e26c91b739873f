/*
 * tokenring calibrate: a policy's settings, from cases of the dev split.
 *
 * As DiffKV section 7.2: one setting after another.  While alpha_high is
 * searched, alpha_low is 0 (nothing is forgotten); then alpha_low is searched
 * with the alpha_high that was chosen.  Chosen is, of the values that lose no
 * more than the tolerance against full in any family, the one that takes least
 * memory; with --memory, of those that fit in it, the one that loses least.  Any
 * setting of any policy is searched in the same way (a baseline's
 * budget), so that all are calibrated with equal effort.
 *
 * What was found goes beside the model, where the engine looks for it
 * (engine/kv/policy/kv_policy_file.h).  All that was measured is a curve
 * (calibrate_curve.h).  Few cases cannot show that little is
 * lost, so they are refused before anything is run.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tokenring/version.h>

#include "cli/cli.h"
#include "engine/config/log.h"
#include "engine/kv/policy/kv_policy_file.h"
#include "calibrate_curve.h"
#include "eval_report.h"
#include "eval_session.h"
#include "cli/terminal.h"

#define SPEC_MAX TR_CURVE_SPEC
#define VALUES_MAX 32u
#define BESIDE_MAX 8u
#define REFERENCE "full"
#define TEXT_WINDOWS_MIN 16u /* before a bootstrap over them says anything */

static struct {
    tr_eval_options_t eval;
    tr_option_list_t search;
    tr_option_list_t beside;
    const char *policy, *out, *json;
    json_t *stages;
    bool write;
} g = { .eval = TR_EVAL_DEFAULTS, .policy = "diffkv" };

static tr_curve_goal_t goal = { .tolerance = 1 };
static tr_curve_t curve;

static tr_option_t options[] = {
    TR_EVAL_OPTIONS(g.eval),
    TR_EVAL_ROW("The search", 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0),
    TR_EVAL_ROW("policy", 'p', TR_OPTION_TEXT, &g.policy, "SPEC",
                "the policy, with its fixed settings (default diffkv)", 0, 0),
    TR_EVAL_ROW("search", 's', TR_OPTION_LIST, &g.search, "KEY=V,V,..",
                "values to try, may be repeated: settings are searched in "
                "turn, later ones at their first value (diffkv: alpha_high, "
                "then alpha_low)",
                0, 0),
    TR_EVAL_ROW("tolerance", 0, TR_OPTION_NUMBER, &goal.tolerance, "POINTS",
                "most that may be lost in a family, in percentage points "
                "(default 1)",
                0.01, 100),
    TR_EVAL_ROW("memory", 0, TR_OPTION_NUMBER, &goal.memory, "RATIO",
                "take what loses least within this share of the 16-bit "
                "memory, as 0.3 (default: the least memory within the "
                "tolerance)",
                0.01, 2),
    TR_EVAL_ROW("text", 0, TR_OPTION_TEXT, &g.eval.text, "FILE",
                "a text: measure losses as the KL divergence of its tokens "
                "from full, which also tells policies with equal answers "
                "apart",
                0, 0),
    TR_EVAL_ROW("window", 0, TR_OPTION_INT, &g.eval.window, "N",
                "--text: tokens of a window, half of them its prompt (default "
                "1024)",
                16, 1 << 24),
    TR_EVAL_ROW("windows", 0, TR_OPTION_INT, &g.eval.windows, "N",
                "--text: the first N windows only, at least 16",
                TEXT_WINDOWS_MIN, 1e9),
    TR_EVAL_ROW("beside", 0, TR_OPTION_LIST, &g.beside, "SPEC",
                "a policy to measure for comparison, may be repeated (diffkv: "
                "uniform:levels=4/2 and 8/4)",
                0, 0),
    TR_EVAL_ROW("write", 0, TR_OPTION_FLAG, &g.write, NULL,
                "write " TR_KV_POLICY_FILE " beside the model without asking",
                0, 0),
    TR_EVAL_ROW("out", 0, TR_OPTION_TEXT, &g.out, "FILE",
                "write the configuration line there, too", 0, 0),
    TR_EVAL_ROW("json", 0, TR_OPTION_TEXT, &g.json, "OUT",
                "write what was tried and chosen as JSON to this file", 0, 0),
    { NULL, 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL, false }
};

const tr_command_t tr_calibrate_command = {
    "tokenring calibrate [options] -m DIR -c DEV.jsonl",
    "Searches the settings of a KV policy, on cases of the dev split, for "
    "those\n"
    "that take least memory while no family loses more than a tolerance "
    "against\n"
    "full; with --memory, for those that lose least in that much memory.  "
    "Prints\n"
    "the curve of memory against answers and the line for the engine's\n"
    "configuration, and writes " TR_KV_POLICY_FILE " beside the model, where\n"
    "`kv_policy diffkv` finds it.",
    "  tokenring calibrate -m models/pocket -c dev.jsonl --resume cal.jsonl\n"
    "  tokenring calibrate -m models/pocket -c dev.jsonl --memory 0.3 --text "
    "text.txt\n"
    "  tokenring calibrate -m models/pocket -c dev.jsonl -p snapkv "
    "-s budget=0.5,0.4,0.3,0.2",
    options
};

/* One --search: its key and values. */
typedef struct {
    char text[SPEC_MAX];
    const char *key;
    const char *value[VALUES_MAX];
    uint32_t n;
    uint32_t chosen; /* of value */
} search_t;

static search_t searches[TR_OPTION_LIST_MAX];
static uint32_t n_searches;

/* Of what the last stage chose. */
static struct {
    bool found; /* it is within the tolerance, and fits */
    uint32_t layers, kv_heads, head_dim, cases;
    tr_curve_point_t point;
} best;

/* ---- what to search ----------------------------------------------------- */

static int
read_search(const char *text)
{
    search_t *s = &searches[n_searches];
    char *equals, *save = NULL, *value;

    if (strlen(text) >= sizeof(s->text)) {
        return tr_usage_error(&tr_calibrate_command,
                              "--search: longer than %zu bytes",
                              sizeof(s->text) - 1);
    }
    snprintf(s->text, sizeof(s->text), "%s", text);
    equals = strchr(s->text, '=');
    if (equals == NULL || equals == s->text || equals[1] == '\0') {
        return tr_usage_error(&tr_calibrate_command,
                              "--search %s: expected KEY=VALUE,VALUE,..", text);
    }
    *equals = '\0';
    s->key = s->text;
    for (value = strtok_r(equals + 1, ",", &save); value != NULL;
         value = strtok_r(NULL, ",", &save)) {
        if (s->n == VALUES_MAX) {
            return tr_usage_error(&tr_calibrate_command,
                                  "--search %s: more than %u values", s->key,
                                  VALUES_MAX);
        }
        s->value[s->n++] = value;
    }
    n_searches++;
    return 0;
}

static int
check_options(void)
{
    size_t name = strcspn(g.policy, ":");
    bool is_diffkv = name == strlen("diffkv")
                     && memcmp(g.policy, "diffkv", name) == 0;
    int rc = 0;

    if (g.eval.dir == NULL) {
        return tr_usage_error(&tr_calibrate_command, "give the model: -m DIR");
    }
    if (g.eval.cases.n == 0) {
        return tr_usage_error(&tr_calibrate_command, "give cases: -c FILE");
    }
    for (unsigned i = 0; i < g.eval.cases.n; i++) {
        if (strcmp(g.eval.cases.item[i], "-") == 0) {
            return tr_usage_error(&tr_calibrate_command,
                                  "-c -: give a file, since cases "
                                  "are read again at every stage");
        }
    }
    g.eval.kl = g.eval.text != NULL;
    g.eval.min_windows = TEXT_WINDOWS_MIN;
    if (g.eval.kl && g.eval.batch > TR_KL_BATCH) {
        return tr_usage_error(&tr_calibrate_command,
                              "--text goes with a --batch of at most %u",
                              TR_KL_BATCH);
    }
    if (g.beside.n > BESIDE_MAX) {
        return tr_usage_error(&tr_calibrate_command,
                              "--beside: %u policies, expected at most %u",
                              g.beside.n, BESIDE_MAX);
    }
    if (g.beside.n == 0 && is_diffkv) {
        g.beside.item[g.beside.n++] = "uniform:levels=4/2";
        g.beside.item[g.beside.n++] = "uniform:levels=8/4";
    }
    if (g.search.n == 0 && is_diffkv) {
        g.search.item[g.search.n++] = "alpha_high=1,2,3,5,8,12,20,30";
        g.search.item[g.search.n++] = "alpha_low=0,0.0002,0.001,0.005,0.02,0."
                                      "04,0.06,0.08,0.1";
    }
    if (g.search.n == 0) {
        return tr_usage_error(&tr_calibrate_command,
                              "say what to search for %.*s: "
                              "--search KEY=VALUE,VALUE,..",
                              (int) name, g.policy);
    }
    for (unsigned i = 0; i < g.search.n && rc == 0; i++) {
        rc = read_search(g.search.item[i]);
    }
    return rc;
}

/* The policy while search `stage` has its value `index`. */
static void
write_spec(uint32_t stage, uint32_t index, char *out)
{
    size_t n = (size_t) snprintf(out, SPEC_MAX, "%s", g.policy);

    for (uint32_t i = 0; i < n_searches; i++) {
        const search_t *s = &searches[i];
        uint32_t value = i < stage ? s->chosen : i == stage ? index : 0;

        if (n < SPEC_MAX) {
            n += (size_t) snprintf(out + n, SPEC_MAX - n, "%c%s=%s",
                                   i == 0 && strchr(g.policy, ':') == NULL
                                       ? ':'
                                       : ',',
                                   s->key, s->value[value]);
        }
    }
}

/* ---- enough cases ------------------------------------------------------- */

static tr_status_t
refuse_few(const char *family, size_t n, tr_error_t *err)
{
    double needed = tr_pairs_needed(goal.tolerance / 100);

    if ((double) n >= needed) {
        return TR_OK;
    }
    return tr_error_set(err, TR_ERR_INVALID, "cases",
                        "the family %.60s has %zu cases: to say with 95%% that"
                        " no more than %g points are lost takes at least %.0f;"
                        " give more, or a larger --tolerance",
                        family, n, goal.tolerance, needed);
}

/* Every family has cases enough for the tolerance. */
static tr_status_t
check_cases(tr_error_t *err)
{
    tr_eval_cases_t cases = { 0 };
    tr_status_t rc = tr_eval_session_cases(&g.eval, &cases, err);

    for (size_t i = 0; i < cases.n && rc == TR_OK; i++) {
        const char *family = cases.items[i].family;
        size_t n = 0, first = cases.n;

        for (size_t j = cases.n; j-- > 0;) {
            if (strcmp(cases.items[j].family, family) == 0) {
                first = j;
                n++;
            }
        }
        if (first == i) {
            rc = refuse_few(family, n, err);
        }
    }
    best.cases = (uint32_t) cases.n;
    tr_eval_cases_free(&cases);
    return rc;
}

/* ---- a stage ------------------------------------------------------------ */

/* How a value of the search did, for who reads it while it runs. */
static void
tell(const search_t *search, uint32_t i, const tr_curve_point_t *p)
{
    bool good = tr_curve_tolerated(p, &goal), fits = tr_curve_fits(p, &goal);

    json_array_append_new(g.stages,
                          json_pack("{s:s, s:s, s:f, s:f, s:f, s:s, s:b, s:b}",
                                    "setting", search->key, "value",
                                    search->value[i], "accuracy", p->accuracy,
                                    "kv_ratio", p->kv_ratio, "most_lost_points",
                                    p->lost, "family", p->family,
                                    "within_tolerance", good, "fits", fits));
    printf("%-14s %8.2f %8.3f  %+.2f in %-14s %s\n", search->value[i],
           p->accuracy * 100, p->kv_ratio, p->lost, p->family,
           !fits  ? "beyond the memory"
           : good ? "within the tolerance"
                  : "");
}

/* The best of the values; they and what was run beside them go to the curve. */
static void
choose(const tr_eval_session_t *s, search_t *search, const char *const *specs)
{
    printf("\n%-14s %8s %8s  %-24s %s\n", search->key, "right %", "kv_ratio",
           "most lost, points", "");
    for (uint32_t i = 0; i + 1 < s->results.n_policies; i++) {
        tr_curve_point_t p = { .beside = i >= search->n };

        snprintf(p.spec, sizeof(p.spec), "%s", specs[i + 1]);
        tr_curve_measure(&s->results, i + 1, &p);
        tr_curve_add(&curve, &p);
        if (p.beside) {
            continue;
        }
        tell(search, i, &p);
        if (i == 0 || tr_curve_better(&p, &best.point, &goal)) {
            search->chosen = i;
            best.point = p;
        }
    }
    best.found = tr_curve_tolerated(&best.point, &goal)
                 && tr_curve_fits(&best.point, &goal);
    printf("chosen: %s=%s%s\n", search->key, search->value[search->chosen],
           best.found ? ""
           : tr_curve_fits(&best.point, &goal)
               ? ", although it loses more than the tolerance"
               : ", although it takes more than the memory");
}

/* 0, or the exit status. */
static int
run_stage(uint32_t stage)
{
    static char specs[VALUES_MAX][SPEC_MAX];
    const char *list[VALUES_MAX + BESIDE_MAX + 1] = { REFERENCE };
    search_t *search = &searches[stage];
    uint32_t n = search->n + 1;
    tr_eval_session_t s = { 0 };
    tr_error_t err = { 0 };
    tr_status_t rc;

    for (uint32_t i = 0; i < search->n; i++) {
        write_spec(stage, i, specs[i]);
        list[i + 1] = specs[i];
    }
    for (uint32_t i = 0; i < g.beside.n && stage == 0; i++) {
        list[n++] = g.beside.item[i];
    }
    rc = tr_eval_session_run(&s, &g.eval, list, n, &err);
    if (rc == TR_OK) {
        best.layers = s.engine.layers;
        best.kv_heads = s.engine.kv_heads;
        best.head_dim = s.engine.head_dim;
        choose(&s, search, list);
        fflush(stdout);
    } else {
        fprintf(stderr, "tokenring calibrate: %s\n", err.text);
    }
    tr_eval_session_close(&s);
    return rc == TR_OK ? 0 : rc == TR_ERR_CLOSED ? 130 : 1;
}

/* ---- what was found ----------------------------------------------------- */

static bool
asked_to_write(void)
{
    char line[16];

    if (g.write) {
        return true;
    }
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) {
        printf("With --write it goes into %s/" TR_KV_POLICY_FILE ".\n",
               g.eval.dir);
        return false;
    }
    printf("Write it into %s/" TR_KV_POLICY_FILE "? [y/N] ", g.eval.dir);
    fflush(stdout);
    return fgets(line, sizeof(line), stdin) != NULL
           && (line[0] == 'y' || line[0] == 'Y');
}

static int
write_beside(const char *spec)
{
    json_t *how;
    tr_error_t err = { 0 };
    tr_status_t rc;

    if (!best.found) {
        printf("It is not written beside the model, since it %s.\n",
               tr_curve_fits(&best.point, &goal)
                   ? "loses more than the tolerance"
                   : "takes more than the memory");
        return g.write;
    }
    if (!asked_to_write()) {
        return 0;
    }
    how = json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:f}", "version",
                    TR_VERSION, "cases", (json_int_t) best.cases,
                    "tolerance_points", goal.tolerance, "right",
                    best.point.accuracy, "kv_ratio", best.point.kv_ratio,
                    "most_lost_points", best.point.lost, "most_lost_points_95",
                    best.point.lost_high);
    rc = tr_kv_policy_file_write(g.eval.dir, spec, best.layers, best.kv_heads,
                                 best.head_dim, how, &err);
    json_decref(how);
    if (rc != TR_OK) {
        fprintf(stderr, "tokenring calibrate: %s\n", err.text);
        return 1;
    }
    printf("%s/" TR_KV_POLICY_FILE " is written.\n", g.eval.dir);
    return 0;
}

static int
write_json(const char *spec)
{
    json_t *root = json_pack("{s:s, s:s, s:I, s:f, s:f, s:b, s:b, s:O, s:o}",
                             "model", g.eval.dir, "kv_policy", spec, "cases",
                             (json_int_t) best.cases, "tolerance_points",
                             goal.tolerance, "memory", goal.memory,
                             "within_tolerance",
                             tr_curve_tolerated(&best.point, &goal), "fits",
                             tr_curve_fits(&best.point, &goal), "tried",
                             g.stages, "curve", tr_curve_json(&curve, &goal));
    int rc = root != NULL
                 ? json_dump_file(root, g.json,
                                  JSON_INDENT(1) | JSON_REAL_PRECISION(6))
                 : -1;

    json_decref(root);
    if (rc != 0) {
        fprintf(stderr, "tokenring calibrate: cannot write %s\n", g.json);
    }
    return rc;
}

static int
write_line(void)
{
    char spec[SPEC_MAX];
    FILE *f;

    write_spec(n_searches, 0, spec);
    tr_curve_print(&curve, &goal, stdout);
    printf("\nOf %u cases: %+.2f points in %s, which loses most; with 95%% not "
           "below %+.2f.\nThese cases chose it: other ones tell what it loses "
           "(tokenring eval).\n",
           best.cases, 0 - best.point.lost, best.point.family,
           0 - best.point.lost_high);
    printf("\nkv_policy %s\n", spec);
    if (g.out != NULL) {
        f = fopen(g.out, "we");
        if (f == NULL || fprintf(f, "kv_policy %s\n", spec) < 0
            || fclose(f) != 0) {
            fprintf(stderr, "tokenring calibrate: cannot write %s: %s\n", g.out,
                    strerror(errno));
            return 1;
        }
    }
    if (g.json != NULL && write_json(spec) != 0) {
        return 1;
    }
    return write_beside(spec);
}

int
tr_cmd_calibrate(int argc, char **argv)
{
    char own[64] = "/tmp/tokenring-calibrate.XXXXXX";
    tr_error_t err = { 0 };
    int status, fd = -1;

    if (tr_options_only(&tr_calibrate_command, argc, argv, &status) != 0
        || (status = check_options()) != 0) {
        return status;
    }
    if (check_cases(&err) != TR_OK) {
        fprintf(stderr, "tokenring calibrate: %s\n", err.text);
        return 1;
    }
    tr_interrupt_catch();
    g.stages = json_array();
    if (g.eval.resume == NULL) { /* stages share what they have in common */
        fd = mkstemp(own);
        if (fd < 0) {
            fprintf(stderr, "tokenring calibrate: cannot make %s: %s\n", own,
                    strerror(errno));
            return 1;
        }
        close(fd);
        g.eval.resume = own;
    }
    for (uint32_t i = 0; i < n_searches && status == 0; i++) {
        status = run_stage(i);
    }
    if (fd >= 0) {
        unlink(own);
    }
    return status != 0 ? status : write_line();
}
