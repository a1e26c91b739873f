/*
 * What each dialect looks like (dialect_internal.h).  A form is a program: each
 * op says what may come, as patterns, and where it goes on.
 *
 * S before a pattern: white space may come first; L within one: from there on
 * it is only looked at.
 */
#include "dialect_internal.h"

#define S "\1"
#define L "\2"
#define ELSE "\2"

#define DS(x) "<\xef\xbd\x9c" x "\xef\xbd\x9c>"
#define SEP "\xe2\x96\x81"
#define CALLS_BEGIN DS("tool" SEP "calls" SEP "begin")
#define CALLS_END DS("tool" SEP "calls" SEP "end")
#define CALL_BEGIN DS("tool" SEP "call" SEP "begin")
#define CALL_END DS("tool" SEP "call" SEP "end")
#define CALL_SEP DS("tool" SEP "sep")
#define DSML       \
    "\xef\xbd\x9c" \
    "DSML"         \
    "\xef\xbd\x9c"

/* A list of JSON objects between two marks. */
#define LIST(open, close)                                                 \
    {                                                                     \
        { OP_TEXT, { { S open, 1 } } },                                   \
            { OP_ALT, { { S "[", 2 }, { S L "{", 2 } } },                 \
            { OP_CALL, { { 0 } } },                                       \
            { OP_ALT, { { S ",", 2 }, { S "]", 4 }, { S L close, 4 } } }, \
            { OP_ALT, { { S close, 0 }, { ELSE, 0 } } },                  \
    }

const form_t tr_dialect_forms[] = {
    { "hermes",
      0,
      { "<tool_call>", "</tool_call>", NULL },
      { { OP_TEXT, { { S "<tool_call>", 1 } } },
        { OP_CALL, { { NULL, 0 } } },
        { OP_ALT,
          { { S "</tool_call>", 3 }, { S "<tool_call>", 1 }, { S L "{", 1 } } },
        /* a second object without a mark of its own */
        { OP_ALT, { { S "<tool_call>", 1 }, { S L "{", 1 }, { ELSE, 0 } } } } },

    { "qwen_xml",
      FORM_LINES,
      { "<tool_call>", "</tool_call>", "<seed:tool_call>", "</seed:tool_call>",
        NULL },
      { { OP_TEXT,
          { { S "<tool_call>", 1 },
            { S "<seed:tool_call>", 1 },
            { S "<function=", 2 } } },
        { OP_ALT, { { S "<function=", 2 } } },
        { OP_NAME,
          { { ">" S L "<parameter=", 3 }, { ">" S L "</function>", 3 } } },
        { OP_ALT, { { S "<parameter=", 4 }, { S "</function>", 6 | CLOSE } } },
        { OP_KEY, { { ">", 5 } } },
        { OP_VALUE,
          { { "</parameter>" S L "<parameter=", 3 },
            { "</parameter>" S L "</function>", 3 },
            { L "<parameter=", 3 },
            { L "</function>" S "</tool_call>", 3 },
            { L "</function>" S "</seed:tool_call>", 3 } } },
        { OP_ALT,
          { { S "</tool_call>", 0 },
            { S "</seed:tool_call>", 0 },
            { S "<function=", 2 },
            { ELSE, 0 } } } } },

    { "llama3",
      FORM_START | FORM_KNOWN,
      { "<|python_tag|>", NULL },
      { { OP_ALT, { { S "<|python_tag|>", 2 }, { S L "{", 2 } } },
        { OP_TEXT, { { S "<|python_tag|>", 2 } } },
        { OP_CALL, { { NULL, 0 } } },
        { OP_ALT,
          { { S ";" S L "{", 2 },
            { S "<|python_tag|>", 2 },
            { S L "{", 2 },
            { ELSE, 1 } } } } },

    { "mistral",
      FORM_SHORT,
      { "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", NULL },
      { { OP_TEXT, { { S "[TOOL_CALLS]", 1 } } },
        { OP_ALT, { { S "[", 2 }, { S L "{", 2 }, { ELSE, 4 } } },
        { OP_CALL, { { NULL, 0 } } },
        { OP_ALT,
          { { S ",", 2 },
            { S "]", 0 },
            { S "[TOOL_CALLS]", 1 },
            { ELSE, 0 } } },
        { OP_NAME, { { "[ARGS]", 6 }, { "[CALL_ID]", 5 }, { S L "{", 6 } } },
        { OP_ID, { { "[ARGS]", 6 } } },
        { OP_JSON, { { NULL, 0 } } },
        { OP_ALT, { { S "[TOOL_CALLS]", 1 }, { ELSE, 0 } } } } },

    { "deepseek",
      0,
      { CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, CALL_SEP, NULL },
      { { OP_TEXT, { { S CALLS_BEGIN, 1 }, { S CALL_BEGIN, 2 } } },
        { OP_ALT, { { S CALL_BEGIN, 2 } } },
        { OP_ALT, { { "function" CALL_SEP, 5 }, { ELSE, 3 } } },
        { OP_NAME, { { CALL_SEP, 8 } } },
        { OP_NONE, { { NULL, 0 } } },
        { OP_NAME, { { "\n```json\n", 6 } } },
        { OP_JSON, { { NULL, 0 } } },
        { OP_ALT, { { S "```" CALL_END, 10 } } },
        { OP_JSON, { { NULL, 0 } } },
        { OP_ALT, { { S CALL_END, 10 } } },
        { OP_ALT,
          { { S CALL_BEGIN, 2 }, { S CALLS_END, 0 }, { ELSE, 0 } } } } },

    { "dsml",
      0,
      { "<" DSML "function_calls>", "</" DSML "function_calls>",
        "<" DSML "tool_calls>", "</" DSML "tool_calls>", NULL },
      { { OP_TEXT,
          { { S "<" DSML "function_calls>", 1 },
            { S "<" DSML "tool_calls>", 1 } } },
        { OP_ALT,
          { { S "<" DSML "invoke name=\"", 2 },
            { S "</" DSML "function_calls>", 0 },
            { S "</" DSML "tool_calls>", 0 } } },
        { OP_NAME,
          { { "\">" S L "<" DSML "parameter", 3 },
            { "\">" S L "</" DSML "invoke>", 3 } } },
        { OP_ALT,
          { { S "<" DSML "parameter name=\"", 4 },
            { S "</" DSML "invoke>", 1 | CLOSE } } },
        { OP_KEY,
          { { "\" string=\"true\">", 5 },
            { "\" string=\"false\">", 6 },
            { "\">", 7 } } },
        { OP_STRING, { { "</" DSML "parameter>", 3 } } },
        { OP_BARE, { { "</" DSML "parameter>", 3 } } },
        { OP_VALUE, { { "</" DSML "parameter>", 3 } } } } },

    { "harmony",
      FORM_START | FORM_HARMONY,
      { "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>",
        "<|return|>", "<|call|>", NULL },
      { { OP_ALT,
          { { L "<|channel|>", 3 },
            { L " to=", 3 },
            { "<|start|>assistant", 3 } } },
        { OP_TEXT,
          { { L "<|channel|>", 3 },
            { "<|start|>assistant", 3 },
            { "<|end|>", 0 } } },
        { OP_BODY,
          { { "<|end|>", 0 },
            { "<|return|>", 0 },
            { "<|call|>", 0 },
            { L "<|start|>", 0 },
            { L "<|channel|>", 0 } } },
        { OP_HEADER, { { "<|message|>", 0 } } },
        { OP_JSON, { { NULL, 0 } } },
        { OP_ALT,
          { { S "<|call|>", 0 },
            { S "<|end|>", 0 },
            { L "<|start|>", 0 } } } } },

    { "glm",
      0,
      { "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
        "</arg_value>", NULL },
      { { OP_TEXT, { { S "<tool_call>", 1 } } },
        { OP_NAME, { { S L "<arg_key>", 2 }, { S L "</tool_call>", 2 } } },
        { OP_ALT, { { S "<arg_key>", 3 }, { S "</tool_call>", 5 | CLOSE } } },
        { OP_KEY, { { "</arg_key>" S "<arg_value>", 4 } } },
        { OP_VALUE,
          { { "</arg_value>" S L "<arg_key>", 2 },
            { "</arg_value>" S L "</tool_call>", 2 } } },
        { OP_ALT, { { S "<tool_call>", 1 }, { ELSE, 0 } } } } },

    { "kimi",
      FORM_OWN_IDS,
      { "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
        "<|tool_call_begin|>", "<|tool_call_end|>",
        "<|tool_call_argument_begin|>", NULL },
      { { OP_TEXT,
          { { S "<|tool_calls_section_begin|>", 1 },
            { S "<|tool_call_begin|>", 2 } } },
        { OP_ALT,
          { { S "<|tool_call_begin|>", 2 },
            { S "<|tool_calls_section_end|>", 0 } } },
        { OP_NAME, { { S "<|tool_call_argument_begin|>", 3 } } },
        { OP_JSON, { { NULL, 0 } } },
        { OP_ALT, { { S "<|tool_call_end|>", 1 } } } } },

    { "minimax",
      0,
      { "<minimax:tool_call>", "</minimax:tool_call>", NULL },
      { { OP_TEXT, { { S "<minimax:tool_call>", 1 } } },
        { OP_ALT,
          { { S "<invoke name=\"", 2 }, { S "</minimax:tool_call>", 0 } } },
        { OP_NAME,
          { { "\">" S L "<parameter", 3 }, { "\">" S L "</invoke>", 3 } } },
        { OP_ALT,
          { { S "<parameter name=\"", 4 }, { S "</invoke>", 1 | CLOSE } } },
        { OP_KEY, { { "\">", 5 } } },
        { OP_VALUE,
          { { "</parameter>" S L "<parameter", 3 },
            { "</parameter>" S L "</invoke>", 3 } } } } },

    { "command",
      0,
      { "<|START_ACTION|>", "<|END_ACTION|>", NULL },
      LIST("<|START_ACTION|>", "<|END_ACTION|>") },
    { "tool_calls",
      0,
      { "<tool_calls>", "</tool_calls>", NULL },
      LIST("<tool_calls>", "</tool_calls>") },
    { "nemotron",
      0,
      { "<TOOLCALL>", "</TOOLCALL>", NULL },
      LIST("<TOOLCALL>", "</TOOLCALL>") },
};

const uint32_t tr_dialect_n_forms = sizeof(tr_dialect_forms)
                                    / sizeof(tr_dialect_forms[0]);

const reasoning_t tr_dialect_thoughts[] = {
    { "<think>", "</think>" },
    { "[THINK]", "[/THINK]" },
    { "<seed:think>", "</seed:think>" },
    { "<|START_THINKING|>", "<|END_THINKING|>" },
    { "<|channel>thought", "<channel|>" },
    { "<mm:think>", "</mm:think>" },
    { "<reasoning>", "</reasoning>" },
};

const uint32_t tr_dialect_n_thoughts = sizeof(tr_dialect_thoughts)
                                       / sizeof(tr_dialect_thoughts[0]);
