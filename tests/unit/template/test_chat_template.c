/*
 * Chat templates: where they are found and how conversations are laid out.
 * Jinja itself is compared with Python's in tests/templates/, ids with the
 * reference tokenizer in tests/unit/tokenizer/reference/, and
 * test_chat_template_refused.c has what is refused.
 */
#include "tests/unit/fixtures/chat_template_fixture.h"

#include <time.h>

static void
llama3_lays_out_headers(void **state)
{
    tr_chat_template_t c = load_text("{{ bos_token }}" LLAMA3);

    (void) state;
    assert_int_equal(c.end_of_turn, 302);
    assert_string_equal(
        render(&c, "developer: S \n|user:  U\n\n|assistant:A"),
        "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n");
    tr_chat_template_free(&c);
    c = load_text(LLAMA3); /* no bos_token in it */
    assert_string_equal(render(&c, "user:U"),
                        "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|"
                        ">"
                        "<|start_header_id|>assistant<|end_header_id|>\n\n");
    tr_chat_template_free(&c);
}

static void
llama31_puts_dates_on_top(void **state)
{
    static const time_t july = 1721995200; /* 2024-07-26, noon */
    tr_chat_template_t c = load_text(
        LLAMA31("{%- set date_string = \"26 Jul 2024\" %}"));
    tr_chat_input_t then = { .now = july };
    char want[64];

    (void) state;
    assert_string_equal(
        render(&c, "system: S |user:U"),
        "<|start_header_id|>system<|end_header_id|>\n\n"
        "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\nS"
        "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n");
    assert_non_null(strstr(render(&c, "user:U"), "26 Jul 2024\n\n<|eot_id|>"));
    tr_chat_template_free(&c);
    c = load_text(
        LLAMA31("{%- set date_string = strftime_now(\"%d %b %Y\") %}"));
    strftime(want, sizeof(want), "Today Date: %d %b %Y\n\n<|eot_id|>",
             localtime(&july));
    assert_non_null(strstr(render_with(&c, "user:U", then), want));
    tr_chat_template_free(&c);
}

static void
chatml_with_and_without_a_default_system_message(void **state)
{
    tr_chat_template_t c = load_text(CHATML);

    (void) state;
    assert_int_equal(c.end_of_turn, 304);
    assert_string_equal(
        render(&c, "user: U |assistant:A|system:S"),
        "<|im_start|>user\n U <|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>assistant\n");
    tr_chat_template_free(&c);
    c = load_text("{% if messages[0].role != 'system' %}"
                  "{{- '<|im_start|>system\\nIt\\'s me.<|im_end|>\\n' }}"
                  "{% endif %}" CHATML);
    assert_string_equal(render(&c, "user:U"),
                        "<|im_start|>system\nIt's "
                        "me.<|im_end|>\n<|im_start|>user\nU<|im_end|>"
                        "\n<|im_start|>assistant\n");
    assert_string_equal(render(&c, "system:S"), "<|im_start|>system\nS<|im_end|"
                                                ">\n<|im_start|>assistant\n");
    tr_chat_template_free(&c);
}

static void
llama2_puts_the_system_message_into_the_first_turn(void **state)
{
    tr_chat_template_t c = load_named("llama2");

    (void) state;
    assert_int_equal(c.end_of_turn, 306);
    assert_string_equal(render(&c, "system: S |user: U |assistant: A |user:V"),
                        "<s>[INST] <<SYS>>\n S \n<</SYS>>\n\n U [/INST] A </s>"
                        "<s>[INST] V [/INST]");
    assert_string_equal(render(&c, "system:S|user: \n"),
                        "<s>[INST] <<SYS>>\nS\n<</SYS>> [/INST]");
    assert_string_equal(render(&c, "user: \n"), "<s>[INST]  [/INST]");
    tr_chat_template_free(&c);
}

static void
names_stand_for_plain_layouts(void **state)
{
    tr_chat_template_t c = load_named("llama3");

    (void) state;
    assert_string_equal(
        render(&c, "user: U "),
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nU"
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
    tr_chat_template_free(&c);
    c = load_named("chatml");
    assert_string_equal(render(&c, "user: U "),
                        "<|im_start|>user\n U "
                        "<|im_end|>\n<|im_start|>assistant\n");
    tr_chat_template_free(&c);
    c = load_named("llama2");
    assert_string_equal(render(&c, "user: U "), "<s>[INST] U [/INST]");
    tr_chat_template_free(&c);
    c = load_named("mistral");
    assert_int_equal(c.end_of_turn, 306);
    assert_string_equal(render(&c, "system:S|user:U|assistant:A|user:V"),
                        "<s>[INST] S\n\nU [/INST]A</s>[INST] V [/INST]");
    tr_chat_template_free(&c);
}

static void
no_template_is_no_chat(void **state)
{
    tr_chat_template_t c;
    tr_error_t err;
    tr_ids_t ids = { 0 };

    (void) state;
    c = load_named("none");
    assert_null(c.chat);
    c = load_named("auto"); /* an empty directory */
    assert_null(c.chat);
    assert_int_equal(c.end_of_turn, -1);
    assert_int_equal(encode(&c, "user:U", &ids, &err), TR_ERR_INVALID);
    assert_string_equal(err.param, "messages");
    free(ids.data);
}

static void
a_jinja_file_and_a_list_are_read(void **state)
{
    tr_chat_input_t in = { 0 };
    tr_chat_template_t c;
    tr_error_t err;
    json_t *tools = json_pack("[{s:s, s:{s:s}}]", "type", "function",
                              "function", "name", "f");

    (void) state;
    assert_int_equal(load("{\"chat_template\": \"nonsense\"}",
                          "{# a comment with 'quotes #}\n"
                          "{% for message in messages %}\n"
                          "{{- '<|im_start|>' + message.role + '\\n' + "
                          "message.content + '<|im_end|>' + '\\n' }}"
                          "{% endfor %}",
                          "auto", &c, &err),
                     TR_OK);
    assert_string_equal(render(&c, "user:U"),
                        "<|im_start|>user\nU<|im_end|>\n");
    tr_chat_template_free(&c);
    assert_int_equal(load("{\"chat_template\": [{\"name\": \"tool_use\", "
                          "\"template\": \"tools {{ tools | length }}\"}, "
                          "{\"name\": \"default\", \"template\": \"none\"}]}",
                          NULL, "auto", &c, &err),
                     TR_OK);
    assert_true(c.reads_tools);
    assert_string_equal(render(&c, "user:U"), "none");
    in.tools = tools;
    assert_string_equal(render_with(&c, "user:U", in), "tools 1");
    json_decref(tools);
    tr_chat_template_free(&c);
}

static void
a_prompt_can_end_within_the_last_message(void **state)
{
    tr_chat_template_t c = load_text(CHATML);
    tr_chat_input_t in = { .continue_final_message = true };
    tr_ids_t ids = { 0 };
    tr_error_t err;

    (void) state;
    assert_string_equal(render_with(&c, "user:A|assistant: A b ", in),
                        "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n"
                        " A b ");
    in = (tr_chat_input_t){ .no_generation_prompt = true };
    assert_string_equal(render_with(&c, "user:U", in),
                        "<|im_start|>user\nU<|im_end|>\n");
    tr_chat_template_free(&c);
    c = load_text("{{ messages[0].content | upper }}");
    in = (tr_chat_input_t){ .continue_final_message = true };
    assert_int_equal(encode_with(&c, "user:low", in, &ids, &err),
                     TR_ERR_INVALID);
    assert_string_equal(err.param, "continue_final_message");
    free(ids.data);
    tr_chat_template_free(&c);
}

/* What templates want to see in a message differs; it is found out at load. */
static void
the_form_of_messages_is_found_out(void **state)
{
    tr_chat_template_t c = load_text(CHATML);

    (void) state;
    assert_false(c.list_content);
    assert_false(c.reads_thinking);
    assert_int_equal(c.reasoning, TR_REASONING_NONE);
    tr_chat_template_free(&c);
    c = load_text(
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for p in m.content %}[{{ p.text }}]{% endfor %}"
        "{% endif %}{% if m.thinking %}{{ m.thinking }}{% endif %}"
        "{% for t in m.tool_calls or [] %}{{ t.function.arguments }}"
        "{% endfor %}{% endfor %}"
        "{% if enable_thinking %}{% endif %}{{ reasoning_effort }}");
    assert_true(c.list_content);
    assert_true(c.string_arguments); /* an object would be printed */
    assert_true(c.reads_thinking);
    assert_true(c.reads_effort);
    assert_false(c.reads_tools);
    assert_int_equal(c.reasoning, TR_REASONING_THINKING);
    tr_chat_template_free(&c);
    c = load_text("{% for m in messages %}{{ m.content or '' }}"
                  "{{ m.reasoning_content }}{{ m.reasoning }}"
                  "{% for t in m.tool_calls or [] %}"
                  "{% for k, v in t.function.arguments.items() %}{{ k }}{{ v }}"
                  "{% endfor %}{% endfor %}{% endfor %}{{ tools }}");
    assert_false(c.string_arguments);
    assert_true(c.null_content);
    assert_true(c.reads_tools);
    assert_int_equal(c.reasoning, TR_REASONING_CONTENT);
    tr_chat_template_free(&c);
}

#define THINKING(condition, text)                                   \
    CHATML "{%- if add_generation_prompt %}{%- if " condition " %}" \
           "{{- '" text "' }}{%- endif %}{%- endif %}"

static void
thinking_is_turned_off_where_the_template_can(void **state)
{
    tr_chat_template_t c = load_text(
        THINKING("enable_thinking is defined and enable_thinking is false",
                 "<think>\\n\\n</think>\\n\\n"));
    json_t *off = json_pack("{s:b}", "enable_thinking", 0);
    json_t *on = json_pack("{s:b}", "enable_thinking", 1);
    tr_chat_input_t in = { .variables = on };
    char *plain = strdup(render(&c, "user:Hi"));

    (void) state;
    assert_true(c.reads_thinking);
    assert_string_equal(render_with(&c, "user:Hi", in), plain);
    in.variables = off;
    assert_string_equal(render_with(&c, "user:Hi", in),
                        "<|im_start|>user\nHi<|im_end|>\n"
                        "<|im_start|>assistant\n<think>\n\n</think>\n\n");
    free(plain);
    json_decref(on);
    json_decref(off);
    tr_chat_template_free(&c);
}

/* 370,000 took three minutes when each answer looked for the last question
 * anew; now steps are counted. */
static void
many_answers_end(void **state)
{
    enum { N = 400000 };
    tr_chat_template_t c = load_text(CHATML);
    json_t *messages = json_array();
    tr_chat_input_t in = { .body = N * 40 };
    tr_tokenizer_scratch_t *s = tr_tokenizer_scratch_new(tokenizer);
    tr_ids_t ids = { 0 };
    tr_error_t err;

    (void) state;
    for (uint32_t i = 0; i < N; i++) {
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role",
                                                  "assistant", "content", ""));
    }
    in.messages = messages;
    if (tr_chat_template_encode(&c, tokenizer, s, &in, &ids, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    assert_true(ids.len > N);
    free(ids.data);
    json_decref(messages);
    tr_tokenizer_scratch_free(s);
    tr_chat_template_free(&c);
}

/* The goldens that came with the shipped model. */
static void
pocket_prompts_equal_the_goldens(void **state)
{
    json_error_t problem;
    json_t *root = json_load_file("models/pocket/golden.json", 0, &problem);
    json_t *prompts = json_object_get(root, "prompts"), *golden, *id;
    tr_tokenizer_t *t;
    tr_tokenizer_scratch_t *s;
    tr_chat_template_t c;
    tr_error_t err;
    size_t i, k;

    (void) state;
    assert_int_equal(tr_tokenizer_load("models/pocket", &t, &err), TR_OK);
    assert_int_equal(tr_chat_template_load("models/pocket", "auto", t, &c,
                                           &err),
                     TR_OK);
    s = tr_tokenizer_scratch_new(t);
    assert_true(json_array_size(prompts) > 0);
    json_array_foreach (prompts, i, golden) {
        json_t *list = json_object_get(golden, "messages");
        json_t *want = json_object_get(golden, "ids");
        json_t *think = json_object_get(golden, "enable_thinking");
        json_t *variables = json_pack("{s:b}", "enable_thinking",
                                      json_is_true(think));
        tr_chat_input_t in = { .messages = list,
                               .tools = json_object_get(golden, "tools"),
                               .variables = variables };
        tr_ids_t ids = { 0 };

        assert_int_equal(tr_chat_template_encode(&c, t, s, &in, &ids, &err),
                         TR_OK);
        assert_int_equal(ids.len, json_array_size(want));
        json_array_foreach (want, k, id) {
            assert_int_equal(ids.data[k], json_integer_value(id));
        }
        free(ids.data);
        json_decref(variables);
    }
    tr_chat_template_free(&c);
    tr_tokenizer_scratch_free(s);
    tr_tokenizer_free(t);
    json_decref(root);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama3_lays_out_headers),
        cmocka_unit_test(llama31_puts_dates_on_top),
        cmocka_unit_test(thinking_is_turned_off_where_the_template_can),
        cmocka_unit_test(chatml_with_and_without_a_default_system_message),
        cmocka_unit_test(llama2_puts_the_system_message_into_the_first_turn),
        cmocka_unit_test(names_stand_for_plain_layouts),
        cmocka_unit_test(no_template_is_no_chat),
        cmocka_unit_test(a_jinja_file_and_a_list_are_read),
        cmocka_unit_test(a_prompt_can_end_within_the_last_message),
        cmocka_unit_test(the_form_of_messages_is_found_out),
        cmocka_unit_test(many_answers_end),
        cmocka_unit_test(pocket_prompts_equal_the_goldens),
    };

    return cmocka_run_group_tests(tests, make_tokenizer, free_tokenizer);
}
