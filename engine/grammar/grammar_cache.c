/*
 * Compiled grammars by their text: each is compiled once while it is known, and
 * whoever asks in the meantime waits for that.  Found by a 128-bit hash, and
 * compared byte for byte, so that nobody gets another one's grammar.
 *
 * Those that are used by nobody stay until there are too many, or until they
 * use much of what all may use; the one that was used longest ago goes first.
 */
#include "grammar_internal.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/config/log.h"

#define KEPT_MAX 256u

typedef struct entry {
    struct entry *next;
    uint64_t hash[2];
    enum tr_grammar_kind kind;
    unsigned flags;
    char *text, *around; /* around: "" for none */
    size_t len;
    tr_grammar_t *grammar; /* NULL: being compiled */
    uint64_t used;         /* the cache's clock */
    uint32_t waiting;
    bool done;
    tr_error_t error;
} entry_t;

struct tr_grammar_cache {
    const tr_vocabulary_t *vocabulary;
    pthread_mutex_t lock;
    pthread_cond_t compiled;
    entry_t *first;
    uint32_t n;
    uint64_t clock;
};

static const char *
around_of(const tr_grammar_spec_t *spec)
{
    return spec->around != NULL ? spec->around : "";
}

static uint64_t
hash_of(const tr_grammar_spec_t *spec, uint64_t seed)
{
    uint64_t h = seed ^ (uint64_t) spec->kind << 8 ^ spec->flags ^ spec->len;

    h = tr_fnv1a_64(h, spec->text, spec->len);
    h = tr_fnv1a_64(h, around_of(spec), strlen(around_of(spec)));
    return h ^ h >> 31;
}

tr_grammar_cache_t *
tr_grammar_cache_new(const tr_vocabulary_t *v)
{
    tr_grammar_cache_t *c = calloc(1, sizeof(*c));

    if (c != NULL) {
        c->vocabulary = v;
        pthread_mutex_init(&c->lock, NULL);
        pthread_cond_init(&c->compiled, NULL);
    }
    return c;
}

static void
entry_free(entry_t *e)
{
    tr_grammar_unref(e->grammar);
    free(e->text);
    free(e->around);
    free(e);
}

void
tr_grammar_cache_free(tr_grammar_cache_t *c)
{
    if (c == NULL) {
        return;
    }
    while (c->first != NULL) {
        entry_t *e = c->first;

        c->first = e->next;
        entry_free(e);
    }
    pthread_cond_destroy(&c->compiled);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Does e hold a grammar that is of no more use? */
static bool
is_spent(const entry_t *e)
{
    return e->grammar != NULL && e->grammar->spent;
}

static entry_t *
find(tr_grammar_cache_t *c, const tr_grammar_spec_t *spec,
     const uint64_t hash[2])
{
    for (entry_t *e = c->first; e != NULL; e = e->next) {
        if (e->hash[0] == hash[0] && e->hash[1] == hash[1]
            && e->kind == spec->kind && e->flags == spec->flags
            && e->len == spec->len
            && (e->len == 0 || memcmp(e->text, spec->text, e->len) == 0)
            && strcmp(e->around, around_of(spec)) == 0 && !is_spent(e)) {
            e->used = ++c->clock;
            return e;
        }
    }
    return NULL;
}

static void
take_out(tr_grammar_cache_t *c, entry_t *e)
{
    entry_t **at = &c->first;

    while (*at != e) {
        at = &(*at)->next;
    }
    *at = e->next;
    c->n--;
    entry_free(e);
}

/* Room for one more: of those that nobody uses, the oldest go. */
static void
make_room(tr_grammar_cache_t *c)
{
    for (;;) {
        entry_t *oldest = NULL;

        for (entry_t *e = c->first; e != NULL; e = e->next) {
            if (e->done && e->waiting == 0 && e->grammar != NULL
                && atomic_load(&e->grammar->refs) == 1
                && (oldest == NULL || e->used < oldest->used)) {
                oldest = e;
            }
        }
        if (oldest == NULL
            || (c->n < KEPT_MAX && !is_spent(oldest)
                && !tr_grammar_memory_tight())) {
            return;
        }
        take_out(c, oldest);
    }
}

tr_grammar_t *
tr_grammar_cache_find(tr_grammar_cache_t *c, const tr_grammar_spec_t *spec)
{
    const uint64_t hash[2] = { hash_of(spec, 0xcbf29ce484222325ull),
                               hash_of(spec, 0x84222325cbf29ce4ull) };
    tr_grammar_t *g = NULL;
    entry_t *e;

    pthread_mutex_lock(&c->lock);
    e = find(c, spec, hash);
    if (e != NULL && e->grammar != NULL) {
        g = tr_grammar_ref(e->grammar);
        make_room(c); /* those in use grow, whoever else came */
    }
    pthread_mutex_unlock(&c->lock);
    return g;
}

static entry_t *
entry_new(const tr_grammar_spec_t *spec, const uint64_t hash[2])
{
    entry_t *e = calloc(1, sizeof(*e));

    if (e == NULL) {
        return NULL;
    }
    *e = (entry_t){ .hash = { hash[0], hash[1] },
                    .kind = spec->kind,
                    .flags = spec->flags,
                    .len = spec->len };
    e->text = malloc(spec->len + 1);
    e->around = strdup(around_of(spec));
    if (e->text == NULL || e->around == NULL) {
        entry_free(e);
        return NULL;
    }
    memcpy(e->text, spec->text == NULL ? "" : spec->text, spec->len);
    return e;
}

/* Waits for who compiles e; failures are given to all who waited. */
static tr_status_t
wait_for(tr_grammar_cache_t *c, entry_t *e, tr_grammar_t **out, tr_error_t *err)
{
    tr_status_t rc;

    e->waiting++;
    while (!e->done) {
        pthread_cond_wait(&c->compiled, &c->lock);
    }
    e->waiting--;
    rc = e->error.status;
    if (rc == TR_OK) {
        *out = tr_grammar_ref(e->grammar);
    } else {
        *err = e->error;
        if (e->waiting == 0) {
            take_out(c, e);
        }
    }
    return rc;
}

tr_status_t
tr_grammar_cache_get(tr_grammar_cache_t *c, const tr_grammar_spec_t *spec,
                     tr_grammar_t **out, tr_error_t *err)
{
    const uint64_t hash[2] = { hash_of(spec, 0xcbf29ce484222325ull),
                               hash_of(spec, 0x84222325cbf29ce4ull) };
    tr_grammar_t *g = NULL;
    tr_status_t rc;
    entry_t *e;

    *out = NULL;
    pthread_mutex_lock(&c->lock);
    e = find(c, spec, hash);
    if (e != NULL) {
        rc = wait_for(c, e, out, err);
        pthread_mutex_unlock(&c->lock);
        return rc;
    }
    make_room(c);
    e = entry_new(spec, hash);
    if (e == NULL) {
        pthread_mutex_unlock(&c->lock);
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    e->next = c->first;
    e->used = ++c->clock;
    c->first = e;
    c->n++;
    pthread_mutex_unlock(&c->lock);

    rc = tr_grammar_compile(c->vocabulary, spec, &g, err);

    pthread_mutex_lock(&c->lock);
    e->done = true;
    e->grammar = g;
    if (rc == TR_OK) {
        *out = tr_grammar_ref(g);
    } else {
        e->error = *err;
        e->error.status = rc;
        if (e->waiting == 0) {
            take_out(c, e);
        }
    }
    pthread_cond_broadcast(&c->compiled);
    pthread_mutex_unlock(&c->lock);
    return rc;
}
