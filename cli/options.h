/*
 * Command-line options by table: one row declares an option's name, what it
 * takes, its bounds, where the value goes, and the sentence that --help prints.
 * Both `--name VALUE` and `--name=VALUE` work, `-n VALUE` where a letter is
 * given.  Errors name the option, the value and what was expected.
 */
#ifndef TR_OPTIONS_H
#define TR_OPTIONS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum {
    TR_OPTION_FLAG,   /* bool, no value */
    TR_OPTION_TEXT,   /* const char *, borrowed from argv */
    TR_OPTION_LIST,   /* tr_option_list_t, may be given again */
    TR_OPTION_INT,    /* int64_t within [min, max] */
    TR_OPTION_NUMBER, /* double within [min, max] */
    TR_OPTION_GROUP   /* no option: a heading in --help */
} tr_option_kind_t;

#define TR_OPTION_LIST_MAX 32

typedef struct {
    const char *item[TR_OPTION_LIST_MAX];
    unsigned n;
} tr_option_list_t;

typedef struct {
    const char *name; /* without the dashes */
    char letter;      /* 0: none */
    tr_option_kind_t kind;
    void *value;
    const char *arg; /* what --help calls the value */
    const char *help;
    double min, max;  /* numbers; both 0: any */
    const char *json; /* key in a request body, NULL: not part of one */
    bool seen;        /* out: was given */
} tr_option_t;

typedef struct {
    const char *usage;    /* "tokenring generate [options] -m DIR -p TEXT" */
    const char *about;    /* a paragraph */
    const char *examples; /* NULL or lines */
    tr_option_t *options; /* ends with name NULL */
} tr_command_t;

/* What a parse ended with: an index of the first operand in argv, or one of
 * these, on which a command returns. */
#define TR_OPTIONS_HELP (-1)  /* --help was printed: exit status 0 */
#define TR_OPTIONS_ERROR (-2) /* the error was printed: exit status 2 */

/* argv[0] is the subcommand's name.  An operand ends the options unless
 * it is the value of one; operands are for the caller. */
int tr_options_parse(const tr_command_t *command, int argc, char **argv);

/* The same, for commands without operands: 0 to go on, else *exit_status. */
int tr_options_only(const tr_command_t *command, int argc, char **argv,
                    int *exit_status);

/* The same, for commands whose operands are words of one text, which may stand
 * anywhere: *text, joined by blanks, given to the caller; NULL: there are none. */
int tr_options_and_text(const tr_command_t *command, int argc, char **argv,
                        char **text, int *exit_status);

void tr_options_help(const tr_command_t *command);

/* Sets body[json] for every option that was given and has a JSON key. */
void tr_options_to_json(const tr_option_t *options, json_t *body);

/* "tokenring generate: MESSAGE" and the hint to --help, on stderr.  Returns 2,
 * the exit status of wrong usage. */
int tr_usage_error(const tr_command_t *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
