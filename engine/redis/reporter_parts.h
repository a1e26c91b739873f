/*
 * What the files of the reporter share: reporter.c is the thread,
 * reporter_write.c what it writes, reporter_answers.c what Redis says to that,
 * reporter_control.c what it is told by others through Redis.
 */
#ifndef TR_REPORTER_PARTS_H
#define TR_REPORTER_PARTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "report_ledger.h"
#include "report_writer.h"
#include "reporter.h"

#define TR_REPORTER_BEAT_US 1000000u
/* Pause after Redis was reached and said no: asking sooner changes nothing. */
#define TR_REPORTER_REFUSED_US 2000000u

/* What a command was. */
enum {
    TR_TAG_BEAT,
    TR_TAG_FIELDS, /* id: the request; number: of fields */
    TR_TAG_ENTRY,  /* id: the same; number: its last record */
    TR_TAG_ASK,    /* the same */
    TR_TAG_MINOR   /* nobody waits for it */
};

struct tr_reporter {
    const tr_config_t *config;
    tr_status_page_t *status;
    tr_request_events_t events;
    tr_ledger_t ledger;
    tr_report_writer_t writer;
    tr_redis_link_t data, control;
    tr_redis_command_t command; /* the one being put together */
    pthread_t thread;
    int wake_fd;
    _Atomic int stop;
    uint8_t *buf; /* one record */
    size_t buf_size;
    char *scratch; /* a PUBLISH */
    size_t scratch_size;

    uint64_t now_us;
    uint64_t flushed_us, beat_us; /* last time */
    bool open;                    /* Redis takes what is written */
    bool hurry;                   /* more to write than one flush took */
    bool latest;                  /* requests joined the latest ones */
    uint64_t outage_us;           /* 0, or since when it does not */
    uint64_t lost_before;
    bool deaf; /* the control channel could not be heard, which was logged */
};

/* ---- reporter.c --------------------------------------------------------- */

void tr_reporter_outage_begins(tr_reporter_t *r, const char *reason);
void tr_reporter_outage_ends(tr_reporter_t *r);
/* Brings the counters of the status page up to date. */
void tr_reporter_count(tr_reporter_t *r);
/* Takes what was told until now. */
void tr_reporter_take(tr_reporter_t *r);

/* ---- reporter_write.c --------------------------------------------------- */

/* Sends r->command; q: the request that it is about, or NULL. */
void tr_reporter_send(tr_reporter_t *r, uint16_t kind,
                      const tr_ledger_request_t *q);
/* Everything that is due, as far as it fits. */
void tr_reporter_flush(tr_reporter_t *r);
/* What is to be said once a second. */
void tr_reporter_beat(tr_reporter_t *r);

/* ---- the two connections: reporter_answers.c, reporter_control.c -------- */

extern const tr_redis_events_t tr_reporter_data_events;
extern const tr_redis_events_t tr_reporter_control_events;

#endif
