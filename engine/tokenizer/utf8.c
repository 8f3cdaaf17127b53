#include "engine/tokenizer/utf8.h"

#include <string.h>
#include <utf8proc.h>

static const char REPLACEMENT[] = "\xEF\xBF\xBD";

/* What a first byte promises: the size of its character (0: it cannot be first) and the bounds of
 * the second byte (table 3-7 of the Unicode standard). */
static int lead_byte(uint8_t byte, uint8_t *lo, uint8_t *hi) {
    *lo = 0x80, *hi = 0xBF;
    if (byte < 0x80) return 1;
    if (byte < 0xC2) return 0;
    if (byte < 0xE0) return 2;
    if (byte < 0xF0) {
        if (byte == 0xE0) *lo = 0xA0;
        if (byte == 0xED) *hi = 0x9F;
        return 3;
    }
    if (byte > 0xF4) return 0;
    if (byte == 0xF0) *lo = 0x90;
    if (byte == 0xF4) *hi = 0x8F;
    return 4;
}

size_t utf8_valid_len(const char *text, size_t len) {
    const uint8_t *s = (const uint8_t *)text;
    size_t i = 0;
    while (i < len) {
        uint8_t lo, hi;
        size_t size = (size_t)lead_byte(s[i], &lo, &hi);
        if (size == 0 || size > len - i) return i;
        for (size_t k = 1; k < size; k++) {
            if (s[i + k] < lo || s[i + k] > hi) return i;
            lo = 0x80, hi = 0xBF;
        }
        i += size;
    }
    return len;
}

uint32_t utf8_char(const char *text, size_t *size) {
    const uint8_t *s = (const uint8_t *)text;
    if (s[0] < 0x80) {
        *size = 1;
        return s[0];
    }
    if (s[0] < 0xE0) {
        *size = 2;
        return (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3F);
    }
    if (s[0] < 0xF0) {
        *size = 3;
        return (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 | (s[2] & 0x3F);
    }
    *size = 4;
    return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3F) << 12 |
           (uint32_t)(s[2] & 0x3F) << 6 | (s[3] & 0x3F);
}

size_t utf8_put(uint32_t c, char out[4]) {
    uint8_t *o = (uint8_t *)out;
    if (c < 0x80) {
        o[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        o[0] = (uint8_t)(0xC0 | c >> 6);
        o[1] = (uint8_t)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        o[0] = (uint8_t)(0xE0 | c >> 12);
        o[1] = (uint8_t)(0x80 | (c >> 6 & 0x3F));
        o[2] = (uint8_t)(0x80 | (c & 0x3F));
        return 3;
    }
    o[0] = (uint8_t)(0xF0 | c >> 18);
    o[1] = (uint8_t)(0x80 | (c >> 12 & 0x3F));
    o[2] = (uint8_t)(0x80 | (c >> 6 & 0x3F));
    o[3] = (uint8_t)(0x80 | (c & 0x3F));
    return 4;
}

bool utf8_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

bool utf8_is_numeric(uint32_t c) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool utf8_is_punctuation(uint32_t c) {
    if (c < 0x80)
        return c > 0x20 && c < 0x7F && !(c >= '0' && c <= '9') &&
               !((c | 32) >= 'a' && (c | 32) <= 'z');
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

bool utf8_is_word(uint32_t c) {
    if (c == 0x200C || c == 0x200D) return true; /* Join_Control */
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    if (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) return true; /* L*, M*, Nd, Nl */
    if (k == UTF8PROC_CATEGORY_PC) return true;
    /* Symbols that are Other_Alphabetic: circled, parenthesised and squared letters. */
    return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
           (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

/* One byte with nothing pending: a character, a U+FFFD, or the start of something. */
static int decode_first(struct utf8_decoder *d, uint8_t byte, char *out, uint8_t *size) {
    int want = lead_byte(byte, &d->lo, &d->hi);
    if (want == 1) {
        out[0] = (char)byte;
        *size = 1;
        return 1;
    }
    if (want == 0) {
        memcpy(out, REPLACEMENT, UTF8_REPLACEMENT_BYTES);
        *size = UTF8_REPLACEMENT_BYTES;
        return 1;
    }
    d->pending[0] = byte;
    d->n = 1;
    d->want = (uint8_t)want;
    return 0;
}

int utf8_decode(struct utf8_decoder *d, uint8_t byte, char out[UTF8_OUT_MAX],
                uint8_t sizes[UTF8_UNITS_MAX]) {
    if (d->n == 0) return decode_first(d, byte, out, &sizes[0]);
    if (byte < d->lo || byte > d->hi) {
        memcpy(out, REPLACEMENT, UTF8_REPLACEMENT_BYTES);
        sizes[0] = UTF8_REPLACEMENT_BYTES;
        d->n = 0;
        return 1 + decode_first(d, byte, out + UTF8_REPLACEMENT_BYTES, &sizes[1]);
    }
    d->pending[d->n++] = byte;
    d->lo = 0x80, d->hi = 0xBF;
    if (d->n < d->want) return 0;
    memcpy(out, d->pending, d->n);
    sizes[0] = d->n;
    d->n = 0;
    return 1;
}

int utf8_decode_end(struct utf8_decoder *d, char out[UTF8_REPLACEMENT_BYTES]) {
    if (d->n == 0) return 0;
    d->n = 0;
    memcpy(out, REPLACEMENT, UTF8_REPLACEMENT_BYTES);
    return 1;
}
