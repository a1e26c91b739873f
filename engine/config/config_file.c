/*
 * The file of settings (config.h): `key value`, one a line.  A value in double
 * quotes may contain blanks and '#'; otherwise a '#' after a blank begins a
 * comment. Errors name file and line; config.c judges values.
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

/* What other programs' files have and ours does not; value is not quoted. */
static tr_status_t
foreign(const char *where, const char *key, const char *value, tr_error_t *err)
{
    size_t n = strlen(value), name = strcspn(key, "=");
    const char *from = value, *what;

    if (key[name] == '=' || value[0] == '=') { /* k=v, k= v, k = v, k =v */
        what = "there is no `=` between a setting and its value";
        from = key[name] == '=' ? key + name + 1 : value + 1;
        from = *from == '\0' ? value : from;
        from += strspn(from, " \t");
    } else if (n > 1 && value[n - 1] == ';') {
        what = "there is no `;` at the end of a line";
    } else {
        return TR_OK;
    }
    n = strlen(from);
    n -= n > 0 && from[n - 1] == ';';
    if (name == strlen("redis_password")
        && strncmp(key, "redis_password", name) == 0) {
        from = "...";
        n = 3;
    }
    return tr_error_set(err, TR_ERR_INVALID, "",
                        "%s: %s; write `%.*s %.*s`, or the value in quotes if "
                        "that is part of it",
                        where, what, (int) (name < 64 ? name : 64), key,
                        (int) (n < 128 ? n : 128), from);
}

static tr_status_t
no_value(const char *where, const char *key, tr_error_t *err)
{
    return tr_error_set(err, TR_ERR_INVALID, key,
                        "%s: %.64s has no "
                        "value; write \"\" for an empty one",
                        where, key);
}

static tr_status_t
parse_line(tr_config_t *c, const char *where, char *line, int *set,
           tr_error_t *err)
{
    char *key = line + strspn(line, " \t"), *value;
    size_t n = strcspn(key, " \t");
    tr_status_t rc = TR_OK;

    *set = -1;
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
                                "quoted value does not end with a quote, or "
                                "something follows it",
                                where, key);
        }
    } else {
        strip_comment(value);
        rc = foreign(where, key, value, err);
        if (rc == TR_OK && *value == '\0' && tr_config_index(key) >= 0) {
            rc = no_value(where, key, err);
        }
    }
    if (rc == TR_OK) {
        rc = tr_config_set(c, where, key, value, err);
    }
    if (rc == TR_OK) {
        *set = tr_config_index(key);
    }
    return rc;
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

/* The lines of an open file. */
static tr_status_t
read_lines(tr_config_t *c, FILE *f, const char *path, tr_error_t *err)
{
    static const char mark[] =
        "\xef\xbb\xbf"; /* some editors put it in front */
    char line[LINE_MAX_BYTES], where[300], *text;
    unsigned number, at[TR_CONFIG_SETTINGS] = { 0 }; /* lines, from 1 */
    tr_status_t rc = TR_OK;
    bool end = false;
    int set;

    for (number = 1; rc == TR_OK && !end; number++) {
        snprintf(where, sizeof(where), "%.256s:%u", path, number);
        rc = read_line(f, line, where, &end, err);
        if (rc == TR_OK) {
            text = line;
            if (number == 1 && strncmp(line, mark, sizeof(mark) - 1) == 0) {
                text += sizeof(mark) - 1;
            }
            rc = parse_line(c, where, text, &set, err);
        }
        if (rc != TR_OK || set < 0) {
            continue;
        }
        if (at[set] != 0) {
            return tr_error_set(err, TR_ERR_INVALID, "",
                                "%s: %s is already set in line %u; keep one "
                                "of them",
                                where, tr_config_key(set), at[set]);
        }
        at[set] = number;
        c->place[set] = (tr_config_place_t){ path, number };
    }
    return rc;
}

tr_status_t
tr_config_file(tr_config_t *c, const char *path, tr_error_t *err)
{
    FILE *f = fopen(path, "re");
    tr_status_t rc;

    if (f == NULL) {
        return tr_error_set(err, TR_ERR_IO, "",
                            "cannot open configuration "
                            "%s: %s",
                            path, strerror(errno));
    }
    rc = read_lines(c, f, path, err);
    if (rc == TR_OK && ferror(f)) {
        rc = tr_error_set(err, TR_ERR_IO, "",
                          "cannot read configuration %s: "
                          "%s",
                          path, strerror(errno));
    }
    fclose(f);
    return rc;
}
