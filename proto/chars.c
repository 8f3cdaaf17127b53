#include "proto/chars.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Well-formed sequences (Unicode table 3-7): the first byte gives the length and narrows the range of
 * the second; all later bytes are 80..BF. */
size_t chars_next(const char *text, size_t len, bool *valid) {
    const unsigned char *s = (const unsigned char *)text;
    unsigned char lead = s[0], lo = 0x80, hi = 0xBF;
    size_t want;
    *valid = false;
    if (lead < 0x80) {
        *valid = true;
        return 1;
    } else if (lead >= 0xC2 && lead <= 0xDF) {
        want = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        want = 3;
        if (lead == 0xE0) lo = 0xA0;
        if (lead == 0xED) hi = 0x9F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        want = 4;
        if (lead == 0xF0) lo = 0x90;
        if (lead == 0xF4) hi = 0x8F;
    } else {
        return 1;
    }
    for (size_t i = 1; i < want; i++) {
        if (i >= len || s[i] < lo || s[i] > hi) return i;
        lo = 0x80;
        hi = 0xBF;
    }
    *valid = true;
    return want;
}

size_t chars_cut(const char *text, size_t len, size_t max) {
    if (len <= max) return len;
    size_t n = max;
    /* At most three continuation bytes belong to a character; more are stray and may be cut. */
    for (int back = 0; back < 3 && n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80; back++)
        n--;
    return n;
}

const char *chars_quote(char out[CHARS_QUOTE_CAP], const char *text, size_t len) {
    size_t n = chars_cut(text, len, CHARS_QUOTE_MAX), at = 0;
    out[at++] = '"';
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        out[at++] = c < 0x20 || c == 0x7F ? '?' : text[i];
    }
    if (n < len) {
        memcpy(out + at, "...", 3);
        at += 3;
    }
    out[at++] = '"';
    out[at] = '\0';
    return out;
}

const char *chars_number(char out[CHARS_NUMBER_CAP], double number) {
    if (number == trunc(number) && fabs(number) < 0x1p53) {
        snprintf(out, CHARS_NUMBER_CAP, "%.0f", number + 0.0); /* -0 + 0 is 0 */
        return out;
    }
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, CHARS_NUMBER_CAP, "%.*g", digits, number);
        if (strtod(out, NULL) == number) break;
    }
    return out;
}
