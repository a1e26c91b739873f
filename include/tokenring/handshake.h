/*
 * The handshake: how a worker gets its channel (channel.h).
 *
 * It sends tr_hello_t over the engine's Unix socket.  The engine answers with
 * tr_welcome_t and four descriptors, or with refused != 0, both version ranges
 * named in `message`, and none.  Both messages keep their size in all versions.
 *
 * The version covers what both sides must understand.  What one of them may do
 * without goes by feature bits: each side tells its own, and a feature is used
 * where both have it (tr_features).
 */
#ifndef TOKENRING_HANDSHAKE_H
#define TOKENRING_HANDSHAKE_H

#include <stdint.h>
#include <sys/types.h>

#include <tokenring/error.h>

#define TR_CHANNEL_MAGIC 0x4c454e4e41484354ull /* "TCHANNEL" */
#define TR_ABI_VERSION 4u     /* of channels, rings, records and status page */
#define TR_ABI_VERSION_MIN 4u /* oldest still spoken; 0.2.0 had 3 */

/* Bits of features[0]; features[1] is for more, and 0. */
#define TR_FEATURE_IDS 0x01u    /* TR_SUBMIT_IDS: DELTAs carry token ids */
#define TR_FEATURE_REPLAY 0x02u /* SUBMIT may have a replay block */
#define TR_FEATURE_ALLOW 0x04u  /* TR_SUBMIT_METERED: allowances bind */
#define TR_FEATURE_PING 0x08u   /* the pulse (channel.h) is answered */
/* ITEM, RESULT, ECHO, FINISH's tail, and endpoints beyond chat and completions.
 * For a worker without it, an engine parses no reasoning and refuses tools; an
 * engine without it gets no other endpoint's requests, and none that moves. */
#define TR_FEATURE_ITEMS 0x10u
/* SUBMIT may name the model that was read in the body, and the engine compares.
 * One without it gets no request whose place was chosen by that name: who may use
 * a model would be what the gateway reads, and what runs what the engine reads. */
#define TR_FEATURE_MODEL 0x20u
#define TR_FEATURES                                                          \
    (TR_FEATURE_IDS | TR_FEATURE_REPLAY | TR_FEATURE_ALLOW | TR_FEATURE_PING \
     | TR_FEATURE_ITEMS | TR_FEATURE_MODEL)

enum tr_connection_role { TR_ROLE_WORKER = 1, TR_ROLE_CLI = 2 };

/* What a command line asks of the engine itself.  Only the engine's own user
 * and root may (SO_PEERCRED); others are refused. */
enum tr_drain_request {
    TR_DRAIN_NONE = 0,
    TR_DRAIN_START = 1, /* nothing new; what is inside goes on to its end */
    TR_DRAIN_LEAVE = 2, /* the same, then the process ends */
    TR_DRAIN_UNDO = 3,  /* takes new requests again */
    /* as the first two, and what can go on at another engine ends here */
    TR_DRAIN_MOVE = 4,
    TR_DRAIN_MOVE_LEAVE = 5
};

/* worker -> engine, first bytes on the socket */
typedef struct {
    uint64_t magic; /* TR_CHANNEL_MAGIC */
    uint32_t version_min, version_max;
    uint32_t role;         /* enum tr_connection_role */
    uint32_t slots;        /* wanted, 0: default; engine rounds and bounds */
    uint32_t request_ring; /* wanted capacity in bytes, 0: default */
    uint32_t response_ring;
    uint32_t drain; /* enum tr_drain_request, of TR_ROLE_CLI */
    uint32_t reserved[3];
    uint32_t features[2]; /* of the peer */
} tr_hello_t;             /* 56 bytes */

#define TR_WELCOME_MESSAGE 152

/* engine -> worker */
typedef struct {
    uint64_t magic;
    uint32_t refused;                  /* 0: welcome, descriptors attached */
    uint32_t version;                  /* chosen; when refused: 0 */
    uint32_t version_min, version_max; /* what the engine speaks */
    uint64_t generation; /* of the engine run, same as on the status page */
    char message[TR_WELCOME_MESSAGE]; /* why refused, NUL-terminated */
    uint32_t features[2];             /* of the engine */
} tr_welcome_t;                       /* 192 bytes */

#define TR_CHANNEL_FDS 4
enum {
    TR_FD_CHANNEL = 0,   /* memfd of the channel */
    TR_FD_TO_ENGINE = 1, /* eventfd that the worker rings */
    TR_FD_TO_PEER = 2,   /* eventfd that the engine rings */
    TR_FD_STATUS = 3     /* memfd of the status page */
};

/* The features that this side shares with one that told these. */
static inline uint32_t tr_features(const uint32_t theirs[2]);

/* Worker: a hello that asks for default sizes. */
static inline void tr_hello_init(tr_hello_t *hello, uint32_t role);

/* Engine: fills a welcome (TR_OK), or a refusal (TR_ERR_VERSION,
 * TR_ERR_PROTOCOL); send it either way. */
static inline tr_status_t tr_hello_answer(const tr_hello_t *hello,
                                          uint64_t generation,
                                          tr_welcome_t *out);
static inline void tr_welcome_refuse(tr_welcome_t *out, const char *why);

/* Worker: copies a refusal's message, ended, to why. */
static inline tr_status_t tr_welcome_check(const tr_welcome_t *welcome,
                                           char why[TR_WELCOME_MESSAGE]);

/* Sends len bytes with n descriptors; 0, or -1 with errno. */
static inline int tr_fds_send(int sock, const void *data, size_t len,
                              const int *fds, unsigned n);

/* Receives into data (up to len) and fds (exactly n expected, CLOEXEC set).
 * Bytes read, 0 at the end, -1 with errno (EPROTO: descriptors of the wrong
 * number; all received ones were closed).  *got: descriptors received. */
static inline ssize_t tr_fds_receive(int sock, void *data, size_t len, int *fds,
                                     unsigned n, unsigned *got);

#include <tokenring/handshake_inline.h>

#endif
