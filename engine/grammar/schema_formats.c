/*
 * Formats of strings as regular expressions (RFC 3339, 4122, 5321, 1123, 3986,
 * 4291), as strict as a regular expression can be.
 */
#include "schema_internal.h"

#include <string.h>

#define DAY_31 "(0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])"
#define DAY_30 "(0[469]|11)-(0[1-9]|[12]\\d|30)"
#define DAY_28 "02-(0[1-9]|1\\d|2[0-8])"
/* 4 divides the year: by its last two digits, or by the first two at a century */
#define BY_4 "(0[48]|[2468][048]|[13579][26])"
#define LEAP "((\\d\\d" BY_4 "|(00|" BY_4 ")00)-02-29)"
#define DATE "(\\d{4}-(" DAY_31 "|" DAY_30 "|" DAY_28 ")|" LEAP ")"
#define OFFSET "([zZ]|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define TIME "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?" OFFSET
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOST LABEL "(\\." LABEL ")*"
#define OCTET "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define V4 OCTET "\\." OCTET "\\." OCTET "\\." OCTET
#define H16 "[0-9A-Fa-f]{1,4}"
#define LS32 "(" H16 ":" H16 "|" V4 ")"
#define V6                                                                    \
    "((" H16 ":){6}" LS32 "|::(" H16 ":){5}" LS32 "|(" H16 ")?::(" H16        \
    ":){4}" LS32 "|((" H16 ":){0,1}" H16 ")?::(" H16 ":){3}" LS32 "|((" H16   \
    ":){0,2}" H16 ")?::(" H16 ":){2}" LS32 "|((" H16 ":){0,3}" H16 ")?::" H16 \
    ":" LS32 "|((" H16 ":){0,4}" H16 ")?::" LS32 "|((" H16 ":){0,5}" H16      \
    ")?::" H16 "|((" H16 ":){0,6}" H16 ")?::)"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define URI_CHAR "([A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})"
#define PART "[0-9]+"
#define TIME_PARTS \
    "T(" PART "H(" PART "M(" PART "S)?)?|" PART "M(" PART "S)?|" PART "S)"
#define DATE_PARTS \
    "(" PART "Y(" PART "M(" PART "D)?)?|" PART "M(" PART "D)?|" PART "D)"

typedef struct {
    const char *name, *regex;
} format_t;

static const format_t formats[] = {
    { "date-time", "^" DATE "[tT ]" TIME "$" },
    { "date", "^" DATE "$" },
    { "time", "^" TIME "$" },
    { "duration",
      "^P(" DATE_PARTS "(" TIME_PARTS ")?|" TIME_PARTS "|" PART "W)$" },
    { "uuid", "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$" },
    { "ipv4", "^" V4 "$" },
    { "ipv6", "^" V6 "$" },
    { "email", "^" ATOM "(\\." ATOM ")*@" HOST "$" },
    { "hostname", "^" HOST "$" },
    { "uri", "^[A-Za-z][A-Za-z0-9+.-]*:(//" URI_CHAR "+|" URI_CHAR
             "+)(\\?(" URI_CHAR "|\\?)*)?(#(" URI_CHAR "|\\?)*)?$" },
};

const char *
tr_schema_format(const char *name)
{
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        if (strcmp(formats[i].name, name) == 0) {
            return formats[i].regex;
        }
    }
    return NULL;
}
