/*
 * Bodies of upload.h, which includes this.
 */
#ifndef TOKENRING_UPLOAD_INLINE_H
#define TOKENRING_UPLOAD_INLINE_H

#include <string.h>

#include <tokenring/upload.h>

#define TR_PACE_PARTS (TR_PACE_SECONDS + 1)

static inline void
tr_pace_start(tr_pace_t *p, uint64_t now_ms)
{
    memset(p, 0, sizeof(*p));
    p->since_ms = now_ms;
}

/* Empties the seconds that have passed without a byte. */
static inline void
tr_pace_turn(tr_pace_t *p, uint64_t now_ms)
{
    uint64_t second = (now_ms - p->since_ms) / 1000, n;

    for (n = 0; p->second < second && n < TR_PACE_PARTS; n++) {
        p->second++;
        p->bytes[p->second % TR_PACE_PARTS] = 0;
    }
    p->second = second; /* if it was longer, all are empty */
}

static inline void
tr_pace_add(tr_pace_t *p, uint64_t now_ms, uint64_t n)
{
    uint32_t *bytes;

    tr_pace_turn(p, now_ms);
    bytes = &p->bytes[p->second % TR_PACE_PARTS];
    *bytes = n < UINT32_MAX - *bytes ? *bytes + (uint32_t) n : UINT32_MAX;
}

static inline uint64_t
tr_pace_rate(tr_pace_t *p, uint64_t now_ms, unsigned seconds)
{
    uint64_t time = now_ms - p->since_ms, sum = 0, n;

    tr_pace_turn(p, now_ms);
    for (n = 0; n <= seconds && n <= p->second; n++) {
        sum += p->bytes[(p->second - n) % TR_PACE_PARTS];
    }
    if (p->second > seconds) {
        time = seconds * (uint64_t) 1000 + time % 1000;
    }
    return time != 0 ? sum * 1000 / time : UINT64_MAX;
}

static inline void
tr_shed_start(tr_shed_t *s, uint64_t limit, uint64_t tenant, uint64_t now_ms)
{
    memset(s, 0, sizeof(*s));
    s->limit = limit;
    s->tenant = tenant % TR_SHED_TENANTS;
    s->now_ms = now_ms;
}

static inline void
tr_shed_count(tr_shed_t *s, uint64_t tenant, uint64_t held)
{
    s->held[tenant % TR_SHED_TENANTS] += held;
}

static inline bool
tr_shed_worse(tr_shed_t *s, tr_pace_t *p, uint64_t tenant, uint64_t held,
              uint64_t least)
{
    uint64_t age = s->now_ms - p->since_ms;
    uint64_t rate = tr_pace_rate(p, s->now_ms, 1), theirs;

    tenant %= TR_SHED_TENANTS;
    theirs = s->held[tenant];
    if (held == 0 || age < TR_SHED_YOUNG_MS
        || (rate >= least
            && (age < TR_SHED_LATE_MS || tenant == s->tenant
                || theirs <= s->limit / 2))) {
        return false;
    }
    rate = rate < UINT32_MAX ? rate + 1 : UINT32_MAX;
    if (s->worst_held != 0
        && (theirs < s->held[s->worst_tenant]
            || (theirs == s->held[s->worst_tenant]
                && (double) rate * (double) s->worst_held
                       >= (double) s->worst_rate * (double) held))) {
        return false;
    }
    s->worst_tenant = tenant;
    s->worst_held = held;
    s->worst_rate = rate;
    return true;
}

#endif
