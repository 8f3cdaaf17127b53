/* text.h: small text matters of this room: UTF-8 borders, values shortened for messages, numbers as
 * JSON writes them. Pure functions. */
#ifndef GERYON_PROTO_TEXT_H
#define GERYON_PROTO_TEXT_H

#include <stdbool.h>
#include <stddef.h>

enum {
    TEXT_QUOTE_MAX = 200,                /* bytes of an offending value in a message */
    TEXT_QUOTE_CAP = TEXT_QUOTE_MAX + 6, /* with quotes, dots and NUL */
    TEXT_NUMBER_CAP = 32,                /* any int64 or double, with NUL */
};

/* How many bytes stand together at text[0 .. len), len >= 1: a whole character (*valid set), or the
 * longest piece that begins one but cannot go on (then one U+FFFD stands for it, as in Unicode
 * 15, section 3.9, "maximal subpart"). Overlong forms and surrogates are no characters. */
size_t text_utf8_next(const char *text, size_t len, bool *valid);

/* The largest n <= min(len, max) that does not part a character. */
size_t text_utf8_cut(const char *text, size_t len, size_t max);

/* A client's value for a message: in double quotes, cut at TEXT_QUOTE_MAX bytes, control characters
 * shown as '?'. Returns out. */
const char *text_quote(char out[TEXT_QUOTE_CAP], const char *text, size_t len);

/* The shortest decimal text that reads back as the finite number; whole ones below 2^53 without
 * exponent. Returns out. */
const char *text_number(char out[TEXT_NUMBER_CAP], double number);

#endif
