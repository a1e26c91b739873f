/*
 * The summary, and its table and JSON (eval_report.h).
 */
#include "eval_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- summary ------------------------------------------------------------ */

static void
add_difficulty(tr_eval_family_t *f, uint32_t difficulty)
{
    uint32_t i, n = f->n_difficulties;

    for (i = 0; i < n && f->difficulty[i] < difficulty; i++) {
    }
    if (difficulty == 0 || n == TR_EVAL_DIFFICULTIES
        || (i < n && f->difficulty[i] == difficulty)) {
        return;
    }
    memmove(&f->difficulty[i + 1], &f->difficulty[i],
            (n - i) * sizeof(f->difficulty[0]));
    f->difficulty[i] = difficulty;
    f->n_difficulties++;
}

uint32_t
tr_eval_families(const tr_eval_results_t *r, tr_eval_family_t *out)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->n_jobs; i++) {
        const tr_eval_job_t *j = &r->jobs[i];
        uint32_t k;

        if (j->text) {
            continue;
        }
        for (k = 0; k < n && strcmp(out[k].name, j->family) != 0; k++) {
        }
        if (k == TR_EVAL_FAMILIES) {
            continue;
        }
        if (k == n) {
            out[n++] = (tr_eval_family_t){ .name = j->family };
        }
        add_difficulty(&out[k], j->difficulty);
    }
    return n;
}

void
tr_eval_summary(const tr_eval_results_t *r, uint32_t policy, const char *family,
                uint32_t difficulty, tr_eval_cell_t *out)
{
    tr_pairs_t pairs = { 0 }, own = { 0 };
    double right = 0, seconds = 0;

    *out = (tr_eval_cell_t){ 0 };
    for (uint32_t i = 0; i < r->n_jobs; i++) {
        const tr_eval_job_t *j = &r->jobs[i];
        const tr_eval_record_t *one = tr_eval_at(r, i, policy);
        const tr_eval_record_t *base = tr_eval_at(r, i, 0);

        if (j->text || !one->done || strcmp(j->family, family) != 0
            || (difficulty != 0 && j->difficulty != difficulty)) {
            continue;
        }
        if (one->skipped) {
            out->skipped++;
            continue;
        }
        out->n++;
        right += one->right;
        tr_pairs_add(&own, j->case_index + 1u, 1, one->right);
        out->kv_ratio += one->kv_ratio;
        out->high += one->high;
        out->low += one->low;
        out->pruned += one->pruned;
        out->tokens += one->tokens;
        out->reused += (double) one->reused / (one->prompt_tokens + 1e-9);
        seconds += one->seconds;
        if (base->done && !base->skipped) {
            tr_pairs_add(&pairs, j->case_index + 1u, base->right, one->right);
        }
    }
    out->accuracy = right / out->n; /* NaN for none, as the others */
    out->kv_ratio /= out->n;
    out->high /= out->n;
    out->low /= out->n;
    out->pruned /= out->n;
    out->reused /= out->n;
    out->tokens_per_s = seconds > 0 ? (double) out->tokens / seconds : NAN;
    tr_pairs_share(&own, &out->accuracy_low, &out->accuracy_high);
    tr_pairs_interval(&pairs, &out->diff);
}

static double
square(double x)
{
    return x * x;
}

/* Intervals of families add up as independent ones do, each end apart (the
 * same square-and-add as for two proportions). */
void
tr_eval_overall(const tr_eval_results_t *r, uint32_t policy,
                tr_eval_cell_t *out)
{
    tr_eval_family_t families[TR_EVAL_FAMILIES];
    uint32_t n = tr_eval_families(r, families), with = 0;
    double down = 0, up = 0, below = 0, above = 0, seconds = 0;

    *out = (tr_eval_cell_t){ 0 };
    for (uint32_t i = 0; i < n; i++) {
        tr_eval_cell_t c;

        tr_eval_summary(r, policy, families[i].name, 0, &c);
        out->skipped += c.skipped;
        if (c.n == 0) {
            continue;
        }
        with++;
        out->n += c.n;
        out->tokens += c.tokens;
        out->accuracy += c.accuracy;
        out->kv_ratio += c.kv_ratio;
        out->high += c.high;
        out->low += c.low;
        out->pruned += c.pruned;
        out->reused += c.reused;
        seconds += (double) c.tokens / c.tokens_per_s; /* NaN stays */
        out->diff.diff += c.diff.diff;
        down += square(c.diff.diff - c.diff.low);
        up += square(c.diff.high - c.diff.diff);
        below += square(c.accuracy - c.accuracy_low);
        above += square(c.accuracy_high - c.accuracy);
    }
    out->accuracy /= with;
    out->kv_ratio /= with;
    out->high /= with;
    out->low /= with;
    out->pruned /= with;
    out->reused /= with;
    out->tokens_per_s = (double) out->tokens / seconds;
    out->accuracy_low = out->accuracy - sqrt(below) / with;
    out->accuracy_high = out->accuracy + sqrt(above) / with;
    out->diff.diff /= with;
    out->diff.low = out->diff.diff - sqrt(down) / with;
    out->diff.high = out->diff.diff + sqrt(up) / with;
}

/* Adds a window's parts; returns its mean divergence. */
static double
add_parts(const tr_eval_job_t *j, const tr_eval_record_t *one,
          tr_eval_text_t *out)
{
    double sum = 0;

    for (uint32_t i = 0; i < TR_EVAL_PARTS; i++) {
        tr_eval_part_t *p = &out->part[i];

        p->from = tr_eval_part_from(j, i);
        p->to = tr_eval_part_from(j, i + 1);
        p->perplexity += one->nll_by[i];
        p->kl += one->kl_by[i];
        sum += one->kl_by[i] * (p->to - p->from);
    }
    out->with_kl = true;
    return sum / (j->to - j->from);
}

/* Divergences by part, of those windows that were measured. */
static void
summarise_kl(const tr_eval_results_t *r, uint32_t policy, tr_eval_text_t *out)
{
    double *kl = calloc(r->n_jobs + 1, sizeof(*kl));
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->n_jobs && kl != NULL; i++) {
        const tr_eval_record_t *one = tr_eval_at(r, i, policy);

        if (r->jobs[i].kl && one->done && !one->skipped) {
            out->kl += kl[n++] = add_parts(&r->jobs[i], one, out);
        }
    }
    tr_bootstrap_mean(kl, n, &out->kl_low, &out->kl_high);
    free(kl);
    out->kl /= n;
    for (uint32_t i = 0; i < TR_EVAL_PARTS; i++) {
        bool none = out->part[i].to == out->part[i].from;

        out->part[i].perplexity = none ? NAN : exp(out->part[i].perplexity / n);
        out->part[i].kl = none ? NAN : out->part[i].kl / n;
    }
}

void
tr_eval_text(const tr_eval_results_t *r, uint32_t policy, tr_eval_text_t *out)
{
    double *diff = calloc(r->n_jobs + 1, sizeof(*diff));
    double nll = 0, mean = 0, low, high;
    uint32_t pairs = 0;

    *out = (tr_eval_text_t){ 0 };
    for (uint32_t i = 0; i < r->n_jobs && diff != NULL; i++) {
        const tr_eval_record_t *one = tr_eval_at(r, i, policy);
        const tr_eval_record_t *base = tr_eval_at(r, i, 0);

        if (!r->jobs[i].text || !one->done) {
            continue;
        }
        if (one->skipped) {
            out->skipped++;
            continue;
        }
        out->n++;
        nll += one->nll;
        out->kv_ratio += one->kv_ratio;
        out->high += one->high;
        out->low += one->low;
        out->pruned += one->pruned;
        if (base->done && !base->skipped) {
            mean += diff[pairs++] = one->nll - base->nll;
        }
    }
    tr_bootstrap_mean(diff, pairs, &low, &high);
    free(diff);
    summarise_kl(r, policy, out);
    out->perplexity = exp(nll / out->n);
    out->ratio = exp(mean / pairs);
    out->ratio_low = exp(low);
    out->ratio_high = exp(high);
    out->kv_ratio /= out->n;
    out->high /= out->n;
    out->low /= out->n;
    out->pruned /= out->n;
}

/* ---- table -------------------------------------------------------------- */

#define LABEL_WIDTH 36

static void
print_label(uint32_t policy, const char *label, FILE *f)
{
    fprintf(f, "%3u %-*.*s", policy + 1, LABEL_WIDTH, LABEL_WIDTH, label);
}

/* "%*.1f", or a dash. */
static void
print_number(double x, double scale, int width, int digits, FILE *f)
{
    if (isnan(x)) {
        fprintf(f, " %*s", width, "-");
    } else {
        fprintf(f, " %*.*f", width, digits, x * scale);
    }
}

static void
print_diff(const tr_paired_t *d, bool first, FILE *f)
{
    char text[40] = "-";

    if (!first && !isnan(d->diff)) {
        snprintf(text, sizeof(text), "%+.2f [%+.2f, %+.2f]", d->diff * 100,
                 d->low * 100, d->high * 100);
    }
    fprintf(f, "  %-24s", text);
}

static bool
any_reused(const tr_eval_results_t *r)
{
    for (uint32_t i = 0; i < r->n_jobs * r->n_policies; i++) {
        if (r->records[i].reused != 0) {
            return true;
        }
    }
    return false;
}

static void
print_overall(const tr_eval_results_t *r, const char *const *labels, FILE *f)
{
    fprintf(f, "\n%-*s %8s  %-16s  %-24s %8s %6s %6s %6s %9s%s\n",
            LABEL_WIDTH + 4, "all families", "right %", "[95%]",
            "difference [95%]", "kv_ratio", "high %", "low %", "gone %",
            "tokens/s", any_reused(r) ? " reused %" : "");
    for (uint32_t p = 0; p < r->n_policies; p++) {
        tr_eval_cell_t c;
        char range[32] = "-";

        tr_eval_overall(r, p, &c);
        print_label(p, labels[p], f);
        print_number(c.accuracy, 100, 8, 2, f);
        if (!isnan(c.accuracy_low)) {
            snprintf(range, sizeof(range), "[%.2f, %.2f]", c.accuracy_low * 100,
                     c.accuracy_high * 100);
        }
        fprintf(f, "  %-16s", range);
        print_diff(&c.diff, p == 0, f);
        print_number(c.kv_ratio, 1, 8, 3, f);
        print_number(c.high, 100, 6, 1, f);
        print_number(c.low, 100, 6, 1, f);
        print_number(c.pruned, 100, 6, 1, f);
        print_number(c.tokens_per_s, 1, 9, 1, f);
        if (any_reused(r)) {
            print_number(c.reused, 100, 8, 1, f);
        }
        fprintf(f, "\n");
    }
}

static void
print_heads(const tr_eval_family_t *family, FILE *f)
{
    fprintf(f, " %6s", "all");
    for (uint32_t i = 0; i < family->n_difficulties; i++) {
        fprintf(f, " %5s%u", "d", family->difficulty[i]);
    }
}

/* Right answers by difficulty, the difference, memory by difficulty. */
static void
print_family(const tr_eval_results_t *r, const char *const *labels,
             const tr_eval_family_t *family, FILE *f)
{
    tr_eval_cell_t c, d;
    char title[LABEL_WIDTH + 5];

    tr_eval_summary(r, 0, family->name, 0, &c);
    snprintf(title, sizeof(title), "%.16s, n = %u", family->name, c.n);
    fprintf(f, "\n%-*s", LABEL_WIDTH + 4, title);
    print_heads(family, f);
    fprintf(f, "  %-24s", "difference [95%]");
    print_heads(family, f);
    fprintf(f, "\n");
    for (uint32_t p = 0; p < r->n_policies; p++) {
        print_label(p, labels[p], f);
        tr_eval_summary(r, p, family->name, 0, &c);
        print_number(c.accuracy, 100, 6, 1, f);
        for (uint32_t i = 0; i < family->n_difficulties; i++) {
            tr_eval_summary(r, p, family->name, family->difficulty[i], &d);
            print_number(d.accuracy, 100, 6, 1, f);
        }
        print_diff(&c.diff, p == 0, f);
        print_number(c.kv_ratio, 1, 6, 3, f);
        for (uint32_t i = 0; i < family->n_difficulties; i++) {
            tr_eval_summary(r, p, family->name, family->difficulty[i], &d);
            print_number(d.kv_ratio, 1, 6, 3, f);
        }
        fprintf(f, "\n");
    }
    if (c.skipped != 0) {
        fprintf(f,
                "    %u turns are longer than the model's context and "
                "were left out\n",
                c.skipped);
    }
}

static void
print_texts(const tr_eval_results_t *r, const char *const *labels, FILE *f)
{
    tr_eval_text_t t = { 0 };

    fprintf(f, "\n%-*s %10s  %-24s %8s %6s %6s %6s\n", LABEL_WIDTH + 4, "text",
            "perplexity", "over the first [95%]", "kv_ratio", "high %", "low %",
            "gone %");
    for (uint32_t p = 0; p < r->n_policies; p++) {
        char text[40];

        tr_eval_text(r, p, &t);
        print_label(p, labels[p], f);
        print_number(t.perplexity, 1, 10, 4, f);
        snprintf(text, sizeof(text), "%.4f [%.4f, %.4f]", t.ratio, t.ratio_low,
                 t.ratio_high);
        fprintf(f, "  %-24s", p == 0 || t.n == 0 ? "-" : text);
        print_number(t.kv_ratio, 1, 8, 3, f);
        print_number(t.high, 100, 6, 1, f);
        print_number(t.low, 100, 6, 1, f);
        print_number(t.pruned, 100, 6, 1, f);
        fprintf(f, "\n");
    }
    if (t.skipped != 0) {
        fprintf(f,
                "    %u windows are longer than the model's context or its "
                "cache and were left out\n",
                t.skipped);
    }
}

/* Divergence in all and by position, then perplexity by position. */
static void
print_kl(const tr_eval_results_t *r, const char *const *labels, FILE *f)
{
    tr_eval_text_t t;

    fprintf(f, "\n%-*s %9s  %-20s", LABEL_WIDTH + 4, "by position of the text",
            "KL to 1", "[95%]");
    tr_eval_text(r, 0, &t);
    for (uint32_t i = 0; i < 2 * TR_EVAL_PARTS; i++) {
        const tr_eval_part_t *p = &t.part[i % TR_EVAL_PARTS];
        char range[24];

        snprintf(range, sizeof(range), "%s%u-%u",
                 i < TR_EVAL_PARTS ? "" : "ppl ", p->from,
                 p->to - (p->to > p->from));
        fprintf(f, " %13s", range);
    }
    fprintf(f, "\n");
    for (uint32_t p = 0; p < r->n_policies; p++) {
        char range[40] = "-";

        tr_eval_text(r, p, &t);
        print_label(p, labels[p], f);
        print_number(t.kl, 1, 9, 6, f);
        if (p != 0 && t.n != 0) {
            snprintf(range, sizeof(range), "[%.6f, %.6f]", t.kl_low, t.kl_high);
        }
        fprintf(f, "  %-20s", range);
        for (uint32_t i = 0; i < TR_EVAL_PARTS; i++) {
            print_number(t.part[i].kl, 1, 13, 6, f);
        }
        for (uint32_t i = 0; i < TR_EVAL_PARTS; i++) {
            print_number(t.part[i].perplexity, 1, 13, 4, f);
        }
        fprintf(f, "\n");
    }
}

void
tr_eval_print(const tr_eval_results_t *r, const char *const *labels, FILE *f)
{
    tr_eval_family_t families[TR_EVAL_FAMILIES];
    uint32_t n = tr_eval_families(r, families), with_text = 0;
    bool with_kl = false;
    tr_eval_text_t t;

    fprintf(f, "Policies\n");
    for (uint32_t p = 0; p < r->n_policies; p++) {
        fprintf(f, "%3u %s\n", p + 1, r->policies[p]);
        tr_eval_text(r, p, &t);
        with_text += t.n + t.skipped;
        with_kl = with_kl || t.with_kl;
    }
    if (n != 0) {
        print_overall(r, labels, f);
    }
    for (uint32_t i = 0; i < n; i++) {
        print_family(r, labels, &families[i], f);
    }
    if (with_text != 0) {
        print_texts(r, labels, f);
    }
    if (with_kl) {
        print_kl(r, labels, f);
    }
}

/* ---- JSON --------------------------------------------------------------- */

/* NaN has no place in JSON. */
static json_t *
number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *
cell_json(const tr_eval_cell_t *c)
{
    json_t *o = json_object();

    json_object_set_new(o, "n", json_integer(c->n));
    json_object_set_new(o, "skipped", json_integer(c->skipped));
    json_object_set_new(o, "accuracy", number(c->accuracy));
    json_object_set_new(o, "accuracy_low", number(c->accuracy_low));
    json_object_set_new(o, "accuracy_high", number(c->accuracy_high));
    json_object_set_new(o, "diff", number(c->diff.diff));
    json_object_set_new(o, "diff_low", number(c->diff.low));
    json_object_set_new(o, "diff_high", number(c->diff.high));
    json_object_set_new(o, "kv_ratio", number(c->kv_ratio));
    json_object_set_new(o, "shares",
                        json_pack("{s:o, s:o, s:o}", "high", number(c->high),
                                  "low", number(c->low), "pruned",
                                  number(c->pruned)));
    json_object_set_new(o, "tokens", json_integer((json_int_t) c->tokens));
    json_object_set_new(o, "tokens_per_s", number(c->tokens_per_s));
    json_object_set_new(o, "reused", number(c->reused));
    return o;
}

static json_t *
families_json(const tr_eval_results_t *r, uint32_t policy)
{
    tr_eval_family_t families[TR_EVAL_FAMILIES];
    uint32_t n = tr_eval_families(r, families);
    json_t *all = json_object();
    tr_eval_cell_t c;
    char name[16];

    for (uint32_t i = 0; i < n; i++) {
        json_t *family, *by = json_object();

        tr_eval_summary(r, policy, families[i].name, 0, &c);
        family = cell_json(&c);
        for (uint32_t d = 0; d < families[i].n_difficulties; d++) {
            snprintf(name, sizeof(name), "%u", families[i].difficulty[d]);
            tr_eval_summary(r, policy, families[i].name,
                            families[i].difficulty[d], &c);
            json_object_set_new(by, name, cell_json(&c));
        }
        json_object_set_new(family, "difficulties", by);
        json_object_set_new(all, families[i].name, family);
    }
    return all;
}

static void
add_kl(json_t *text, const tr_eval_text_t *t)
{
    json_t *parts = json_array();

    for (uint32_t i = 0; i < TR_EVAL_PARTS; i++) {
        const tr_eval_part_t *p = &t->part[i];

        json_array_append_new(parts, json_pack("{s:I, s:I, s:o, s:o}", "from",
                                               (json_int_t) p->from, "to",
                                               (json_int_t) p->to, "perplexity",
                                               number(p->perplexity), "kl",
                                               number(p->kl)));
    }
    json_object_set_new(text, "kl", number(t->kl));
    json_object_set_new(text, "kl_low", number(t->kl_low));
    json_object_set_new(text, "kl_high", number(t->kl_high));
    json_object_set_new(text, "parts", parts);
}

static json_t *
text_json(const tr_eval_text_t *t)
{
    json_t *o = json_pack(
        "{s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:{s:o, s:o, s:o}}", "windows",
        (json_int_t) t->n, "skipped", (json_int_t) t->skipped, "perplexity",
        number(t->perplexity), "ratio", number(t->ratio), "ratio_low",
        number(t->ratio_low), "ratio_high", number(t->ratio_high), "kv_ratio",
        number(t->kv_ratio), "shares", "high", number(t->high), "low",
        number(t->low), "pruned", number(t->pruned));

    if (t->with_kl) {
        add_kl(o, t);
    }
    return o;
}

void
tr_eval_json(const tr_eval_results_t *r, const char *const *labels,
             json_t *root)
{
    json_t *policies = json_array();

    for (uint32_t p = 0; p < r->n_policies; p++) {
        tr_eval_cell_t c;
        tr_eval_text_t t;
        json_t *o;

        tr_eval_overall(r, p, &c);
        tr_eval_text(r, p, &t);
        o = cell_json(&c);
        json_object_set_new(o, "policy", json_string(labels[p]));
        json_object_set_new(o, "spec", json_string(r->policies[p]));
        json_object_set_new(o, "families", families_json(r, p));
        if (t.n + t.skipped != 0) {
            json_object_set_new(o, "text", text_json(&t));
        }
        json_array_append_new(policies, o);
    }
    json_object_set_new(root, "policies", policies);
}
