/*
 * Bodies that are refused: a table of them, each with its status, the field
 * that is named and a piece of the message, then those that are too large for a
 * table.
 */
#include "tests/unit/fixtures/openai_fixture.h"

typedef struct {
    uint16_t endpoint;
    const char *body;
    tr_status_t status;
    const char *param;
    const char *message;
} bad_t;

#define INVALID TR_ERR_INVALID
#define LENGTH TR_ERR_CONTEXT_LENGTH
#define M(content) "{\"messages\":" content "}"
#define U(content) M("[{\"role\":\"user\",\"content\":" content "}]")
#define C(fields) "{" HI "," fields "}"
#define T(fields) "{" P "," fields "}"
#define SCHEMA(inner)                                                        \
    C("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":" inner \
      "}")
#define EIGHT "\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\""
#define IDS16 "9,9,9,9,9,9,9,9,9,9,9,9,9,9,9,9"

static const bad_t bad[] = {
    /* the KV cache */
    { TEXT, T("\"kv_policy\":\"h2o\""), INVALID, "kv_policy",
      "\"h2o\". This server allows: \"full\", \"diffkv:alpha_low=0.5\", "
      "\"diffkv:alpha_low=0.25\"" },
    { TEXT, T("\"kv_policy\":\"\""), INVALID, "kv_policy", "allows" },
    { TEXT, T("\"kv_policy\":[]"), INVALID, "kv_policy", "a string" },
    { TEXT, T("\"kv_alpha_low\":1"), INVALID, "kv_alpha_low", "full" },
    { TEXT, T("\"kv_policy\":\"diffkv\",\"kv_alpha_low\":true"), INVALID,
      "kv_alpha_low", "a number" },
    { TEXT, T("\"kv_policy\":\"diffkv\",\"kv_alpha_low\":1e300"), INVALID,
      "kv_alpha_low", "1000" },
    { TEXT, T("\"kv_policy\":\"diffkv\",\"kv_alpha_high\":-0.1"), INVALID,
      "kv_alpha_high", "from 0 to 1000" },
    { TEXT, T("\"kv_policy\":\"diffkv\",\"kv_alpha_high\":0.1"), INVALID,
      "kv_alpha_high", "above" },
    /* chat_template_kwargs */
    { CHAT, C("\"chat_template_kwargs\":[]"), INVALID, "chat_template_kwargs",
      "expected an object, but got an array" },
    { CHAT, C("\"chat_template_kwargs\":{\"enable_thinking\":\"no\"}"), INVALID,
      "chat_template_kwargs.enable_thinking",
      "expected a boolean, but got a string" },
    { CHAT, C("\"chat_template_kwargs\":{\"messages\":[]}"), INVALID,
      "chat_template_kwargs.messages", "the server sets this template" },
    { CHAT, C("\"chat_template_kwargs\":{\"range\":1}"), INVALID,
      "chat_template_kwargs.range", "cannot be set" },
    { CHAT, C("\"chat_template_kwargs\":{\"chat_template\":\"x\"}"), INVALID,
      "chat_template_kwargs.chat_template", "cannot be set" },
    { CHAT, C("\"documents\":{}"), INVALID, "documents",
      "expected an array of objects" },
    { CHAT, C("\"documents\":[{\"text\":\"x\"}]"), INVALID, "documents",
      "the model's chat template does not use them" },
    { CHAT, C("\"documents\":[1]"), INVALID, "documents[0]",
      "expected an object" },
    { CHAT, C("\"add_generation_prompt\":1"), INVALID, "add_generation_prompt",
      "expected a boolean" },
    { CHAT, C("\"add_generation_prompt\":true,\"continue_final_message\":true"),
      INVALID, "continue_final_message", "cannot both be true" },
    /* the body */
    { CHAT, "", INVALID, "", "is empty; expected a JSON object" },
    { CHAT, "[]", INVALID, "", "is an array; expected an object" },
    { CHAT, "\"x\"", INVALID, "", "expected an object" },
    { CHAT, "null", INVALID, "", "could not parse the JSON body" },
    { CHAT, "{", INVALID, "", "could not parse the JSON body" },
    { CHAT, "{\"model\":}", INVALID, "", "(line 1 column 10" },
    { CHAT, "{\"model\" \"x\"}", INVALID, "",
      "expected ':' after the name of a field" },
    { CHAT, "{" HI "} x", INVALID, "", "something follows its end" },
    { CHAT, "{" HI "}{}", INVALID, "", "something follows its end" },
    { CHAT, "{" HI ",}", INVALID, "", "expected the name of a field, or '}'" },
    { CHAT, "{'a':1}", INVALID, "", "could not parse" },
    { CHAT, "{\"a\":NaN}", INVALID, "", "could not parse" },
    { CHAT, "{\"a\":01}", INVALID, "", "could not parse" },
    { CHAT, "{\"a\":\"\n\"}", INVALID, "",
      "a line feed in a text must be written" },
    { CHAT, "{\"a\":\"\t\"}", INVALID, "",
      "control character in a text must be escaped" },
    /* numbers beyond 64 bits */
    { CHAT, "{\"seed\":9223372036854775808}", INVALID, "seed",
      "Invalid 'seed': number out of range. Expected a 64-bit integer, but got "
      "9223372036854775808 instead (line 1 column" },
    { CHAT, C("\"n\" :\n -9223372036854775809"), INVALID, "n",
      "but got -9223372036854775809 instead (line 2" },
    { CHAT,
      C("\"max_tokens\":"
        "100000000000000000000000000000000000000000000000000"),
      INVALID, "max_tokens",
      "but got 1000000000000000000000000000000000000000... instead" },
    { CHAT, "{\"a\":1e999}", INVALID, "a",
      "Expected a 64-bit decimal number, but got 1e999 instead" },
    { CHAT, C("\"x\\\":7\":{\"n\":[1,-1.5e999]}"), INVALID, "",
      "Invalid number in the JSON body of your request: number out of range. "
      "Expected a 64-bit decimal number, but got -1.5e999 instead" },
    { CHAT, "[18446744073709551616]", INVALID, "",
      "got 18446744073709551616 " },
    { TEXT, "{\"prompt\":[1,18446744073709551617]}", INVALID, "",
      "got 18446744073709551617 " },
    { CHAT, C("\"max_tokens\":1e300"), INVALID, "max_tokens",
      "Invalid type for 'max_tokens': expected an integer, but got a decimal "
      "number instead: 1e+300." },
    { CHAT, C("\"max_tokens\":4294967296"), INVALID, "max_tokens",
      "Expected a value <= 4294967295, but got 4294967296 instead" },
    { CHAT, C("\"max_completion_tokens\":9223372036854775807"), INVALID,
      "max_completion_tokens", "but got 9223372036854775807 instead" },
    { CHAT, C("\"min_tokens\":4294967297"), INVALID, "min_tokens",
      "but got 4294967297 instead" },
    { CHAT, C("\"top_k\":2147483648"), INVALID, "top_k",
      "but got 2147483648 instead" },
    { CHAT, C("\"top_k\":-1e300"), INVALID, "top_k", "instead: -1e+300." },
    { CHAT, C("\"n\":4294967297"), INVALID, "n", "but got 4294967297 instead" },
    { CHAT, C("\"best_of\":4294967297"), INVALID, "best_of", "4294967297" },
    { CHAT, C("\"seed\":1e300"), INVALID, "seed", "instead: 1e+300." },
    { CHAT, C("\"logprobs\":true,\"top_logprobs\":4294967297"), INVALID,
      "top_logprobs", "but got 4294967297 instead" },
    { CHAT, C("\"stop_token_ids\":[4294967297]"), INVALID, "stop_token_ids[0]",
      "token id 4294967297 is out of the vocabulary" },
    { CHAT, C("\"stop_token_ids\":[5,1e300]"), INVALID, "stop_token_ids[1]",
      "instead: 1e+300." },
    { TEXT, "{\"prompt\":[1,4294967297]}", INVALID, "prompt[1]",
      "token id 4294967297 is out of the vocabulary" },
    { TEXT, "{\"prompt\":[1e300]}", INVALID, "prompt[0]", "instead: 1e+300." },
    { TEXT, T("\"logprobs\":4294967297"), INVALID, "logprobs",
      "but got 4294967297 instead" },
    { CHAT, U("\"\\ud800\""), INVALID, "", "half of a surrogate pair" },
    { CHAT, U("\"\\udc00x\""), INVALID, "", "half of a surrogate pair" },
    { CHAT, "{\"a\":\"\xff\"}", INVALID, "",
      "not valid UTF-8 (byte 0xff at offset 6)" },
    { CHAT, "{\"a\":\"12345678\xc0\xaf\"}", INVALID, "",
      "byte 0xc0 at offset 14" },
    { CHAT, "{\"a\":\"\xed\xa0\x80\"}", INVALID, "", "byte 0xed at offset 6" },
    { CHAT, "{\"a\":\"\xf4\x90\x80\x80\"}", INVALID, "", "byte 0xf4" },
    { CHAT, "{\"a\":\"\xe2\x82\"}", INVALID, "", "byte 0xe2 at offset 6" },

    /* model */
    { CHAT, C("\"model\":\"gpt-4\""), TR_ERR_MODEL_NOT_FOUND, "model",
      "The model `gpt-4` does not exist; this engine serves `pocket`." },
    { CHAT, C("\"model\":7"), INVALID, "model",
      "Invalid type for 'model': expected a string, but got an integer" },
    { CHAT, C("\"model\":\"\""), TR_ERR_MODEL_NOT_FOUND, "model", "`` does" },

    /* messages */
    { CHAT, "{}", INVALID, "messages",
      "expected an array of objects, but got "
      "null instead" },
    { CHAT, M("null"), INVALID, "messages", "expected an array of objects" },
    { CHAT, M("[]"), INVALID, "messages", "empty array" },
    { CHAT, M("\"Hi\""), INVALID, "messages", "but got a string instead" },
    { CHAT, M("{}"), INVALID, "messages", "but got an object instead" },
    { CHAT, M("[\"Hi\"]"), INVALID, "messages[0]", "expected an object" },
    { CHAT, M("[null]"), INVALID, "messages[0]", "expected an object" },
    { CHAT, M("[{\"content\":\"x\"}]"), INVALID, "messages[0].role",
      "expected a string, but got null" },
    { CHAT, M("[{\"role\":1,\"content\":\"x\"}]"), INVALID, "messages[0].role",
      "expected a string, but got an integer" },
    { CHAT, M("[{\"role\":\"wizard\",\"content\":\"x\"}]"), INVALID,
      "messages[0].role",
      "Invalid value: 'wizard'. Supported values are: "
      "'system'" },
    { CHAT, M("[{\"role\":\"user\"}]"), INVALID, "messages[0].content",
      "expected a string or an array of text parts, but got null" },
    { CHAT, U("7"), INVALID, "messages[0].content", "but got an integer" },
    { CHAT, U("{}"), INVALID, "messages[0].content", "but got an object" },
    { CHAT, U("[]"), INVALID, "messages[0].content", "empty array" },
    { CHAT, U("[\"x\"]"), INVALID, "messages[0].content[0]",
      "expected an object, but got a string" },
    { CHAT, U("[{\"text\":\"x\"}]"), INVALID, "messages[0].content[0].type",
      "expected a string, but got null" },
    { CHAT, U("[{\"type\":\"text\"}]"), INVALID, "messages[0].content[0].text",
      "expected a string, but got null" },
    { CHAT,
      U("[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\","
        "\"image_url\":{\"url\":\"x\"}}]"),
      INVALID, "messages[0].content[1].type",
      "type 'image_url' are not supported" },
    { CHAT, U("[{\"type\":\"input_audio\"}]"), INVALID,
      "messages[0].content[0].type", "'input_audio' are not supported" },
    { CHAT,
      M("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\","
        "\"content\":null}]"),
      INVALID, "messages[1].content", "but got null" },
    { CHAT,
      M("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\","
        "\"content\":null,\"tool_calls\":[{}]}]"),
      INVALID, "messages[1].tool_calls", "has no tool format" },

    /* prompt */
    { TEXT, "{}", INVALID, "prompt",
      "expected a string, an array of strings, "
      "or token ids, but got null" },
    { TEXT, "{\"prompt\":7}", INVALID, "prompt", "but got an integer" },
    { TEXT, "{\"prompt\":{}}", INVALID, "prompt", "but got an object" },
    { TEXT, "{\"prompt\":[]}", INVALID, "prompt", "empty array" },
    { TEXT, "{\"prompt\":[[]]}", INVALID, "prompt[0]", "it is empty" },
    { TEXT, "{\"prompt\":[\"a\",[]]}", INVALID, "prompt[1]", "it is empty" },
    { TEXT, "{\"prompt\":[\"a\",7]}", INVALID, "prompt[1]",
      "expected a string or an array of token ids, but got an integer" },
    { TEXT, "{\"prompt\":[null]}", INVALID, "prompt[0]", "but got null" },
    { TEXT, "{\"prompt\":[5,\"a\"]}", INVALID, "prompt[1]",
      "expected an integer, but got a string" },
    { TEXT, "{\"prompt\":[5,1.5]}", INVALID, "prompt[1]",
      "but got a decimal number" },
    { TEXT, "{\"prompt\":[5,4096]}", INVALID, "prompt[1]",
      "token id 4096 is out of the vocabulary (0 to 4095)" },
    { TEXT, "{\"prompt\":[[5],[6,-1]]}", INVALID, "prompt[1][1]",
      "token id -1 is out of the vocabulary" },
    { TEXT, "{\"prompt\":[9223372036854775807]}", INVALID, "prompt[0]",
      "out of the vocabulary" },
    { TEXT, "{\"prompt\":[" EIGHT ",\"a\"]}", INVALID, "prompt",
      "9 prompts with 'n' = 1 make 9 choices; this server allows at most 8" },
    { TEXT, "{\"prompt\":[\"a\",\"a\",\"a\"],\"n\":3}", INVALID, "prompt",
      "make 9 choices" },

    /* numbers */
    { CHAT, C("\"temperature\":\"hot\""), INVALID, "temperature",
      "Invalid type for 'temperature': expected a decimal number, but got a "
      "string instead." },
    { CHAT, C("\"temperature\":-0.1"), INVALID, "temperature",
      "decimal below minimum value. Expected a value >= 0, but got -0.1" },
    { CHAT, C("\"temperature\":2.1"), INVALID, "temperature",
      "decimal above maximum value. Expected a value <= 2, but got 2.1" },
    { CHAT, C("\"temperature\":true"), INVALID, "temperature",
      "but got a boolean" },
    { CHAT, C("\"top_p\":-0.01"), INVALID, "top_p", "Expected a value >= 0" },
    { CHAT, C("\"top_p\":1.01"), INVALID, "top_p", "Expected a value <= 1" },
    { CHAT, C("\"min_p\":-1"), INVALID, "min_p", "Expected a value >= 0" },
    { CHAT, C("\"top_k\":-2"), INVALID, "top_k", "Expected a value >= -1" },
    { CHAT, C("\"top_k\":1.5"), INVALID, "top_k",
      "expected an integer, but "
      "got a decimal number" },
    { CHAT, C("\"top_k\":4294967296"), INVALID, "top_k",
      "Expected a value <= "
      "2147483647" },
    { CHAT, C("\"presence_penalty\":3"), INVALID, "presence_penalty",
      "Expected a value <= 2, but got 3" },
    { CHAT, C("\"frequency_penalty\":-3"), INVALID, "frequency_penalty",
      "Expected a value >= -2, but got -3" },
    { CHAT, C("\"repetition_penalty\":0"), INVALID, "repetition_penalty",
      "Expected a value >= 1e-06, but got 0" },
    /* what it makes of a logit would be infinite */
    { CHAT, C("\"repetition_penalty\":1e-38"), INVALID, "repetition_penalty",
      "Expected a value >= 1e-06, but got 1e-38" },
    { CHAT, C("\"seed\":1.5"), INVALID, "seed", "expected an integer" },
    { CHAT, C("\"seed\":\"1\""), INVALID, "seed", "but got a string" },
    { CHAT, C("\"n\":0"), INVALID, "n", "Expected a value >= 1, but got 0" },
    { CHAT, C("\"n\":9"), INVALID, "n", "Expected a value <= 8, but got 9" },
    { CHAT, C("\"n\":\"2\""), INVALID, "n", "expected an integer" },
    { TEXT, T("\"best_of\":3"), INVALID, "best_of",
      "'best_of' (3) other than 'n' (1) is not supported" },
    { TEXT, T("\"n\":2,\"best_of\":0"), INVALID, "best_of", ">= 1" },

    /* length */
    { CHAT, C("\"max_tokens\":0"), INVALID, "max_tokens",
      "Expected a value >= 1, but got 0" },
    { CHAT, C("\"max_tokens\":-5"), INVALID, "max_tokens", "but got -5" },
    { CHAT, C("\"max_tokens\":1.0"), INVALID, "max_tokens",
      "expected an integer" },
    { CHAT, C("\"max_completion_tokens\":0"), INVALID, "max_completion_tokens",
      "Expected a value >= 1" },
    { CHAT, C("\"max_tokens\":1,\"max_completion_tokens\":1"), INVALID,
      "max_tokens", "at the same time is not supported" },
    { TEXT, T("\"max_tokens\":0"), INVALID, "max_tokens", ">= 1, but got 0" },
    { CHAT, C("\"min_tokens\":-1"), INVALID, "min_tokens", ">= 0" },
    { CHAT, C("\"min_tokens\":5,\"max_tokens\":4"), INVALID, "min_tokens",
      "'min_tokens' (5) exceeds the number of tokens requested (4)" },
    { CHAT, C("\"min_tokens\":64"), INVALID, "min_tokens",
      "exceeds the number of tokens that can be generated" },
    { TEXT, "{\"prompt\":[" IDS16 "," IDS16 "," IDS16 "," IDS16 ",9]}", LENGTH,
      "prompt", "your prompt resulted in 65 tokens" },
    { TEXT, "{\"prompt\":[[9],[" IDS16 "," IDS16 "," IDS16 "," IDS16 "]]}",
      LENGTH, "prompt", "your prompt resulted in 64 tokens" },
    { CHAT,
      U("\"1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 "
        "2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0\""),
      LENGTH, "messages", "Please reduce the length of the messages." },

    /* logprobs */
    { CHAT, C("\"logprobs\":5"), INVALID, "logprobs",
      "expected a boolean, but "
      "got an integer" },
    { CHAT, C("\"logprobs\":true,\"top_logprobs\":21"), INVALID, "top_logprobs",
      "Expected a value <= 20, but got 21" },
    { CHAT, C("\"top_logprobs\":2"), INVALID, "top_logprobs",
      "needs 'logprobs' set to true" },
    { TEXT, T("\"logprobs\":true"), INVALID, "logprobs",
      "expected an integer, "
      "but got a boolean" },
    { TEXT, T("\"logprobs\":-1"), INVALID, "logprobs", ">= 0" },

    /* logit_bias */
    { CHAT, C("\"logit_bias\":[]"), INVALID, "logit_bias",
      "expected an object, but got an array" },
    { CHAT, C("\"logit_bias\":{\"x\":1}"), INVALID, "logit_bias",
      "Invalid key in 'logit_bias': \"x\". Expected a token id from 0 to "
      "4095" },
    { CHAT, C("\"logit_bias\":{\"4096\":1}"), INVALID, "logit_bias",
      "\"4096\"" },
    { CHAT, C("\"logit_bias\":{\"-1\":1}"), INVALID, "logit_bias", "\"-1\"" },
    { CHAT, C("\"logit_bias\":{\"5\":60,\"05\":60}"), INVALID, "logit_bias",
      "key in 'logit_bias': \"05\". Expected a token id from 0 to" },
    { CHAT, C("\"logit_bias\":{\"00\":1}"), INVALID, "logit_bias", "\"00\"" },
    { CHAT, C("\"logit_bias\":{\"+5\":1}"), INVALID, "logit_bias", "\"+5\"" },
    { CHAT, C("\"logit_bias\":{\" 5\":1}"), INVALID, "logit_bias", "\" 5\"" },
    { CHAT, C("\"logit_bias\":{\"5.0\":1}"), INVALID, "logit_bias", "\"5.0\"" },
    { CHAT, C("\"logit_bias\":{\"5e0\":1}"), INVALID, "logit_bias", "\"5e0\"" },
    { CHAT, C("\"logit_bias\":{\"0x5\":1}"), INVALID, "logit_bias", "\"0x5\"" },
    { CHAT, C("\"logit_bias\":{\"\":1}"), INVALID, "logit_bias",
      "Invalid key" },
    { CHAT, C("\"logit_bias\":{\"99999999999999999999\":1}"), INVALID,
      "logit_bias", "Invalid key" },
    { CHAT, C("\"logit_bias\":{\"5\":101}"), INVALID, "logit_bias",
      "101 for token 5. Expected a value from -100 to 100" },
    { CHAT, C("\"logit_bias\":{\"5\":\"x\"}"), INVALID, "logit_bias",
      "expected numbers as values, but got a string" },

    /* stop */
    { CHAT, C("\"stop\":7"), INVALID, "stop",
      "expected a string or an array "
      "of strings, but got an integer" },
    { CHAT, C("\"stop\":\"\""), INVALID, "stop", "a stop string of 0 bytes" },
    { CHAT, C("\"stop\":[\"a\",null]"), INVALID, "stop[1]",
      "expected a "
      "string" },
    { CHAT, C("\"stop\":[\"\"]"), INVALID, "stop[0]", "0 bytes" },
    { CHAT, C("\"stop\":[" EIGHT "," EIGHT ",\"a\"]"), INVALID, "stop",
      "maximum length 16, but got an array with length 17" },
    { CHAT, C("\"stop_token_ids\":5"), INVALID, "stop_token_ids",
      "expected an array of integers" },
    { CHAT, C("\"stop_token_ids\":[5,4096]"), INVALID, "stop_token_ids[1]",
      "token id 4096 is out of the vocabulary" },
    { CHAT, C("\"stop_token_ids\":[\"5\"]"), INVALID, "stop_token_ids[0]",
      "expected an integer" },

    /* streaming */
    { CHAT, C("\"stream\":\"yes\""), INVALID, "stream", "expected a boolean" },
    { CHAT, C("\"stream\":1"), INVALID, "stream", "but got an integer" },
    { CHAT, C("\"stream_options\":{\"include_usage\":true}"), INVALID,
      "stream_options", "only allowed when 'stream' is enabled" },
    { CHAT, C("\"stream\":true,\"stream_options\":true"), INVALID,
      "stream_options", "expected an object" },
    { CHAT, C("\"stream\":true,\"stream_options\":{\"include_usage\":1}"),
      INVALID, "stream_options.include_usage", "expected a boolean" },
    { CHAT,
      C("\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":"
        "\"x\"}"),
      INVALID, "stream_options.continuous_usage_stats", "expected a boolean" },
    { CHAT, C("\"stream\":true,\"stream_options\":{\"include_kv\":1}"), INVALID,
      "stream_options.include_kv", "expected a boolean" },
    { CHAT,
      C("\"stream\":true,\"stream_options\":{\"include_usage\":true,"
        "\"include_kv\":true}"),
      INVALID, "stream_options.include_kv", "needs 'continuous_usage_stats'" },

    /* what we do not have */
    { CHAT, C("\"tools\":[{}],\"tool_choice\":\"required\""), INVALID,
      "tools[0].type", "expected a string" },
    { CHAT,
      C("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"),
      INVALID, "tools", "has no tool format" },
    { TEXT, T("\"functions\":\"x\""), INVALID, "functions",
      "belongs to a chat" },
    { TEXT, T("\"tool_choice\":\"auto\""), INVALID, "tool_choice",
      "belongs to a chat" },
    { CHAT, C("\"tool_choice\":\"required\""), INVALID, "tool_choice",
      "only allowed when 'tools' are specified" },
    { CHAT, C("\"tool_choice\":{\"type\":\"function\"}"), INVALID,
      "tool_choice", "only allowed when 'tools' are specified" },
    { CHAT, C("\"function_call\":{\"name\":\"f\"}"), INVALID, "function_call",
      "only allowed when 'tools' are specified" },
    { CHAT, C("\"reasoning_effort\":\"high\""), INVALID, "reasoning_effort",
      "is not available for this model" },
    { CHAT, C("\"reasoning_effort\":\"much\""), INVALID, "reasoning_effort",
      "Supported values are" },
    { CHAT, C("\"response_format\":{\"type\":\"json_schema\"}"), INVALID,
      "response_format.json_schema", "expected an object, but got null" },
    { CHAT, C("\"response_format\":{\"type\":\"yaml\"}"), INVALID,
      "response_format.type", "of type 'yaml' is not supported" },
    { CHAT, SCHEMA("{\"schema\":{}}"), INVALID,
      "response_format.json_schema.name", "expected a string" },
    { CHAT, SCHEMA("{\"name\":\"a b\"}"), INVALID,
      "response_format.json_schema.name", "\"a b\". Expected 1 to 64 letters" },
    { CHAT, SCHEMA("{\"name\":\"a\",\"strict\":1}"), INVALID,
      "response_format.json_schema.strict", "a boolean" },
    { CHAT, SCHEMA("{\"name\":\"a\",\"schema\":[]}"), INVALID,
      "response_format.json_schema.schema", "an object" },
    { CHAT,
      C("\"response_format\":{\"type\":\"json_object\"},"
        "\"guided_regex\":\"a\""),
      INVALID, "guided_regex",
      "'response_format' and 'guided_regex' both constrain the answer" },
    { CHAT, C("\"structured_outputs\":{\"json\":{},\"regex\":\"a\"}"), INVALID,
      "structured_outputs.regex", "use one of them" },
    { CHAT, C("\"structured_outputs\":{\"xml\":1}"), INVALID,
      "structured_outputs", "'structured_outputs.xml' is not supported" },
    { CHAT, C("\"structured_outputs\":1"), INVALID, "structured_outputs",
      "an object" },
    { TEXT, T("\"guided_choice\":\"a\""), INVALID, "guided_choice",
      "an array of strings" },
    { TEXT, T("\"guided_grammar\":1"), INVALID, "guided_grammar", "a string" },
    { TEXT, T("\"guided_json\":1"), INVALID, "guided_json",
      "an object or a string" },
    { TEXT, T("\"guided_regex\":\"a\",\"ignore_eos\":true"), INVALID,
      "ignore_eos", "cannot be used with 'guided_regex'" },
    { CHAT, C("\"response_format\":\"json\""), INVALID, "response_format",
      "expected an object" },
    { CHAT, C("\"response_format\":{}"), INVALID, "response_format.type",
      "expected a string, but got null" },
    { TEXT, T("\"suffix\":\"end\""), INVALID, "suffix",
      "insertion is not "
      "supported" },
    { CHAT, C("\"json_schema\":{\"a\":1}"), INVALID, "json_schema",
      "use 'response_format'" },
    { CHAT, C("\"use_beam_search\":true"), INVALID, "use_beam_search",
      "beam search" },
    { CHAT, C("\"echo\":true"), INVALID, "echo", "on /v1/completions only" },
    { CHAT, C("\"web_search_options\":{}"), INVALID, "web_search_options",
      "web search is not supported" },
    { TEXT, T("\"add_generation_prompt\":true"), INVALID,
      "add_generation_prompt", "belongs to a chat" },
    { CHAT, C("\"skip_special_tokens\":false"), INVALID, "skip_special_tokens",
      "never part of the text" },
    { CHAT, C("\"modalities\":[\"text\",\"audio\"]"), INVALID, "modalities",
      "text only" },
    { CHAT,
      "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\","
      "\"function_call\":{\"name\":\"f\"}}]}",
      INVALID, "messages[0].tool_calls", "has no tool format" },
    { CHAT,
      "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\","
      "\"tool_calls\":\"abc\"}]}",
      INVALID, "messages[0].tool_calls", "an array of calls" },
    { CHAT,
      "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\","
      "\"prefix\":true}]}",
      INVALID, "messages[0].prefix", "continue_final_message" },
    { CHAT, C("\"a\\u0000b\":1"), INVALID, "",
      "a key with the character U+0000 (\\u0000) is not supported (line 1" },
    { CHAT, "{\"messages\":", INVALID, "", "it ends too early (line 1" },
    { CHAT, "{\"a\" nul}", INVALID, "", "expected ':' after the name of" },
    { CHAT, "{\"a\": nul}", INVALID, "", "it is not valid JSON (line 1" },
    { CHAT, "{} {}", INVALID, "", "something follows its end" },
    { TEXT, T("\"add_special_tokens\":1"), INVALID, "add_special_tokens",
      "expected a boolean" },
    { TEXT, T("\"echo\":\"yes\""), INVALID, "echo", "expected a boolean" },
    { CHAT, C("\"ignore_eos\":1"), INVALID, "ignore_eos",
      "expected a "
      "boolean" },
};

/* All that differ are shown before the test fails. */
static unsigned n_bad;

static void
check_bad(const char *shown, const tr_request_t *r, tr_status_t status,
          const char *param, const char *message)
{
    if (r->error.status != status || strcmp(r->error.param, param) != 0
        || strstr(r->error.text, message) == NULL) {
        n_bad++;
        print_error("%s\n  got %s \"%s\": %s\n  expected %s \"%s\": %s\n",
                    shown, tr_status_info(r->error.status).name, r->error.param,
                    r->error.text, tr_status_info(status).name, param, message);
    }
}

static void
test_bad(void **state)
{
    size_t i;

    (void) state;
    n_bad = 0;
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tr_request_t *r = parse(bad[i].endpoint, bad[i].body);

        check_bad(bad[i].body, r, bad[i].status, bad[i].param, bad[i].message);
        tr_request_free(r);
    }
    assert_int_equal(n_bad, 0);
}

/* Bodies that are too large for a table. */
static char *
repeat(const char *head, const char *piece, size_t n, const char *tail)
{
    size_t h = strlen(head), p = strlen(piece), i;
    char *out = malloc(h + n * p + strlen(tail) + 1);

    assert_non_null(out);
    memcpy(out, head, h);
    for (i = 0; i < n; i++) {
        memcpy(out + h + i * p, piece, p);
    }
    memcpy(out + h + n * p, tail, strlen(tail) + 1);
    return out;
}

static void
check_large(uint16_t endpoint, char *body, tr_status_t status,
            const char *param, const char *message)
{
    tr_request_t *r = parse(endpoint, body);
    char shown[64];

    snprintf(shown, sizeof(shown), "%.60s", body);
    check_bad(shown, r, status, param, message);
    tr_request_free(r);
    free(body);
}

static void
test_bad_large(void **state)
{
    char *many;
    char bias[64];
    size_t i, n;

    (void) state;
    n_bad = 0;
    check_large(CHAT, repeat("", "[", 100000, ""), INVALID, "",
                "nested too deeply");
    check_large(CHAT, repeat("{\"a\":", "{\"a\":", 3000, ""), INVALID, "",
                "nested too deeply");
    /* three bytes each, a hundred in memory */
    check_large(CHAT, repeat("{\"a\":[[]", ",[]", 2000000, "]}"),
                TR_ERR_TOO_LARGE, "", "holds too many values");
    check_large(CHAT, repeat("{\"k\":1", ",\"kkkkkk\":1", 262200, "}"),
                TR_ERR_TOO_LARGE, "", "more than 262144 before byte ");
    /* what stands in a string is none */
    check_large(CHAT, repeat("{\"k\":\"", ",", 300000, "\"}"), INVALID,
                "messages", "");
    check_large(CHAT, repeat("{\"seed\":", "1", 1025, "}"), INVALID, "",
                "a number of more than 1024 characters");
    check_large(CHAT, repeat("{\"seed\":", "1", 1024, "}"), INVALID, "seed",
                "number out of range");
    /* far too long: said so without tokenising it */
    check_large(TEXT, repeat("{\"prompt\":\"", "word ", 1000000, "\"}"), LENGTH,
                "prompt", "your prompt resulted in at least ");
    check_large(CHAT,
                repeat("{\"messages\":[{\"role\":\"user\",\"content\":\"",
                       "word ", 1000000, "\"}]}"),
                LENGTH, "messages", "resulted in at least ");
    check_large(TEXT, repeat("{\"prompt\":[1", ",1", 100000, "]}"), LENGTH,
                "prompt", "your prompt resulted in 100001 tokens");
    check_large(CHAT, repeat(C("\"stop\":\""), "", 0, "x"), INVALID, "",
                "could not parse");
    check_large(CHAT, repeat("{" HI ",\"stop\":\"", "s", 513, "\"}"), INVALID,
                "stop", "a stop string of 513 bytes. Expected 1 to 512");
    check_large(CHAT, repeat("{" HI ",\"stop_token_ids\":[1", ",1", 256, "]}"),
                INVALID, "stop_token_ids", "257 entries");

    many = malloc(64 * 1100 + sizeof(HI) + 64);
    assert_non_null(many);
    n = (size_t) sprintf(many, "{" HI ",\"logit_bias\":{");
    for (i = 0; i < 1100; i++) {
        snprintf(bias, sizeof(bias), "%s\"%zu\":1", i ? "," : "", i);
        n += (size_t) sprintf(many + n, "%s", bias);
    }
    sprintf(many + n, "}}");
    check_large(CHAT, many, INVALID, "logit_bias", "1100 entries");
    assert_int_equal(n_bad, 0);
}

static void
test_unknown_endpoint(void **state)
{
    static const uint16_t unknown[] = { 0, TR_ENDPOINTS, UINT16_MAX };
    char text[64];
    size_t i;

    (void) state;
    for (i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        tr_request_t *r = parse(unknown[i], "{" P "," HI "}");

        snprintf(text, sizeof(text), "does not serve endpoint %u", unknown[i]);
        assert_int_equal(r->error.status, TR_ERR_NOT_FOUND);
        assert_non_null(strstr(r->error.text, text));
        tr_request_free(r);
    }
}

/* What must be something ends with an end token; a model without one is told. */
static void
test_no_end_token(void **state)
{
    static const char body[] = T("\"guided_choice\":[\"a\"]");
    tr_openai_t own = api;
    tr_request_t *r;

    (void) state;
    own.n_eos = 0;
    r = parse_bytes(&own, TEXT, body, strlen(body));
    assert_int_equal(r->error.status, TR_ERR_INVALID);
    assert_string_equal(r->error.param, "guided_choice");
    assert_non_null(strstr(r->error.text, "no end token"));
    tr_request_free(r);
    r = parse_bytes(&own, TEXT, "{\"prompt\":\"a\"}", 14);
    assert_int_equal(r->error.status, TR_OK);
    tr_request_free(r);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_end_token),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_bad_large),
        cmocka_unit_test(test_unknown_endpoint),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
