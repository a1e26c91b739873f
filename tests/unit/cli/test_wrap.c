/*
 * Words that stream are not broken at the edge: whatever pieces they come in,
 * the same lines come out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/wrap.h"

/* Bytes of the character at p. */
static size_t
character(const char *p)
{
    unsigned char c = (unsigned char) *p;

    return c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
}

/* What comes out of text at this width, when it comes in pieces of so many
 * characters. */
static char *
wrapped(const char *text, unsigned width, unsigned piece)
{
    char *out = NULL;
    size_t size = 0, n;
    FILE *f = open_memstream(&out, &size);
    tr_wrap_t w;

    assert_non_null(f);
    tr_wrap_init(&w, f, width);
    for (; *text != '\0'; text += n) {
        n = 0;
        for (unsigned i = 0; i < piece && text[n] != '\0'; i++) {
            n += character(text + n);
        }
        tr_wrap_text(&w, text, n);
    }
    tr_wrap_end(&w);
    fclose(f);
    return out;
}

static void
expect(const char *text, unsigned width, const char *want)
{
    for (unsigned piece = 1; piece < 40; piece++) {
        char *got = wrapped(text, width, piece);

        if (strcmp(got, want) != 0) {
            fail_msg("pieces of %u: \"%s\"\nexpected \"%s\"", piece, got, want);
        }
        free(got);
    }
}

static void
test_words_go_to_the_next_line(void **state)
{
    (void) state;
    expect("one two three four", 8, "one two\nthree\nfour");
    expect("one two three four", 80, "one two three four");
    expect("12345678 1 12345678", 8, "12345678\n1\n12345678");
    expect("a\n\n  b c", 8, "a\n\n  b c");
    expect("trailing \nnext", 20, "trailing\nnext");
    expect("", 8, "");
}

static void
test_a_long_word_is_left_to_the_terminal(void **state)
{
    (void) state;
    expect("ab 123456789012 c", 8, "ab\n123456789012 c");
}

static void
test_wide_characters_count_twice(void **state)
{
    (void) state;
    expect("漢字 漢字 漢字", 9, "漢字 漢字\n漢字");
    expect("éé éé éé", 5, "éé éé\néé");
}

static void
test_pipes_get_all_as_it_is(void **state)
{
    (void) state;
    expect("one  two \n three", 0, "one  two \n three");
}

/* A word larger than what is held back loses nothing. */
static void
test_any_length(void **state)
{
    size_t n = 5 * TR_WRAP_WORD;
    char *text = malloc(n + 1), *got;

    (void) state;
    assert_non_null(text);
    memset(text, 'x', n);
    text[n] = '\0';
    got = wrapped(text, 80, 100);
    assert_string_equal(got, text);
    free(got);
    free(text);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words_go_to_the_next_line),
        cmocka_unit_test(test_a_long_word_is_left_to_the_terminal),
        cmocka_unit_test(test_wide_characters_count_twice),
        cmocka_unit_test(test_pipes_get_all_as_it_is),
        cmocka_unit_test(test_any_length),
    };

    setlocale(LC_CTYPE, "C.UTF-8");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
