/*
 * The option table walked: parsing, help, and the way into a request body.
 */
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/help_text.h"

/* The command's words, which its usage line begins with: "tokenring chat". */
static int
command_words(const tr_command_t *c)
{
    const char *space = strchr(c->usage, ' ');

    return (int) (space != NULL ? strcspn(space + 1, " ") + 1
                                      + (size_t) (space - c->usage)
                                : strlen(c->usage));
}

int
tr_usage_error(const tr_command_t *command, const char *format, ...)
{
    int n = command_words(command);
    va_list args;

    fprintf(stderr, "%.*s: ", n, command->usage);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nTry: %.*s --help\n", n, command->usage);
    return 2;
}

void
tr_options_help(const tr_command_t *command)
{
    const tr_option_t *o;
    char left[80];

    printf("Usage: %s\n\n%s\n", command->usage, command->about);
    for (o = command->options; o->name != NULL; o++) {
        if (o->kind == TR_OPTION_GROUP) {
            printf("\n%s:\n", o->name);
            continue;
        }
        snprintf(left, sizeof(left), "%s%c%s--%s%s%s", o->letter ? "-" : "  ",
                 o->letter ? o->letter : ' ', o->letter ? ", " : " ", o->name,
                 o->arg != NULL ? " " : "", o->arg != NULL ? o->arg : "");
        if (strlen(left) > 27) {
            printf("  %s\n%30s", left, "");
        } else {
            printf("  %-28s", left);
        }
        tr_help_text(stdout, 30, o->help);
    }
    printf("      --help                  this text\n");
    if (command->examples != NULL) {
        printf("\nExamples:\n%s\n", command->examples);
    }
}

static tr_option_t *
find(const tr_command_t *c, const char *name, size_t n, char letter)
{
    tr_option_t *o;

    for (o = c->options; o->name != NULL; o++) {
        if (o->kind == TR_OPTION_GROUP) {
            continue;
        }
        if (letter != '\0'
                ? o->letter == letter
                : strlen(o->name) == n && memcmp(o->name, name, n) == 0) {
            return o;
        }
    }
    return NULL;
}

/* Stores the value; 0, or -1 after saying what is wrong. */
static int
store(const tr_command_t *c, tr_option_t *o, const char *value)
{
    tr_option_list_t *list = o->value;
    char *end;
    double d;

    o->seen = true;
    switch (o->kind) {
    case TR_OPTION_FLAG:
        *(bool *) o->value = true;
        return 0;
    case TR_OPTION_TEXT:
        *(const char **) o->value = value;
        return 0;
    case TR_OPTION_LIST:
        if (list->n == TR_OPTION_LIST_MAX) {
            tr_usage_error(c, "--%s was given more than %d times", o->name,
                           TR_OPTION_LIST_MAX);
            return -1;
        }
        list->item[list->n++] = value;
        return 0;
    case TR_OPTION_INT:
        errno = 0;
        *(int64_t *) o->value = strtoll(value, &end, 10);
        d = (double) *(int64_t *) o->value;
        break;
    default:
        errno = 0;
        d = strtod(value, &end);
        *(double *) o->value = d;
        break;
    }
    if (end == value || *end != '\0' || errno != 0 || !isfinite(d)) {
        tr_usage_error(c, "--%s \"%s\": expected a %snumber", o->name, value,
                       o->kind == TR_OPTION_INT ? "whole " : "");
        return -1;
    }
    if ((o->min != 0 || o->max != 0) && !(d >= o->min && d <= o->max)) {
        tr_usage_error(c, "--%s %s: expected a number from %g to %g", o->name,
                       value, o->min, o->max);
        return -1;
    }
    return 0;
}

int
tr_options_parse(const tr_command_t *command, int argc, char **argv)
{
    int i;

    for (i = 1; i < argc; i++) {
        const char *arg = argv[i], *name, *equals, *value = NULL;
        tr_option_t *o;

        if (arg[0] != '-' || arg[1] == '\0') {
            return i;
        }
        if (strcmp(arg, "--") == 0) {
            return i + 1;
        }
        if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            tr_options_help(command);
            return TR_OPTIONS_HELP;
        }
        if (arg[1] == '-') {
            name = arg + 2;
            equals = strchr(name, '=');
            o = find(command, name,
                     equals != NULL ? (size_t) (equals - name) : strlen(name),
                     '\0');
            value = equals != NULL ? equals + 1 : NULL;
        } else {
            o = find(command, NULL, 0, arg[1]);
            value = arg[2] != '\0' ? arg + 2 : NULL;
        }
        if (o == NULL) {
            tr_usage_error(command, "unknown option %s", arg);
            return TR_OPTIONS_ERROR;
        }
        if (o->kind == TR_OPTION_FLAG && value != NULL) {
            tr_usage_error(command, "--%s takes no value", o->name);
            return TR_OPTIONS_ERROR;
        }
        if (o->kind != TR_OPTION_FLAG && value == NULL) {
            value = i + 1 < argc ? argv[++i] : NULL;
            if (value == NULL) {
                tr_usage_error(command, "--%s needs a value: %s", o->name,
                               o->arg);
                return TR_OPTIONS_ERROR;
            }
        }
        if (store(command, o, value) != 0) {
            return TR_OPTIONS_ERROR;
        }
    }
    return i;
}

int
tr_options_only(const tr_command_t *command, int argc, char **argv,
                int *exit_status)
{
    int at = tr_options_parse(command, argc, argv);

    if (at >= argc) {
        return 0;
    }
    *exit_status = at == TR_OPTIONS_HELP ? 0 : 2;
    if (at >= 0) {
        tr_usage_error(command, "unexpected argument \"%s\"", argv[at]);
    }
    return -1;
}

/* Appends a word; false: no memory. */
static bool
add_word(char **text, size_t *len, const char *word)
{
    char *grown = realloc(*text, *len + strlen(word) + 2);

    if (grown == NULL) {
        return false;
    }
    *text = grown;
    *len += (size_t) sprintf(grown + *len, "%s%s", *len != 0 ? " " : "", word);
    return true;
}

int
tr_options_and_text(const tr_command_t *command, int argc, char **argv,
                    char **text, int *exit_status)
{
    size_t len = 0;
    bool all = false; /* words, behind -- */
    int at = 0;

    *text = NULL;
    *exit_status = 1;
    while (all || (at = tr_options_parse(command, argc, argv)) >= 0) {
        all = all || (at > 1 && strcmp(argv[at - 1], "--") == 0);
        at = all && at == 0 ? 1 : at;
        if (at >= argc) {
            return 0;
        }
        if (!add_word(text, &len, argv[at])) {
            break;
        }
        argc -= at; /* what follows, with the word in place of the name */
        argv += at;
        at = 0;
    }
    if (at < 0) {
        *exit_status = at == TR_OPTIONS_HELP ? 0 : 2;
    }
    free(*text);
    *text = NULL;
    return -1;
}

void
tr_options_to_json(const tr_option_t *options, json_t *body)
{
    const tr_option_t *o;
    const tr_option_list_t *list;
    json_t *value;
    unsigned i;

    for (o = options; o->name != NULL; o++) {
        if (!o->seen || o->json == NULL) {
            continue;
        }
        switch (o->kind) {
        case TR_OPTION_FLAG:
            value = json_true();
            break;
        case TR_OPTION_TEXT:
            value = json_string(*(const char **) o->value);
            break;
        case TR_OPTION_LIST:
            list = o->value;
            value = json_array();
            for (i = 0; i < list->n; i++) {
                json_array_append_new(value, json_string(list->item[i]));
            }
            break;
        case TR_OPTION_INT:
            value = json_integer(*(int64_t *) o->value);
            break;
        default:
            value = json_real(*(double *) o->value);
            break;
        }
        json_object_set_new(body, o->json, value);
    }
}
