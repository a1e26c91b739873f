/*
 * What both sides call alike: statuses, ids of requests, endpoints.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <tokenring/channel.h>
#include <tokenring/endpoint.h>
#include <tokenring/error.h>
#include <tokenring/wire.h>

/* What a status looks like from outside; an unknown one, from a newer engine,
 * is an internal error and not a crash. */
static void
test_status_table(void **state)
{
    tr_status_info_t info;

    (void) state;
#define ROW(name_, value_, http_, type_, code_, level_) \
    info = tr_status_info(name_);                       \
    assert_int_equal(name_, value_);                    \
    assert_string_equal(info.name, #name_);             \
    assert_int_equal(info.http, http_);                 \
    assert_true(info.http == 200 || (value_) < 0);
    TR_STATUS_TABLE(ROW)
#undef ROW
    info = tr_status_info(TR_ERR_CONTEXT_LENGTH);
    assert_int_equal(info.http, 400);
    assert_string_equal(info.code, "context_length_exceeded");
    assert_string_equal(info.type, "invalid_request_error");
    info = tr_status_info(TR_ERR_QUEUE_FULL);
    assert_int_equal(info.http, 429);
    info = tr_status_info(-12345);
    assert_int_equal(info.http, 500);
    assert_string_equal(info.name, "TR_ERR_INTERNAL");
}

static void
test_ids(void **state)
{
    uint64_t id = TR_ID(0xfffffffe, 0x80000001);

    (void) state;
    assert_int_equal(TR_ID_SLOT(id), 0xfffffffe);
    assert_int_equal(TR_ID_GENERATION(id), 0x80000001);
}

static void
test_endpoints(void **state)
{
    const tr_endpoint_info_t *info;
    unsigned i;

    (void) state;
    /* what was released stays */
    assert_int_equal(TR_ENDPOINT_CHAT, 1);
    assert_string_equal(tr_endpoint_info(1)->name, "chat");
    assert_string_equal(tr_endpoint_info(1)->path, "chat/completions");
    assert_int_equal(TR_ENDPOINT_COMPLETIONS, 2);
    assert_string_equal(tr_endpoint_info(2)->name, "completions");
    assert_string_equal(tr_endpoint_info(2)->path, "completions");
    for (i = 1; i < TR_ENDPOINTS; i++) {
        info = tr_endpoint_info(i);
        assert_non_null(info);
        assert_int_equal(tr_endpoint_by_name(info->name, strlen(info->name)),
                         i);
        assert_int_equal(tr_endpoint_by_path(info->path, strlen(info->path)),
                         i);
    }
    /* what is none is not taken for another */
    assert_null(tr_endpoint_info(0));
    assert_null(tr_endpoint_info(TR_ENDPOINTS));
    assert_null(tr_endpoint_info(UINT16_MAX));
    assert_int_equal(tr_endpoint_by_name("", 0), 0);
    assert_int_equal(tr_endpoint_by_name("chat", 3), 0);
    assert_int_equal(tr_endpoint_by_name("chats", 5), 0);
    assert_int_equal(tr_endpoint_by_path("Completions", 11), 0);
    assert_int_equal(tr_endpoint_by_path("completions/", 12), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_table),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_endpoints),
    };

    return cmocka_run_group_tests_name("names", tests, NULL, NULL);
}
