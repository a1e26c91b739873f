/*
 * The plain manager (plain_manager.h).
 */
#include "plain_manager.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW TR_KV_LISTS_MAX
#define DENSE (TR_KV_LISTS_MAX + 1)
#define KINDS (TR_KV_LISTS_MAX + 2)

typedef struct {
    int32_t *item; /* pages, or positions of tokens */
    uint32_t n, room;
} list_t;

typedef struct {
    pthread_mutex_t lock;
    list_t list[KINDS];
    uint32_t count[TR_KV_LISTS_MAX];
    /* of a scored policy */
    float *score;                  /* by position */
    list_t token[TR_KV_LISTS_MAX]; /* positions */
} head_t;

typedef struct {
    plain_t *p;
    uint32_t index;
    pthread_t thread;
    /* scratch for prompts */
    uint32_t *position;
    int8_t *from, *to;
    float *score, *recent, *work;
} worker_t;

typedef enum { NOTHING, SCORE, PROMPT, STEP, CLOSE, END } task_t;

struct plain {
    uint32_t heads, lists, seqs, max_len;
    const tr_kv_policy_t *policy;
    uint32_t tokens[KINDS]; /* a page */
    uint32_t *len;          /* [seqs] */
    head_t *head;           /* [seqs][heads] */

    pthread_mutex_t free_lock;
    int32_t *free_page;
    uint32_t n_free, n_pages;

    /* the step that the workers share */
    pthread_mutex_t lock;
    pthread_cond_t begin, done;
    task_t task;
    uint32_t round, busy, n, task_len;
    bool failed;
    int threads;
    worker_t *worker;
};

/* ---- pages -------------------------------------------------------------- */

static bool
add(list_t *l, int32_t what)
{
    if (l->n == l->room) {
        uint32_t room = l->room == 0 ? 4 : l->room * 2;
        int32_t *more = realloc(l->item, room * sizeof(*more));

        if (more == NULL) {
            return false;
        }
        l->item = more;
        l->room = room;
    }
    l->item[l->n++] = what;
    return true;
}

static bool
take(plain_t *p, list_t *l)
{
    int32_t page = -1;

    pthread_mutex_lock(&p->free_lock);
    if (p->n_free > 0) {
        page = p->free_page[--p->n_free];
    }
    pthread_mutex_unlock(&p->free_lock);
    return page >= 0 && add(l, page);
}

static void
give_all(plain_t *p, list_t *l)
{
    while (l->n > 0) {
        int32_t page = l->item[--l->n];

        pthread_mutex_lock(&p->free_lock);
        p->free_page[p->n_free++] = page;
        pthread_mutex_unlock(&p->free_lock);
    }
}

/* Pages for n tokens of a kind. */
static bool
grow(plain_t *p, head_t *h, uint32_t kind, uint32_t n)
{
    while ((uint64_t) h->list[kind].n * p->tokens[kind] < n) {
        if (!take(p, &h->list[kind])) {
            return false;
        }
    }
    return true;
}

/* ---- one head ----------------------------------------------------------- */

static bool
prompt_head(worker_t *w, head_t *h, uint32_t head, uint32_t len)
{
    plain_t *p = w->p;
    uint32_t window = len < p->policy->window ? len : p->policy->window;
    uint32_t n = len - window, l;
    bool ok;

    pthread_mutex_lock(&h->lock);
    ok = grow(p, h, DENSE, len);
    for (uint32_t i = 0; i < n; i++) {
        w->position[i] = i;
        w->from[i] = TR_KV_NOWHERE;
        w->score[i] = h->score != NULL ? h->score[i] : 0;
        w->recent[i] = w->score[i] / 8;
    }
    p->policy->prompt(p->policy,
                      &(tr_kv_prompt_t){ .layer = head / p->lists,
                                         .list = head % p->lists,
                                         .length = len,
                                         .n = n,
                                         .position = w->position,
                                         .from = w->from,
                                         .score = w->score,
                                         .recent = w->recent,
                                         .work = w->work },
                      w->to);
    memset(w->to + n, TR_KV_WINDOW, window);
    for (l = 0; l < p->policy->n_levels; l++) {
        uint32_t count = 0;

        for (uint32_t i = 0; i < n; i++) {
            count += w->to[i] == (int8_t) l;
        }
        h->count[l] = count;
    }
    for (uint32_t i = 0; i < n && h->score != NULL; i++) {
        ok = ok
             && (w->to[i] < 0 || add(&h->token[(int) w->to[i]], (int32_t) i));
    }
    ok = ok && grow(p, h, WINDOW, window);
    for (l = 0; l < p->policy->n_levels; l++) {
        ok = ok && grow(p, h, l, h->count[l]);
    }
    give_all(p, &h->list[DENSE]);
    pthread_mutex_unlock(&h->lock);
    return ok;
}

/* The token was added to a list: its least significant one may go down. */
static bool
downgrade(plain_t *p, head_t *h, tr_kv_mark_t *mark, int list)
{
    list_t *token = &h->token[list];
    float least = __builtin_inff();
    uint32_t at = 0;
    int down;

    for (uint32_t i = 0; i < token->n; i++) {
        uint32_t position = (uint32_t) token->item[i];
        float own = tr_kv_significance(h->score[position], position,
                                       mark->length);

        if (own < least) {
            least = own;
            at = i;
        }
    }
    mark->position = (uint32_t) token->item[at];
    mark->score = h->score[mark->position];
    down = p->policy->downgrade(p->policy, (uint32_t) list, mark, h->count);
    if (down == TR_KV_STAYS) {
        return true;
    }
    token->item[at] = token->item[--token->n];
    h->count[list]--;
    return down < 0
           || (add(&h->token[down], (int32_t) mark->position)
               && grow(p, h, (uint32_t) down, ++h->count[down]));
}

static bool
step_head(worker_t *w, head_t *h, uint32_t head, uint32_t len)
{
    plain_t *p = w->p;
    uint32_t window = p->policy->window;
    bool ok = true;

    pthread_mutex_lock(&h->lock);
    if (len < window) {
        ok = grow(p, h, WINDOW, len + 1);
    } else {
        tr_kv_mark_t mark = { .layer = head / p->lists,
                              .list = head % p->lists,
                              .position = len - window,
                              .length = len };
        int to;

        if (h->score != NULL) {
            mark.score = h->score[mark.position];
        }
        to = p->policy->leave(p->policy, &mark, h->count);
        if (to >= 0) {
            h->count[to]++;
            if (h->score != NULL) {
                ok = add(&h->token[to], (int32_t) mark.position)
                     && downgrade(p, h, &mark, to);
            }
            ok = ok && grow(p, h, (uint32_t) to, h->count[to]);
        }
    }
    pthread_mutex_unlock(&h->lock);
    return ok;
}

static void
close_head(plain_t *p, head_t *h)
{
    pthread_mutex_lock(&h->lock);
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        give_all(p, &h->list[kind]);
        free(h->list[kind].item);
        h->list[kind] = (list_t){ 0 };
    }
    for (uint32_t l = 0; l < TR_KV_LISTS_MAX; l++) {
        free(h->token[l].item);
        h->token[l] = (list_t){ 0 };
    }
    memset(h->count, 0, sizeof(h->count));
    pthread_mutex_unlock(&h->lock);
}

/* Distributed as in tests/gpu/manager_fill.cu. */
static bool
score_head(head_t *h, uint32_t head, uint32_t len)
{
    uint32_t seed = head;

    free(h->score);
    h->score = malloc((size_t) (len + 64) * sizeof(*h->score));
    for (uint32_t i = 0; h->score != NULL && i < len + 64; i++) {
        float x;

        seed = seed * 1664525u + 1013904223u;
        x = (float) (seed >> 8) / 0x1p24f;
        h->score[i] = x * x * x * x * x * x * x * x * 4;
    }
    return h->score != NULL;
}

/* ---- workers ------------------------------------------------------------ */

/* This worker's share of all heads of the first n sequences. */
static void
work(worker_t *w)
{
    plain_t *p = w->p;
    uint64_t all = (uint64_t) p->n * p->heads;
    uint64_t first = all * w->index / (uint32_t) p->threads;
    uint64_t end = all * (w->index + 1) / (uint32_t) p->threads;
    bool ok = true;

    for (uint64_t i = first; i < end; i++) {
        head_t *h = &p->head[i];
        uint32_t head = (uint32_t) (i % p->heads);

        if (p->task == SCORE) {
            ok = score_head(h, (uint32_t) i, p->task_len) && ok;
        } else if (p->task == PROMPT) {
            ok = prompt_head(w, h, head, p->task_len) && ok;
        } else if (p->task == STEP) {
            ok = step_head(w, h, head, p->len[i / p->heads]) && ok;
        } else {
            close_head(p, h);
        }
    }
    if (!ok) {
        pthread_mutex_lock(&p->lock);
        p->failed = true;
        pthread_mutex_unlock(&p->lock);
    }
}

static void *
worker_main(void *arg)
{
    worker_t *w = arg;
    plain_t *p = w->p;
    uint32_t seen = 0;

    for (;;) {
        pthread_mutex_lock(&p->lock);
        while (p->round == seen) {
            pthread_cond_wait(&p->begin, &p->lock);
        }
        seen = p->round;
        pthread_mutex_unlock(&p->lock);
        if (p->task == END) {
            return NULL;
        }
        work(w);
        pthread_mutex_lock(&p->lock);
        if (--p->busy == 0) {
            pthread_cond_signal(&p->done);
        }
        pthread_mutex_unlock(&p->lock);
    }
}

/* The caller is worker 0. */
static bool
share(plain_t *p, task_t task, uint32_t n, uint32_t len)
{
    pthread_mutex_lock(&p->lock);
    p->task = task;
    p->n = n;
    p->task_len = len;
    p->failed = false;
    p->busy = (uint32_t) p->threads - 1;
    p->round++;
    pthread_cond_broadcast(&p->begin);
    pthread_mutex_unlock(&p->lock);
    if (task == END) {
        return true;
    }
    work(&p->worker[0]);
    pthread_mutex_lock(&p->lock);
    while (p->busy != 0) {
        pthread_cond_wait(&p->done, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return !p->failed;
}

void
plain_score(plain_t *p, uint32_t n, uint32_t len)
{
    if (!share(p, SCORE, n, len)) {
        abort(); /* out of memory ends a benchmark */
    }
}

bool
plain_prompt(plain_t *p, uint32_t n, uint32_t len)
{
    for (uint32_t i = 0; i < n; i++) {
        p->len[i] = len;
    }
    return share(p, PROMPT, n, len);
}

bool
plain_step(plain_t *p, uint32_t n)
{
    bool ok = share(p, STEP, n, 0);

    for (uint32_t i = 0; i < n; i++) {
        p->len[i]++;
    }
    return ok;
}

void
plain_close(plain_t *p, uint32_t n)
{
    share(p, CLOSE, n, 0);
}

uint64_t
plain_used(const plain_t *p)
{
    return p->n_pages - p->n_free;
}

uint64_t
plain_listed(const plain_t *p, uint32_t n)
{
    uint64_t sum = 0;

    for (uint64_t i = 0; i < (uint64_t) n * p->heads; i++) {
        for (uint32_t l = 0; l < TR_KV_LISTS_MAX; l++) {
            sum += p->head[i].count[l];
        }
    }
    return sum;
}

/* ---- create ------------------------------------------------------------- */

/* Out of memory ends a benchmark. */
static void *
need(size_t n, size_t size)
{
    void *at = calloc(n, size);

    if (at == NULL) {
        abort();
    }
    return at;
}

plain_t *
plain_new(uint32_t heads, uint32_t lists, uint32_t seqs, uint32_t pages,
          uint32_t max_len, int threads, const tr_kv_policy_t *policy,
          const uint32_t *tokens)
{
    plain_t *p = need(1, sizeof(*p));

    p->heads = heads;
    p->lists = lists;
    p->max_len = max_len;
    p->policy = policy;
    p->threads = threads;
    memcpy(p->tokens, tokens, sizeof(p->tokens));
    p->len = need(seqs, sizeof(*p->len));
    p->head = need((size_t) seqs * heads, sizeof(*p->head));
    for (size_t i = 0; i < (size_t) seqs * heads; i++) {
        pthread_mutex_init(&p->head[i].lock, NULL);
    }
    p->free_page = need(pages, sizeof(*p->free_page));
    p->n_pages = p->n_free = pages;
    for (uint32_t i = 0; i < pages; i++) {
        p->free_page[i] = (int32_t) i;
    }
    pthread_mutex_init(&p->free_lock, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->begin, NULL);
    pthread_cond_init(&p->done, NULL);
    p->seqs = seqs;
    p->worker = need((size_t) threads, sizeof(*p->worker));
    for (int i = 0; i < threads; i++) {
        worker_t *w = &p->worker[i];

        w->p = p;
        w->index = (uint32_t) i;
        w->position = need(max_len, sizeof(*w->position));
        w->from = need(max_len, 1);
        w->to = need(max_len, 1);
        w->score = need(max_len, sizeof(float));
        w->recent = need(max_len, sizeof(float));
        w->work = need(max_len, 2 * sizeof(float));
        if (i > 0 && pthread_create(&w->thread, NULL, worker_main, w) != 0) {
            abort();
        }
    }
    return p;
}

void
plain_free(plain_t *p)
{
    share(p, END, 0, 0);
    for (int i = 0; i < p->threads; i++) {
        worker_t *w = &p->worker[i];

        if (i > 0) {
            pthread_join(w->thread, NULL);
        }
        free(w->position);
        free(w->from);
        free(w->to);
        free(w->score);
        free(w->recent);
        free(w->work);
    }
    free(p->worker);
    free(p->free_page);
    for (size_t i = 0; i < (size_t) p->seqs * p->heads; i++) {
        free(p->head[i].score);
    }
    free(p->head);
    free(p->len);
    free(p);
}
