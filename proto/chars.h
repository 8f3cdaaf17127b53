/* chars.h: small text matters of this room: UTF-8 borders, values shortened for messages, numbers as
 * JSON writes them. Pure functions. */
#ifndef GERYON_PROTO_CHARS_H
#define GERYON_PROTO_CHARS_H

#include <stdbool.h>
#include <stddef.h>

enum {
    CHARS_QUOTE_MAX = 200,                 /* bytes of an offending value in a message */
    CHARS_QUOTE_CAP = CHARS_QUOTE_MAX + 6, /* with quotes, dots and NUL */
    CHARS_NUMBER_CAP = 32,                 /* any int64 or double, with NUL */
};

/* How many bytes stand together at text[0 .. len), len >= 1: a whole character (*valid set), or the
 * longest piece that begins one but cannot go on (then one U+FFFD stands for it, as in Unicode
 * 15, section 3.9, "maximal subpart"). Overlong forms and surrogates are no characters. */
size_t chars_next(const char *text, size_t len, bool *valid);

/* The largest n <= min(len, max) that does not part a character. */
size_t chars_cut(const char *text, size_t len, size_t max);

/* A client's value for a message: in double quotes, cut at CHARS_QUOTE_MAX bytes, control characters
 * shown as '?'. Returns out. */
const char *chars_quote(char out[CHARS_QUOTE_CAP], const char *text, size_t len);

/* The shortest decimal text that reads back as the finite number; whole ones below 2^53 without
 * exponent. Returns out. */
const char *chars_number(char out[CHARS_NUMBER_CAP], double number);

#endif
