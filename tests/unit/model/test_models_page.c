/*
 * docs/models.md says what the program's tables say: every family and every
 * format of quantised weights has its line, and no other has one.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/model/model_families.h"
#include "engine/model/weights/packed.h"

static char page[1 << 16];

static int
load_page(void **state)
{
    FILE *f = fopen("docs/models.md", "r");
    size_t n;

    (void) state;
    assert_non_null(f);
    n = fread(page, 1, sizeof(page) - 1, f);
    page[n] = '\0';
    fclose(f);
    return n == 0;
}

/* Lines of a table in a section, without its head. */
static uint32_t
count_rows(const char *section)
{
    const char *p = strstr(page, section);
    uint32_t rows = 0;

    assert_non_null(p);
    p = strstr(p, "|---|");
    assert_non_null(p);
    for (p = strchr(p, '\n'); p != NULL && p[1] == '|';
         p = strchr(p + 1, '\n')) {
        rows++;
    }
    return rows;
}

static void
test_families(void **state)
{
    char names[TR_FAMILY_NAMES], row[64];
    uint32_t families = 0;

    (void) state;
    tr_family_names(names);
    for (char *p = names; *p != '\0'; families++) {
        size_t n = strcspn(p, ", ");

        snprintf(row, sizeof(row), "\n| `%.*s` |", (int) n, p);
        if (strstr(page, row) == NULL) {
            fail_msg("docs/models.md has no line of the family %.*s", (int) n,
                     p);
        }
        p += n;
        p += strncmp(p, ", ", 2) == 0 ? 2 : strncmp(p, " or ", 4) == 0 ? 4 : 0;
    }
    assert_true(families >= 15);
    assert_int_equal(count_rows("\n## Families\n"), families);
}

static void
test_formats(void **state)
{
    uint32_t rows = 0;
    char row[400];

    (void) state;
    for (const tr_packed_format_t *f = tr_packed_formats; f->name != NULL;
         f++) {
        for (int m = TR_QUANT_NONE + 1; m < TR_QUANT_METHODS; m++) {
            size_t n;

            if (!(f->methods & 1u << m)) {
                continue;
            }
            n = (size_t) snprintf(row, sizeof(row), "\n| `%s` | %s |",
                                  tr_quant_method_name((tr_quant_method_t) m),
                                  f->name);
            for (int i = 0; i < TR_PACKED_PARTS; i++) {
                if (f->part[i].name != NULL) {
                    n += (size_t) snprintf(row + n, sizeof(row) - n, "%s `%s`",
                                           i == 0 ? "" : ",", f->part[i].name);
                }
            }
            snprintf(row + n, sizeof(row) - n, " | %s | %s |\n",
                     f->kept & TR_PACKED_ON_CPU ? "packed" : "in 16 bits",
                     f->kept & TR_PACKED_ON_CUDA ? "packed" : "in 16 bits");
            if (strstr(page, row) == NULL) {
                fail_msg("docs/models.md has no line%s", row);
            }
            rows++;
        }
    }
    assert_true(rows >= 8);
    assert_int_equal(count_rows("\n## Formats of weights\n"), rows);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_formats),
    };

    return cmocka_run_group_tests(tests, load_page, NULL);
}
