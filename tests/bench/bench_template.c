/*
 * What a prompt of many messages takes: rendering by the model's own chat
 * template, and all of it with the tokens.
 *
 *   bench_template [MESSAGES] [MODEL_DIR..]     (1,000; models/pocket)
 *
 * MODEL_DIR has tokenizer.json and tokenizer_config.json.  The conversation is an
 * agent's: a question, a call, its result, an answer, and again; four tools.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/template/chat_template.h"

#define ROUNDS 21

static double
now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double) t.tv_sec * 1e3 + (double) t.tv_nsec * 1e-6;
}

static int
by_size(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

static json_t *
make_tools(void)
{
    static const char *const names[] = { "get_weather", "find_file",
                                         "run_command", "send_message" };
    json_t *tools = json_array();

    for (size_t i = 0; i < 4; i++) {
        json_array_append_new(
            tools,
            json_pack("{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}, s:{s:s}}, "
                      "s:[s]}}}",
                      "type", "function", "function", "name", names[i],
                      "description", "What this tool does, in a sentence.",
                      "parameters", "type", "object", "properties", "where",
                      "type", "string", "description", "a place or a path",
                      "count", "type", "integer", "required", "where"));
    }
    return tools;
}

static json_t *
make_message(uint32_t i)
{
    char id[16];

    snprintf(id, sizeof(id), "call%05u", i / 4);
    switch (i % 4) {
    case 0:
        return json_pack("{s:s, s:s}", "role", "user", "content",
                         "Please look at this place for me, and tell me what "
                         "the weather there is like today.");
    case 1:
        return json_pack("{s:s, s:s, s:[{s:s, s:s, s:{s:s, s:{s:s, s:i}}}]}",
                         "role", "assistant", "content", "", "tool_calls", "id",
                         id, "type", "function", "function", "name",
                         "get_weather", "arguments", "where", "Ashford",
                         "count", (int) i);
    case 2:
        return json_pack("{s:s, s:s, s:s, s:s}", "role", "tool", "tool_call_id",
                         id, "name", "get_weather", "content",
                         "{\"sky\": \"clear\", \"degrees\": 17}");
    default:
        return json_pack("{s:s, s:s}", "role", "assistant", "content",
                         "It is clear there, and 17 degrees warm.");
    }
}

typedef struct {
    double ms[ROUNDS];
} times_t;

static double
median(times_t *t)
{
    qsort(t->ms, ROUNDS, sizeof(t->ms[0]), by_size);
    return t->ms[ROUNDS / 2];
}

static int
bench(const char *dir, uint32_t n)
{
    json_t *messages = json_array(), *tools = make_tools();
    tr_chat_input_t in = { .messages = messages, .tools = tools };
    tr_tokenizer_t *tokenizer;
    tr_tokenizer_scratch_t *scratch;
    tr_chat_template_t chat;
    times_t rendered, encoded;
    uint64_t steps = 0;
    size_t bytes = 0;
    tr_error_t err;

    for (uint32_t i = 0; i < n; i++) {
        json_array_append_new(messages, make_message(i));
    }
    in.body = 500ul * n;
    if (tr_tokenizer_load(dir, &tokenizer, &err) != TR_OK
        || tr_chat_template_load(dir, "auto", tokenizer, &chat, &err)
               != TR_OK) {
        fprintf(stderr, "%s: %s\n", dir, err.text);
        return 1;
    }
    scratch = tr_tokenizer_scratch_new(tokenizer);
    for (int round = 0; round < ROUNDS; round++) {
        tr_jinja_render_t *render = NULL;
        tr_jinja_text_t text;
        tr_ids_t ids = { 0 };
        double from = now_ms(), then;

        if (tr_chat_template_render(&chat, &in, &render, &text, &err)
            != TR_OK) {
            fprintf(stderr, "%s: %s\n", dir, err.text);
            return 1;
        }
        then = now_ms();
        rendered.ms[round] = then - from;
        tr_tokenizer_encode_tagged(tokenizer, scratch, text.text, text.tags,
                                   text.len, &ids, &err);
        encoded.ms[round] = now_ms() - then;
        steps = text.steps;
        bytes = text.len;
        free(ids.data);
        tr_jinja_render_free(render);
    }
    printf("%s: %u messages, %zu KB: rendered in %.2f ms (%llu steps), tokens "
           "in %.2f ms\n",
           dir, n, bytes >> 10, median(&rendered), (unsigned long long) steps,
           median(&encoded));
    json_decref(messages);
    json_decref(tools);
    tr_chat_template_free(&chat);
    tr_tokenizer_scratch_free(scratch);
    tr_tokenizer_free(tokenizer);
    return 0;
}

int
main(int argc, char **argv)
{
    int n = argc > 1 ? atoi(argv[1]) : 1000, rc = 0;

    if (n <= 0) {
        fprintf(stderr, "usage: bench_template [MESSAGES] [MODEL_DIR..]\n");
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        rc |= bench(argv[i], (uint32_t) n);
    }
    return argc > 2 ? rc : bench("models/pocket", (uint32_t) n);
}
