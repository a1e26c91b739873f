/*
 * What clients send, and what is made of it; what is refused has a test of its
 * own (test_openai_refused.c).
 */
#include <math.h>
#include <time.h>

#include "tests/unit/fixtures/openai_fixture.h"

#define IDS "9,9,9,9,9,9,9,9,9,9"

static void
test_defaults(void **state)
{
    tr_request_t *r = good(CHAT, "{\"model\":\"pocket\"," HI "}");

    (void) state;
    assert_false(r->stream);
    assert_false(r->include_usage);
    assert_int_equal(r->n, 1);
    assert_int_equal(r->n_sequences, 1);
    assert_true(r->params.temperature == 1.0f);
    assert_true(r->params.top_p == 1.0f);
    assert_true(r->params.min_p == 0.0f);
    assert_true(r->params.repetition_penalty == 1.0f);
    assert_int_equal(r->params.top_k, 0);
    assert_int_equal(r->params.logprobs, -1);
    assert_false(r->params.has_seed);
    /* a chat may go on to the end of the context */
    assert_int_equal(r->params.max_tokens, CONTEXT - r->prompt_tokens);
    assert_int_equal(r->sequences[0].prompt_len, r->prompt_tokens);
    assert_int_equal(r->sequences[0].tokens[0], 0); /* begin_of_text */
    tr_request_free(r);

    r = good(TEXT, "{" P "}");
    assert_int_equal(r->params.max_tokens, 16);
    assert_int_equal(r->sequences[0].tokens[0], 0);
    tr_request_free(r);
}

/* A template of a test's own, in the place of pocket's. */
static tr_chat_template_t
template_of(const char *source)
{
    tr_chat_template_t c = { .end_of_turn = -1 };
    tr_error_t err;

    if (tr_jinja_parse(source, strlen(source), "test", &c.chat, &err)
        != TR_OK) {
        fail_msg("%s", err.text);
    }
    return c;
}

/* What vLLM's clients send for Qwen3; a template without that switch takes it
 * as Jinja takes a variable that it does not use. */
static void
test_thinking(void **state)
{
    static const char off[] = "{" HI ",\"chat_template_kwargs\":"
                              "{\"enable_thinking\":false,\"other\":[1]}}";
    static const char on[] = "{" HI ",\"chat_template_kwargs\":"
                             "{\"enable_thinking\":true}}";
    tr_chat_template_t template = template_of(
        "{{ messages[0].content }}{% if enable_thinking is false %}<think>"
        "{% endif %}");
    tr_request_t *plain = good(CHAT, "{" HI "}"), *r = good(CHAT, off);
    tr_openai_t own = api;

    (void) state;
    assert_int_equal(r->prompt_tokens, plain->prompt_tokens);
    tr_request_free(r);
    tr_request_free(plain);
    own.chat_template = &template;
    plain = parse_bytes(&own, CHAT, on, strlen(on));
    assert_int_equal(plain->error.status, TR_OK);
    r = parse_bytes(&own, CHAT, off, strlen(off));
    assert_int_equal(r->error.status, TR_OK);
    assert_true(r->prompt_tokens > plain->prompt_tokens);
    tr_request_free(r);
    tr_request_free(plain);
    tr_chat_template_free(&template);
}

/* A mark that ends reasoning, of which the model has no row, cannot be forced. */
static void
test_budget_of_unknown_mark(void **state)
{
    static const char body[] = "{" HI ",\"thinking_token_budget\":3}";
    tr_chat_template_t template = template_of(
        "{% for m in messages %}{{ m.role }}: {% if m.reasoning_content %}"
        "<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
        "{{ m.content }}<|eot_id|>{% endfor %}assistant: ");
    tr_openai_t own = api;
    tr_dialect_t *dialect;
    tr_error_t err;
    tr_request_t *r;
    uint32_t last = 0;

    (void) state;
    assert_int_equal(tr_dialect_open("auto", &template, tokenizer, &dialect,
                                     &err),
                     TR_OK);
    own.chat_template = &template;
    own.dialect = dialect;
    r = parse_bytes(&own, CHAT, body, strlen(body));
    assert_int_equal(r->error.status, TR_OK);
    assert_true(r->n_thought_end > 0 && r->thought_budget == 3);
    for (uint32_t i = 0; i < r->n_thought_end; i++) {
        uint32_t id = (uint32_t) r->thought_end[i];

        last = id > last ? id : last;
    }
    tr_request_free(r);
    own.vocab = last;
    r = parse_bytes(&own, CHAT, body, strlen(body));
    assert_int_equal(r->error.status, TR_ERR_INVALID);
    assert_string_equal(r->error.param, "thinking_token_budget");
    assert_null(r->thought_end);
    tr_request_free(r);
    tr_dialect_free(dialect);
    tr_chat_template_free(&template);
}

/* Blocks of thinking are lines of one text; a body of nothing else is read in a
 * time that grows with its length alone. */
static void
test_thoughts(void **state)
{
    static const char blocks[] =
        "{\"max_tokens\":1,\"messages\":[{\"role\":\"assistant\","
        "\"content\":[{\"type\":\"thinking\",\"thinking\":\"one\"},"
        "{\"type\":\"thinking\",\"thinking\":\"\"},"
        "{\"type\":\"thinking\",\"thinking\":\"two\"}]},"
        "{\"role\":\"user\",\"content\":\"\"}]}";
    static const char lines[] = "{\"max_tokens\":1,\"messages\":[{\"role\":"
                                "\"user\","
                                "\"content\":\"one\\n\\ntwo\"}]}";
    static const char block[] = "{\"type\":\"thinking\",\"thinking\":"
                                "\"01234567890123456789012345678901"
                                "23456789012345678901234567890123\"},";
    tr_chat_template_t template = template_of(
        "{{ messages[0].reasoning_content or messages[0].content }}");
    tr_openai_t own = api;
    tr_request_t *r, *plain;
    size_t n = 80000, at;
    char *body = malloc(n * sizeof(block) + 200);
    clock_t began;

    (void) state;
    own.chat_template = &template;
    r = parse_bytes(&own, TR_ENDPOINT_MESSAGES, blocks, strlen(blocks));
    plain = parse_bytes(&own, CHAT, lines, strlen(lines));
    assert_int_equal(r->error.status, TR_OK);
    assert_int_equal(plain->error.status, TR_OK);
    assert_int_equal(r->prompt_tokens, plain->prompt_tokens);
    assert_memory_equal(r->sequences[0].tokens, plain->sequences[0].tokens,
                        r->prompt_tokens * sizeof(int32_t));
    tr_request_free(r);
    tr_request_free(plain);

    assert_non_null(body);
    at = (size_t) sprintf(body, "%s",
                          "{\"max_tokens\":1,\"messages\":[{"
                          "\"role\":\"assistant\",\"content\":[");
    for (size_t i = 0; i < n; i++) {
        memcpy(body + at, block, sizeof(block) - 1);
        at += sizeof(block) - 1;
    }
    at--;
    at += (size_t) sprintf(body + at, "%s",
                           "]},{\"role\":\"user\",\"content\":\"\"}]}");
    began = clock();
    r = parse_bytes(&own, TR_ENDPOINT_MESSAGES, body, at);
    assert_true(clock() - began < 6 * CLOCKS_PER_SEC);
    assert_int_equal(r->error.status, TR_ERR_CONTEXT_LENGTH);
    assert_non_null(strstr(r->error.text, "tokens"));
    tr_request_free(r);
    tr_chat_template_free(&template);
    free(body);
}

/* What the template says itself, and where it goes wrong. */
static void
test_template_refuses(void **state)
{
    static const char *const cases[][2] = {
        { "{{ raise_exception('roles must alternate') }}",
          "roles must alternate" },
        { "\n{{ messages[0].content + 1 }}", "test:2:" },
        { "{% for i in range(100000) %}{% for j in range(100000) %}"
          "{% endfor %}{% endfor %}",
          "exceeded its limit of 210000 steps" },
    };
    static const char body[] = "{" HI "}";
    tr_openai_t own = api;

    (void) state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tr_chat_template_t template = template_of(cases[i][0]);
        tr_request_t *r;

        own.chat_template = &template;
        r = parse_bytes(&own, CHAT, body, strlen(body));
        assert_int_equal(r->error.status, TR_ERR_INVALID);
        assert_string_equal(r->error.param, "messages");
        if (strstr(r->error.text, cases[i][1]) == NULL) {
            fail_msg("\"%s\" in \"%s\"", cases[i][1], r->error.text);
        }
        tr_request_free(r);
        tr_chat_template_free(&template);
    }
}

/* A template may write more than a client: it ends where nothing fits. */
static void
test_template_writes_too_much(void **state)
{
    static const char body[] = "{" HI "}";
    tr_chat_template_t template = template_of(
        "{% for i in range(10000) %}{{ 'all work and no play ' }}"
        "{% endfor %}");
    tr_openai_t own = api;
    tr_request_t *r;

    (void) state;
    own.chat_template = &template;
    r = parse_bytes(&own, CHAT, body, strlen(body));
    assert_int_equal(r->error.status, TR_ERR_CONTEXT_LENGTH);
    assert_string_equal(r->error.param, "messages");
    tr_request_free(r);
    tr_chat_template_free(&template);
}

/* documents, add_generation_prompt, continue_final_message. */
static void
test_template_inputs(void **state)
{
    static const char said[] = "{\"messages\":[{\"role\":\"user\",\"content\":"
                               "\"Hi\"},"
                               "{\"role\":\"assistant\",\"content\":\"one "
                               "two\"}]";
    char body[512];
    tr_request_t *all, *none, *cut;
    tr_openai_t own = api;
    tr_chat_template_t template = template_of(
        "{% for d in documents or [] %}{{ d.text }}{% endfor %}");

    (void) state;
    snprintf(body, sizeof(body), "%s}", said);
    all = good(CHAT, body);
    snprintf(body, sizeof(body), "%s,\"add_generation_prompt\":false}", said);
    none = good(CHAT, body);
    snprintf(body, sizeof(body), "%s,\"continue_final_message\":true}", said);
    cut = good(CHAT, body);
    assert_true(all->prompt_tokens > none->prompt_tokens);
    assert_int_equal(cut->prompt_tokens + 1, none->prompt_tokens);
    assert_memory_equal(cut->sequences[0].tokens, none->sequences[0].tokens,
                        cut->prompt_tokens * sizeof(int32_t));
    tr_request_free(all);
    tr_request_free(none);
    tr_request_free(cut);
    own.chat_template = &template;
    template.reads_documents = true; /* as the probe finds out */
    snprintf(body, sizeof(body), "{" HI ",\"documents\":[{\"text\":\"x y\"}]}");
    all = parse_bytes(&own, CHAT, body, strlen(body));
    assert_int_equal(all->error.status, TR_OK);
    assert_true(all->prompt_tokens > 0);
    tr_request_free(all);
    tr_chat_template_free(&template);
}

/* By name, as configured, as the log has it; thresholds in a copy. */
static void
test_policies(void **state)
{
    const tr_kv_policy_t *second = policies[2].policy;
    char body[512];
    tr_request_t *r;

    (void) state;
    r = good(TEXT, "{" P "}");
    assert_ptr_equal(r->kv_policy, policies[0].policy);
    tr_request_free(r);
    r = good(TEXT, "{" P ",\"kv_policy\":\"diffkv\"}");
    assert_ptr_equal(r->kv_policy, policies[1].policy);
    tr_request_free(r);
    r = good(TEXT, "{" P ",\"kv_policy\":\"diffkv:alpha_low=0.25\"}");
    assert_ptr_equal(r->kv_policy, second);
    tr_request_free(r);
    snprintf(body, sizeof(body), "{" P ",\"kv_policy\":\"%s\"}", second->spec);
    r = good(TEXT, body);
    assert_ptr_equal(r->kv_policy, second);
    tr_request_free(r);
    r = good(TEXT, "{" P ",\"kv_policy\":\"diffkv:alpha_low=0.25\","
                   "\"kv_alpha_high\":0.3}");
    assert_ptr_not_equal(r->kv_policy, second);
    /* doubles all the way: thresholds are as those of a configuration */
    assert_true(r->kv_policy->alpha_high == 0.3);
    assert_true(r->kv_policy->alpha_low == 0.25);
    assert_true(second->alpha_high != 0.3);
    tr_request_free(r);
    r = good(TEXT, "{" P ",\"kv_policy\":null,\"kv_alpha_low\":null}");
    assert_ptr_equal(r->kv_policy, policies[0].policy);
    tr_request_free(r);
}

/* What is left open, and what is too long, hangs on the policy. */
static void
test_length_of_policy(void **state)
{
    tr_request_t *r = good(CHAT, "{" HI "}"), *s;

    (void) state;
    s = good(CHAT, "{" HI ",\"kv_policy\":\"diffkv:alpha_low=0.25\"}");
    assert_int_equal(r->sequences[0].cap, CONTEXT);
    assert_int_equal(s->sequences[0].cap, SHORTER);
    tr_request_free(s);
    tr_request_free(r);
    r = good(TEXT, "{" P ",\"kv_policy\":\"diffkv:alpha_low=0.25\","
                   "\"max_tokens\":40}");
    assert_int_equal(r->sequences[0].cap, SHORTER);
    tr_request_free(r);
    r = parse(TEXT, "{\"prompt\":[[9],[" IDS "," IDS "," IDS "," IDS "]],"
                    "\"kv_policy\":\"diffkv:alpha_low=0.25\"}");
    assert_int_equal(r->error.status, TR_ERR_CONTEXT_LENGTH);
    assert_non_null(strstr(r->error.text, "context length is 40 tokens"));
    tr_request_free(r);
}

/* max_tokens is a ceiling: each choice ends where the context does. */
static void
test_clamped(void **state)
{
    tr_request_t *r = good(TEXT, "{\"prompt\":[[5,6,7],[" IDS "]],"
                                 "\"max_tokens\":4294967295}");

    (void) state;
    assert_int_equal(r->params.max_tokens, CONTEXT - 3);
    assert_int_equal(r->sequences[0].cap, CONTEXT);
    assert_int_equal(r->sequences[1].cap, CONTEXT);
    tr_request_free(r);
    r = good(TEXT, "{\"prompt\":[[5,6,7],[" IDS "]],\"max_tokens\":55}");
    assert_int_equal(r->sequences[0].cap, 58);
    assert_int_equal(r->sequences[1].cap, CONTEXT);
    tr_request_free(r);
    r = good(CHAT, "{" HI ",\"max_completion_tokens\":64}");
    assert_int_equal(r->sequences[0].cap, CONTEXT);
    tr_request_free(r);
}

/* One BOS, whoever wrote it; none where the client says so. */
static void
test_special_tokens(void **state)
{
    static const char text[] = "\"<|begin_of_text|>Hi\"";
    tr_request_t *one = good(TEXT, "{" P "}"), *r;
    char body[128];

    (void) state;
    snprintf(body, sizeof(body), "{\"prompt\":%s}", text);
    r = good(TEXT, body);
    assert_int_equal(r->prompt_tokens, one->prompt_tokens);
    assert_memory_equal(r->sequences[0].tokens, one->sequences[0].tokens,
                        one->prompt_tokens * sizeof(int32_t));
    tr_request_free(r);
    snprintf(body, sizeof(body), "{\"prompt\":%s,\"add_special_tokens\":false}",
             text);
    r = good(TEXT, body);
    assert_int_equal(r->prompt_tokens, one->prompt_tokens);
    tr_request_free(r);
    r = good(TEXT, "{" P ",\"add_special_tokens\":false}");
    assert_int_equal(r->prompt_tokens, one->prompt_tokens - 1);
    assert_int_not_equal(r->sequences[0].tokens[0], 0);
    tr_request_free(r);
    r = good(TEXT, "{\"prompt\":[0,0,9]}"); /* ids are meant as they are */
    assert_int_equal(r->prompt_tokens, 3);
    tr_request_free(r);
    tr_request_free(one);
}

static void
test_all_parameters(void **state)
{
    tr_request_t *r = good(
        CHAT,
        "{" HI ",\"stream\":true,\"stream_options\":{\"include_usage\":true,"
        "\"include_obfuscation\":false},\"n\":2,\"best_of\":2,"
        "\"temperature\":0,\"top_p\":0.5,\"top_k\":40,\"min_p\":0.1,"
        "\"presence_penalty\":-2,\"frequency_penalty\":2,"
        "\"repetition_penalty\":1.5,"
        "\"logit_bias\":{\"0\":1,\"5\":-100,\"4095\":1.5},"
        "\"seed\":-9223372036854775808,\"stop\":[\"a\",\"\\u00e9\"],"
        "\"stop_token_ids\":[7,4095],\"max_completion_tokens\":10,"
        "\"min_tokens\":3,\"ignore_eos\":true,\"logprobs\":true,"
        "\"top_logprobs\":20,\"include_stop_str_in_output\":true,"
        "\"user\":\"u\",\"store\":false,\"metadata\":{},\"tools\":[],"
        "\"tool_choice\":\"auto\",\"response_format\":{\"type\":\"text\"},"
        "\"parallel_tool_calls\":true,\"something_new\":[1,2,3]}");
    const tr_sampling_params_t *p = &r->params;

    (void) state;
    assert_true(r->stream);
    assert_true(r->include_usage);
    assert_int_equal(r->n, 2);
    assert_int_equal(r->n_sequences, 2);
    assert_true(p->temperature == 0.0f);
    assert_true(p->top_p == 0.5f);
    assert_int_equal(p->top_k, 40);
    assert_true(p->min_p == 0.1f);
    assert_true(p->presence_penalty == -2.0f);
    assert_true(p->frequency_penalty == 2.0f);
    assert_true(p->repetition_penalty == 1.5f);
    assert_int_equal(p->n_bias, 3);
    assert_int_equal(p->bias[0].token + p->bias[1].token + p->bias[2].token,
                     4100);
    assert_true(p->has_seed);
    assert_true(p->seed == (uint64_t) INT64_MIN);
    assert_int_equal(p->n_stop, 2);
    assert_int_equal(p->stop[1].len, 2);
    assert_memory_equal(p->stop[1].text, "\xc3\xa9", 2);
    assert_int_equal(p->n_stop_tokens, 2);
    assert_int_equal(p->stop_tokens[1], 4095);
    assert_int_equal(p->max_tokens, 10);
    assert_int_equal(p->min_tokens, 3);
    assert_true(p->ignore_eos);
    assert_true(p->include_stop);
    assert_int_equal(p->logprobs, 20);
    tr_request_free(r);
}

static void
test_stream_options(void **state)
{
    tr_request_t *r = good(CHAT, "{" HI ",\"stream\":true,\"stream_options\":{"
                                 "\"include_usage\":"
                                 "false,\"continuous_usage_stats\":true}}");

    (void) state;
    assert_true(r->usage_stats);
    assert_false(r->include_usage);
    assert_false(r->include_kv);
    tr_request_free(r);
    r = good(TEXT, "{" P ",\"stream\":true,\"stream_options\":{"
                   "\"continuous_usage_stats\":true,\"include_kv\":true}}");
    assert_true(r->include_kv);
    tr_request_free(r);
    r = good(TEXT, "{" P ",\"stream\":true,\"stream_options\":{"
                   "\"continuous_usage_stats\":null,\"include_kv\":false}}");
    assert_false(r->usage_stats);
    assert_false(r->include_kv);
    tr_request_free(r);
}

/* The model's own defaults, where a request says nothing. */
static void
test_generation_defaults(void **state)
{
    tr_generation_t g = { 0.6, 0.9, 20, NAN, 1.25 };
    static const char said[] = "{" HI ",\"temperature\":0,\"top_p\":1,"
                               "\"top_k\":-1,\"repetition_penalty\":1}";
    tr_openai_t own = api;
    tr_request_t *r;

    (void) state;
    own.generation = &g;
    r = parse_bytes(&own, CHAT, "{" HI "}", strlen("{" HI "}"));
    assert_int_equal(r->error.status, TR_OK);
    assert_true(r->params.temperature == 0.6f);
    assert_true(r->params.top_p == 0.9f);
    assert_int_equal(r->params.top_k, 20);
    assert_true(r->params.min_p == 0.0f);
    assert_true(r->params.repetition_penalty == 1.25f);
    tr_request_free(r);
    r = parse_bytes(&own, CHAT, said, strlen(said));
    assert_int_equal(r->error.status, TR_OK);
    assert_true(r->params.temperature == 0.0f);
    assert_true(r->params.top_p == 1.0f);
    assert_int_equal(r->params.top_k, 0);
    assert_true(r->params.repetition_penalty == 1.0f);
    tr_request_free(r);
}

/* OpenAI's least top_p is 0, which leaves the best token alone. */
static void
test_top_p_0(void **state)
{
    static const char *const least[] = { "0", "0.0", "1e-60" };

    (void) state;
    for (size_t i = 0; i < 3; i++) {
        char body[128];
        tr_request_t *r;

        snprintf(body, sizeof(body), "{" HI ",\"top_p\":%s}", least[i]);
        r = good(CHAT, body);
        assert_true(r->params.temperature == 0.0f);
        assert_true(r->params.top_p == 1.0f);
        tr_request_free(r);
    }
}

/* U+0000 is a character like others: nothing ends there. */
static void
test_nul_in_a_text(void **state)
{
    tr_request_t *nul = good(CHAT, "{\"messages\":[{\"role\":\"user\","
                                   "\"content\":\"a\\u0000b\"}]}");
    tr_request_t *one = good(CHAT, "{\"messages\":[{\"role\":\"user\","
                                   "\"content\":\"a\"}]}");
    tr_request_t *stop = good(TEXT, "{\"prompt\":\"a\\u0000b\","
                                    "\"stop\":\"\\u0000x\"}");

    (void) state;
    assert_int_equal(nul->prompt_tokens, one->prompt_tokens + 2);
    assert_int_equal(stop->params.stop[0].len, 2);
    assert_memory_equal(stop->params.stop[0].text, "\0x", 2);
    tr_request_free(nul);
    tr_request_free(one);
    tr_request_free(stop);
}

/* null is the same as absent, everywhere. */
static void
test_null(void **state)
{
    tr_request_t *r = good(
        CHAT, "{" HI ",\"model\":null,\"stream\":null,\"stream_options\":null,"
              "\"n\":null,\"best_of\":null,\"temperature\":null,\"top_p\":null,"
              "\"top_k\":null,\"min_p\":null,\"presence_penalty\":null,"
              "\"frequency_penalty\":null,\"repetition_penalty\":null,"
              "\"logit_bias\":null,\"seed\":null,\"stop\":null,"
              "\"stop_token_ids\":null,\"max_tokens\":null,"
              "\"max_completion_tokens\":null,\"min_tokens\":null,"
              "\"ignore_eos\":null,\"logprobs\":null,\"top_logprobs\":null,"
              "\"tools\":null,\"tool_choice\":null,\"response_format\":null,"
              "\"suffix\":null,\"echo\":null}");

    (void) state;
    assert_true(r->params.temperature == 1.0f);
    assert_false(r->params.has_seed);
    assert_int_equal(r->params.n_stop, 0);
    tr_request_free(r);
}

static void
test_content_parts(void **state)
{
    tr_request_t *a = good(CHAT,
                           "{\"messages\":[{\"role\":\"user\","
                           "\"content\":[{\"type\":\"text\",\"text\":\"one\"},"
                           "{\"type\":\"text\",\"text\":\"two\"}]}]}");
    tr_request_t *b = good(CHAT, "{\"messages\":[{\"role\":\"user\","
                                 "\"content\":\"one\\ntwo\"}]}");
    tr_request_t *c = good(CHAT, "{\"messages\":["
                                 "{\"role\":\"developer\",\"content\":\"x\"},"
                                 "{\"role\":\"user\",\"content\":\"y\"}]}");
    tr_request_t *d = good(CHAT, "{\"messages\":["
                                 "{\"role\":\"system\",\"content\":\"x\"},"
                                 "{\"role\":\"user\",\"content\":\"y\"}]}");

    (void) state;
    assert_int_equal(a->prompt_tokens, b->prompt_tokens);
    assert_memory_equal(a->sequences[0].tokens, b->sequences[0].tokens,
                        a->prompt_tokens * sizeof(int32_t));
    assert_int_equal(c->prompt_tokens, d->prompt_tokens);
    assert_memory_equal(c->sequences[0].tokens, d->sequences[0].tokens,
                        c->prompt_tokens * sizeof(int32_t));
    tr_request_free(a);
    tr_request_free(b);
    tr_request_free(c);
    tr_request_free(d);
}

static void
test_prompts(void **state)
{
    tr_request_t *r;

    (void) state;
    r = good(TEXT, "{\"prompt\":[5,6,7],\"max_tokens\":61}");
    assert_int_equal(r->n_prompts, 1);
    assert_int_equal(r->prompt_tokens, 3); /* ids are taken as they are */
    assert_int_equal(r->sequences[0].tokens[2], 7);
    assert_int_equal(r->sequences[0].cap, 64);
    tr_request_free(r);

    r = good(TEXT, "{\"prompt\":[[5,6],[7]],\"n\":2}");
    assert_int_equal(r->n_prompts, 2);
    assert_int_equal(r->n_sequences, 4);
    assert_int_equal(r->prompt_tokens, 3);
    assert_int_equal(r->sequences[2].tokens[0], 7);
    tr_request_free(r);

    r = good(TEXT, "{\"prompt\":[\"Hi\",\"there\",[5]]}");
    assert_int_equal(r->n_prompts, 3);
    tr_request_free(r);

    r = good(TEXT, "{\"prompt\":\"\"}"); /* begin_of_text alone */
    assert_int_equal(r->prompt_tokens, 1);
    tr_request_free(r);

    /* special tokens in a raw prompt count */
    r = good(TEXT, "{\"prompt\":\"<|eot_id|>\"}");
    assert_int_equal(r->prompt_tokens, 2);
    assert_int_equal(r->sequences[0].tokens[1], 4);
    tr_request_free(r);

    r = good(TEXT, "{" P ",\"echo\":true,\"logprobs\":0,\"max_tokens\":0}");
    assert_true(r->echo);
    assert_int_equal(r->params.logprobs, 0);
    assert_int_equal(r->params.max_tokens, 0);
    tr_request_free(r);

    /* the default gives way to the end of the context */
    r = good(TEXT,
             "{\"prompt\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
             "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
             "1,1,1,1,1,1]}");
    assert_int_equal(r->params.max_tokens, 4);
    tr_request_free(r);
}

static void
test_last_key_wins(void **state)
{
    tr_request_t *r = good(TEXT, "{" P ",\"max_tokens\":3,\"max_tokens\":4}");

    (void) state;
    assert_int_equal(r->params.max_tokens, 4);
    tr_request_free(r);
}

static void
test_no_chat_template(void **state)
{
    tr_openai_t a = api;
    const char *body = "{" HI "}";
    tr_request_t *r;

    (void) state;
    a.chat_template = &no_template;
    r = parse_bytes(&a, CHAT, body, strlen(body));
    assert_int_equal(r->error.status, TR_ERR_INVALID);
    assert_non_null(strstr(r->error.text, "no chat template"));
    tr_request_free(r);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_all_parameters),
        cmocka_unit_test(test_nul_in_a_text),
        cmocka_unit_test(test_thinking),
        cmocka_unit_test(test_budget_of_unknown_mark),
        cmocka_unit_test(test_thoughts),
        cmocka_unit_test(test_template_refuses),
        cmocka_unit_test(test_template_writes_too_much),
        cmocka_unit_test(test_template_inputs),
        cmocka_unit_test(test_policies),
        cmocka_unit_test(test_length_of_policy),
        cmocka_unit_test(test_clamped),
        cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_generation_defaults),
        cmocka_unit_test(test_stream_options),
        cmocka_unit_test(test_top_p_0),
        cmocka_unit_test(test_null),
        cmocka_unit_test(test_content_parts),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_last_key_wins),
        cmocka_unit_test(test_no_chat_template),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
