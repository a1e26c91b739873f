/*
 * The thresholds of diffkv: which fit together, those of one request, and those
 * by head, from a file with lines
 *
 *     layer kv_head alpha_high alpha_low
 *
 * where # begins a comment.  Heads that it does not name keep the thresholds
 * of the policy.  With three levels alpha_top is the same for all.
 */
#include "kv_policy_internal.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

#define LINE_BYTES 256

bool
tr_kv_alpha_fit(const tr_kv_policy_t *p, double high, double low,
                char text[TR_KV_ALPHA_TEXT])
{
    if (!(low >= 0 && low <= TR_KV_ALPHA_MAX)) {
        snprintf(text, TR_KV_ALPHA_TEXT,
                 "alpha_low=%g: expected a number from 0 to %g", low,
                 TR_KV_ALPHA_MAX);
    } else if (!(high >= 0 && high <= TR_KV_ALPHA_MAX)) {
        snprintf(text, TR_KV_ALPHA_TEXT,
                 "alpha_high=%g: expected a number from 0 to %g", high,
                 TR_KV_ALPHA_MAX);
    } else if (p->n_levels > 1 && low > high) {
        snprintf(text, TR_KV_ALPHA_TEXT,
                 "alpha_low=%g is above alpha_high=%g: expected at most that",
                 low, high);
    } else if (p->n_levels > 2 && high > p->alpha_top) {
        snprintf(text, TR_KV_ALPHA_TEXT,
                 "alpha_high=%g is above alpha_top=%g: expected at most that",
                 high, p->alpha_top);
    } else if (p->window == 0 && low > 0) {
        snprintf(text, TR_KV_ALPHA_TEXT,
                 "alpha_low=%g without a window would forget each new token"
                 " before it is read: expected a window of 1 or more, or 0",
                 low);
    } else {
        return true;
    }
    return false;
}

/* ---- of one request ----------------------------------------------------- */

tr_status_t
tr_kv_policy_override(tr_kv_policy_t *copy, double alpha_high, double alpha_low,
                      tr_error_t *err)
{
    bool set_high = !isnan(alpha_high), set_low = !isnan(alpha_low);
    const char *param = set_low ? "kv_alpha_low" : "kv_alpha_high";
    double high = set_high ? alpha_high : copy->alpha_high;
    double low = set_low ? alpha_low : copy->alpha_low;
    char text[TR_KV_ALPHA_TEXT];

    if (!set_high && !set_low) {
        return TR_OK;
    }
    if (strstr(copy->row->settings, "alpha_low") == NULL) {
        return tr_error_set(err, TR_ERR_INVALID, param,
                            "%s=%g: KV policy %s has no thresholds", param,
                            set_low ? low : high, copy->name);
    }
    if (set_high && copy->n_levels < 2) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_alpha_high",
                            "kv_alpha_high=%g: this KV policy has one level:"
                            " expected kv_alpha_low alone",
                            high);
    }
    if (low > 0 && !copy->level[copy->n_levels - 1].scored) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_alpha_low",
                            "kv_alpha_low=%g: this KV policy drops no tokens "
                            "and keeps no scores to do so: expected 0",
                            low);
    }
    if (!tr_kv_alpha_fit(copy, high, low, text)) {
        /* the message begins with the name of the one at fault */
        param = strncmp(text, "alpha_low", 9) == 0 && set_low
                    ? "kv_alpha_low"
                    : (set_high ? "kv_alpha_high" : "kv_alpha_low");
        return tr_error_set(err, TR_ERR_INVALID, param, "kv_%s", text);
    }
    copy->alpha_high = high;
    copy->alpha_low = low;
    copy->alpha_of = NULL; /* the original's; by head no more */
    copy->alpha_file[0] = '\0';
    return tr_kv_settings_print(copy->row, copy, err);
}

/* ---- by head ------------------------------------------------------------ */

static tr_status_t
bad_line(const tr_kv_policy_t *p, uint32_t line, const char *what,
         const char *text, tr_error_t *err)
{
    return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                        "%s:%u: \"%.64s\": %s; a line is layer (below %u),"
                        " KV head (below %u), alpha_high, alpha_low",
                        p->alpha_file, line, text, what, p->layers_of,
                        p->kv_heads_of);
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
put(const tr_kv_policy_t *p, double *alpha, bool *seen, const double v[4],
    char text[TR_KV_ALPHA_TEXT])
{
    size_t head;

    if (!(v[0] >= 0 && v[0] < p->layers_of && v[0] == floor(v[0]) && v[1] >= 0
          && v[1] < p->kv_heads_of && v[1] == floor(v[1]))) {
        return "no such head";
    }
    if (!tr_kv_alpha_fit(p, v[2], v[3], text)) {
        return text;
    }
    head = (size_t) v[0] * p->kv_heads_of + (size_t) v[1];
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
        char text[TR_KV_ALPHA_TEXT];
        const char *wrong;
        int n;

        if (strchr(line, '\n') == NULL && !feof(f)) {
            return bad_line(p, at, "a line of 256 bytes or more", line, err);
        }
        snprintf(copy, sizeof(copy), "%.*s", (int) strcspn(line, "\r\n"), line);
        n = read_line(line, v);
        wrong = n < 0 ? "not four numbers"
                      : (n == 0 ? NULL : put(p, alpha, seen, v, text));
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
    size_t heads = (size_t) p->layers_of * p->kv_heads_of;
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
