/*
 * Which model a body asks for, without parsing the body.
 *
 * A lexer in constant memory that sees a body once, in pieces: how deep it is,
 * whether it is in a string, and of the members of the outermost object whether
 * the name is "model".  Escapes are decoded there, since "\u006dodel" is the
 * same name.  Of several such members the last one counts, as it does for the
 * engine's parser; and official clients send "messages" first.  So it reads to
 * the end, and most bytes belong to strings that it only passes.
 *
 * Of a body that is no JSON it may say anything: the engine refuses it.  Of one
 * that is, it says what the engine reads, or the engine refuses that, too.
 */

#include "ngx_http_tokenring_scan.h"

#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif


#define NGX_HTTP_TOKENRING_SCAN_NO_MATCH  0xff

/* the engine refuses bodies with more values */
#define NGX_HTTP_TOKENRING_SCAN_VALUES    262144

#define ngx_http_tokenring_scan_equal(x, c)                                   \
    (uint64_t) (uint32_t)                                                     \
        _mm_movemask_epi8(_mm_cmpeq_epi8(x, _mm_set1_epi8(c)))


typedef enum {
    NGX_HTTP_TOKENRING_SCAN_OUT = 0,    /* in no string */
    NGX_HTTP_TOKENRING_SCAN_OUT_ESC,    /* behind a backslash: no JSON */
    NGX_HTTP_TOKENRING_SCAN_PASS,       /* a string that is passed */
    NGX_HTTP_TOKENRING_SCAN_PASS_ESC,   /* behind its backslash */
    NGX_HTTP_TOKENRING_SCAN_READ,       /* a string that is read */
    NGX_HTTP_TOKENRING_SCAN_READ_ESC,
    NGX_HTTP_TOKENRING_SCAN_READ_HEX,
    NGX_HTTP_TOKENRING_SCAN_OVER        /* nothing that follows matters */
} ngx_http_tokenring_scan_state_e;


/* of 64 bytes, the first one in the lowest bit: which are a quote, ... */

typedef struct {
    uint64_t                        quote;
    uint64_t                        backslash;
    uint64_t                        open;
    uint64_t                        shut;
} ngx_http_tokenring_scan_masks_t;


static const unsigned char *ngx_http_tokenring_scan_passed(
    ngx_http_tokenring_scan_t *s, const unsigned char *p,
    const unsigned char *end);
static const unsigned char *ngx_http_tokenring_scan_out(
    ngx_http_tokenring_scan_t *s, const unsigned char *p,
    const unsigned char *end);
static const unsigned char *ngx_http_tokenring_scan_blocks(
    ngx_http_tokenring_scan_t *s, const unsigned char *p,
    const unsigned char *end);
static int ngx_http_tokenring_scan_ends(ngx_http_tokenring_scan_t *s,
    uint64_t open, uint64_t *shut);
static uint64_t ngx_http_tokenring_scan_escaped(uint64_t backslash, int first);
static void ngx_http_tokenring_scan_masks(ngx_http_tokenring_scan_masks_t *m,
    const unsigned char *p);
static const unsigned char *ngx_http_tokenring_scan_quote(
    const unsigned char *p, const unsigned char *end);
static const unsigned char *ngx_http_tokenring_scan_space(
    const unsigned char *p, const unsigned char *end);
static void ngx_http_tokenring_scan_outer(ngx_http_tokenring_scan_t *s,
    unsigned char c);
static void ngx_http_tokenring_scan_inner(ngx_http_tokenring_scan_t *s,
    unsigned char c);
static void ngx_http_tokenring_scan_string(ngx_http_tokenring_scan_t *s);
static int ngx_http_tokenring_scan_bored(ngx_http_tokenring_scan_t *s);
static void ngx_http_tokenring_scan_char(ngx_http_tokenring_scan_t *s,
    unsigned char c);
static void ngx_http_tokenring_scan_escape(ngx_http_tokenring_scan_t *s,
    unsigned char c);
static void ngx_http_tokenring_scan_digit(ngx_http_tokenring_scan_t *s,
    unsigned char c);
static void ngx_http_tokenring_scan_point(ngx_http_tokenring_scan_t *s,
    uint32_t code);
static void ngx_http_tokenring_scan_put(ngx_http_tokenring_scan_t *s,
    unsigned char c);


void
ngx_http_tokenring_scan_init(ngx_http_tokenring_scan_t *s)
{
    memset(s, 0, sizeof(ngx_http_tokenring_scan_t));

    s->matched = NGX_HTTP_TOKENRING_SCAN_NO_MATCH;
}


void
ngx_http_tokenring_scan(ngx_http_tokenring_scan_t *s, const unsigned char *p,
    size_t n)
{
    const unsigned char  *end;

    end = p + n;
    s->piece = p;

    while (p < end) {

        switch (s->state) {

        case NGX_HTTP_TOKENRING_SCAN_PASS:
            p = ngx_http_tokenring_scan_passed(s, p, end);
            break;

        case NGX_HTTP_TOKENRING_SCAN_PASS_ESC:
            p++;
            s->state = NGX_HTTP_TOKENRING_SCAN_PASS;
            break;

        case NGX_HTTP_TOKENRING_SCAN_OUT:
        case NGX_HTTP_TOKENRING_SCAN_OUT_ESC:
            p = ngx_http_tokenring_scan_out(s, p, end);
            break;

        case NGX_HTTP_TOKENRING_SCAN_READ:

            if (ngx_http_tokenring_scan_bored(s)) {
                s->state = NGX_HTTP_TOKENRING_SCAN_PASS;
                s->wanted = 0;
                break;
            }

            ngx_http_tokenring_scan_char(s, *p++);
            break;

        case NGX_HTTP_TOKENRING_SCAN_READ_ESC:
            ngx_http_tokenring_scan_escape(s, *p++);
            break;

        case NGX_HTTP_TOKENRING_SCAN_READ_HEX:
            ngx_http_tokenring_scan_digit(s, *p++);
            break;

        default: /* NGX_HTTP_TOKENRING_SCAN_OVER */
            return;
        }
    }

    s->seen += n;
}


/* within a string that is passed */

static const unsigned char *
ngx_http_tokenring_scan_passed(ngx_http_tokenring_scan_t *s,
    const unsigned char *p, const unsigned char *end)
{
    if (s->depth > 1) {
        return ngx_http_tokenring_scan_blocks(s, p, end);
    }

    p = ngx_http_tokenring_scan_quote(p, end);

    if (p < end) {
        s->state = (*p++ == '"') ? NGX_HTTP_TOKENRING_SCAN_OUT
                                 : NGX_HTTP_TOKENRING_SCAN_PASS_ESC;
    }

    return p;
}


/* within no string */

static const unsigned char *
ngx_http_tokenring_scan_out(ngx_http_tokenring_scan_t *s,
    const unsigned char *p, const unsigned char *end)
{
    if (s->depth > 1) {
        return ngx_http_tokenring_scan_blocks(s, p, end);
    }

    p = ngx_http_tokenring_scan_space(p, end);

    if (p < end) {
        ngx_http_tokenring_scan_outer(s, *p++);

        if (s->depth == 2 && p[-1] == '[' && s->list == 0) {
            s->list = s->seen + (uint64_t) (p - s->piece);
        }
    }

    return p;
}


/*
 * What is inside the members' values: nothing of it is read, it only ends.  64
 * bytes at a time, as simdjson does it (Langdale and Lemire, 2019): masks with
 * a bit for each byte tell which quotes are escaped, then which bytes are in
 * strings, then how deep it is.
 */

static const unsigned char *
ngx_http_tokenring_scan_blocks(ngx_http_tokenring_scan_t *s,
    const unsigned char *p, const unsigned char *end)
{
    uint64_t                          escaped, quotes, inside, open, shut;
    ngx_http_tokenring_scan_masks_t   m;

    for ( /* void */ ; end - p >= 64; p += 64) {

        ngx_http_tokenring_scan_masks(&m, p);

        escaped = ngx_http_tokenring_scan_escaped(m.backslash,
                           s->state == NGX_HTTP_TOKENRING_SCAN_PASS_ESC
                           || s->state == NGX_HTTP_TOKENRING_SCAN_OUT_ESC);
        quotes = m.quote & ~escaped;

        /* from a quote, inclusive, to the next one, exclusive */

        inside = quotes;
        inside ^= inside << 1;
        inside ^= inside << 2;
        inside ^= inside << 4;
        inside ^= inside << 8;
        inside ^= inside << 16;
        inside ^= inside << 32;

        if (s->state == NGX_HTTP_TOKENRING_SCAN_PASS
            || s->state == NGX_HTTP_TOKENRING_SCAN_PASS_ESC)
        {
            inside = ~inside;
        }

        open = m.open & ~inside;
        shut = m.shut & ~inside;

        if (ngx_http_tokenring_scan_ends(s, open, &shut)) {
            s->depth = 1;
            s->state = NGX_HTTP_TOKENRING_SCAN_OUT;
            return p + __builtin_ctzll(shut) + 1;
        }

        s->depth += __builtin_popcountll(open);
        s->depth -= __builtin_popcountll(shut);

        if (m.backslash & ~escaped & (uint64_t) 1 << 63) {
            s->state = (inside >> 63) ? NGX_HTTP_TOKENRING_SCAN_PASS_ESC
                                      : NGX_HTTP_TOKENRING_SCAN_OUT_ESC;

        } else {
            s->state = (inside >> 63) ? NGX_HTTP_TOKENRING_SCAN_PASS
                                      : NGX_HTTP_TOKENRING_SCAN_OUT;
        }
    }

    for ( /* void */ ; p < end && s->depth > 1; p++) {
        ngx_http_tokenring_scan_inner(s, *p);
    }

    return p;
}


/* does the value end in this block?  *shut then begins with what ends it */

static int
ngx_http_tokenring_scan_ends(ngx_http_tokenring_scan_t *s, uint64_t open,
    uint64_t *shut)
{
    uint32_t  depth;
    uint64_t  left, bit;

    if (s->depth > (uint32_t) __builtin_popcountll(*shut) + 1) {
        return 0;
    }

    depth = s->depth;

    for (left = *shut; left; left &= left - 1) {
        bit = left & -left;
        depth--;

        if (depth + __builtin_popcountll(open & (bit - 1)) == 1) {
            *shut = left;
            return 1;
        }
    }

    return 0;
}


/* which bytes are escaped; first: the first one is, from the block before */

static uint64_t
ngx_http_tokenring_scan_escaped(uint64_t backslash, int first)
{
    uint64_t  escaped, begin, rest;

    if (backslash == 0) {
        return first ? 1 : 0;
    }

    escaped = first ? 1 : 0;
    rest = backslash & ~escaped;

    while (rest) {
        /* a backslash that counts; what follows it does not */
        begin = rest & -rest;
        escaped |= begin << 1;
        rest &= ~(begin | begin << 1);
    }

    return escaped;
}


static void
ngx_http_tokenring_scan_masks(ngx_http_tokenring_scan_masks_t *m,
    const unsigned char *p)
{
    int  i;

    memset(m, 0, sizeof(ngx_http_tokenring_scan_masks_t));

#if defined(__SSE2__)

    for (i = 0; i < 64; i += 16) {
        __m128i  x, y;

        x = _mm_loadu_si128((const __m128i *) (p + i));

        /* makes a brace of a bracket, and of nothing else */
        y = _mm_or_si128(x, _mm_set1_epi8(0x20));

        m->quote |= ngx_http_tokenring_scan_equal(x, '"') << i;
        m->backslash |= ngx_http_tokenring_scan_equal(x, '\\') << i;
        m->open |= ngx_http_tokenring_scan_equal(y, '{') << i;
        m->shut |= ngx_http_tokenring_scan_equal(y, '}') << i;
    }

#else

    for (i = 0; i < 64; i++) {
        m->quote |= (uint64_t) (p[i] == '"') << i;
        m->backslash |= (uint64_t) (p[i] == '\\') << i;
        m->open |= (uint64_t) ((p[i] | 0x20) == '{') << i;
        m->shut |= (uint64_t) ((p[i] | 0x20) == '}') << i;
    }

#endif
}


/* the next quote or backslash, or the end */

static const unsigned char *
ngx_http_tokenring_scan_quote(const unsigned char *p, const unsigned char *end)
{
#if defined(__SSE2__)

    int      found;
    __m128i  x, quote, backslash;

    quote = _mm_set1_epi8('"');
    backslash = _mm_set1_epi8('\\');

    for ( /* void */ ; end - p >= 16; p += 16) {
        x = _mm_loadu_si128((const __m128i *) p);

        found = _mm_movemask_epi8(_mm_or_si128(_mm_cmpeq_epi8(x, quote),
                                               _mm_cmpeq_epi8(x, backslash)));

        if (found) {
            return p + __builtin_ctz(found);
        }
    }

#endif

    while (p < end && *p != '"' && *p != '\\') {
        p++;
    }

    return p;
}


static const unsigned char *
ngx_http_tokenring_scan_space(const unsigned char *p, const unsigned char *end)
{
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r')) {
        p++;
    }

    return p;
}


/* a character of the outermost object, or round it */

static void
ngx_http_tokenring_scan_outer(ngx_http_tokenring_scan_t *s, unsigned char c)
{
    if (s->depth == 0) {

        if (c == '{') {
            s->depth = 1;

        } else {
            s->state = NGX_HTTP_TOKENRING_SCAN_OVER;
        }

        return;
    }

    switch (c) {

    case '"':
        ngx_http_tokenring_scan_string(s);
        return;

    case ':':
        s->value = 1;
        s->wanted = (s->matched == sizeof("model") - 1);
        s->matched = NGX_HTTP_TOKENRING_SCAN_NO_MATCH;
        return;

    case ',':
        s->value = 0;
        s->wanted = 0;

        if (++s->members > NGX_HTTP_TOKENRING_SCAN_VALUES) {
            s->state = NGX_HTTP_TOKENRING_SCAN_OVER;
        }

        return;

    case '}':
    case ']':
        s->state = NGX_HTTP_TOKENRING_SCAN_OVER;
        return;

    case '{':
    case '[':
        s->depth = 2;
        break;

    default:
        break;
    }

    if (s->wanted) {
        /* null is as if it were not there */
        s->wanted = 0;
        s->kind = (c == 'n') ? NGX_HTTP_TOKENRING_SCAN_NONE
                             : NGX_HTTP_TOKENRING_SCAN_OTHER;
    }
}


/* a string begins: names of members are read, and the value that is wanted */

static void
ngx_http_tokenring_scan_string(ngx_http_tokenring_scan_t *s)
{
    if (s->value && !s->wanted) {
        s->state = NGX_HTTP_TOKENRING_SCAN_PASS;
        return;
    }

    s->state = NGX_HTTP_TOKENRING_SCAN_READ;
    s->high = 0;

    if (s->value) {
        s->len = 0;
        s->kind = NGX_HTTP_TOKENRING_SCAN_NAME;

    } else {
        s->matched = 0;
    }
}


/* a byte further inside */

static void
ngx_http_tokenring_scan_inner(ngx_http_tokenring_scan_t *s, unsigned char c)
{
    if (s->state == NGX_HTTP_TOKENRING_SCAN_PASS_ESC) {
        s->state = NGX_HTTP_TOKENRING_SCAN_PASS;
        return;
    }

    if (s->state == NGX_HTTP_TOKENRING_SCAN_PASS) {

        if (c == '"') {
            s->state = NGX_HTTP_TOKENRING_SCAN_OUT;

        } else if (c == '\\') {
            s->state = NGX_HTTP_TOKENRING_SCAN_PASS_ESC;
        }

        return;
    }

    if (s->state == NGX_HTTP_TOKENRING_SCAN_OUT_ESC) {
        s->state = NGX_HTTP_TOKENRING_SCAN_OUT;

        if (c == '"' || c == '\\') {
            return;
        }
    }

    switch (c) {

    case '"':
        s->state = NGX_HTTP_TOKENRING_SCAN_PASS;
        return;

    case '\\':
        s->state = NGX_HTTP_TOKENRING_SCAN_OUT_ESC;
        return;

    case '{':
    case '[':
        s->depth++;
        return;

    case '}':
    case ']':
        s->depth--;
        return;

    default:
        return;
    }
}


/* is it another member's name, or a model's that is too long? */

static int
ngx_http_tokenring_scan_bored(ngx_http_tokenring_scan_t *s)
{
    return s->value ? s->kind == NGX_HTTP_TOKENRING_SCAN_LONG
                    : s->matched == NGX_HTTP_TOKENRING_SCAN_NO_MATCH;
}


static void
ngx_http_tokenring_scan_char(ngx_http_tokenring_scan_t *s, unsigned char c)
{
    if (c == '\\') {
        s->state = NGX_HTTP_TOKENRING_SCAN_READ_ESC;
        return;
    }

    if (c != '"') {
        ngx_http_tokenring_scan_put(s, c);
        return;
    }

    s->state = NGX_HTTP_TOKENRING_SCAN_OUT;
    s->wanted = 0;
}


static void
ngx_http_tokenring_scan_escape(ngx_http_tokenring_scan_t *s, unsigned char c)
{
    static const char  from[] = "bfnrt";
    static const char  to[] = "\b\f\n\r\t";

    const char  *p;

    if (c == 'u') {
        s->state = NGX_HTTP_TOKENRING_SCAN_READ_HEX;
        s->digits = 4;
        s->unit = 0;
        return;
    }

    s->state = NGX_HTTP_TOKENRING_SCAN_READ;

    p = c ? strchr(from, c) : NULL;

    ngx_http_tokenring_scan_put(s, p ? (unsigned char) to[p - from] : c);
}


static void
ngx_http_tokenring_scan_digit(ngx_http_tokenring_scan_t *s, unsigned char c)
{
    uint16_t  digit;

    digit = (c <= '9') ? c - '0' : (c | 0x20) - 'a' + 10;

    s->unit = (uint16_t) (s->unit << 4) | (digit & 0x0f);

    if (--s->digits) {
        return;
    }

    s->state = NGX_HTTP_TOKENRING_SCAN_READ;

    if (s->unit >= 0xd800 && s->unit < 0xdc00) {
        s->high = s->unit;
        return;
    }

    if (s->unit >= 0xdc00 && s->unit < 0xe000) {
        ngx_http_tokenring_scan_point(s, 0x10000
                                      + ((uint32_t) (s->high & 0x3ff) << 10)
                                      + (s->unit & 0x3ff));
        s->high = 0;
        return;
    }

    ngx_http_tokenring_scan_point(s, s->unit);
}


/* a character that was escaped, as UTF-8 */

static void
ngx_http_tokenring_scan_point(ngx_http_tokenring_scan_t *s, uint32_t code)
{
    if (code < 0x80) {
        ngx_http_tokenring_scan_put(s, (unsigned char) code);
        return;
    }

    if (code < 0x800) {
        ngx_http_tokenring_scan_put(s, (unsigned char) (0xc0 | code >> 6));

    } else {

        if (code < 0x10000) {
            ngx_http_tokenring_scan_put(s,
                                        (unsigned char) (0xe0 | code >> 12));

        } else {
            ngx_http_tokenring_scan_put(s,
                                        (unsigned char) (0xf0 | code >> 18));
            ngx_http_tokenring_scan_put(s, 0x80 | (code >> 12 & 0x3f));
        }

        ngx_http_tokenring_scan_put(s, 0x80 | (code >> 6 & 0x3f));
    }

    ngx_http_tokenring_scan_put(s, 0x80 | (code & 0x3f));
}


/* a byte of the name of a member, or of the model's */

static void
ngx_http_tokenring_scan_put(ngx_http_tokenring_scan_t *s, unsigned char c)
{
    static const unsigned char  model[] = "model";

    if (!s->value) {

        if (s->matched < sizeof(model) - 1 && model[s->matched] == c) {
            s->matched++;

        } else {
            s->matched = NGX_HTTP_TOKENRING_SCAN_NO_MATCH;
        }

        return;
    }

    if (s->len == NGX_HTTP_TOKENRING_SCAN_MAX) {
        s->kind = NGX_HTTP_TOKENRING_SCAN_LONG;
        return;
    }

    s->name[s->len++] = c;
}
