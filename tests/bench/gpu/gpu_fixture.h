/*
 * What the benchmarks of the engine's steps on a GPU share: an executor without
 * transport, sequences in its cache, and what the device can by itself.
 *
 * Whatever fails ends the program with a line that says what and why.
 */
#ifndef TR_BENCH_GPU_FIXTURE_H
#define TR_BENCH_GPU_FIXTURE_H

#include "engine/executor/executor_cuda.h"

#define FIXTURE_SEQS_MAX 4096u

/* ---- gpu_fixture.c: the executor and its sequences -------------------------- */

typedef struct {
    int32_t slot;
    uint32_t len;    /* tokens cached */
    uint32_t number; /* tokens of the answer that are known */
    bool given;      /* its next token is one of the prompt's */
    int32_t told;    /* the last one that was; -1: the device knew it */
    tr_sampled_t out[TR_CUDA_SLOTS];
} fixture_seq_t;

typedef struct {
    tr_config_t config;
    tr_executor_t *e;
    tr_executor_cuda_t *x; /* the same */
    tr_sampler_t sampler;  /* greedy */
    int32_t *prompt;       /* random ids */
    uint32_t prompt_len;
    uint64_t peak_pages; /* most that a prompt held, between two steps */
    fixture_seq_t seqs[FIXTURE_SEQS_MAX];
    tr_batch_item_t items[TR_CUDA_SLOTS][FIXTURE_SEQS_MAX];
    double copy_speed; /* the best seen */
} fixture_t;

double fixture_now_ms(void);
void fixture_die(const char *what, const char *why);
void fixture_must(tr_status_t rc, const char *what);

/* Settings are in b->config; the longest sequence has max_len tokens. */
void fixture_open(fixture_t *b, uint32_t max_len);
void fixture_close(fixture_t *b);

/* Runs empty steps until the device has answered for all that the cache was
 * asked. */
void fixture_settle(fixture_t *b);

/* Computes positions [from, to) of the prompt; the last one is sampled into out
 * if that is not NULL.  False: the pool is full. */
bool fixture_compute(fixture_t *b, int32_t slot, uint32_t from, uint32_t to,
                     tr_sampled_t *out);
bool fixture_compress(fixture_t *b, int32_t slot, uint32_t len);

/* A sequence that has cached the first len tokens of `base`, compressed. */
bool fixture_add(fixture_t *b, fixture_seq_t *q, int32_t base, uint32_t len);
/* Its next token, before len counts it; NULL: the device knows it.  With experts
 * it is never the answer's: greedy answers of random weights soon are all alike. */
const int32_t *fixture_token(const fixture_t *b, fixture_seq_t *q);

/* The next step of the first n sequences.  False: the pool is full. */
bool fixture_compose(fixture_t *b, uint32_t n, uint32_t step,
                     tr_batch_item_t *item);

/* ---- gpu_moves.c ---------------------------------------------------------- */

/* n sequences decode while one of so many tokens moves: the rest of the line. */
void fixture_moves(fixture_t *b, uint32_t n, uint32_t tokens, uint32_t steps);

/* ---- gpu_mix.c ---------------------------------------------------------- */

typedef struct {
    uint32_t prompt, answer; /* tokens of each sequence, answer >= 2 */
    uint32_t batch;          /* sequences at most */
    uint32_t warm, steps;
} fixture_mix_t;

/* Measures a full pool in its steady state, and prints a line. */
void fixture_mix(fixture_t *b, const fixture_mix_t *a);

/* ---- gpu_turn.c --------------------------------------------------------- */

/* A turn of so many new tokens behind a kept prompt: the rest of the line. */
void fixture_turn(fixture_t *b, uint32_t context, uint32_t fresh);

/* ---- gpu_resume.c ------------------------------------------------------- */

/* A sequence of so many tokens gets its keys and values from host memory; steps of
 * seqs sequences whose keys and values are all there.  Some lines each. */
void fixture_resume(fixture_t *b, uint32_t tokens);
void fixture_offload(fixture_t *b, uint32_t seqs, uint32_t tokens);

/* ---- gpu_limits.c: what the device can ----------------------------------- */

/* Bytes read and written a second by a copy: the best of all calls,
 * fixture_open's first, since those behind steps came out up to 7% apart. */
double fixture_copy_speed(fixture_t *b);

/* Operations a second of the largest of the model's products, and of one of
 * square matrices of random numbers, whichever is faster. */
double fixture_peak(fixture_t *b, uint32_t side);

/* Milliseconds of a step's matrix products for so many rows, alone. */
double fixture_products_ms(fixture_t *b, uint32_t rows);
/* Their operations, all rows' logits included. */
double fixture_products_work(const fixture_t *b, uint32_t rows);

/* Milliseconds of decode attention as the last step had it, of n sequences,
 * with its plan; nothing may have been submitted since.  0: this policy's
 * needs the generic kernel. */
double fixture_attention_ms(fixture_t *b, uint32_t n);

/* Bytes of all weights that a step of so many rows reads: all but the embedding, of
 * which it reads some rows, and but experts whom no row would choose if all were
 * as likely. */
double fixture_weight_bytes(const fixture_t *b, uint32_t rows);

/* ---- gpu_power.c -------------------------------------------------------- */

/* What the device has drawn so far, to 0.1 s or so; 0: nobody knows. */
double fixture_joules(void);

#endif
