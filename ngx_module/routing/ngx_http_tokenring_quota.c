/*
 * Quotas (ngx_http_tokenring_quota.h).
 *
 * A quota is a hash in Redis, PREFIXquota:{ACCOUNT}, with two fields for each
 * budget: what was used (as in _budget.c, in parts), and when it was refilled
 * last.  One script does all that is done to it, so that no two hosts get the
 * same tokens, with one clock, that of Redis.
 *
 * A reply that does not come may have been meant: what was asked for is then
 * nobody's, what was given back stays with Redis, and what was owed is owed
 * again.  So an outage costs tokens, and never makes any.
 */

#include "ngx_http_tokenring_quota.h"
#include "ngx_http_tokenring_alone.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_redis.h"
#include "ngx_http_tokenring_request.h"


/* a host takes so many parts of a budget at a time */
#define NGX_HTTP_TOKENRING_STOCK       20

/* ms: between two questions while Redis is away, or has nothing; how long it
 * then counts as away; how long a reply may take that was lost with its worker;
 * and between two when it has less than is wanted */
#define NGX_HTTP_TOKENRING_QUOTA_RETRY  250
#define NGX_HTTP_TOKENRING_QUOTA_AWAY   5000
#define NGX_HTTP_TOKENRING_QUOTA_LOST   3000
#define NGX_HTTP_TOKENRING_QUOTA_LESS   20

/* numbers of a script are doubles */
#define NGX_HTTP_TOKENRING_QUOTA_MAX    (1ull << 53)

/* ms */
#define NGX_HTTP_TOKENRING_QUOTA_DAY    86400000u

/* words of the script's arguments and numbers of its reply, of each budget */
#define NGX_HTTP_TOKENRING_QUOTA_ARGS   6
#define NGX_HTTP_TOKENRING_QUOTA_REPLY  5

/* bytes of these words */
#define NGX_HTTP_TOKENRING_QUOTA_TEXT                                         \
    (sizeof("requests/d") + NGX_HTTP_TOKENRING_QUOTA_ARGS * NGX_INT64_LEN)


static uint64_t ngx_http_tokenring_quota_since(
    ngx_http_tokenring_clock_t *clock, uint64_t then);
static void ngx_http_tokenring_quota_ask_one(ngx_http_tokenring_stock_t *s,
    ngx_http_tokenring_limit_t *limit, ngx_http_tokenring_clock_t *clock,
    ngx_uint_t over, ngx_http_tokenring_ask_t *ask);
static void ngx_http_tokenring_quota_words(ngx_http_tokenring_ask_t *ask,
    ngx_uint_t i, u_char *p, ngx_str_t *argv);
static void ngx_http_tokenring_quota_lost(ngx_http_tokenring_ask_t *ask);
static int64_t ngx_http_tokenring_quota_paid(ngx_http_tokenring_stock_t *s,
    ngx_http_tokenring_ask_t *ask, ngx_uint_t i);
static void ngx_http_tokenring_quota_reply(void *data, redisReply *reply);
static ngx_int_t ngx_http_tokenring_quota_take(
    ngx_http_tokenring_account_t *a, ngx_http_tokenring_ask_t *ask,
    redisReply *reply);
static void ngx_http_tokenring_quota_take_one(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_stock_t *s, ngx_http_tokenring_ask_t *ask, ngx_uint_t i,
    uint64_t *n, ngx_http_tokenring_clock_t *clock);
static ngx_uint_t ngx_http_tokenring_quota_back(
    ngx_http_tokenring_account_t *a, ngx_http_tokenring_ask_t *got,
    ngx_http_tokenring_ask_t *ask);
static ngx_http_tokenring_stock_t *ngx_http_tokenring_quota_stock(
    ngx_http_tokenring_account_t *a, uint8_t kind);


/* KEYS: the quota.  ARGV, of each budget: its name, limit and period (0: a
 * day), what is owed (below 0: given back), what is wanted, and the day that
 * what is owed is of (0: not known).  Gives half of what is left at most: who
 * comes next finds something, and little lies with hosts at the end.  Returns
 * of each what it gives, what is left, ms until there is something, the day,
 * and the time. */

static ngx_str_t  ngx_http_tokenring_quota_script = ngx_string(
    "local t = redis.call('TIME') "
    "local now = t[1] * 1000 + math.floor(t[2] / 1000) "
    "local day = math.floor(t[1] / 86400) "
    "local out = {} "
    "for i = 1, #ARGV, 6 do "
      "local kind = ARGV[i] "
      "local limit, period = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]) "
      "local owed, want = tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]) "
      "local was = redis.call('HMGET', KEYS[1], kind, kind .. 't') "
      "local used, at = tonumber(was[1]) or 0, tonumber(was[2]) or 0 "
      "local parts = 1 "
      "if period > 0 then "
        "parts = period "
        "used = used - math.max(0, now - at) * limit "
        "at = math.max(now, at) "
      "elseif day > at then "
        "used, at = 0, day "
      "end "
      "local of = tonumber(ARGV[i + 5]) "
      "if period == 0 and of > 0 and of < at then owed = 0 end "
      "used = math.min(math.max(0, used) + owed * parts, 2 ^ 53) "
      "used = math.max(0, used) "
      "local free = math.floor((limit * parts - used) / parts) "
      "local got = math.max(0, math.min(want, math.ceil(free / 2))) "
      "used, free = used + got * parts, free - got "
      "local wait = 0 "
      "if free < 1 then "
        "wait = period > 0 "
          "and math.ceil((used + parts - limit * parts) / limit) "
          "or (day + 1) * 86400000 - now "
      "end "
      "redis.call('HSET', KEYS[1], kind, string.format('%.0f', used), "
        "kind .. 't', string.format('%.0f', at)) "
      "out[#out + 1] = got "
      "out[#out + 1] = math.max(0, free) "
      "out[#out + 1] = wait "
      "out[#out + 1] = at "
      "out[#out + 1] = now "
    "end "
    "redis.call('PEXPIRE', KEYS[1], 172800000) "
    "return out");


ngx_int_t
ngx_http_tokenring_init_quota(ngx_conf_t *cf)
{
    uint64_t                          parts;
    ngx_uint_t                        i, j, shared;
    ngx_http_tokenring_plan_t       **plans;
    ngx_http_tokenring_redis_t      **redises;
    ngx_http_tokenring_limit_t       *limit;
    ngx_http_tokenring_loc_conf_t    *tlcf;
    ngx_http_tokenring_main_conf_t   *tmcf;

    tmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_tokenring_module);
    tlcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_tokenring_module);

    plans = tmcf->plans.elts;
    shared = 0;

    for (i = 0; i < tmcf->plans.nelts; i++) {

        for (j = 0; plans[i]->shared && j < plans[i]->n; j++) {
            limit = &plans[i]->limits[j];
            parts = limit->whole.period ? limit->whole.period : 1;
            shared = 1;

            if (limit->whole.limit > NGX_HTTP_TOKENRING_QUOTA_MAX / parts) {
                ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                              "\"%V\" of the shared plan \"%V\" is more than "
                              "%uL", &limit->text, &plans[i]->name,
                              NGX_HTTP_TOKENRING_QUOTA_MAX / parts);
                return NGX_ERROR;
            }
        }
    }

    if (!shared) {
        return NGX_OK;
    }

    redises = tmcf->redises.elts;

    if (tlcf->redis != NGX_CONF_UNSET_PTR && tlcf->redis) {
        tmcf->quota_redis = tlcf->redis;

    } else if (tmcf->redises.nelts == 1) {
        tmcf->quota_redis = redises[0];

    } else {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "a tokenring_plan is shared and there %s tokenring_redis,"
                      " expected one in the http block",
                      tmcf->redises.nelts ? "is more than one" : "is no");
        return NGX_ERROR;
    }

    return NGX_OK;
}


int64_t
ngx_http_tokenring_quota_left(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan, ngx_uint_t i)
{
    int64_t  have, part;

    if (!plan->shared) {
        return ngx_http_tokenring_budget_left(&a->budgets[i],
                                              &plan->limits[i].rate);
    }

    have = a->quota->stocks[i].have;

    if (have >= 1 || !a->quota->away || plan->hosts == 0) {
        return have;
    }

    /* of this host's own part, of which it has used all that it used */

    part = ngx_http_tokenring_budget_left(&a->budgets[i],
                                          &plan->limits[i].rate);
    return ngx_max(part, have);
}


ngx_uint_t
ngx_http_tokenring_quota_unknown(ngx_http_tokenring_account_t *a,
    ngx_uint_t i, ngx_http_tokenring_clock_t *clock)
{
    ngx_http_tokenring_quota_t  *q;

    q = a->quota;

    return (q->stocks[i].rest || clock->now >= q->stocks[i].next)
           && (q->away == 0
               || ngx_http_tokenring_quota_since(clock, q->away)
                  >= NGX_HTTP_TOKENRING_QUOTA_AWAY);
}


/* 0 where another worker, whose turn began later, has set it */

static uint64_t
ngx_http_tokenring_quota_since(ngx_http_tokenring_clock_t *clock,
    uint64_t then)
{
    return (clock->now > then) ? clock->now - then : 0;
}


uint64_t
ngx_http_tokenring_quota_wait(ngx_http_tokenring_account_t *a, ngx_uint_t i,
    ngx_http_tokenring_clock_t *clock)
{
    uint64_t                     wait;
    ngx_http_tokenring_stock_t  *s;

    s = &a->quota->stocks[i];
    wait = (s->until > clock->now) ? s->until - clock->now : 0;

    return ngx_max(wait, NGX_HTTP_TOKENRING_QUOTA_RETRY);
}


uint64_t
ngx_http_tokenring_quota_reset(ngx_http_tokenring_limit_t *limit,
    int64_t left, ngx_http_tokenring_clock_t *clock)
{
    ngx_http_tokenring_rate_t    *rate;
    ngx_http_tokenring_budget_t   b;

    rate = &limit->whole;

    ngx_http_tokenring_budget_init(&b, rate, clock);
    ngx_http_tokenring_budget_take(&b, rate, (int64_t) rate->limit - left);

    return ngx_http_tokenring_budget_wait(&b, rate, clock, rate->limit);
}


ngx_uint_t
ngx_http_tokenring_quota_day(ngx_http_tokenring_account_t *a, ngx_uint_t i,
    ngx_http_tokenring_clock_t *clock, ngx_uint_t begun)
{
    ngx_http_tokenring_stock_t  *s;

    s = &a->quota->stocks[i];

    if (s->day ? clock->now < s->ends : !begun) {
        return 0;
    }

    s->have = 0;
    s->paying = 0;
    s->next = 0;

    while (s->day && clock->now >= s->ends) {
        s->day++;
        s->ends += NGX_HTTP_TOKENRING_QUOTA_DAY;
    }

    return 1;
}


/* a question that its worker never sent, or whose reply came to nobody: what it
 * was to pay is owed again */

static void
ngx_http_tokenring_quota_expire(ngx_http_tokenring_quota_t *q)
{
    ngx_uint_t                   i;
    ngx_http_tokenring_stock_t  *s;

    for (i = 0; i < NGX_HTTP_TOKENRING_BUDGETS; i++) {
        s = &q->stocks[i];
        s->have -= s->paying;
        s->paying = 0;
    }

    q->asking = 0;
}


ngx_uint_t
ngx_http_tokenring_quota_ask(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_plan_t *plan, ngx_http_tokenring_clock_t *clock,
    ngx_uint_t over, ngx_http_tokenring_ask_t *ask)
{
    uint64_t                     since;
    ngx_uint_t                   i;
    ngx_http_tokenring_quota_t  *q;

    q = a->quota;
    ask->n = 0;

    since = ngx_http_tokenring_quota_since(clock, q->tried);

    if (q->asking && since >= NGX_HTTP_TOKENRING_QUOTA_LOST) {
        ngx_http_tokenring_quota_expire(q);
    }

    if (!over
        && (q->asking
            || (q->away && since < NGX_HTTP_TOKENRING_QUOTA_RETRY)))
    {
        return 0;
    }

    for (i = 0; i < plan->n; i++) {
        ngx_http_tokenring_quota_ask_one(&q->stocks[i], &plan->limits[i],
                                         clock, over, ask);
    }

    if (ask->n == 0) {
        return 0;
    }

    ngx_memcpy(ask->account, a->name, NGX_HTTP_TOKENRING_TENANT);

    q->asking = 1;
    q->tried = clock->now;

    return 1;
}


/* All of the stock goes back: whoever comes before the reply may ask for it */

static void
ngx_http_tokenring_quota_give(ngx_http_tokenring_stock_t *s)
{
    s->rest += s->have;
    s->next = 0;
    s->have = 0;
}


static void
ngx_http_tokenring_quota_ask_one(ngx_http_tokenring_stock_t *s,
    ngx_http_tokenring_limit_t *limit, ngx_http_tokenring_clock_t *clock,
    ngx_uint_t over, ngx_http_tokenring_ask_t *ask)
{
    int64_t  stock, pay, want;

    stock = (int64_t) (limit->whole.limit / NGX_HTTP_TOKENRING_STOCK);
    stock = ngx_max(stock, 1);

    if (over) {
        pay = -s->have;
        want = 0;

    } else {
        pay = (s->have < 0) ? -s->have : 0;
        want = (s->have <= stock / 2 && clock->now >= s->next)
               ? stock - ngx_max(s->have, 0) : 0;
    }

    if (want == 0 && (pay == 0 || !over)) {
        return;
    }

    ask->parts[ask->n].kind = limit->kind;
    ask->parts[ask->n].limit = limit->whole.limit;
    ask->parts[ask->n].period = limit->whole.period;
    ask->parts[ask->n].pay = pay;
    ask->parts[ask->n].want = want;
    ask->parts[ask->n].day = s->day;
    ask->n++;

    if (pay < 0) {
        ngx_http_tokenring_quota_give(s);
        return;
    }

    s->have += pay;
    s->paying += pay;
}


/* NULL: a reload, without a master process, has left none */

static ngx_http_tokenring_redis_t *
ngx_http_tokenring_quota_redis(void)
{
    ngx_http_tokenring_main_conf_t  *tmcf;

    tmcf = ngx_http_cycle_get_module_main_conf(ngx_cycle,
                                               ngx_http_tokenring_module);

    return tmcf ? tmcf->quota_redis : NULL;
}


static ngx_shm_zone_t *
ngx_http_tokenring_quota_zone(void)
{
    ngx_http_tokenring_main_conf_t  *tmcf;

    tmcf = ngx_http_cycle_get_module_main_conf(ngx_cycle,
                                               ngx_http_tokenring_module);

    return tmcf ? tmcf->tenants : NULL;
}


void
ngx_http_tokenring_quota_send(ngx_http_tokenring_ask_t *ask)
{
    u_char                           name[2 * NGX_HTTP_TOKENRING_TENANT],
                                     key[64 + sizeof("quota:{}")
                                         + sizeof(name)],
                                     text[NGX_HTTP_TOKENRING_BUDGETS]
                                         [NGX_HTTP_TOKENRING_QUOTA_TEXT];
    ngx_str_t                        s, argv[4 + NGX_HTTP_TOKENRING_BUDGETS
                                               * NGX_HTTP_TOKENRING_QUOTA_ARGS];
    ngx_uint_t                       i, argc;
    ngx_http_tokenring_ask_t        *sent;
    ngx_http_tokenring_redis_t      *redis;

    _Static_assert(sizeof(argv) / sizeof(argv[0])
                   <= NGX_HTTP_TOKENRING_REDIS_ARGS, "all in one EVAL");

    redis = ngx_http_tokenring_quota_redis();

    if (redis == NULL) {
        ngx_http_tokenring_quota_lost(ask);
        return;
    }

    s.data = name;
    s.len = ngx_hex_dump(name, ask->account, sizeof(ask->account)) - name;

    ngx_str_set(&argv[0], "EVAL");
    argv[1] = ngx_http_tokenring_quota_script;
    ngx_str_set(&argv[2], "1");
    argv[3] = ngx_http_tokenring_redis_key_at(redis, key, "quota", &s);
    argc = 4;

    for (i = 0; i < ask->n; i++) {
        ngx_http_tokenring_quota_words(ask, i, text[i], &argv[argc]);
        argc += NGX_HTTP_TOKENRING_QUOTA_ARGS;
    }

    sent = ngx_alloc(sizeof(ngx_http_tokenring_ask_t), ngx_cycle->log);

    if (sent) {
        *sent = *ask;

        if (ngx_http_tokenring_redis_command(redis,
                                             ngx_http_tokenring_quota_reply,
                                             sent, argc, argv))
        {
            return;
        }

        ngx_free(sent);
    }

    ngx_http_tokenring_quota_lost(ask);
}


/* the script's arguments of one budget */

static void
ngx_http_tokenring_quota_words(ngx_http_tokenring_ask_t *ask, ngx_uint_t i,
    u_char *p, ngx_str_t *argv)
{
    uint8_t                    kind;
    int64_t                    values[NGX_HTTP_TOKENRING_QUOTA_ARGS];
    ngx_uint_t                 j;
    ngx_http_tokenring_rate_t  rate;

    static const char  *units[] = { "requests", "in", "out", "tokens" };

    kind = ask->parts[i].kind;

    argv[0].data = p;
    p = ngx_sprintf(p, "%s/%c", units[ngx_http_tokenring_kind(kind, &rate)],
                    "smhd"[(kind - 1) % 4]);
    argv[0].len = p - argv[0].data;

    values[1] = (int64_t) ask->parts[i].limit;
    values[2] = (int64_t) ask->parts[i].period;
    values[3] = ask->parts[i].pay;
    values[4] = ask->parts[i].want;
    values[5] = (int64_t) ask->parts[i].day;

    for (j = 1; j < NGX_HTTP_TOKENRING_QUOTA_ARGS; j++) {
        argv[j].data = p;
        p = ngx_sprintf(p, "%L", values[j]);
        argv[j].len = p - argv[j].data;
    }
}


/* what was owed is owed again, unless it is so already, or of a day that has
 * gone */

static void
ngx_http_tokenring_quota_lost(ngx_http_tokenring_ask_t *ask)
{
    ngx_uint_t                     i;
    ngx_shm_zone_t                *zone;
    ngx_slab_pool_t               *shpool;
    ngx_http_tokenring_clock_t     clock;
    ngx_http_tokenring_stock_t    *s;
    ngx_http_tokenring_account_t  *a;

    zone = ngx_http_tokenring_quota_zone();

    if (zone == NULL) {
        return;
    }

    ngx_http_tokenring_now(&clock);

    shpool = (ngx_slab_pool_t *) zone->shm.addr;

    ngx_shmtx_lock(&shpool->mutex);

    a = ngx_http_tokenring_account_known(zone, ask->account);

    if (a && a->quota) {
        a->quota->asking = 0;
        a->quota->away = ngx_max(clock.now, 1);

        for (i = 0; i < ask->n; i++) {
            s = ngx_http_tokenring_quota_stock(a, ask->parts[i].kind);

            if (s) {
                s->have -= ngx_http_tokenring_quota_paid(s, ask, i);
            }
        }
    }

    ngx_shmtx_unlock(&shpool->mutex);

    ngx_http_tokenring_quota_wake();
}


/* what is owed no longer, and waited for the reply that came or was lost */

static int64_t
ngx_http_tokenring_quota_paid(ngx_http_tokenring_stock_t *s,
    ngx_http_tokenring_ask_t *ask, ngx_uint_t i)
{
    int64_t  n;

    if (ask->parts[i].pay <= 0 || s->day != ask->parts[i].day) {
        return 0;
    }

    n = ngx_min(s->paying, ask->parts[i].pay);
    s->paying -= n;

    return n;
}


static void
ngx_http_tokenring_quota_reply(void *data, redisReply *reply)
{
    ngx_int_t                      rc;
    ngx_uint_t                     send;
    ngx_shm_zone_t                *zone;
    ngx_slab_pool_t               *shpool;
    ngx_http_tokenring_ask_t      *ask, back;
    ngx_http_tokenring_redis_t    *redis;
    ngx_http_tokenring_account_t  *a;

    ask = data;
    rc = NGX_DECLINED;
    send = 0;

    redis = ngx_http_tokenring_quota_redis();
    zone = ngx_http_tokenring_quota_zone();

    if (redis && reply && reply->type == REDIS_REPLY_ERROR) {
        ngx_http_tokenring_redis_complain(redis, reply);
    }

    if (zone && reply && reply->type == REDIS_REPLY_ARRAY
        && reply->elements == ask->n * NGX_HTTP_TOKENRING_QUOTA_REPLY)
    {
        shpool = (ngx_slab_pool_t *) zone->shm.addr;

        ngx_shmtx_lock(&shpool->mutex);

        a = ngx_http_tokenring_account_known(zone, ask->account);

        /* of an account that was forgotten it is nobody's */
        rc = (a && a->quota) ? ngx_http_tokenring_quota_take(a, ask, reply)
                             : NGX_OK;

        send = a && a->quota && rc == NGX_OK
               && ngx_http_tokenring_quota_back(a, ask, &back);

        ngx_shmtx_unlock(&shpool->mutex);
    }

    if (send) {
        ngx_http_tokenring_quota_send(&back);
    }

    if (rc == NGX_OK) {
        ngx_http_tokenring_quota_wake();

    } else {
        ngx_http_tokenring_quota_lost(ask);
    }

    ngx_free(ask);
}


static ngx_int_t
ngx_http_tokenring_quota_take(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_ask_t *ask, redisReply *reply)
{
    uint64_t                     n[NGX_HTTP_TOKENRING_BUDGETS]
                                  [NGX_HTTP_TOKENRING_QUOTA_REPLY];
    ngx_uint_t                   i, j;
    ngx_http_tokenring_clock_t   clock;
    ngx_http_tokenring_stock_t  *s;

    for (i = 0; i < ask->n; i++) {

        for (j = 0; j < NGX_HTTP_TOKENRING_QUOTA_REPLY; j++) {

            if (ngx_http_tokenring_redis_number(
                    reply->element[i * NGX_HTTP_TOKENRING_QUOTA_REPLY + j],
                    &n[i][j])
                != NGX_OK)
            {
                return NGX_DECLINED;
            }
        }

        if (n[i][0] > (uint64_t) ask->parts[i].want
            || n[i][3] > NGX_HTTP_TOKENRING_QUOTA_MAX
            || n[i][4] > NGX_HTTP_TOKENRING_QUOTA_MAX)
        {
            return NGX_DECLINED;
        }
    }

    ngx_http_tokenring_now(&clock);

    for (i = 0; i < ask->n; i++) {
        s = ngx_http_tokenring_quota_stock(a, ask->parts[i].kind);

        /* NULL: a reload has taken this budget from the plan */

        if (s) {
            ngx_http_tokenring_quota_take_one(a, s, ask, i, n[i], &clock);
        }
    }

    a->quota->told = ngx_max(a->quota->told, n[0][4]);
    a->quota->asking = 0;
    a->quota->away = 0;

    return NGX_OK;
}


static void
ngx_http_tokenring_quota_take_one(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_stock_t *s, ngx_http_tokenring_ask_t *ask, ngx_uint_t i,
    uint64_t *n, ngx_http_tokenring_clock_t *clock)
{
    int64_t   pay;
    uint64_t  got, wait, day, now;

    got = n[0];
    wait = n[2];
    day = n[3];
    now = n[4];

    pay = ask->parts[i].pay - ngx_http_tokenring_quota_paid(s, ask, i);

    if (pay > 0 && s->day == ask->parts[i].day
        && (s->day || ask->parts[i].period))
    {
        /* it came late: this is owed again, and Redis has it */
        s->have += pay;
    }

    if (ask->parts[i].period == 0) {

        if (now < a->quota->told && day < s->day) {
            /* a later reply has overtaken it, of another day */
            return;
        }

        if (s->day != day) {
            /* what is left of yesterday's, or was owed, is gone; before the
             * first reply there was no day */

            s->have = s->day ? 0 : s->have;
            s->paying = 0;
            s->day = day;
            a->days++;
        }

        s->ends = clock->now + (day + 1) * NGX_HTTP_TOKENRING_QUOTA_DAY - now;
    }

    s->have += (int64_t) got;
    s->rest = (int64_t) n[1];
    s->until = clock->now + wait;
    s->next = 0;

    if (s->rest == 0) {
        wait = ngx_max(wait, NGX_HTTP_TOKENRING_QUOTA_LESS);
        s->next = clock->now + ngx_min(wait, NGX_HTTP_TOKENRING_QUOTA_RETRY);

    } else if (got < (uint64_t) ask->parts[i].want) {
        s->next = clock->now + NGX_HTTP_TOKENRING_QUOTA_LESS;
    }
}


/* it came when all requests had ended: another host may use it */

static ngx_uint_t
ngx_http_tokenring_quota_back(ngx_http_tokenring_account_t *a,
    ngx_http_tokenring_ask_t *got, ngx_http_tokenring_ask_t *ask)
{
    ngx_uint_t                   i;
    ngx_http_tokenring_stock_t  *s;

    *ask = *got;
    ask->n = 0;

    for (i = 0; a->holds == 0 && i < got->n; i++) {
        s = ngx_http_tokenring_quota_stock(a, got->parts[i].kind);

        if (s == NULL || s->have <= 0) {
            continue;
        }

        ask->parts[ask->n] = got->parts[i];
        ask->parts[ask->n].pay = -s->have;
        ask->parts[ask->n].want = 0;
        ask->parts[ask->n].day = s->day;
        ask->n++;

        ngx_http_tokenring_quota_give(s);
    }

    return ask->n != 0;
}


static ngx_http_tokenring_stock_t *
ngx_http_tokenring_quota_stock(ngx_http_tokenring_account_t *a, uint8_t kind)
{
    ngx_uint_t  i;

    i = ngx_http_tokenring_account_place(a, kind);

    return (i < NGX_HTTP_TOKENRING_BUDGETS) ? &a->quota->stocks[i] : NULL;
}
