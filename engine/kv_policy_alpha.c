/*
 * Thresholds by head, from a file with lines
 *
 *     layer list alpha_high alpha_low
 *
 * where # begins a comment.  Heads that it does not name keep the thresholds
 * of the policy.  With three levels alpha_top is the same for all.
 */
#include "kv_policy_parts.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

#define LINE_BYTES 256

static tr_status_t
bad_line(const tr_kv_policy_t *p, uint32_t line, const char *what,
         const char *text, tr_error_t *err)
{
    return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                        "%s:%u: %s: \"%.64s\": expected layer (below %u), list"
                        " (below %u), alpha_high, alpha_low (0 to %g, low at"
                        " most high)",
                        p->alpha_file, line, what, text, p->layers_of,
                        p->lists_of, TR_KV_ALPHA_MAX);
}

/* The numbers of a line: 4, 0 for an empty line, -1 for anything else. */
static int
read_line(char *line, double v[4])
{
    int n = 0;

    line[strcspn(line, "#\r\n")] = '\0';
    for (char *save, *word = strtok_r(line, " \t", &save); word != NULL;
         word = strtok_r(NULL, " \t", &save)) {
        char *end;

        if (n == 4) {
            return -1;
        }
        v[n] = strtod(word, &end);
        if (*end != '\0' || !isfinite(v[n])) {
            return -1;
        }
        n++;
    }
    return n == 0 || n == 4 ? n : -1;
}

/* Puts one head's thresholds in place; NULL, or what is wrong. */
static const char *
put(const tr_kv_policy_t *p, double *alpha, bool *seen, const double v[4])
{
    size_t head;

    if (!(v[0] >= 0 && v[0] < p->layers_of && v[0] == floor(v[0]) && v[1] >= 0
          && v[1] < p->lists_of && v[1] == floor(v[1]))) {
        return "no such head";
    }
    if (!(v[3] >= 0 && v[2] <= TR_KV_ALPHA_MAX && v[3] <= TR_KV_ALPHA_MAX)
        || (p->n_levels > 1 && v[3] > v[2])
        || (p->n_levels > 2 && v[2] > p->alpha_top)) {
        return "thresholds out of range";
    }
    head = (size_t) v[0] * p->lists_of + (size_t) v[1];
    if (seen[head]) {
        return "this head was given before";
    }
    seen[head] = true;
    alpha[2 * head] = v[2];
    alpha[2 * head + 1] = v[3];
    return NULL;
}

static tr_status_t
read_all(const tr_kv_policy_t *p, FILE *f, double *alpha, bool *seen,
         tr_error_t *err)
{
    char line[LINE_BYTES], copy[LINE_BYTES];

    for (uint32_t at = 1; fgets(line, sizeof(line), f) != NULL; at++) {
        double v[4] = { 0 };
        const char *wrong;
        int n;

        if (strchr(line, '\n') == NULL && !feof(f)) {
            return bad_line(p, at, "a line of 256 bytes or more", line, err);
        }
        snprintf(copy, sizeof(copy), "%.*s", (int) strcspn(line, "\r\n"), line);
        n = read_line(line, v);
        wrong = n < 0 ? "not four numbers"
                      : (n == 0 ? NULL : put(p, alpha, seen, v));
        if (wrong != NULL) {
            return bad_line(p, at, wrong, copy, err);
        }
    }
    return ferror(f) ? tr_error_set(err, TR_ERR_IO, "kv_policy",
                                    "alpha_file=%s: cannot read: %s",
                                    p->alpha_file, strerror(errno))
                     : TR_OK;
}

tr_status_t
tr_kv_alpha_read(tr_kv_policy_t *p, tr_error_t *err)
{
    size_t heads = (size_t) p->layers_of * p->lists_of;
    double *alpha = calloc(heads == 0 ? 1 : heads, 2 * sizeof(*alpha));
    bool *seen = calloc(heads == 0 ? 1 : heads, sizeof(*seen));
    FILE *f = fopen(p->alpha_file, "re");
    tr_status_t rc;

    if (f == NULL) {
        rc = tr_error_set(err, TR_ERR_IO, "kv_policy",
                          "alpha_file=%s: cannot open: %s", p->alpha_file,
                          strerror(errno));
    } else if (alpha == NULL || seen == NULL) {
        rc = tr_error_set(err, TR_ERR_NOMEM, "kv_policy",
                          "no memory for thresholds of %zu heads", heads);
    } else {
        for (size_t i = 0; i < heads; i++) {
            alpha[2 * i] = p->alpha_high;
            alpha[2 * i + 1] = p->alpha_low;
        }
        rc = read_all(p, f, alpha, seen, err);
    }
    if (f != NULL) {
        fclose(f);
    }
    free(seen);
    if (rc != TR_OK) {
        free(alpha);
        return rc;
    }
    p->alpha_of = alpha;
    return TR_OK;
}
