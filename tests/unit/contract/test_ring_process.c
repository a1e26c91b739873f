/*
 * Two processes on one channel, one of which is killed: at many random moments
 * in full flight, and after every so many single machine instructions of one
 * write or one read.  The survivor must see the hang-up on the socket, find
 * every record it gets whole and in order, and never find an impossible ring:
 * a killed peer is not a hostile one.
 */
#include "tests/unit/fixtures/ring_fixture.h"

#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#define CAPACITY TR_RING_MIN
#define PATIENCE_MS 60000

typedef struct {
    tr_channel_map_t map; /* shared by both processes */
    int memfd;
    int bell_consumer, bell_producer;
    int sock; /* this side's end; the other side's hang-up shows here */
    int peer_sock;
    uint32_t max;
    pid_t child;
} pair_t;

static void
pair_make(pair_t *p)
{
    int ends[2];

    assert_int_equal(tr_channel_create(64, CAPACITY, CAPACITY, 1, &p->map,
                                       &p->memfd),
                     TR_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends),
                     0);
    p->sock = ends[0];
    p->peer_sock = ends[1];
    p->bell_consumer = tr_doorbell_create();
    p->bell_producer = tr_doorbell_create();
    p->max = tr_ring_max_payload(CAPACITY);
    p->child = -1;
}

static void
pair_free(pair_t *p)
{
    tr_channel_unmap(&p->map);
    close(p->memfd);
    close(p->sock);
    close(p->bell_consumer);
    close(p->bell_producer);
}

/* Starts `work` in a child that owns the other end of the socket. */
static void
pair_fork(pair_t *p, void (*work)(pair_t *p))
{
    p->child = fork();
    assert_true(p->child >= 0);
    if (p->child == 0) {
        close(p->sock);
        p->sock = p->peer_sock;
        work(p);
        _exit(3); /* nobody gets here alive */
    }
    close(p->peer_sock);
}

static void
pair_reap(pair_t *p)
{
    int status;

    assert_int_equal(waitpid(p->child, &status, 0), p->child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
}

/* 1: rung, 0: the peer has gone, -1: neither in time.  bell -1: no bell. */
static int
pair_wait(pair_t *p, int bell)
{
    struct pollfd fds[2] = { { .fd = bell, .events = POLLIN },
                             { .fd = p->sock, .events = POLLIN } };
    char byte;

    if (poll(fds, 2, PATIENCE_MS) <= 0) {
        return -1;
    }
    if (fds[0].revents != 0) {
        tr_doorbell_drain(bell);
        return 1;
    }
    return recv(p->sock, &byte, 1, MSG_DONTWAIT) == 0 ? 0 : -1;
}

/* ---- in full flight ----------------------------------------------------- */

/* Puts numbered records until `count`, or until the peer has gone.  Returns how
 * many; *rc is the last status. */
static uint64_t
produce(pair_t *p, tr_ring_producer_t *ring, uint64_t from, uint64_t count,
        tr_status_t *rc)
{
    uint8_t scratch[CAPACITY];
    uint64_t n = from;

    while (n - from < count) {
        uint32_t len = ring_length(n, p->max);

        *rc = ring_put_number(ring, n, len, scratch);
        n += *rc == TR_OK;
        if (tr_ring_publish(ring)) {
            tr_doorbell_ring(p->bell_consumer);
        }
        if (*rc == TR_AGAIN) {
            *rc = tr_ring_wait_space(ring, len);
        }
        if (*rc == TR_AGAIN) {
            if (pair_wait(p, p->bell_producer) != 1) {
                return n - from;
            }
        } else if (*rc != TR_OK) {
            return n - from;
        }
    }
    return n - from;
}

/* Takes and checks records until `count`, or until the peer has gone and the
 * ring is empty.  Returns how many; *rc is TR_ERR_FORMAT for a torn record. */
static uint64_t
consume(pair_t *p, tr_ring_consumer_t *ring, uint64_t from, uint64_t count,
        tr_status_t *rc)
{
    uint8_t buf[CAPACITY];
    uint64_t n = from;
    tr_record_t rec;
    int gone = 0;

    while (n - from < count) {
        *rc = tr_ring_get(ring, &rec, buf, sizeof(buf));
        if (*rc == TR_OK) {
            if (!ring_is_number(&rec, buf, n, ring_length(n, p->max))) {
                *rc = TR_ERR_FORMAT;
                return n - from;
            }
            n++;
        }
        if (tr_ring_release(ring)) {
            tr_doorbell_ring(p->bell_producer);
        }
        if (*rc == TR_AGAIN) {
            if (gone) {
                return n - from;
            }
            *rc = tr_ring_sleep(ring);
            if (*rc == TR_AGAIN) {
                gone = pair_wait(p, p->bell_consumer) != 1;
            }
        }
        if (*rc != TR_OK && *rc != TR_AGAIN) {
            return n - from;
        }
    }
    return n - from;
}

static void
child_produces(pair_t *p)
{
    tr_ring_producer_t ring;
    tr_status_t rc;

    tr_ring_producer_init(&ring, p->map.request, p->map.request_data, CAPACITY);
    produce(p, &ring, 0, UINT64_MAX, &rc);
}

static void
child_consumes(pair_t *p)
{
    tr_ring_consumer_t ring;
    tr_status_t rc;

    tr_ring_consumer_init(&ring, p->map.request, p->map.request_data, CAPACITY);
    consume(p, &ring, 0, UINT64_MAX, &rc);
}

static void
test_killed_producer(void **state)
{
    uint64_t seed = 11, got, limit;
    tr_ring_consumer_t ring;
    tr_status_t rc;
    pair_t p;
    int round;

    (void) state;
    for (round = 0; round < 80; round++) {
        pair_make(&p);
        tr_ring_consumer_init(&ring, p.map.request, p.map.request_data,
                              CAPACITY);
        limit = tr_splitmix64(&seed) % 2000;
        pair_fork(&p, child_produces);
        got = consume(&p, &ring, 0, limit, &rc);
        assert_int_equal(got, limit);
        kill(p.child, SIGKILL);
        /* what it had published, then the hang-up */
        got += consume(&p, &ring, got, UINT64_MAX, &rc);
        assert_int_equal(rc, TR_AGAIN);
        assert_int_equal(ring.head, atomic_load(&p.map.request->tail));
        pair_reap(&p);
        assert_int_equal(pair_wait(&p, -1), 0);
        pair_free(&p);
    }
}

static void
test_killed_consumer(void **state)
{
    uint64_t seed = 12, put, limit;
    tr_ring_producer_t ring;
    tr_status_t rc;
    pair_t p;
    int round;

    (void) state;
    for (round = 0; round < 80; round++) {
        pair_make(&p);
        tr_ring_producer_init(&ring, p.map.request, p.map.request_data,
                              CAPACITY);
        limit = tr_splitmix64(&seed) % 2000;
        pair_fork(&p, child_consumes);
        put = produce(&p, &ring, 0, limit, &rc);
        assert_int_equal(put, limit);
        kill(p.child, SIGKILL);
        /* goes on until the ring is full, then sees the hang-up */
        produce(&p, &ring, put, UINT64_MAX, &rc);
        assert_int_equal(rc, TR_AGAIN);
        pair_reap(&p);
        assert_true(ring.tail - ring.head <= CAPACITY);
        pair_free(&p);
    }
}

/* ---- instruction by instruction ----------------------------------------- */

/* Stops before and after one write of two records, the first behind a PAD. */
static void
child_writes_once(pair_t *p)
{
    uint8_t scratch[CAPACITY];
    tr_ring_producer_t ring;

    tr_ring_producer_init(&ring, p->map.response, p->map.response_data,
                          CAPACITY);
    ring.tail = ring.published = ring.head = CAPACITY - 40;
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    ring_put_number(&ring, 1, 61, scratch);
    ring_put_number(&ring, 2, 9, scratch);
    tr_ring_publish(&ring);
    raise(SIGSTOP);
}

static void
child_reads_once(pair_t *p)
{
    uint8_t buf[CAPACITY];
    tr_ring_consumer_t ring;
    tr_record_t rec;

    tr_ring_consumer_init(&ring, p->map.response, p->map.response_data,
                          CAPACITY);
    ring.head = ring.released = ring.tail = CAPACITY - 40;
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    tr_ring_get(&ring, &rec, buf, sizeof(buf));
    tr_ring_release(&ring);
    raise(SIGSTOP);
}

/* Runs the child for at most `steps` instructions between its two stops, then
 * kills it.  Returns how many there were. */
static long
step_and_kill(pair_t *p, long steps)
{
    long done = 0;
    int status;

    assert_int_equal(waitpid(p->child, &status, WUNTRACED), p->child);
    assert_true(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    while (done < steps) {
        assert_int_equal(ptrace(PTRACE_SINGLESTEP, p->child, NULL, NULL), 0);
        assert_int_equal(waitpid(p->child, &status, 0), p->child);
        assert_true(WIFSTOPPED(status));
        if (WSTOPSIG(status) == SIGSTOP) {
            break; /* the second stop */
        }
        assert_int_equal(WSTOPSIG(status), SIGTRAP);
        done++;
    }
    kill(p->child, SIGKILL);
    pair_reap(p);
    return done;
}

static void
pair_at_the_end_of_the_ring(pair_t *p)
{
    pair_make(p);
    atomic_store(&p->map.response->tail, CAPACITY - 40);
    atomic_store(&p->map.response->head, CAPACITY - 40);
}

/* Kill points, spread over all instructions of the write. */
#define POINTS 120

static long
kill_while_writing(long steps, int *seen)
{
    tr_ring_consumer_t ring;
    uint8_t buf[CAPACITY];
    tr_record_t rec;
    tr_status_t rc;
    long done;
    pair_t p;
    int n;

    pair_at_the_end_of_the_ring(&p);
    pair_fork(&p, child_writes_once);
    done = step_and_kill(&p, steps);
    tr_ring_consumer_init(&ring, p.map.response, p.map.response_data, CAPACITY);
    ring.head = ring.released = ring.tail = CAPACITY - 40;
    for (n = 0;; n++) {
        rc = tr_ring_get(&ring, &rec, buf, sizeof(buf));
        if (rc != TR_OK) {
            break;
        }
        assert_true(
            ring_is_number(&rec, buf, (uint64_t) n + 1, n == 0 ? 61 : 9));
    }
    assert_int_equal(rc, TR_AGAIN);
    assert_true(n == 0 || n == 2); /* one publish, both or none */
    assert_int_equal(pair_wait(&p, -1), 0);
    *seen = n;
    pair_free(&p);
    return done;
}

static void
test_killed_at_any_instruction_of_a_write(void **state)
{
    int seen, none = 0, both = 0;
    long total, i;

    (void) state;
    total = kill_while_writing(10000000, &seen);
    assert_int_equal(seen, 2);
    for (i = 0; i <= POINTS; i++) {
        kill_while_writing(total * i / POINTS, &seen);
        none += seen == 0;
        both += seen == 2;
    }
    assert_true(none > 0 && both > 0);
}

static long
kill_while_reading(long steps, int *released)
{
    tr_ring_producer_t ring;
    uint8_t scratch[CAPACITY];
    uint64_t head;
    long done;
    pair_t p;

    pair_at_the_end_of_the_ring(&p);
    tr_ring_producer_init(&ring, p.map.response, p.map.response_data, CAPACITY);
    ring.tail = ring.published = ring.head = CAPACITY - 40;
    assert_int_equal(ring_put_number(&ring, 1, 61, scratch), TR_OK);
    tr_ring_publish(&ring);
    pair_fork(&p, child_reads_once);
    done = step_and_kill(&p, steps);
    head = atomic_load(&p.map.response->head);
    assert_true(head == CAPACITY - 40 || head == CAPACITY + 80);
    *released = head == CAPACITY + 80;
    /* the survivor's view of the space is sane, and the hang-up is seen */
    assert_int_not_equal(tr_ring_wait_space(&ring, p.max), TR_ERR_PROTOCOL);
    assert_int_equal(ring.head, head);
    assert_int_equal(pair_wait(&p, -1), 0);
    pair_free(&p);
    return done;
}

static void
test_killed_at_any_instruction_of_a_read(void **state)
{
    int released, kept = 0, given = 0;
    long total, i;

    (void) state;
    total = kill_while_reading(10000000, &released);
    assert_int_equal(released, 1);
    for (i = 0; i <= POINTS; i++) {
        kill_while_reading(total * i / POINTS, &released);
        given += released;
        kept += !released;
    }
    assert_true(kept > 0 && given > 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_producer),
        cmocka_unit_test(test_killed_consumer),
        cmocka_unit_test(test_killed_at_any_instruction_of_a_write),
        cmocka_unit_test(test_killed_at_any_instruction_of_a_read),
    };

    return cmocka_run_group_tests_name("ring_process", tests, NULL, NULL);
}
