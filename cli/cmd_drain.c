/*
 * tokenring drain: takes an engine out of service without losing a request.
 *
 * From now on the engine refuses what is new, and NGINX's workers turn to the
 * other engines of the same name; what is inside goes on to its end, however
 * long that takes; with --move, what can go on at another engine does so at
 * once.  The command shows how many requests are left until there
 * are none.  It says so in the hello of an ordinary connection (channel.h), and
 * only the engine's own user and root may.  Stopping the command changes
 * nothing: the engine stays drained until --undo.
 */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "client.h"
#include "options.h"
#include "ring_client.h"
#include "terminal.h"

#include "engine/base/clock.h"

#define CONNECT_MS 5000
#define LOOK_MS 200

static struct {
    bool leave, undo, move, json;
    double timeout;
    const char *path;
    tr_ring_client_t *client;
} g;

static tr_option_t options[] = {
    { "exit", 'x', TR_OPTION_FLAG, &g.leave, NULL,
      "then stop the engine's process", 0, 0, NULL, false },
    { "move", 'm', TR_OPTION_FLAG, &g.move, NULL,
      "hand what tokenring_migrate can move to other engines now", 0, 0, NULL,
      false },
    { "undo", 'u', TR_OPTION_FLAG, &g.undo, NULL, "take new requests again", 0,
      0, NULL, false },
    { "timeout", 't', TR_OPTION_NUMBER, &g.timeout, "SECONDS",
      "stop waiting (exit status 1); the engine stays drained", 0.1, 1e6, NULL,
      false },
    { "json", 0, TR_OPTION_FLAG, &g.json, NULL, "JSON, one object a line", 0, 0,
      NULL, false },
    { NULL, 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL, false }
};

const tr_command_t tr_drain_command = {
    "tokenring drain [options] NAME|SOCKET",
    "Tells a running engine to finish its requests and take no new ones, and "
    "waits\n"
    "until nothing is left.  NAME stands for /run/tokenring/NAME.sock.",
    "  tokenring drain main\n"
    "  tokenring drain --exit /run/tokenring/second.sock\n"
    "  tokenring drain --move --exit second",
    options
};

static int
complain(const char *what)
{
    fprintf(stderr, "tokenring drain: %s\n", what);
    return 1;
}

static void
say(const char *state, const char *text)
{
    if (g.json) {
        printf("{\"state\": \"%s\"}\n", state);
    } else {
        printf("%s\n", text);
    }
}

/* Waits for records that never come: notices the engine's hang-up, and a
 * signal.  True while the engine is there. */
static bool
look(tr_status_admission_t *a)
{
    tr_error_t err = { 0 };
    tr_ring_event_t event;
    tr_status_t rc = tr_ring_client_poll(g.client, LOOK_MS, &event, &err);

    tr_ring_client_admission(g.client, a);
    return rc == TR_AGAIN || rc == TR_OK;
}

/* The page shows what was asked a moment later; an engine that is being shut
 * down never shows READY again. */
static bool
wait_for_state(uint32_t state)
{
    uint64_t end = tr_now_us() + (uint64_t) CONNECT_MS * 1000;
    tr_status_admission_t a;

    do {
        tr_ring_client_admission(g.client, &a);
        if (a.state == state) {
            return true;
        }
    } while (look(&a) && tr_now_us() < end && !tr_interrupted());
    return a.state == state;
}

/* One line whenever the number of requests has changed. */
static void
show(const tr_status_admission_t *a, int64_t *shown)
{
    if (*shown != (int64_t) a->inside) {
        printf(g.json ? "{\"state\": \"draining\", \"requests\": %u, "
                        "\"running\": %u, \"waiting\": %u}\n"
                      : "%u requests left (%u running, %u waiting)\n",
               a->inside, a->running, a->waiting);
        fflush(stdout);
        *shown = a->inside;
    }
}

static int
wait_until_empty(void)
{
    uint64_t end = tr_now_us() + (uint64_t) (g.timeout * 1e6);
    tr_status_admission_t a;
    int64_t shown = -1;
    bool there;

    do {
        there = look(&a);
        if (there) {
            show(&a, &shown);
        }
        if (a.inside == 0 && (!there || !g.leave)) {
            say(there ? "drained" : "left",
                there ? "drained" : "drained, and the engine has exited");
            return 0;
        }
        if (!there) {
            return complain("the engine ended before its requests did");
        }
        if (a.state != TR_ENGINE_DRAINING) {
            return complain("somebody undid the drain");
        }
        if (g.timeout > 0 && tr_now_us() >= end) {
            return complain("timed out; the engine stays drained (--undo "
                            "reverts that)");
        }
    } while (!tr_interrupted());
    return complain("interrupted; the engine stays drained (--undo reverts "
                    "that)");
}

static int
drain(void)
{
    uint32_t request = g.undo              ? TR_DRAIN_UNDO
                       : g.move && g.leave ? TR_DRAIN_MOVE_LEAVE
                       : g.move            ? TR_DRAIN_MOVE
                       : g.leave           ? TR_DRAIN_LEAVE
                                           : TR_DRAIN_START;
    tr_error_t err = { 0 };

    if (tr_ring_client_drain(g.path, request, CONNECT_MS, &g.client, &err)
        != TR_OK) {
        return complain(err.text);
    }
    tr_interrupt_catch();
    if (g.undo) {
        if (!wait_for_state(TR_ENGINE_READY)) {
            return complain("the engine is shutting down");
        }
        say("ready", "it takes requests again");
        return 0;
    }
    /* an idle engine may leave at once */
    if (!wait_for_state(TR_ENGINE_DRAINING) && !g.leave) {
        return complain("the engine does not show that it is draining");
    }
    return wait_until_empty();
}

int
tr_cmd_drain(int argc, char **argv)
{
    char path[TR_SOCKET_BYTES];
    int first = tr_options_parse(&tr_drain_command, argc, argv), left, rc;

    /* options may also follow the engine */
    if (first >= 0 && first < argc) {
        g.path = argv[first];
        left = tr_options_parse(&tr_drain_command, argc - first, argv + first);
        first = left < 0 ? left : first + left;
    }
    if (first < 0) {
        return first == TR_OPTIONS_HELP ? 0 : 2;
    }
    if (g.path == NULL || first != argc) {
        return tr_usage_error(&tr_drain_command,
                              g.path == NULL ? "which engine? NAME or SOCKET"
                                             : "one engine at a time");
    }
    if (g.undo && (g.leave || g.move)) {
        return tr_usage_error(&tr_drain_command,
                              g.leave ? "--undo and --exit exclude each other"
                                      : "--undo and --move exclude each other");
    }
    g.path = tr_engine_socket(g.path, path);
    if (g.path == NULL) {
        return tr_usage_error(&tr_drain_command,
                              "NAME is longer than a socket's path "
                              "can be");
    }
    rc = drain();
    tr_ring_client_close(g.client);
    return rc;
}
