/*
 * Manual pages and shell completion (manual.h).
 */
#include "manual.h"

#include <stdio.h>
#include <string.h>

#include "engine/config/troff.h"

/* ---- manual pages ------------------------------------------------------- */

static void
print_options(const tr_option_t *options)
{
    tr_troff_section(stdout, "options");
    for (const tr_option_t *o = options; o->name != NULL; o++) {
        char term[80];

        if (o->kind == TR_OPTION_GROUP) {
            printf(".SS \"%s\"\n", o->name);
            continue;
        }
        if (o->letter != '\0') {
            snprintf(term, sizeof(term), "-%c, --%s", o->letter, o->name);
        } else {
            snprintf(term, sizeof(term), "--%s", o->name);
        }
        tr_troff_entry(stdout, term, o->arg, o->help);
    }
    if (options->name == NULL) {
        tr_troff_text(stdout, "None but --help.");
    }
}

static void
print_command(const tr_manual_row_t *row)
{
    const tr_command_t *c = row->command;
    char name[64];

    snprintf(name, sizeof(name), "tokenring-%s", row->name);
    tr_troff_begin(stdout, name, 1, row->help);
    tr_troff_section(stdout, "synopsis");
    tr_troff_lines(stdout, c->usage);
    tr_troff_section(stdout, "description");
    tr_troff_text(stdout, c->about);
    print_options(c->options);
    if (c->examples != NULL) {
        tr_troff_section(stdout, "examples");
        tr_troff_lines(stdout, c->examples);
    }
    tr_troff_section(stdout, "exit status");
    tr_troff_text(stdout, "0: done.  1: it failed.  2: wrong usage.  130: it "
                          "was interrupted.");
    tr_troff_section(stdout, "see also");
    tr_troff_text(stdout, "tokenring(1), tokenring-engine(8)");
}

static void
print_overview(const tr_manual_row_t *rows, size_t n)
{
    tr_troff_begin(stdout, "tokenring", 1,
                   "the command line of Tokenring, LLM serving inside NGINX");
    tr_troff_section(stdout, "synopsis");
    tr_troff_lines(stdout, "tokenring COMMAND [options]");
    tr_troff_section(stdout, "description");
    tr_troff_text(stdout,
                  "Talks to a running engine over its rings, to any server "
                  "that speaks the OpenAI API, or runs a model itself.\n"
                  "Each command has a page of its own, tokenring-COMMAND(1).");
    tr_troff_section(stdout, "commands");
    for (size_t i = 0; i < n; i++) {
        tr_troff_entry(stdout, rows[i].name, NULL, rows[i].help);
    }
    tr_troff_section(stdout, "environment");
    tr_troff_entry(stdout, "TOKENRING_ENGINE", NULL,
                   "the engine to talk to where no option says one: a socket, "
                   "or NAME for /run/tokenring/NAME.sock (default: main)");
    tr_troff_entry(stdout, "TOKENRING_HISTORY", NULL,
                   "file for the lines that were typed in tokenring chat; "
                   "empty: none is kept (default: "
                   "$XDG_STATE_HOME/tokenring/history)");
    tr_troff_entry(stdout, "NO_COLOR", NULL, "when set, nothing is coloured");
    tr_troff_section(stdout, "see also");
    tr_troff_text(stdout, "tokenring-engine(8), nginx(8)");
}

int
tr_manual_print(const tr_manual_row_t *rows, size_t n, const char *name)
{
    if (name == NULL) {
        print_overview(rows, n);
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            print_command(&rows[i]);
            return 0;
        }
    }
    return -1;
}

/* ---- completion --------------------------------------------------------- */

/* What a value is, as far as completion helps with it. */
typedef enum { VALUE_NONE, VALUE_FILE, VALUE_DIR, VALUE_OTHER } value_t;

static value_t
value_of(const tr_option_t *o)
{
    if (o->kind == TR_OPTION_FLAG) {
        return VALUE_NONE;
    }
    if (o->arg != NULL && strcmp(o->arg, "DIR") == 0) {
        return VALUE_DIR;
    }
    return o->arg != NULL
                   && (strcmp(o->arg, "FILE") == 0
                       || strcmp(o->arg, "SOCKET") == 0
                       || strcmp(o->arg, "OUT") == 0)
               ? VALUE_FILE
               : VALUE_OTHER;
}

/* "--name|-n|..", the options of all commands whose value is of this kind. */
static void
bash_pattern(const tr_manual_row_t *row, value_t kind)
{
    const char *bar = "";

    for (const tr_option_t *o = row->command->options; o->name != NULL; o++) {
        if (o->kind != TR_OPTION_GROUP && value_of(o) == kind) {
            printf("%s--%s", bar, o->name);
            bar = "|";
            if (o->letter != '\0') {
                printf("|-%c", o->letter);
            }
        }
    }
    if (bar[0] == '\0') {
        printf("''"); /* nothing */
    }
}

static void
bash(const tr_manual_row_t *rows, size_t n)
{
    puts("# bash completion of tokenring, written by `tokenring completion "
         "bash`\n_tokenring() {\n"
         "    local cur=${COMP_WORDS[COMP_CWORD]} "
         "prev=${COMP_WORDS[COMP_CWORD-1]}\n"
         "    local words=--help kind=other\n"
         "    COMPREPLY=()\n"
         "    if [ \"$COMP_CWORD\" -eq 1 ]; then");
    printf("        words='--help --version");
    for (size_t i = 0; i < n; i++) {
        printf(" %s", rows[i].name);
    }
    puts("'\n    else\n        case ${COMP_WORDS[1]} in");
    for (size_t i = 0; i < n; i++) {
        printf("        %s)\n            words='--help", rows[i].name);
        for (const tr_option_t *o = rows[i].command->options; o->name != NULL;
             o++) {
            if (o->kind != TR_OPTION_GROUP) {
                printf(" --%s", o->name);
            }
        }
        printf("'\n            case $prev in\n            ");
        bash_pattern(&rows[i], VALUE_FILE);
        printf(") kind=file ;;\n            ");
        bash_pattern(&rows[i], VALUE_DIR);
        printf(") kind=dir ;;\n            ");
        bash_pattern(&rows[i], VALUE_OTHER);
        puts(") return ;;\n            esac\n            ;;");
    }
    puts("        esac\n    fi\n"
         "    case $kind$cur in\n"
         "    file*) mapfile -t COMPREPLY < <(compgen -f -- \"$cur\") ;;\n"
         "    dir*) mapfile -t COMPREPLY < <(compgen -d -- \"$cur\") ;;\n"
         "    other-*) mapfile -t COMPREPLY < <(compgen -W \"$words\" -- "
         "\"$cur\") ;;\n"
         "    *)\n"
         "        if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
         "            mapfile -t COMPREPLY < <(compgen -W \"$words\" -- "
         "\"$cur\")\n"
         "        else\n"
         "            mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
         "        fi\n"
         "        ;;\n"
         "    esac\n"
         "}\n"
         "complete -o filenames -F _tokenring tokenring");
}

/* Text within '..' of a shell, without what zsh's _arguments takes for its
 * own. */
static void
quoted(const char *text, const char *special)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'') {
            fputs("'\\''", stdout);
        } else {
            if (strchr(special, *text) != NULL) {
                putchar('\\');
            }
            putchar(*text == '\n' ? ' ' : *text);
        }
    }
}

static void
zsh_option(const tr_option_t *o)
{
    static const char *const actions[] = { "", ":file:_files",
                                           ":directory:_files -/", ":value: " };
    const char *more = o->kind == TR_OPTION_LIST ? "*" : "";

    for (int letter = 0; letter < 2; letter++) {
        if (letter && o->letter == '\0') {
            break;
        }
        if (letter) {
            printf("        '%s-%c", more, o->letter);
        } else {
            printf("        '%s--%s", more, o->name);
        }
        putchar('[');
        quoted(o->help, "[]:");
        printf("]%s' \\\n", actions[value_of(o)]);
    }
}

static void
zsh(const tr_manual_row_t *rows, size_t n)
{
    puts("#compdef tokenring\n# written by `tokenring completion zsh`\n"
         "_tokenring() {\n    local -a commands\n    commands=(");
    for (size_t i = 0; i < n; i++) {
        printf("        '%s:", rows[i].name);
        quoted(rows[i].help, ":");
        puts("'");
    }
    puts("    )\n    if (( CURRENT == 2 )); then\n"
         "        _describe command commands\n        return\n    fi\n"
         "    local command=$words[2]\n    shift words\n"
         "    (( CURRENT-- ))\n    case $command in");
    for (size_t i = 0; i < n; i++) {
        printf("    %s) _arguments \\\n", rows[i].name);
        for (const tr_option_t *o = rows[i].command->options; o->name != NULL;
             o++) {
            if (o->kind != TR_OPTION_GROUP) {
                zsh_option(o);
            }
        }
        puts("        '--help[the options]' '*:file:_files' ;;");
    }
    puts("    esac\n}\n_tokenring \"$@\"");
}

static void
fish(const tr_manual_row_t *rows, size_t n)
{
    puts("# written by `tokenring completion fish`\ncomplete -c tokenring -f");
    for (size_t i = 0; i < n; i++) {
        printf("complete -c tokenring -n __fish_use_subcommand -a %s -d '",
               rows[i].name);
        quoted(rows[i].help, "");
        puts("'");
        for (const tr_option_t *o = rows[i].command->options; o->name != NULL;
             o++) {
            value_t value = value_of(o);

            if (o->kind == TR_OPTION_GROUP) {
                continue;
            }
            printf("complete -c tokenring -n '__fish_seen_subcommand_from %s' "
                   "-l %s",
                   rows[i].name, o->name);
            if (o->letter != '\0') {
                printf(" -s %c", o->letter);
            }
            printf("%s -d '", value == VALUE_NONE    ? ""
                              : value == VALUE_OTHER ? " -x"
                                                     : " -r -F");
            quoted(o->help, "");
            puts("'");
        }
    }
}

int
tr_completion_print(const tr_manual_row_t *rows, size_t n, const char *shell)
{
    static const struct {
        const char *name;
        void (*print)(const tr_manual_row_t *rows, size_t n);
    } shells[] = { { "bash", bash }, { "zsh", zsh }, { "fish", fish } };

    for (size_t i = 0; i < sizeof(shells) / sizeof(shells[0]); i++) {
        if (strcmp(shells[i].name, shell) == 0) {
            shells[i].print(rows, n);
            return 0;
        }
    }
    return -1;
}
