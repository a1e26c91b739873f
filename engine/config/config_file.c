/*
 * The file of settings (config.h): `key value`, one a line.  A value may stand
 * in double quotes, then it keeps blanks and '#'; otherwise a '#' behind a
 * blank begins a comment.  What is wrong with a line is said with file and
 * number; values are config.c's to judge.
 */
#include "config_internal.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "log.h"

#define LINE_MAX_BYTES 4096

/* A value in double quotes keeps blanks and '#'; \" and \\ stand for
 * themselves.  Unquoted in place; false when the quote does not close or
 * something but a comment follows. */
static bool
unquote(char *value)
{
    char *in = value + 1, *out = value;

    while (*in != '"') {
        if (*in == '\\' && (in[1] == '"' || in[1] == '\\')) {
            in++;
        }
        if (*in == '\0') {
            return false;
        }
        *out++ = *in++;
    }
    in++;
    in += strspn(in, " \t");
    *out = '\0';
    return *in == '\0' || *in == '#';
}

static void
strip_comment(char *value)
{
    char *p = value;

    if (*p == '#') {
        *p = '\0';
        return;
    }
    for (; *p != '\0'; p++) {
        if (*p == '#' && (p[-1] == ' ' || p[-1] == '\t')) {
            *p = '\0';
            break;
        }
    }
    while (p > value && isspace((unsigned char) p[-1])) {
        *--p = '\0';
    }
}

static tr_status_t
parse_line(tr_config_t *c, const char *where, char *line, tr_error_t *err)
{
    char *key = line + strspn(line, " \t"), *value;
    size_t n = strcspn(key, " \t");

    if (*key == '\0' || *key == '#') {
        return TR_OK;
    }
    value = key + n;
    value += strspn(value, " \t");
    key[n] = '\0';
    if (*value == '"') {
        if (!unquote(value)) {
            return tr_error_set(err, TR_ERR_INVALID, key,
                                "%s: %.64s: the "
                                "quoted value does not end with a quote",
                                where, key);
        }
        return tr_config_set(c, where, key, value, err);
    }
    strip_comment(value);
    if (*value == '\0') {
        if (!tr_config_has(key)) {
            return tr_config_set(c, where, key, value, err);
        }
        return tr_error_set(err, TR_ERR_INVALID, key,
                            "%s: %.64s has no "
                            "value; write \"\" for an empty one",
                            where, key);
    }
    return tr_config_set(c, where, key, value, err);
}

/* One line with what can be wrong about it as text. */
static tr_status_t
read_line(FILE *f, char *line, const char *where, bool *end, tr_error_t *err)
{
    size_t n = 0;
    int ch;

    while ((ch = getc(f)) != EOF && ch != '\n') {
        if (ch == '\0') {
            return tr_error_set(err, TR_ERR_INVALID, "",
                                "%s: a NUL byte; "
                                "expected a text file",
                                where);
        }
        if (n == LINE_MAX_BYTES - 1) {
            return tr_error_set(err, TR_ERR_INVALID, "",
                                "%s: line is longer "
                                "than %d bytes",
                                where, LINE_MAX_BYTES - 1);
        }
        line[n++] = (char) ch;
    }
    if (n > 0 && line[n - 1] == '\r') {
        n--;
    }
    line[n] = '\0';
    *end = ch == EOF;
    return TR_OK;
}

tr_status_t
tr_config_file(tr_config_t *c, const char *path, tr_error_t *err)
{
    char line[LINE_MAX_BYTES], where[300];
    tr_status_t rc = TR_OK;
    bool end = false;
    unsigned number;
    FILE *f = fopen(path, "re");

    if (f == NULL) {
        return tr_error_set(err, TR_ERR_IO, "",
                            "cannot open configuration "
                            "%s: %s",
                            path, strerror(errno));
    }
    for (number = 1; rc == TR_OK && !end; number++) {
        snprintf(where, sizeof(where), "%.256s:%u", path, number);
        rc = read_line(f, line, where, &end, err);
        if (rc == TR_OK) {
            rc = parse_line(c, where, line, err);
        }
    }
    if (rc == TR_OK && ferror(f)) {
        rc = tr_error_set(err, TR_ERR_IO, "",
                          "cannot read configuration %s: "
                          "%s",
                          path, strerror(errno));
    }
    fclose(f);
    return rc;
}
