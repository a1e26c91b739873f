/*
 * Writes floats of embeddings as printf("%.9g") does, several times faster.
 *
 * The nine digits are an integer: the number times a power of ten, in double,
 * which is off by 2e-7 at most.  Only where that might change how it is
 * rounded, and where "%.9g" writes an exponent, printf() is asked.
 */

#include "ngx_http_tokenring_number.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>


#define NGX_HTTP_TOKENRING_DIGITS  9


static unsigned char *ngx_http_tokenring_number_digits(unsigned char *p,
    uint32_t whole, int e);
static unsigned char *ngx_http_tokenring_number_slow(unsigned char *p,
    float number);


unsigned char *
ngx_http_tokenring_number(unsigned char *p, float number)
{
    int                  i;
    double               a, v, part;
    uint32_t             whole;

    /* 10^-4 to 10^9, and by what each becomes 10^8 */
    static const double  powers[] = { 1e-4, 1e-3, 1e-2, 1e-1, 1e0, 1e1, 1e2,
                                      1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9 };
    static const double  scales[] = { 1e12, 1e11, 1e10, 1e9, 1e8, 1e7, 1e6,
                                      1e5, 1e4, 1e3, 1e2, 1e1, 1e0 };

    a = (number < 0) ? -(double) number : (double) number;

    /* so that what is no number is slow, too */

    if (!(a >= 1e-4 && a < 1e9)) {
        return ngx_http_tokenring_number_slow(p, number);
    }

    for (i = 0; a >= powers[i + 1]; i++) { /* void */ }

    v = a * scales[i];
    whole = (uint32_t) v;
    part = v - whole;

    if (part > 0.5) {
        whole++;
    }

    if (whole < 100000000 || whole > 999999999
        || (part > 0.499999 && part < 0.500001))
    {
        return ngx_http_tokenring_number_slow(p, number);
    }

    if (number < 0) {
        *p++ = '-';
    }

    return ngx_http_tokenring_number_digits(p, whole, i - 4 + 1);
}


/* whole has nine digits, e of them before the point */

static unsigned char *
ngx_http_tokenring_number_digits(unsigned char *p, uint32_t whole, int e)
{
    int   i, n;
    char  digits[NGX_HTTP_TOKENRING_DIGITS];

    for (n = NGX_HTTP_TOKENRING_DIGITS; n; n--) {
        digits[n - 1] = (char) ('0' + whole % 10);
        whole /= 10;
    }

    for (n = NGX_HTTP_TOKENRING_DIGITS; digits[n - 1] == '0'; n--) {
        /* void */
    }

    if (e <= 0) {
        *p++ = '0';
        *p++ = '.';

        for ( /* void */ ; e < 0; e++) {
            *p++ = '0';
        }

        memcpy(p, digits, n);
        return p + n;
    }

    for (i = 0; i < n || i < e; i++) {
        if (i == e) {
            *p++ = '.';
        }

        *p++ = (unsigned char) digits[i];
    }

    return p;
}


static unsigned char *
ngx_http_tokenring_number_slow(unsigned char *p, float number)
{
    /* infinity less itself is no number, either */

    if (number - number != 0) {
        memcpy(p, "null", 4);
        return p + 4;
    }

    return p + snprintf((char *) p, NGX_HTTP_TOKENRING_NUMBER_LEN, "%.9g",
                        (double) number);
}
