/*
 * The scripted engine dies at a border between two records.
 *
 *     {"fake": "dies", "count": N, "choices": N, "at": K, "early": true,
 *      "once": PATH}
 *
 * Each choice says "cA tB " for its number A and B from 0 to count; then all
 * have their FINISH.  Behind the K-th record of an engine the process ends: when
 * that one is published, or with "early" just before.  It takes the file at PATH
 * with it, and without one it goes on.
 */
#include "fake_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void
publish(fake_channel_t *c)
{
    int rung = tr_ring_publish(&c->answers); /* ahead of their output */

    if (tr_ring_publish(&c->responses) || rung) {
        tr_doorbell_ring(c->to_peer);
    }
}

static bool
takes_file(const fake_request_t *r)
{
    const char *once = fake_body_value(r, "once");
    char path[256];

    if (once == NULL) {
        return false;
    }
    snprintf(path, sizeof(path), "%.*s", (int) strcspn(once + 1, "\""),
             once + 1);
    return unlink(path) == 0;
}

/* Before the next record, and once more at the end. */
static void
maybe_die(fake_channel_t *c, const fake_request_t *r)
{
    if (r->records == fake_body_number(r, "at", UINT32_MAX) && takes_file(r)) {
        if (!fake_body_true(r, "early")) {
            publish(c);
        }
        _exit(9);
    }
    publish(c);
}

static void
say(fake_channel_t *c, fake_request_t *r, uint32_t choice)
{
    char text[64];
    int len = snprintf(text, sizeof(text), "c%u t%u ", choice, r->told[choice]);

    fake_put_text(c, r, choice, text, (size_t) len);
    r->told[choice]++;
    r->sent++;
}

static void
end(fake_channel_t *c, fake_request_t *r, uint32_t choice, uint32_t choices)
{
    bool last = true;
    uint32_t i;

    r->reason[choice] = TR_FINISH_STOP;
    for (i = 0; i < choices; i++) {
        last = last && r->reason[i] != 0;
    }
    fake_put_finish(c, r, choice, TR_FINISH_STOP, last);
    r->records++;
    maybe_die(c, r);
    if (last) {
        memset(r, 0, sizeof(*r));
    }
}

void
fake_dies(fake_channel_t *c, fake_request_t *r)
{
    uint32_t choices = fake_body_number(r, "choices", 1);
    uint32_t count = fake_body_number(r, "count", 1), i, least = 0;

    if (choices > FAKE_CHOICES) {
        fprintf(stderr, "fake_engine: dies with %u choices\n", choices);
        exit(1);
    }
    maybe_die(c, r);
    if (!r->accepted) {
        r->accepted = true;
        fake_put_accepted(c, r);
        r->records++;
        return;
    }
    for (i = 1; i < choices; i++) {
        least = r->told[i] < r->told[least] ? i : least;
    }
    if (r->told[least] < count) {
        say(c, r, least);
        r->records++;
        return;
    }
    for (i = 0; i < choices && r->reason[i] != 0; i++) {
    }
    end(c, r, i, choices);
}
