/*
 * What the gateway's scanner of "model" takes of bodies that it meets:
 * nanoseconds a byte, the median of rounds, in pieces as NGINX reads them.
 *
 *   bench_scan [--json FILE]
 */
#include "bench.h"

#include <jansson.h>
#include <string.h>

#include "ngx_module/routing/ngx_http_tokenring_scan.h"

#define BODY ((size_t) 4 << 20)
#define PIECE ((size_t) 16 << 10)
#define ROUNDS 21
#define NS_MOST 1.0 /* a byte, that a scan may take */

/* A body repeats `part` between the other two. */
typedef struct {
    const char *name, *begin, *part, *end;
} shape_t;

/* The first REAL are what clients send; the others, which are sent to do harm, are
 * shown without a bound. */
#define REAL 5

static const shape_t shapes[] = {
    { "a long document", "{\"messages\":[{\"role\":\"user\",\"content\":\"",
      "It was the best of times, it was the worst of times, said \\\"he\\\", "
      "and the age of wisdom was the age of foolishness, too.\\n",
      "\"}],\"model\":\"pocket\",\"stream\":true}" },
    { "short messages", "{\"model\":\"pocket\",\"messages\":[",
      "{\"role\": \"user\", \"content\": \"And what is the capital of "
      "France?\"}, {\"role\": \"assistant\", \"content\": \"Paris.\"}, ",
      "{}]}" },
    { "token ids", "{\"model\":\"pocket\",\"prompt\":[", "151643,872,198,27,",
      "1]}" },
    { "an image, base64", "{\"messages\":[{\"content\":[{\"image_url\":\"",
      "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
      "\"}]}],\"model\":\"pocket\"}" },
    { "tools and schemas", "{\"model\":\"pocket\",\"tools\":[",
      "{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":"
      "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}}}}}"
      ",",
      "{}]}" },
    { "blanks", "{", " ", "\"model\":\"pocket\"}" },
    { "members", "{", "\"temperature\":1.25,", "\"model\":\"pocket\"}" },
};

/* Seconds that this process has computed: others may have the core meanwhile. */
static double
cpu(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double) t.tv_sec + (double) t.tv_nsec * 1e-9;
}

static double
run(const char *body, size_t len)
{
    ngx_http_tokenring_scan_t s;
    double began = cpu();
    size_t at, n;

    ngx_http_tokenring_scan_init(&s);
    for (at = 0; at < len; at += n) {
        n = len - at < PIECE ? len - at : PIECE;
        ngx_http_tokenring_scan(&s, (const unsigned char *) body + at, n);
    }
    if (s.kind != NGX_HTTP_TOKENRING_SCAN_NAME || s.len != 6) {
        fprintf(stderr, "bench_scan: the model was not found\n");
        exit(1);
    }
    return (cpu() - began) * 1e9 / (double) len;
}

static double
measure(const shape_t *shape)
{
    size_t part = strlen(shape->part), len = strlen(shape->begin);
    char *body = malloc(BODY + 1024);
    double ns[ROUNDS];
    int i;

    if (body == NULL) {
        must(TR_ERR_NOMEM, NULL, "a body");
    }
    memcpy(body, shape->begin, len);
    for (; len + part < BODY; len += part) {
        memcpy(body + len, shape->part, part);
    }
    memcpy(body + len, shape->end, strlen(shape->end));
    len += strlen(shape->end);
    for (i = 0; i < ROUNDS; i++) {
        ns[i] = run(body, len);
    }
    free(body);
    return median(ns, ROUNDS);
}

int
main(int argc, char **argv)
{
    json_t *result = json_object();
    int bad = 0;
    size_t i;

    if (argc != 1 && (argc != 3 || strcmp(argv[1], "--json") != 0)) {
        fprintf(stderr, "usage: bench_scan [--json FILE]\n");
        return 2;
    }
    printf("scanning bodies of %zu MiB for \"model\": ns a byte, at most "
           "%.1f\n",
           BODY >> 20, NS_MOST);
    for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        double ns = measure(&shapes[i]);

        printf("  %-20s %6.3f%s\n", shapes[i].name, ns,
               i < REAL ? "" : "  (no bound)");
        bad |= i < REAL && ns > NS_MOST;
        json_object_set_new(result, shapes[i].name, json_real(ns));
    }
    if (argc == 3 && json_dump_file(result, argv[2], JSON_INDENT(2)) != 0) {
        fprintf(stderr, "bench_scan: cannot write %s\n", argv[2]);
        return 1;
    }
    json_decref(result);
    return bad;
}
