/*
 * Products of queries with key codes, and of weights with value codes, in
 * vectors.  Codes are never scaled one by one:
 *
 *     q . (scale * code + zero)       = scale * (q . code) + zero * sum(q)
 *     sum of p * (scale * code + zero) = sum of (p * scale) * code
 *                                        + sum of p * zero
 *
 * so that a code costs an AND, a conversion and one FMA a query head.  Codes
 * stand in words (kv_layout.h).  They are not shifted down either: code * 2^s
 * is exact in FP32, and 2^-s goes into the query, or into the sum at the end.
 * Only the upper half of a word is moved down, so that no code meets the sign.
 *
 * Keys: 64-byte lines of V_WIDTH tokens are transposed, so that a vector has
 * one word of each token: logits come out side by side, without sums across
 * lanes.  Values: a line's lanes are dimensions already; sums stay in the order
 * of the lanes and are brought in order once a part.
 *
 * With several metadata groups, each is computed alone, with the query zero
 * outside of it.
 *
 * For head sizes 64, 128, 256 and metadata by token; two bits a key from head
 * size 128 on.  bits and heads are constants wherever these are
 * inlined.
 */

/* One word of V_WIDTH tokens, of each of `rows` sets of them: acc[set][h] += q
 * . codes; word: `step` apart; q: [fields][heads]. */
static inline __attribute__((always_inline)) void
key_word(uint32_t bits, uint32_t heads, uint32_t rows, const vec *word,
         uint32_t step, const float *q, vec (*acc)[V_HEADS])
{
    uint32_t half = 16 / bits;
    veci part[2];

    for (uint32_t r = 0; r < rows; r++) {
        part[r] = vi_of(word[r * step]);
    }
    for (uint32_t i = 0; i < 2 * half; i++) {
        uint32_t mask = ((1u << bits) - 1) << (i % half * bits);
        vec code[2];

        for (uint32_t r = 0; r < rows; r++) {
            part[r] = i == half ? vi_high(part[r]) : part[r];
            code[r] = vi_float(vi_and(part[r], vi_set1(mask)));
        }
        for (uint32_t h = 0; h < heads; h++) {
            vec by = v_set1(q[i * heads + h]);

            for (uint32_t r = 0; r < rows; r++) {
                acc[r][h] = v_fma(by, code[r], acc[r][h]);
            }
        }
    }
}

/* The query in the order of words and fields, times 2^-s: [words of a
 * token][fields][heads]; q: [heads][dim]. */
static void
order_query(uint32_t bits, uint32_t heads, uint32_t dim, const float *q,
            float *out)
{
    uint32_t half = 16 / bits, words = dim * bits / 32, at[16];
    float by[16];

    for (uint32_t i = 0; i < 2 * half; i++) {
        at[i] = bits == 8 ? i : i % half * 2 + i / half;
        by[i] = 1.0f / (float) (1u << (i % half * bits));
    }
    for (uint32_t w = 0; w < words; w++, q += 2 * half) {
        for (uint32_t i = 0; i < 2 * half; i++) {
            for (uint32_t h = 0; h < heads; h++) {
                *out++ = q[h * dim + at[i]] * by[i];
            }
        }
    }
}

/* Memory that is wanted later, to be asked for meanwhile: every four words. */
typedef struct {
    const uint8_t *at;
    uint32_t lines; /* at a time */
} ask_t;

static inline void
ask(ask_t *a)
{
    for (uint32_t i = 0; i < a->lines; i++, a->at += 64) {
        __builtin_prefetch(a->at, 0, 2);
    }
}

/* q . codes of the tokens of whole tiles, `far` bytes from one to the next:
 * out[h][token], when a token has `lines` lines of its own. */
static inline __attribute__((always_inline)) void
key_lines(uint32_t bits, uint32_t heads, uint32_t lines, const uint8_t *codes,
          size_t far, uint32_t tiles, const float *q, float *out, size_t stride,
          ask_t ahead)
{
    const uint32_t step = 32 / bits * heads;

    for (uint32_t i = 0; i < tiles * 16; i += V_WIDTH) {
        const uint8_t *tile = codes + i / 16 * far;
        vec acc[2][V_HEADS];

        for (uint32_t h = 0; h < heads; h++) {
            acc[0][h] = acc[1][h] = v_set1(0);
        }
        for (uint32_t k = 0; k < lines; k++) {
            for (uint32_t w = 0; w < 16; w += V_WIDTH) {
                vec v[V_WIDTH];

                for (uint32_t j = 0; j < V_WIDTH; j++) {
                    uint32_t token = i % 16 + j;

                    v[j] = v_load(
                        (const float *) (tile + (token / 8 * lines + k) * 512
                                         + token % 8 * 64 + w * 4));
                }
                v_transpose(v);
#pragma GCC unroll 16
                for (uint32_t j = 0; j < V_WIDTH; j++) {
                    uint32_t word = (w + j) / 4 * 4 * lines + k * 4
                                    + (w + j) % 4;

                    if (j % 4 == 0) {
                        ask(&ahead);
                    }
                    key_word(bits, heads, 1, v + j, 0, q + word * step,
                             acc + (w + j) % 2);
                }
            }
        }
        for (uint32_t h = 0; h < heads; h++) {
            v_store(out + h * stride + i, v_add(acc[0][h], acc[1][h]));
        }
    }
}

/* The same when tokens g and g + 8 of a tile share a line: 8 lines a tile, as
 * many tiles at once as a vector has eights. */
static inline __attribute__((always_inline)) void
key_shared_lines(uint32_t bits, uint32_t heads, const uint8_t *codes,
                 size_t far, uint32_t tiles, const float *q, float *out,
                 size_t stride, ask_t ahead)
{
    const uint32_t step = 32 / bits * heads;
    float nowhere[8] = { 0 };

    for (uint32_t i = 0; i < tiles; i += V_WIDTH / 8) {
        vec acc[2][V_HEADS];

        for (uint32_t h = 0; h < heads; h++) {
            acc[0][h] = acc[1][h] = v_set1(0);
        }
        for (uint32_t w = 0; w < 16; w += V_WIDTH) {
            vec v[V_WIDTH];

            for (uint32_t j = 0; j < V_WIDTH; j++) {
                uint32_t tile = i + j / 8 < tiles ? i + j / 8 : i;

                v[j] = v_load(
                    (const float *) (codes + tile * far + j % 8 * 64 + w * 4));
            }
            v_transpose(v);
#pragma GCC unroll 16
            for (uint32_t j = 0; j < V_WIDTH / 2; j++) {
                uint32_t word = w / 2 + j;

                if (j % 2 == 0) {
                    ask(&ahead);
                }
                /* words of the later tokens are two further on */
                key_word(bits, heads, 2, v + j / 2 * 4 + j % 2, 2,
                         q + word * step, acc);
            }
        }
        for (uint32_t h = 0; h < heads; h++) {
            for (uint32_t r = 0; r < 2; r++) {
                float *at = out + h * stride + i * 16 + r * 8;

                v_store_eights(at, i + 1 < tiles ? at + 16 : nowhere,
                               acc[r][h]);
            }
        }
    }
}

/* How value words of a level lie (kv_layout.h): tokens 2t, 2t + 1 of a tile,
 * and those 8 later, are at t * step. */
typedef struct {
    uint32_t bits;
    uint32_t dim;
    bool mixed;     /* tokens g and g + 8 share a line, two words each */
    bool narrow;    /* 8-byte chunks */
    uint32_t step;  /* bytes from t to t + 1 */
    uint32_t lines; /* of a t (and of an eight of tokens, if apart) */
} value_words_t;

static inline __attribute__((always_inline)) value_words_t
value_words(uint32_t bits, uint32_t dim)
{
    value_words_t w = { .bits = bits,
                        .dim = dim,
                        .mixed = bits == 4 && dim == 64,
                        .narrow = bits == 2 && dim == 64 };

    w.step = w.narrow ? 64 : 128;
    w.lines = dim * bits / (bits == 2 ? 128 : w.mixed ? 128 : 256);
    return w;
}

/* Dimension of field f of word w of a line. */
static inline uint32_t
value_dim(const value_words_t *v, uint32_t line, uint32_t w, uint32_t f)
{
    uint32_t g = v->narrow ? w / 2 : line % 2 * 4 + w / 4;
    uint32_t i = v->narrow || v->mixed ? w % 2 : line / 2 * 4 + w % 4;

    return g + f % 2 * 8 + (v->bits == 8 ? i : i * 2 + f / 2) * 16;
}

/* One tile: acc[field][h] += weights . codes, for the words at `at`;
 * weight: [heads][stride], 16 of the tile. */
static inline __attribute__((always_inline)) void
value_tile(uint32_t bits, uint32_t heads, const value_words_t *v,
           const uint8_t *at, const float *weight, size_t stride,
           vec (*acc)[V_HEADS])
{
    const uint32_t fields = bits == 8 ? 2 : 4;
    const bool apart = bits != 2
                       && !v->mixed; /* eights in lines of their own */

    for (uint32_t i = 0; i < (apart ? 8 : 4); i++) {
        uint32_t t = i % 4, r = i / 4;
        veci word = vi_load(at + r * v->dim * bits + t * v->step);

        /* lower halves: token 2t; upper: 2t + 1; with 2 bits, fields of token
         * 2t + 8 beside those of 2t */
        for (uint32_t j = 0; j < (bits == 2 ? 4 : 2); j++) {
            uint32_t x = j % 2, up = j / 2;
            veci part = x ? vi_high(word) : word;
            const float *p = weight + 2 * t + x + (r + up) * 8;
            vec pv[V_HEADS];

            for (uint32_t h = 0; h < heads; h++) {
                pv[h] = v_set1(p[h * stride]);
                if (v->mixed) {
                    pv[h] = v_pairs(pv[h], v_set1(p[h * stride + 8]));
                }
            }
            for (uint32_t f = 0; f < fields; f++) {
                uint32_t s = bits == 8   ? f * 8
                             : bits == 4 ? f * 4
                                         : f / 2 * 8 + up * 4 + f % 2 * 2;
                uint32_t mask = ((1u << bits) - 1) << s;
                vec code = vi_float(vi_and(part, vi_set1(mask)));

                for (uint32_t h = 0; h < heads; h++) {
                    acc[f][h] = v_fma(code, pv[h], acc[f][h]);
                }
            }
        }
    }
}

/* out[h][dim] += 2^-s * acc, each lane in its place, for dimensions from ..
 * to. */
static inline __attribute__((always_inline)) void
value_store(uint32_t bits, uint32_t heads, const value_words_t *v,
            uint32_t line, uint32_t w, vec (*acc)[V_HEADS], uint32_t from,
            uint32_t to, float *out, size_t ldo)
{
    for (uint32_t f = 0; f < (bits == 8 ? 2 : 4); f++) {
        uint32_t s = bits == 2 ? f / 2 * 8 + f % 2 * 2 : f * bits;
        uint32_t dim[V_WIDTH];

        for (uint32_t j = 0; j < V_WIDTH; j++) {
            dim[j] = value_dim(v, line, w + j, f);
        }
        for (uint32_t h = 0; h < heads; h++) {
            float lane[V_WIDTH];

            v_store(lane, v_mul(acc[f][h], v_set1(1.0f / (float) (1u << s))));
            for (uint32_t j = 0; j < V_WIDTH; j++) {
                if (dim[j] >= from && dim[j] < to) {
                    out[h * ldo + dim[j]] += lane[j];
                }
            }
        }
    }
}
