/* The two engines agree on most of what tokenizer files use, but not on
 *   \s  (PCRE2 counts U+180E in)       \w, \b (PCRE2: letters, numbers, underscore)
 *   \h  (Ruby: a hexadecimal digit)    \v     (Ruby: vertical tab)
 *   \p{Script} (PCRE2: script extensions)     X{n,m}+ (PCRE2: possessive)
 * so these are spelled out or refused. */
#include "engine/tokenizer/pattern_translate.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/utf8.h"

#define SPACE                                                                                   \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
    "\\x{205f}\\x{3000}"
#define NOT_SPACE                                                                              \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{" \
    "1fff}"                                                                                    \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"             \
    "\\x{3001}-\\x{d7ff}\\x{e000}-\\x{10ffff}"
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define HEX  "0-9A-Fa-f"

struct translation {
    const char *source, *where;
    size_t len, i; /* i: next byte to read */
    char *out;
    size_t out_len, out_cap;
    bool in_class, no_memory;
    struct err *err;
};

static void put_n(struct translation *t, const char *text, size_t n) {
    if (t->out_len + n + 1 > t->out_cap) {
        size_t cap = 2 * (t->out_len + n + 1);
        char *out = realloc(t->out, cap);
        if (!out) {
            t->no_memory = true;
            return;
        }
        t->out = out;
        t->out_cap = cap;
    }
    memcpy(t->out + t->out_len, text, n);
    t->out_len += n;
}

static void put(struct translation *t, const char *text) {
    put_n(t, text, strlen(text));
}

static void put_char(struct translation *t, uint32_t c) {
    char text[16];
    snprintf(text, sizeof text, "\\x{%x}", c);
    put(t, text);
}

static int refuse(struct translation *t, const char *what) {
    return err_set(t->err, ERR_INVALID,
                   "%s: regular expression \"%.80s\": %s at byte %zu is not supported", t->where,
                   t->source, what, t->i);
}

/* A class given by what stands between its brackets, outside a class or within one. */
static int put_class(struct translation *t, const char *members, const char *others, bool negated) {
    if (!t->in_class) {
        put(t, negated ? "[^" : "[");
        put(t, members);
        put(t, "]");
        return OK;
    }
    if (!negated) {
        put(t, members);
        return OK;
    }
    if (!others) return refuse(t, "a negated class within a class");
    put(t, others);
    return OK;
}

static bool is_hex(char c) {
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f');
}

/* \xHH, \x{H..}, \uHHHH; i stands after the letter. */
static int put_code_point(struct translation *t, char letter) {
    bool braces = letter == 'x' && t->i < t->len && t->source[t->i] == '{';
    size_t max = braces ? 8 : letter == 'u' ? 4 : 2, n = 0;
    uint32_t c = 0;
    if (braces) t->i++;
    for (; n < max && t->i < t->len && is_hex(t->source[t->i]); n++, t->i++) {
        char d = t->source[t->i];
        c = c << 4 | (uint32_t)(d <= '9' ? d - '0' : (d | 32) - 'a' + 10);
    }
    bool closed = !braces || (t->i < t->len && t->source[t->i] == '}');
    if (n == 0 || !closed || (letter == 'u' && n != 4) || c > 0x10FFFF ||
        (c >= 0xD800 && c <= 0xDFFF))
        return refuse(t, "a malformed character code");
    if (braces) t->i++;
    put_char(t, c);
    return OK;
}

static bool is_category(const char *name, size_t n) {
    static const char *const all[] = {"C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm", "Lo",
                                      "Lt", "Lu", "M",  "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No",
                                      "P",  "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S",  "Sc",
                                      "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs", "Any"};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (strlen(all[i]) == n && memcmp(all[i], name, n) == 0) return true;
    return false;
}

/* \p{Name}, \p{^Name}, \P{Name}: categories pass, any other name must be a script. */
static int put_property(struct translation *t, char letter) {
    if (t->i >= t->len || t->source[t->i] != '{') return refuse(t, "a property without braces");
    size_t start = ++t->i;
    bool negated = letter == 'P';
    if (start < t->len && t->source[start] == '^') {
        negated = !negated;
        start = ++t->i;
    }
    while (t->i < t->len && t->source[t->i] != '}')
        t->i++;
    size_t n = t->i - start;
    if (t->i >= t->len || n == 0 || n > 40) return refuse(t, "a malformed property");
    const char *name = t->source + start;
    for (size_t k = 0; k < n; k++)
        if (!((name[k] | 32) >= 'a' && (name[k] | 32) <= 'z') && name[k] != '_')
            return refuse(t, "a malformed property");
    t->i++;
    put(t, negated ? "\\P{" : "\\p{");
    if (!is_category(name, n)) put(t, "sc:");
    put_n(t, name, n);
    put(t, "}");
    return OK;
}

static int put_escape(struct translation *t) {
    if (t->i + 1 >= t->len) return refuse(t, "a lone backslash");
    char c = t->source[t->i + 1];
    t->i += 2;
    switch (c) {
    case 's':
    case 'S':
        return put_class(t, SPACE, NOT_SPACE, c == 'S');
    case 'w':
    case 'W':
        return put_class(t, WORD, NULL, c == 'W');
    case 'h':
    case 'H':
        return put_class(t, HEX, NULL, c == 'H');
    case 'd':
        return put(t, "\\p{Nd}"), OK;
    case 'D':
        return put(t, "\\P{Nd}"), OK;
    case 'p':
    case 'P':
        return put_property(t, c);
    case 'x':
    case 'u':
        return put_code_point(t, c);
    case 'n':
        return put_char(t, '\n'), OK;
    case 'r':
        return put_char(t, '\r'), OK;
    case 't':
        return put_char(t, '\t'), OK;
    case 'f':
        return put_char(t, '\f'), OK;
    case 'v':
        return put_char(t, '\v'), OK;
    case 'a':
        return put_char(t, 7), OK;
    case 'e':
        return put_char(t, 27), OK;
    case 'b':
        if (t->in_class) return put_char(t, 8), OK;
        return put(t, "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))"), OK;
    case 'A':
    case 'z':
    case 'Z':
        if (t->in_class) break;
        return put_n(t, t->source + t->i - 2, 2), OK;
    default:
        if ((uint8_t)c >= 0x80) { /* an escaped letter that needs none: read it again, plainly */
            t->i--;
            return OK;
        }
        if (c <= ' ' || utf8_is_punctuation((uint8_t)c)) return put_char(t, (uint8_t)c), OK;
    }
    char what[] = "the escape \\?";
    what[sizeof what - 2] = c;
    t->i -= 2;
    return refuse(t, what);
}

static bool follows(const struct translation *t, const char *text) {
    size_t n = strlen(text);
    return t->len - t->i >= n && memcmp(t->source + t->i, text, n) == 0;
}

static int put_group(struct translation *t) {
    static const char *const plain[] = {"(?:",  "(?=",  "(?!",  "(?>",
                                        "(?<=", "(?<!", "(?i:", "(?-i:"};
    for (size_t k = 0; k < ARRAY_LEN(plain); k++) {
        if (!follows(t, plain[k])) continue;
        put(t, plain[k]);
        t->i += strlen(plain[k]);
        return OK;
    }
    /* Ruby lets (?i) reach over | to the end of its group; at the very start both agree. */
    if (t->i == 0 && follows(t, "(?i)")) {
        put(t, "(?i)");
        t->i += 4;
        return OK;
    }
    if (follows(t, "(?") || follows(t, "(*")) return refuse(t, "this kind of group");
    put(t, "(");
    t->i++;
    return OK;
}

/* A quantifier {n}, {n,}, {n,m}, {,m}, or a brace that is only a brace. */
static int put_brace(struct translation *t) {
    size_t k = t->i + 1, low = k;
    while (k < t->len && t->source[k] >= '0' && t->source[k] <= '9')
        k++;
    bool has_low = k > low, has_high = false;
    size_t low_end = k;
    if (k < t->len && t->source[k] == ',') {
        size_t high = ++k;
        while (k < t->len && t->source[k] >= '0' && t->source[k] <= '9')
            k++;
        has_high = k > high;
    }
    if (k >= t->len || t->source[k] != '}' || (!has_low && !has_high)) {
        put(t, "\\{");
        t->i++;
        return OK;
    }
    if (k + 1 < t->len && t->source[k + 1] == '+') return refuse(t, "a repeat of a counted repeat");
    put(t, "{");
    if (has_low) put_n(t, t->source + low, low_end - low);
    if (!has_low) put(t, "0");
    put_n(t, t->source + low_end, k + 1 - low_end);
    t->i = k + 1;
    return OK;
}

static int open_class(struct translation *t) {
    t->in_class = true;
    put(t, "[");
    t->i++;
    if (t->i < t->len && t->source[t->i] == '^') {
        put(t, "^");
        t->i++;
    }
    if (t->i < t->len && t->source[t->i] == ']') return refuse(t, "an empty class");
    return OK;
}

static int put_next(struct translation *t) {
    char c = t->source[t->i];
    if (c == '\\') return put_escape(t);
    if (t->in_class) {
        if (c == '[') return refuse(t, "a class within a class");
        if (follows(t, "&&")) return refuse(t, "an intersection of classes");
        if (c == ']') t->in_class = false;
    } else {
        if (c == '[') return open_class(t);
        if (c == '(') return put_group(t);
        if (c == '{') return put_brace(t);
    }
    put_n(t, &c, 1);
    t->i++;
    return OK;
}

int pattern_translate(const char *source, size_t len, const char *where, char **out,
                      size_t *out_len, struct err *err) {
    if (len == 0) return err_set(err, ERR_INVALID, "%s: the pattern is empty", where);
    if (len > PATTERN_SOURCE_BYTES_MAX)
        return err_set(err, ERR_TOO_LONG, "%s: regular expression of %zu bytes, allowed are %d",
                       where, len, PATTERN_SOURCE_BYTES_MAX);
    if (utf8_valid_len(source, len) != len || memchr(source, '\0', len))
        return err_set(err, ERR_INVALID, "%s: regular expression is not plain UTF-8", where);
    struct translation t = {.source = source, .where = where, .len = len, .err = err};
    int rc = OK;
    while (rc == OK && t.i < len)
        rc = put_next(&t);
    if (rc == OK && t.in_class) rc = refuse(&t, "a class without end");
    if (rc == OK && !t.no_memory) {
        put_n(&t, "", 1);
        t.out_len--;
    }
    if (rc == OK && t.no_memory) rc = err_set(err, ERR_NOMEM, "%s: no memory", where);
    if (rc) {
        free(t.out);
        return rc;
    }
    *out = t.out;
    *out_len = t.out_len;
    return OK;
}
