/*
 * What each tenant has used (stats_tenants.h): the families tokenring_tenant_..
 * of NGINX's /metrics as a table, by tokens, or as one JSON object a look.
 * Engines do not know tenants by name, so this asks NGINX, over HTTP.
 */
#include <curl/curl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "stats_tenants.h"
#include "terminal.h"

#include "engine/base/clock.h"

#define PAGE_MAX (64u << 20)
#define NAME_MAX_BYTES \
    136 /* 64 bytes as 0x and hexadecimal digits, and a NUL */
#define TENANTS_MAX 1024

/* What is told of a tenant: a family without tokenring_tenant_ and _total, and
 * its column. */
enum { REQUESTS, LIMITED, PROMPT, COMPLETION, FIGURES };

static const struct {
    const char *name, *title;
} figures[FIGURES] = {
    { "requests", "requests" },
    { "limited", "refused" },
    { "prompt_tokens", "prompt tokens" },
    { "completion_tokens", "answer tokens" },
};

typedef struct {
    char name[NAME_MAX_BYTES];
    uint64_t figure[FIGURES];
} tenant_t;

typedef struct {
    uint64_t at_us;
    bool told; /* NGINX shows tenants, though there may be none */
    unsigned n;
    tenant_t tenant[TENANTS_MAX];
} look_t;

/* ---- the page ------------------------------------------------------------- */

typedef struct {
    char *text;
    size_t n, room;
} page_t;

static size_t
on_page(char *data, size_t size, size_t n, void *user)
{
    page_t *page = user;

    n *= size;
    if (n > PAGE_MAX - page->n) {
        return 0;
    }
    if (page->n + n + 1 > page->room) {
        size_t room = 2 * (page->n + n + 1);
        char *text = realloc(page->text, room);

        if (text == NULL) {
            return 0;
        }
        page->text = text;
        page->room = room;
    }
    memcpy(page->text + page->n, data, n);
    page->n += n;
    page->text[page->n] = '\0';
    return n;
}

/* The whole text of the URL's metrics, given to the caller; NULL: it was said
 * why not. */
static char *
fetch(const char *url, const tr_option_list_t *headers)
{
    struct curl_slist *list = NULL;
    char why[CURL_ERROR_SIZE] = "", at[1024];
    CURL *curl = curl_easy_init();
    page_t page = { 0 };
    size_t n = strlen(url);
    long status = 0;
    CURLcode rc;
    unsigned i;

    while (n > 0 && url[n - 1] == '/') {
        n--;
    }
    snprintf(at, sizeof(at), "%.*s%s", (int) n, url,
             n >= 8 && strncmp(url + n - 8, "/metrics", 8) == 0 ? ""
                                                                : "/metrics");
    for (i = 0; i < headers->n; i++) {
        list = curl_slist_append(list, headers->item[i]);
    }
    curl_easy_setopt(curl, CURLOPT_URL, at);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, list);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_page);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &page);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, 10000L);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    rc = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(curl);
    curl_slist_free_all(list);
    if (rc == CURLE_OK && status == 200 && page.text != NULL) {
        return page.text;
    }
    if (rc != CURLE_OK) {
        fprintf(stderr, "tokenring stats: %s: %s\n", at,
                why[0] != '\0' ? why : curl_easy_strerror(rc));
    } else {
        fprintf(stderr,
                "tokenring stats: %s answered %ld, expected 200 and metrics\n",
                at, status);
    }
    free(page.text);
    return NULL;
}

/* ---- reading it ----------------------------------------------------------- */

static tenant_t *
tenant_of(look_t *look, const char *name)
{
    unsigned i;

    for (i = 0; i < look->n; i++) {
        if (strcmp(look->tenant[i].name, name) == 0) {
            return &look->tenant[i];
        }
    }
    if (look->n == TENANTS_MAX) {
        return NULL;
    }
    snprintf(look->tenant[look->n].name, NAME_MAX_BYTES, "%s", name);
    return &look->tenant[look->n++];
}

/* A label's value up to its quote; after the quote, or NULL. */
static const char *
label(const char *p, char name[NAME_MAX_BYTES])
{
    size_t n = 0;

    for (; *p != '"'; p++) {
        if (*p == '\\') {
            p++;
        }
        if (*p == '\0' || *p == '\n' || n == NAME_MAX_BYTES - 1) {
            return NULL;
        }
        name[n++] = *p;
    }
    name[n] = '\0';
    return p + 1;
}

/* One line: tokenring_tenant_FIGURE_total{tenant="NAME"} VALUE, or another. */
static void
take_line(look_t *look, const char *line)
{
    static const char family[] = "tokenring_tenant_";
    char name[NAME_MAX_BYTES], *end;
    unsigned i;

    if (strncmp(line, "# TYPE tokenring_tenant_", 24) == 0) {
        look->told = true;
    }
    if (strncmp(line, family, sizeof(family) - 1) != 0) {
        return;
    }
    line += sizeof(family) - 1;
    for (i = 0; i < FIGURES; i++) {
        static const char rest[] = "_total{tenant=\"";
        size_t n = strlen(figures[i].name);
        unsigned long long value;
        const char *p;
        tenant_t *t;

        if (strncmp(line, figures[i].name, n) != 0
            || strncmp(line + n, rest, sizeof(rest) - 1) != 0) {
            continue;
        }
        p = label(line + n + sizeof(rest) - 1, name);
        if (p == NULL || p[0] != '}' || p[1] != ' ') {
            return;
        }
        value = strtoull(p + 2, &end, 10);
        t = end > p + 2 ? tenant_of(look, name) : NULL;
        if (t != NULL) {
            t->figure[i] = value;
        }
        return;
    }
}

static uint64_t
tokens(const tenant_t *t)
{
    return t->figure[PROMPT] + t->figure[COMPLETION];
}

/* Who used most first; then by name. */
static int
by_use(const void *a, const void *b)
{
    const tenant_t *x = a, *y = b;

    if (tokens(x) != tokens(y)) {
        return tokens(x) < tokens(y) ? 1 : -1;
    }
    return strcmp(x->name, y->name);
}

/* 0, or what is wrong was said. */
static int
look_at(const tr_stats_tenants_t *how, look_t *look)
{
    char *text = fetch(how->url, how->headers), *line, *end;

    look->at_us = tr_now_us();
    look->told = false;
    look->n = 0;
    if (text == NULL) {
        return -1;
    }
    for (line = text; line != NULL; line = end) {
        end = strchr(line, '\n');
        if (end != NULL) {
            *end++ = '\0';
        }
        take_line(look, line);
    }
    free(text);
    if (!look->told) {
        fprintf(stderr,
                "tokenring stats: %s shows no tenants: tokenring_tenants "
                "zone=tenants:8m shown; is what it needs\n",
                how->url);
        return -1;
    }
    qsort(look->tenant, look->n, sizeof(look->tenant[0]), by_use);
    return 0;
}

/* ---- telling it ----------------------------------------------------------- */

/* Tokens of answers in a second since the look before; -1: there is none. */
static double
rate(const look_t *before, const look_t *now, const tenant_t *t)
{
    unsigned i;

    if (before == NULL || now->at_us <= before->at_us) {
        return -1;
    }
    for (i = 0; i < before->n; i++) {
        const tenant_t *old = &before->tenant[i];

        if (strcmp(old->name, t->name) == 0
            && old->figure[COMPLETION] <= t->figure[COMPLETION]) {
            return (double) (t->figure[COMPLETION] - old->figure[COMPLETION])
                   * 1e6 / (double) (now->at_us - before->at_us);
        }
    }
    return -1;
}

static void
print_json(const look_t *before, const look_t *now)
{
    json_t *root = json_object(), *all = json_array();
    unsigned i, k;

    for (i = 0; i < now->n; i++) {
        const tenant_t *t = &now->tenant[i];
        double per_s = rate(before, now, t);
        json_t *one = json_object();

        json_object_set_new(one, "name", json_string(t->name));
        for (k = 0; k < FIGURES; k++) {
            json_object_set_new(one, figures[k].name,
                                json_integer((json_int_t) t->figure[k]));
        }
        json_object_set_new(one, "completion_tokens_per_s",
                            per_s < 0 ? json_null() : json_real(per_s));
        json_array_append_new(all, one);
    }
    json_object_set_new(root, "time", json_integer((json_int_t) time(NULL)));
    json_object_set_new(root, "tenants", all);
    json_dumpf(root, stdout, JSON_COMPACT | JSON_REAL_PRECISION(7));
    putchar('\n');
    json_decref(root);
}

static void
print_table(const look_t *before, const look_t *now)
{
    unsigned i, k;
    int width = 6;

    for (i = 0; i < now->n; i++) {
        int n = (int) strlen(now->tenant[i].name);

        width = n > width ? n : width;
    }
    printf("%-*s", width, "tenant");
    for (k = 0; k < FIGURES; k++) {
        printf("  %13s", figures[k].title);
    }
    puts(before != NULL ? "  tokens/s" : "");
    for (i = 0; i < now->n; i++) {
        const tenant_t *t = &now->tenant[i];
        double per_s = rate(before, now, t);

        const char *name = t->name[0] != '\0' ? t->name : "-";

        /* whoever answers: no name commands the terminal */
        tr_terminal_write(stdout, name, strlen(name));
        printf("%*s", width - (int) strlen(name), "");
        for (k = 0; k < FIGURES; k++) {
            printf("  %13llu", (unsigned long long) t->figure[k]);
        }
        if (per_s >= 0) {
            printf("  %8.1f", per_s);
        }
        putchar('\n');
    }
}

static void
show(const tr_stats_tenants_t *how, const look_t *before, const look_t *now)
{
    bool redraw = !how->json && !how->once && isatty(STDOUT_FILENO);

    if (how->json) {
        print_json(before, now);
    } else {
        fputs(redraw ? "\033[H\033[2J" : "", stdout);
        print_table(before, now);
    }
    fflush(stdout);
}

int
tr_stats_tenants(const tr_stats_tenants_t *how)
{
    static look_t looks[2];
    look_t *before = NULL, *now = &looks[0];
    int rc;

    curl_global_init(CURL_GLOBAL_DEFAULT);
    tr_interrupt_catch();
    while ((rc = look_at(how, now)) == 0) {
        uint64_t next = now->at_us + (uint64_t) (how->interval * 1e6);

        show(how, before, now);
        while (!how->once && tr_now_us() < next && !tr_interrupted()) {
            usleep(20000);
        }
        if (how->once || tr_interrupted() || ferror(stdout)) {
            return 0;
        }
        before = now;
        now = now == &looks[0] ? &looks[1] : &looks[0];
    }
    return 1;
}
