/*
 * An engine that does what a test asks: correct, slow, dead or hostile.
 *
 *     fake_engine SOCKET [--refuse | --mute | --full | --draining | --stalled |
 *                         --stuck | --plain | --picky | --other | --restart]
 *
 * It speaks the channel (include/tokenring) and computes nothing.  What happens
 * to a request is in its body, which is searched, not parsed:
 *
 *     {"fake": "BEHAVIOUR", "count": N, "ms": N, "choices": N, "stream": true,
 *      "include_usage": true, "logprobs": true}
 *
 *     tokens       count tokens "t0 t1 ...", one every ms (0: at once)
 *     deaf         the same, but a pause is not heard
 *     length       one token: how many bytes the body had, and their sum
 *     never        nothing, but an abort is answered
 *     silent       nothing at all
 *     die          count tokens, then the process ends
 *     error        ERROR with status -count, before anything else
 *     late_error   count tokens, then ERROR
 *     abort        count tokens, then FINISH(aborted) that nobody asked for
 *     dies         at a border between records (fake_engine_dies.c)
 *     moves        "first" tokens, then ERROR with status -"leave" (10,
 *                  DRAINING); the replay is refused "refuse" times with
 *                  status -"status" (7), then goes on to count tokens, but
 *                  has the error "again" times more, "step" tokens later each
 *     escapes      one token with everything that JSON must escape
 *     items        reasoning, text, and count calls
 *     arguments    two calls: arguments with a backslash before a NUL, and
 *                  with a byte that is no UTF-8
 *     late_ears    count tokens at once, and only then an abort is heard
 *     leaves       ACCEPTED, then ERROR with DRAINING; where it comes again,
 *                  FINISH(aborted) before ACCEPTED.  An abort is not heard
 *     hostile_X    ACCEPTED, one token, then what X in fake_put_hostile() says;
 *                  hostile_flood also ends the process, 20 s later at most
 *
 * On the command line: --refuse answers every HELLO with another version,
 * --mute never answers, --stuck has a step loop that answers no ping, --plain
 * knows no ITEMs and ends when it is told a model, --picky refuses every replay of "moves" with status -"picky",
 * --other has another KV policy and ends when it gets a replay, --restart begins
 * anew when it has died, the others show that state on the status page.
 * One thread, no allocation after a channel is made; it ends on SIGTERM.
 */
#include "fake_engine.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

#define CHANNELS 16
#define RING_PAYLOAD_MAX (TR_RING_MAX / 4)

static fake_channel_t channels[CHANNELS];
static tr_status_page_t *page;
static int status_fd;
static uint8_t *scratch;
static bool refuse, mute, stuck, plain, picky, other;
static uint32_t refused;     /* replays, since one was accepted */
static uint32_t given;       /* up, since it was new */
static bool left;            /* one request of "leaves" has its error */
static volatile pid_t child; /* of --restart */
volatile sig_atomic_t fake_stopping;

static void
on_signal(int signo)
{
    fake_stopping = 1;
    if (child > 0) {
        kill(child, signo);
    }
}

uint64_t
fake_now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t) ts.tv_sec * 1000000 + (uint64_t) ts.tv_nsec / 1000;
}

void
fake_die(const char *what)
{
    fprintf(stderr, "fake_engine: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- requests ----------------------------------------------------------- */

static void
request_free(fake_request_t *r)
{
    memset(r, 0, sizeof(*r));
}

/* Takes the replay block, which is in the first part. */
static void
take_replay(fake_request_t *r, uint32_t replay_len, const tr_wire_bytes_t *in)
{
    tr_wire_replay_choice_t choice;
    tr_wire_replay_t head;
    tr_wire_bytes_t rest, ids;
    uint32_t i;

    if (in->len < replay_len
        || tr_wire_replay_parse(in->data, replay_len, &head, &rest) != TR_OK) {
        fprintf(stderr, "fake_engine: a replay block that is not whole\n");
        exit(1);
    }
    for (i = 0; i < head.choices; i++) {
        if (tr_wire_replay_next(&rest, &choice, &ids) != TR_OK) {
            fprintf(stderr, "fake_engine: a malformed replay block\n");
            exit(1);
        }
        r->sent += choice.tokens;
        if (i < FAKE_CHOICES) {
            r->told[i] = choice.tokens;
            r->reason[i] = choice.reason;
        }
    }
    if (other) {
        fprintf(stderr, "fake_engine: a replay with a policy of others\n");
        exit(1);
    }
    r->replay = true;
    r->replay_left = replay_len;
}

static void
take_submit(fake_channel_t *c, const tr_record_t *rec)
{
    fake_request_t *r = &c->slot[TR_ID_SLOT(rec->id) % SLOTS];
    const uint8_t *at = scratch;
    size_t len = rec->length;
    tr_wire_submit_t head;
    tr_wire_bytes_t body;
    size_t i, skip;

    if (r->id != rec->id) {
        if (tr_wire_submit_parse(scratch, len, &head, &body) != TR_OK) {
            fprintf(stderr, "fake_engine: a malformed SUBMIT\n");
            exit(1);
        }
        request_free(r);
        r->id = rec->id;
        r->endpoint = head.endpoint;
        r->share = head.share;
        r->with_ids = (head.flags & TR_SUBMIT_IDS) != 0;
        if (plain && head.model_len != 0) {
            fprintf(stderr,
                    "fake_engine: a model, which it knows nothing of\n");
            exit(1);
        }
        if (head.replay_len != 0) {
            take_replay(r, head.replay_len, &body);
        }
        at = (const uint8_t *) body.data;
        len = body.len;
    }
    skip = len < r->replay_left ? len : r->replay_left;
    r->replay_left -= (uint32_t) skip;
    at += skip;
    len -= skip;
    for (i = 0; i < len; i++) {
        r->body_sum += at[i];
        if (r->kept < BODY_KEPT) {
            r->body[r->kept++] = (char) at[i];
        }
    }
    r->body_len += len;
    r->complete = (rec->flags & TR_FLAG_MORE) == 0;
}

static void
finish_all(fake_channel_t *c, fake_request_t *r, uint16_t reason)
{
    uint32_t i, n = fake_body_number(r, "choices", 1);

    for (i = 0; i < n; i++) {
        fake_put_finish(c, r, i, reason, i + 1 == n);
    }
    request_free(r);
}

/* One that has moved: is it to do so again? */
static bool
moves_again(const fake_request_t *r)
{
    uint32_t step = fake_body_number(r, "step", 1);

    return r->accepted && given < fake_body_number(r, "again", 0)
           && r->sent >= fake_body_number(r, "first", 1) + step * (given + 1);
}

/* A request that moves: true if it was refused, or has left. */
static bool
moves_on(fake_channel_t *c, fake_request_t *r)
{
    if (r->replay && picky) {
        fake_put_error(c, r, -(int) fake_body_number(r, "picky", 2));
    } else if (r->replay && moves_again(r)) {
        given++;
        fake_put_error(c, r, -(int) fake_body_number(r, "leave", 10));
    } else if (r->replay) {
        if (r->accepted || refused >= fake_body_number(r, "refuse", 0)) {
            refused = r->accepted ? refused : 0;
            return false;
        }
        refused++;
        fake_put_error(c, r, -(int) fake_body_number(r, "status", 7));
    } else {
        if (r->sent < fake_body_number(r, "first", 1)) {
            return false;
        }
        refused = given = 0;
        fake_put_error(c, r, -(int) fake_body_number(r, "leave", 10));
    }
    request_free(r);
    return true;
}

/* Is there room for all that one step may say? */
static bool
has_room(fake_channel_t *c)
{
    if (tr_ring_space(&c->answers) < 256) {
        return false;
    }
    return tr_ring_space(&c->responses) >= 65536 / 4 / 2
           || tr_ring_space(&c->responses) >= c->map.response_capacity / 8;
}

/* A request that is sent away, before an answer or amid it: true if it was. */
static bool
sends_away(fake_channel_t *c, fake_request_t *r)
{
    if (fake_body_is(r, "moves") && moves_on(c, r)) {
        return true;
    }
    if (fake_body_is(r, "leaves") && (left || r->accepted)) {
        if (left) {
            fake_put_finish(c, r, 0, TR_FINISH_ABORTED, true);
        } else {
            fake_put_error(c, r, TR_ERR_DRAINING);
        }
        left = !left;
        request_free(r);
        return true;
    }
    if (!r->accepted && fake_body_is(r, "error")) {
        fake_put_error(c, r, -(int) fake_body_number(r, "count", 2));
        request_free(r);
        return true;
    }
    return false;
}

/* A request that is answered in one step: true if it was. */
static bool
answers_at_once(fake_channel_t *c, fake_request_t *r, uint32_t choices)
{
    char text[128];
    uint32_t i;
    int len;

    if (fake_body_is(r, "escapes")) {
        static const char all[] = "\"\\/\b\f\n\r\t\x01\x1f\x7f <>&"
                                  "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"
                                  "\xff\xc0\x80\xed\xa0\x80\xe2\x82";
        fake_put_text(c, r, 0, all, sizeof(all) - 1);
        r->sent = 1;
        finish_all(c, r, TR_FINISH_STOP);
        return true;
    }
    if (fake_body_is(r, "items")) {
        for (i = 0; i < choices; i++) {
            fake_put_items(c, r, i);
        }
        finish_all(c, r, TR_FINISH_TOOL_CALLS);
        return true;
    }
    if (fake_body_is(r, "arguments")) {
        fake_put_arguments(c, r);
        finish_all(c, r, TR_FINISH_TOOL_CALLS);
        return true;
    }
    if (fake_body_is(r, "share")) {
        len = snprintf(text, sizeof(text), "%u", r->share);
        fake_put_text(c, r, 0, text, (size_t) len);
        r->sent = 1;
        finish_all(c, r, TR_FINISH_STOP);
        return true;
    }
    if (fake_body_is(r, "length")) {
        len = snprintf(text, sizeof(text), "%llu %llu",
                       (unsigned long long) r->body_len,
                       (unsigned long long) r->body_sum);
        fake_put_text(c, r, 0, text, (size_t) len);
        r->sent = 1;
        finish_all(c, r, TR_FINISH_STOP);
        return true;
    }
    return false;
}

/* The next token of each choice. */
static void
say_token(fake_channel_t *c, fake_request_t *r, uint32_t choices)
{
    char text[128];
    uint32_t i;
    int len;

    for (i = 0; i < choices; i++) {
        len = snprintf(text, sizeof(text), "t%u ", r->sent / choices);
        if (fake_body_true(r, "include_kv")) {
            fake_put_kv(c, r, i);
        }
        fake_put_text(c, r, i, text, (size_t) len);
    }
    r->sent += choices;
}

/* What follows the last token.  False: nothing, for now. */
static bool
say_end(fake_channel_t *c, fake_request_t *r)
{
    const char *how = fake_body_value(r, "fake");
    char what[128];

    if (fake_body_is(r, "die")) {
        tr_ring_publish(&c->answers);
        tr_ring_publish(&c->responses);
        _exit(9);
    }
    if (fake_body_is(r, "late_ears")) {
        return false;
    }
    if (fake_body_is(r, "late_error")) {
        fake_put_error(c, r, TR_ERR_INTERNAL);
        request_free(r);
    } else if (fake_body_is(r, "abort")) {
        finish_all(c, r, TR_FINISH_ABORTED);
    } else if (how && strncmp(how, "\"hostile_", 9) == 0) {
        snprintf(what, sizeof(what), "%.*s", (int) strcspn(how + 9, "\""),
                 how + 9);
        fake_put_hostile(c, r, what);
    } else {
        finish_all(c, r, TR_FINISH_STOP);
    }
    return true;
}

/* The next token, or what follows the last one.  False: not now. */
static bool
step(fake_channel_t *c, fake_request_t *r)
{
    uint32_t choices = fake_body_number(r, "choices", 1);

    if (!has_room(c)) {
        return false;
    }
    if (sends_away(c, r)) {
        return true;
    }
    if (fake_body_is(r, "dies")) {
        fake_dies(c, r);
        return true;
    }
    if (!r->accepted) {
        r->accepted = true;
        fake_put_accepted(c, r);
        return true;
    }
    if (answers_at_once(c, r, choices)) {
        return true;
    }
    if (r->sent < fake_body_number(r, "count", 1) * choices) {
        say_token(c, r, choices);
        return true;
    }
    return say_end(c, r);
}

/* Advances a request as far as time and space let it; true: wants more. */
static bool
advance(fake_channel_t *c, fake_request_t *r, uint64_t now)
{
    uint32_t command, budget = 256, ms;

    if (r->id == 0 || !r->complete || r->ended || fake_body_is(r, "silent")) {
        return false;
    }
    command = tr_control_get(&c->map, r->id);
    if (fake_body_is(r, "leaves")
        || (fake_body_is(r, "late_ears")
            && r->sent < fake_body_number(r, "count", 1))) {
        command = 0;
    }
    if (command & TR_CONTROL_ABORT) {
        fake_put_finish(c, r, 0, TR_FINISH_ABORTED, true);
        request_free(r);
        return false;
    }
    if (command & TR_CONTROL_END) {
        finish_all(c, r, TR_FINISH_LENGTH);
        return false;
    }
    if (fake_body_is(r, "never")
        || ((command & TR_CONTROL_PAUSE) && !fake_body_is(r, "deaf"))) {
        return false;
    }
    ms = fake_body_number(r, "ms", 0);
    while (r->id != 0 && !r->ended && budget-- > 0) {
        if (r->next_us > now) {
            return true;
        }
        if (!step(c, r)) {
            return true;
        }
        if (r->accepted && ms != 0 && r->sent > 0) {
            r->next_us = now + 1000ull * ms;
        }
    }
    return r->id != 0 && !r->ended;
}

/* ---- channels ----------------------------------------------------------- */

static void
channel_close(fake_channel_t *c)
{
    close(c->sock);
    c->sock = -1;
    if (c->open) {
        close(c->to_engine);
        close(c->to_peer);
        tr_channel_unmap(&c->map);
        free(c->slot);
        c->open = false;
    }
}

static void
channel_accept(int listener)
{
    int i, sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

    for (i = 0; i < CHANNELS; i++) {
        if (channels[i].sock == -1) {
            channels[i].sock = sock;
            return;
        }
    }
    close(sock);
}

static void
channel_hello(fake_channel_t *c)
{
    int fds[TR_CHANNEL_FDS], memfd;
    tr_welcome_t welcome;
    tr_hello_t hello;
    ssize_t n = recv(c->sock, &hello, sizeof(hello), 0);

    if (n != (ssize_t) sizeof(hello) || c->open) {
        channel_close(c);
        return;
    }
    if (mute) {
        return;
    }
    if (refuse) {
        hello.version_min = hello.version_max = TR_ABI_VERSION + 7;
    }
    if (tr_hello_answer(&hello, page->generation, &welcome) != TR_OK) {
        if (refuse) {
            welcome.version_min = welcome.version_max = TR_ABI_VERSION + 7;
        }
        tr_fds_send(c->sock, &welcome, sizeof(welcome), NULL, 0);
        channel_close(c);
        return;
    }
    if (plain) {
        welcome.features[0] &= ~(TR_FEATURE_ITEMS | TR_FEATURE_MODEL);
    }
    if (tr_channel_create(SLOTS, hello.request_ring, hello.response_ring,
                          page->generation, &c->map, &memfd)
        != TR_OK) {
        fake_die("channel");
    }
    c->slot = calloc(SLOTS, sizeof(fake_request_t));
    c->to_engine = tr_doorbell_create();
    c->to_peer = tr_doorbell_create();
    c->open = true;
    c->wrecked = c->trap = false;
    tr_ring_consumer_init(&c->requests, c->map.request, c->map.request_data,
                          c->map.request_capacity);
    tr_ring_producer_init(&c->answers, c->map.answer, c->map.answer_data,
                          c->map.answer_capacity);
    tr_ring_producer_init(&c->responses, c->map.response, c->map.response_data,
                          c->map.response_capacity);
    fds[TR_FD_CHANNEL] = memfd;
    fds[TR_FD_TO_ENGINE] = c->to_engine;
    fds[TR_FD_TO_PEER] = c->to_peer;
    fds[TR_FD_STATUS] = status_fd;
    if (tr_fds_send(c->sock, &welcome, sizeof(welcome), fds, TR_CHANNEL_FDS)
        != 0) {
        channel_close(c);
    }
    close(memfd);
}

/* Somebody waits for space: there comes more than there can be. */
static void
spring(fake_channel_t *c)
{
    if (atomic_load(&c->map.request->producer_waiting) != 0) {
        c->trap = false;
        atomic_store(&c->map.request->head, UINT64_MAX - 7);
        tr_doorbell_ring(c->to_peer);
    }
}

/* Drains the requests and advances all; true: do not sleep long. */
static bool
channel_run(fake_channel_t *c, uint32_t *running)
{
    uint64_t now = fake_now_us();
    tr_record_t rec;
    bool busy = false;
    uint32_t w, i;
    int rung;

    if (c->trap) {
        spring(c);
    }
    if (c->wrecked) {
        return false;
    }
    tr_doorbell_drain(c->to_engine);
    while (tr_ring_get(&c->requests, &rec, scratch, RING_PAYLOAD_MAX)
           == TR_OK) {
        if (rec.type == TR_RECORD_SUBMIT) {
            take_submit(c, &rec);
        }
    }
    if (tr_channel_pinged(&c->map) && !stuck) {
        tr_channel_pong(&c->map);
    }
    for (w = 0; w < c->map.slots / 64; w++) {
        tr_control_take(&c->map, w);
    }
    if (tr_ring_release(&c->requests)) {
        tr_doorbell_ring(c->to_peer);
    }
    for (i = 0; i < SLOTS; i++) {
        if (c->slot[i].id != 0) {
            (*running)++;
            busy |= advance(c, &c->slot[i], now);
        }
    }
    if (c->wrecked) {
        return false;
    }
    rung = tr_ring_publish(&c->answers); /* ahead of their output */
    if (tr_ring_publish(&c->responses) || rung) {
        tr_doorbell_ring(c->to_peer);
    }
    return busy || tr_channel_sleep(&c->map, &c->requests) != TR_AGAIN;
}

static void
publish(uint32_t state, uint32_t running, bool full, bool stalled)
{
    tr_status_admission_t a;

    memset(&a, 0, sizeof(a));
    a.state = state;
    a.running = stalled ? 1 : running;
    a.queue_free = full ? 0 : 1000;
    a.last_step_us = stalled ? 1 : fake_now_us();
    a.kv_free_pages = 75;
    a.kv_used_pages[0] = 25;
    tr_status_publish(page, &a);
}

static int
listen_at(const char *path)
{
    struct sockaddr_un addr;
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memset(&addr, 0, sizeof(addr));
    addr.sun_family = AF_UNIX;
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
    unlink(path);
    if (s == -1 || bind(s, (struct sockaddr *) &addr, sizeof(addr)) != 0
        || chmod(path, 0666) != 0 || listen(s, 64) != 0) {
        fake_die(path);
    }
    return s;
}

static void
serve(int listener, uint32_t state, bool full, bool stalled)
{
    bool busy = false;

    while (!fake_stopping) {
        struct pollfd p[1 + 2 * CHANNELS];
        uint32_t running = 0;
        int i;

        p[0] = (struct pollfd){ listener, POLLIN, 0 };
        for (i = 0; i < CHANNELS; i++) {
            fake_channel_t *c = &channels[i];

            p[1 + 2 * i] = (struct pollfd){ c->sock, POLLIN, 0 };
            p[2 + 2 * i] = (struct pollfd){
                c->open && !c->wrecked ? c->to_engine : -1, POLLIN, 0
            };
        }
        if (poll(p, 1 + 2 * CHANNELS, busy ? 1 : 50) == -1 && errno != EINTR) {
            fake_die("poll");
        }
        busy = false;
        for (i = 0; i < CHANNELS; i++) {
            if (channels[i].sock != -1 && p[1 + 2 * i].revents != 0) {
                channel_hello(&channels[i]);
            }
            if (channels[i].open) {
                busy |= channel_run(&channels[i], &running);
            }
        }
        if (p[0].revents != 0) {
            channel_accept(listener);
        }
        publish(state, running, full, stalled);
    }
}

/* --restart: returns in each new process, until one ends on a signal. */
static void
keep_alive(void)
{
    int status;

    while (!fake_stopping) {
        child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            return;
        }
        if (child == -1) {
            fake_die("fork");
        }
        waitpid(child, &status, 0);
        if (!fake_stopping
            && (!WIFEXITED(status) || WEXITSTATUS(status) != 9)) {
            fprintf(stderr, "fake_engine: ended with status %x\n", status);
        }
    }
    exit(0);
}

int
main(int argc, char **argv)
{
    const char *mode = argc > 2 ? argv[2] : "";
    uint32_t state = TR_ENGINE_READY;
    int i, listener;

    if (argc < 2) {
        fprintf(stderr, "usage: fake_engine SOCKET [--refuse | --mute | "
                        "--full | --draining | --stalled | --stuck | "
                        "--plain | --picky | --other | --restart]\n");
        return 2;
    }
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    if (strcmp(mode, "--restart") == 0) {
        keep_alive();
    }
    refuse = strcmp(mode, "--refuse") == 0;
    mute = strcmp(mode, "--mute") == 0;
    stuck = strcmp(mode, "--stuck") == 0;
    plain = strcmp(mode, "--plain") == 0;
    picky = strcmp(mode, "--picky") == 0;
    other = strcmp(mode, "--other") == 0;
    if (strcmp(mode, "--draining") == 0) {
        state = TR_ENGINE_DRAINING;
    }
    scratch = malloc(RING_PAYLOAD_MAX);
    if (scratch == NULL
        || tr_status_create((uint64_t) getpid() + 1, &page, &status_fd)
               != TR_OK) {
        fake_die("status page");
    }
    snprintf(page->card.model, sizeof(page->card.model),
             "fake/\"model\"\t\\\n\x7f\xff%cfake", '\0');
    snprintf(page->card.engine, sizeof(page->card.engine), "fake");
    /* without an end */
    memset(page->card.kv_policies, 'x', sizeof(page->card.kv_policies));
    memcpy(page->card.kv_policies,
           other ? "a\"b\\ \xff fake\"polic: " : "a\"b\\ \xff fake\"policy ",
           19);
    snprintf(page->card.level_name[0], sizeof(page->card.level_name[0]),
             "16/16");
    memset(page->card.model_id, FAKE_MODEL_ID, sizeof(page->card.model_id));
    page->card.created = 1700000000;
    page->card.max_model_len = 4096;
    page->card.kv_pages = 100;
    page->card.kv_levels = 1;
    for (i = 0; i < CHANNELS; i++) {
        channels[i].sock = -1;
    }
    listener = listen_at(argv[1]);
    publish(state, 0, strcmp(mode, "--full") == 0,
            strcmp(mode, "--stalled") == 0);
    serve(listener, state, strcmp(mode, "--full") == 0,
          strcmp(mode, "--stalled") == 0);
    unlink(argv[1]);
    return 0;
}
