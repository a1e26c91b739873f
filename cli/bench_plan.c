/*
 * Random numbers, length distributions and the steady state of `tokenring bench`
 * (bench.h).
 */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"

uint64_t
tr_rng_next(tr_rng_t *r)
{
    return tr_splitmix64(&r->state);
}

double
tr_rng_uniform(tr_rng_t *r)
{
    return (double) ((tr_rng_next(r) >> 11) + 1) * 0x1p-53;
}

double
tr_rng_normal(tr_rng_t *r)
{
    double radius = sqrt(-2 * log(tr_rng_uniform(r)));

    return radius * cos(2 * M_PI * tr_rng_uniform(r));
}

double
tr_rng_exponential(tr_rng_t *r)
{
    return -log(tr_rng_uniform(r));
}

/* A number at the beginning of *at that ends in `end`. */
static bool
take(const char **at, char end, double *out)
{
    char *stop;

    *out = strtod(*at, &stop);
    if (stop == *at || *stop != end || !(*out >= 0 && *out <= 1e7)) {
        return false;
    }
    *at = stop + (end != '\0');
    return true;
}

bool
tr_length_parse(const char *text, tr_length_t *out)
{
    if (strncmp(text, "normal:", 7) == 0) {
        text += 7;
        out->kind = TR_LENGTH_NORMAL;
        return take(&text, ':', &out->a) && take(&text, '\0', &out->b)
               && out->a >= 1;
    }
    if (strchr(text, ':') != NULL) {
        out->kind = TR_LENGTH_UNIFORM;
        return take(&text, ':', &out->a) && take(&text, '\0', &out->b)
               && out->a >= 1 && out->a <= out->b;
    }
    out->kind = TR_LENGTH_FIXED;
    out->b = 0;
    return take(&text, '\0', &out->a) && out->a >= 1;
}

uint32_t
tr_length_draw(const tr_length_t *l, tr_rng_t *r)
{
    double x = l->a;

    if (l->kind == TR_LENGTH_UNIFORM) {
        uint64_t span = (uint64_t) l->b - (uint64_t) l->a + 1;

        return (uint32_t) ((uint64_t) l->a + tr_rng_next(r) % span);
    }
    if (l->kind == TR_LENGTH_NORMAL) {
        x = round(l->a + l->b * tr_rng_normal(r));
    }
    return x < 1 ? 1 : (uint32_t) x;
}

/* ---- steady state ------------------------------------------------------- */

#define SETTLE_US 5000000

double
tr_stagger(uint64_t i)
{
    return fmod((double) i * 0.6180339887498949, 1); /* the golden section */
}

bool
tr_steady_tell(tr_steady_t *s, uint64_t now_us, uint32_t streams,
               uint64_t tokens)
{
    if (s->seconds <= 0 || s->end_us != 0) {
        return s->end_us != 0;
    }
    if (streams > s->streams + s->streams / 100) {
        s->streams = streams;
        s->grown_us = now_us;
        s->begin_us = 0;
    } else if (s->begin_us == 0 && s->streams != 0
               && now_us - s->grown_us >= SETTLE_US) {
        s->begin_us = now_us;
        s->begin_tokens = tokens;
    }
    if (s->begin_us != 0
        && (double) (now_us - s->begin_us) >= s->seconds * 1e6) {
        s->end_us = now_us;
        s->end_tokens = tokens;
    }
    return s->end_us != 0;
}
