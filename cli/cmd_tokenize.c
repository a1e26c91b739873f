/*
 * tokenring tokenize: lines in, ids out; with --decode, ids in, lines out.
 * With --json a line is a JSON string (so that it can hold newlines and NUL)
 * and ids are a JSON array.  Arguments are one text, or the ids of one.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"
#include "engine/tokenizer/tokenizer.h"

#include "cli.h"
#include "options.h"

static struct {
    const char *dir;
    bool decode, json, special, parse_special, skip_special;
    tr_tokenizer_t *tokenizer;
    tr_tokenizer_scratch_t *scratch;
    tr_ids_t ids;
    char *text; /* decoded */
    size_t cap;
} g;

static tr_option_t options[] = {
    { "model", 'm', TR_OPTION_TEXT, &g.dir, "DIR",
      "Hugging Face directory with tokenizer.json", 0, 0, NULL, false },
    { "decode", 'd', TR_OPTION_FLAG, &g.decode, NULL, "ids in, text out", 0, 0,
      NULL, false },
    { "json", 0, TR_OPTION_FLAG, &g.json, NULL,
      "a line is a JSON string, ids are a JSON array", 0, 0, NULL, false },
    { "special", 0, TR_OPTION_FLAG, &g.special, NULL,
      "add the tokens that the tokenizer adds to a prompt (BOS)", 0, 0, NULL,
      false },
    { "parse-special", 0, TR_OPTION_FLAG, &g.parse_special, NULL,
      "read special tokens written in the text as such", 0, 0, NULL, false },
    { "skip-special", 0, TR_OPTION_FLAG, &g.skip_special, NULL,
      "--decode: leave special tokens out", 0, 0, NULL, false },
    { NULL, 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL, false }
};

const tr_command_t tr_tokenize_command = {
    "tokenring tokenize [options] -m DIR [TEXT]",
    "Turns a text into token ids, or back: the arguments, or every line of\n"
    "standard input, one line each.",
    "  tokenring tokenize -m models/pocket 'Once upon a time'\n"
    "  echo '[12, 345]' | tokenring tokenize -m models/pocket --decode --json",
    options
};

static int
encode(const char *text, size_t len, tr_error_t *err)
{
    unsigned flags = (g.special ? TR_ENCODE_SPECIAL : 0)
                     | (g.parse_special ? TR_ENCODE_PARSE_SPECIAL : 0);
    uint32_t i;

    g.ids.len = 0;
    if (tr_tokenizer_encode(g.tokenizer, g.scratch, text, len, flags, &g.ids,
                            err)
        != TR_OK) {
        return -1;
    }
    if (g.json) {
        putchar('[');
    }
    for (i = 0; i < g.ids.len; i++) {
        printf("%s%d", i == 0 ? "" : g.json ? ", " : " ", g.ids.data[i]);
    }
    puts(g.json ? "]" : "");
    return 0;
}

static int
encode_line(const char *line, size_t len, tr_error_t *err)
{
    json_error_t why;
    json_t *text;
    int rc;

    if (!g.json) {
        return encode(line, len, err);
    }
    text = json_loadb(line, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!json_is_string(text)) {
        tr_error_set(err, TR_ERR_INVALID, "", "expected a JSON string%s%s",
                     text == NULL ? ": " : "", text == NULL ? why.text : "");
        json_decref(text);
        return -1;
    }
    rc = encode(json_string_value(text), json_string_length(text), err);
    json_decref(text);
    return rc;
}

static int
take_id(long long id, tr_error_t *err)
{
    long long top = (long long) tr_tokenizer_vocab_size(g.tokenizer) - 1;

    if (id < 0 || id > top) {
        tr_error_set(err, TR_ERR_INVALID, "",
                     "token id %lld: expected 0 to "
                     "%lld",
                     id, top);
        return -1;
    }
    if (g.ids.len == g.ids.cap) {
        uint32_t cap = g.ids.cap != 0 ? g.ids.cap * 2 : 256;
        int32_t *grown = realloc(g.ids.data, cap * sizeof(*grown));

        if (grown == NULL) {
            tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
            return -1;
        }
        g.ids.data = grown;
        g.ids.cap = cap;
    }
    g.ids.data[g.ids.len++] = (int32_t) id;
    return 0;
}

static int
read_ids(const char *line, size_t len, tr_error_t *err)
{
    char *end;

    (void) len;
    for (;;) {
        long long id;

        line += strspn(line, " \t\r");
        if (*line == '\0') {
            return 0;
        }
        errno = 0;
        id = strtoll(line, &end, 10);
        if (end == line || errno != 0 || strchr(" \t\r", *end) == NULL) {
            tr_error_set(err, TR_ERR_INVALID, "",
                         "\"%.40s\": expected token "
                         "ids separated by blanks",
                         line);
            return -1;
        }
        if (take_id(id, err) != 0) {
            return -1;
        }
        line = end;
    }
}

static int
read_ids_json(const char *line, size_t len, tr_error_t *err)
{
    json_error_t why;
    json_t *array = json_loadb(line, len, 0, &why), *item;
    int rc = 0;
    size_t i;

    if (!json_is_array(array)) {
        tr_error_set(err, TR_ERR_INVALID, "",
                     "expected a JSON array of token "
                     "ids%s%s",
                     array == NULL ? ": " : "", array == NULL ? why.text : "");
        rc = -1;
    }
    json_array_foreach (array, i, item) {
        if (rc == 0 && !json_is_integer(item)) {
            tr_error_set(err, TR_ERR_INVALID, "",
                         "element %zu is not a whole "
                         "number",
                         i);
            rc = -1;
        }
        if (rc == 0) {
            rc = take_id(json_integer_value(item), err);
        }
    }
    json_decref(array);
    return rc;
}

static int
decode_line(const char *line, size_t len, tr_error_t *err)
{
    size_t piece = 3u * tr_tokenizer_max_token_bytes(g.tokenizer) + 16, n = 0;
    size_t want;
    tr_detok_t detok;
    uint32_t i;

    g.ids.len = 0;
    if ((g.json ? read_ids_json : read_ids)(line, len, err) != 0) {
        return -1;
    }
    want = (g.ids.len + 1) * piece;
    if (want > g.cap) {
        char *grown = realloc(g.text, want);

        if (grown == NULL) {
            tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
            return -1;
        }
        g.text = grown;
        g.cap = want;
    }
    tr_detok_init(&detok, g.skip_special);
    for (i = 0; i < g.ids.len; i++) {
        n += tr_detok_push(&detok, g.tokenizer, g.ids.data[i], g.text + n,
                           (uint32_t) piece);
    }
    n += tr_detok_finish(&detok, g.text + n, (uint32_t) piece);
    if (g.json) {
        json_t *text = json_stringn(g.text, n);

        json_dumpf(text, stdout, JSON_ENCODE_ANY | JSON_COMPACT);
        json_decref(text);
    } else {
        fwrite(g.text, 1, n, stdout);
    }
    putchar('\n');
    return 0;
}

/* The lines of standard input, until one is wrong. */
static int
take_lines(tr_error_t *err)
{
    char *line = NULL, why[sizeof(err->text)];
    size_t cap = 0, number = 0;
    ssize_t n;
    int rc = 0;

    while (rc == 0 && (n = getline(&line, &cap, stdin)) != -1) {
        number++;
        if (n > 0 && line[n - 1] == '\n') {
            line[--n] = '\0';
        }
        rc = (g.decode ? decode_line : encode_line)(line, (size_t) n, err);
    }
    if (rc != 0) {
        snprintf(why, sizeof(why), "%s", err->text);
        tr_error_set(err, TR_ERR_INVALID, "", "line %zu: %s", number, why);
    } else if (ferror(stdin)) {
        tr_error_set(err, TR_ERR_IO, "", "%s", strerror(errno));
        rc = -1;
    }
    free(line);
    return rc;
}

/* text: the arguments, of which a shell has taken the quotes; or NULL. */
static int
run(const char *text)
{
    tr_error_t err = { 0 };
    int rc = -1;

    if (tr_tokenizer_load(g.dir, &g.tokenizer, &err) != TR_OK) {
        fprintf(stderr, "tokenring tokenize: %s\n", err.text);
        return 1;
    }
    g.scratch = tr_tokenizer_scratch_new(g.tokenizer);
    if (g.scratch == NULL) {
        tr_error_set(&err, TR_ERR_NOMEM, "", "out of memory");
    } else if (text == NULL) {
        rc = take_lines(&err);
    } else {
        rc = (g.decode ? decode_line : encode)(text, strlen(text), &err);
    }
    if (fflush(stdout) != 0 && rc == 0) {
        tr_error_set(&err, TR_ERR_IO, "", "%s", strerror(errno));
        rc = -1;
    }
    if (rc != 0) {
        fprintf(stderr, "tokenring tokenize: %s\n", err.text);
    }
    free(g.ids.data);
    free(g.text);
    tr_tokenizer_scratch_free(g.scratch);
    tr_tokenizer_free(g.tokenizer);
    return rc != 0;
}

int
tr_cmd_tokenize(int argc, char **argv)
{
    char *text;
    int rc;

    if (tr_options_and_text(&tr_tokenize_command, argc, argv, &text, &rc)
        != 0) {
        return rc;
    }
    if (g.dir == NULL) {
        rc = tr_usage_error(&tr_tokenize_command, "-m DIR is needed: where "
                                                  "tokenizer.json is");
    } else if (g.decode && (g.special || g.parse_special)) {
        rc = tr_usage_error(&tr_tokenize_command,
                            "--special and --parse-special are "
                            "for text to ids, not for --decode");
    } else {
        rc = run(text);
    }
    free(text);
    return rc;
}
