/* utf8.h: UTF-8 of texts from outside: validation, characters one by one, and a decoder for bytes
 * that arrive in pieces and may be anything. No function allocates; any thread. */
#ifndef GERYON_UTF8_H
#define GERYON_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Offset of the first byte that is not part of valid UTF-8, len when all is well. */
size_t utf8_valid_len(const char *text, size_t len);

/* The character at text, which must be valid UTF-8, and its size in bytes. */
uint32_t utf8_char(const char *text, size_t *size);

/* Write c (a Unicode scalar value) and return the bytes written, 1 .. 4. */
size_t utf8_put(uint32_t c, char out[4]);

/* Unicode White_Space; general category N*; category P* or ASCII punctuation; a word character as
 * Rust's regex \w sees it. */
bool utf8_is_space(uint32_t c);
bool utf8_is_numeric(uint32_t c);
bool utf8_is_punctuation(uint32_t c);
bool utf8_is_word(uint32_t c);

/* Bytes to valid UTF-8: each maximal part of an ill-formed sequence becomes one U+FFFD, as
 * the Unicode standard advises and Rust's from_utf8_lossy (hence Hugging Face) does. Start from
 * {0}. */
struct utf8_decoder {
    uint8_t pending[4];
    uint8_t n;      /* bytes of a character that is not complete */
    uint8_t want;   /* bytes it will have */
    uint8_t lo, hi; /* bounds of its next byte */
};

enum { UTF8_UNITS_MAX = 2, UTF8_OUT_MAX = 6, UTF8_REPLACEMENT_BYTES = 3 };

/* Feed one byte. Writes 0, 1 or 2 whole characters to out and their sizes to sizes; returns how
 * many. When two come, the first is the U+FFFD of the bytes that were pending before. */
int utf8_decode(struct utf8_decoder *decoder, uint8_t byte, char out[UTF8_OUT_MAX],
                uint8_t sizes[UTF8_UNITS_MAX]);

/* The end of the bytes: 1 and a U+FFFD in out when something was pending, else 0. */
int utf8_decode_end(struct utf8_decoder *decoder, char out[UTF8_REPLACEMENT_BYTES]);

#endif
