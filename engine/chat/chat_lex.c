/* Tokens of a template. Outside of tags everything is text; inside, Python-like tokens.
 *
 *   text {{- expression +}} text {% statement -%} text {# comment #} text {% raw %} text {% endraw %}
 *
 * A dash eats all blanks on its side. Otherwise one newline after a block or comment is dropped
 * (trim_blocks) and so are blanks before one that is first on its line (lstrip_blocks); a plus
 * switches both off. Expression tags are touched by dashes only. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "engine/chat/chat_internal.h"

struct lexer {
    const char *src;
    size_t len, pos;
    uint32_t line;
    size_t line_pos; /* `line` is the line of this position */
    struct arena *arena;
    struct token *tokens;
    uint32_t n, cap;
    struct err *err;
};

const struct str *chat_str_static(struct arena *arena, const char *text, size_t len) {
    struct str *s = arena_alloc(arena, sizeof *s);
    if (!s) return NULL;
    uint32_t n_chars = 0;
    for (size_t at = 0; at < len; n_chars++) {
        uint32_t cp;
        at += chat_utf8_next(text, len, at, &cp);
    }
    *s = (struct str){.text = text, .len = (uint32_t)len, .n_chars = n_chars, .trusted = true};
    return s;
}

static uint32_t line_at(struct lexer *lx, size_t pos) {
    while (lx->line_pos < pos)
        if (lx->src[lx->line_pos++] == '\n') lx->line++;
    return lx->line;
}

static int lex_fail(struct lexer *lx, size_t pos, const char *what) {
    return err_set(lx->err, ERR_INVALID, "chat template: line %u: %s", line_at(lx, pos), what);
}

static int out_of_memory(struct lexer *lx) {
    return err_set(lx->err, ERR_NOMEM, "chat template: no memory for its tokens");
}

static struct token *push(struct lexer *lx, enum token_kind kind, size_t off, size_t end) {
    if (lx->n == lx->cap) {
        uint32_t cap = lx->cap ? lx->cap * 2 : 256;
        struct token *grown = realloc(lx->tokens, cap * sizeof *grown);
        if (!grown) return NULL;
        lx->tokens = grown;
        lx->cap = cap;
    }
    struct token *t = &lx->tokens[lx->n++];
    memset(t, 0, sizeof *t);
    t->kind = kind;
    t->off = (uint32_t)off;
    t->end = (uint32_t)end;
    t->line = line_at(lx, off);
    return t;
}

static bool at_text(const struct lexer *lx, size_t pos, const char *text) {
    size_t n = strlen(text);
    return n <= lx->len - pos && memcmp(lx->src + pos, text, n) == 0;
}

static size_t skip_blanks(const struct lexer *lx, size_t pos) {
    while (pos < lx->len) {
        uint32_t cp;
        size_t n = chat_utf8_next(lx->src, lx->len, pos, &cp);
        if (!chat_is_space(cp)) break;
        pos += n;
    }
    return pos;
}

/* Text [lo, hi) before a tag, with what the tag's left side eats taken off. */
static int push_text(struct lexer *lx, size_t lo, size_t hi, char sign, bool is_var) {
    struct str view = {.text = lx->src + lo, .len = (uint32_t)(hi - lo)};
    if (sign == '-') {
        size_t a, b;
        chat_str_strip(&view, NULL, STRIP_RIGHT, &a, &b);
        hi = lo + b;
    } else if (sign != '+' && !is_var) {
        size_t start = hi;
        while (start > lo && lx->src[start - 1] != '\n')
            start--;
        bool line_start = start == 0 || lx->src[start - 1] == '\n';
        if (line_start && skip_blanks(lx, start) >= hi) hi = start;
    }
    if (hi == lo) return OK;
    struct token *t = push(lx, TOKEN_TEXT, lo, hi);
    if (!t) return out_of_memory(lx);
    t->text = chat_str_static(lx->arena, lx->src + lo, hi - lo);
    return t->text ? OK : out_of_memory(lx);
}

/* The closing of a tag at pos ("%}", "}}" or "#}", perhaps after a sign), or 0: the position after
 * it and what it eats. */
static size_t tag_end(const struct lexer *lx, size_t pos, const char *close, bool may_plus) {
    char sign = pos < lx->len ? lx->src[pos] : '\0';
    size_t at = pos;
    if (sign == '-' || (sign == '+' && may_plus)) at++;
    if (!at_text(lx, at, close)) return 0;
    at += 2;
    if (sign == '-') return skip_blanks(lx, at);
    bool trims = sign != '+' && close[0] != '}';
    if (trims && at < lx->len && lx->src[at] == '\n') at++;
    return at;
}

static int lex_comment(struct lexer *lx, size_t start, size_t body) {
    for (size_t p = body; p + 2 <= lx->len; p++) {
        size_t end = tag_end(lx, p, "#}", true);
        if (!end) continue;
        lx->pos = end;
        return OK;
    }
    return lex_fail(lx, start, "a comment is not closed");
}

static size_t skip_word(const struct lexer *lx, size_t pos, const char *word) {
    pos = skip_blanks(lx, pos);
    if (!at_text(lx, pos, word)) return 0;
    return skip_blanks(lx, pos + strlen(word));
}

/* {% raw %}: text up to {% endraw %} is not looked at. Returns 1 when the tag was one. */
static int lex_raw(struct lexer *lx, size_t start, size_t after_sign) {
    size_t p = skip_word(lx, after_sign, "raw");
    if (!p) return 0;
    if (at_text(lx, p, "-%}"))
        p = skip_blanks(lx, p + 3);
    else if (at_text(lx, p, "%}"))
        p += 2;
    else
        return 0;
    for (size_t q = p; q + 2 <= lx->len; q++) {
        if (!at_text(lx, q, "{%")) continue;
        size_t at = q + 2;
        char sign = at < lx->len && (lx->src[at] == '-' || lx->src[at] == '+') ? lx->src[at] : 0;
        size_t w = skip_word(lx, at + (sign != 0), "endraw");
        size_t end = w ? tag_end(lx, w, "%}", true) : 0;
        if (!end) continue;
        int rc = push_text(lx, p, q, sign, false);
        if (rc) return rc;
        lx->pos = end;
        return 1;
    }
    return lex_fail(lx, start, "raw is not closed by endraw");
}

/* ---- tokens inside a tag ----------------------------------------------------------------------- */

static bool is_name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static size_t name_end(const struct lexer *lx, size_t pos) {
    while (pos < lx->len) {
        unsigned char c = (unsigned char)lx->src[pos];
        if (is_name_start((char)c) || is_digit((char)c)) {
            pos++;
            continue;
        }
        if (c < 0x80) break;
        uint32_t cp;
        size_t n = chat_utf8_next(lx->src, lx->len, pos, &cp);
        utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)cp);
        if (category < UTF8PROC_CATEGORY_LU || category > UTF8PROC_CATEGORY_NO) break;
        pos += n;
    }
    return pos;
}

static int hex_digit(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Exactly n hex digits at pos < end, or -1. */
static int64_t read_hex(const struct lexer *lx, size_t pos, size_t end, int n) {
    int64_t v = 0;
    for (int i = 0; i < n; i++) {
        int d = pos + (size_t)i < end ? hex_digit(lx->src[pos + (size_t)i]) : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* The escape whose backslash is at *pos. Writes at most 4 bytes, moves *pos behind it; -1 for one
 * that Python refuses. */
static int unescape(const struct lexer *lx, size_t *pos, size_t end, char out[4]) {
    char c = lx->src[*pos + 1];
    static const char plain[] = "n\nt\tr\rb\bf\fv\va\a\\\\''\"\"";
    for (size_t i = 0; i + 1 < sizeof plain; i += 2)
        if (plain[i] == c) {
            out[0] = plain[i + 1];
            *pos += 2;
            return 1;
        }
    if (c == '\n') {
        *pos += 2;
        return 0;
    }
    int64_t cp;
    if (c == 'x' || c == 'u' || c == 'U') {
        int n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        cp = read_hex(lx, *pos + 2, end, n);
        *pos += 2 + (size_t)n;
        if (cp >= 0xD800 && cp < 0xDC00 && *pos + 6 <= end && lx->src[*pos] == '\\' &&
            lx->src[*pos + 1] == 'u') {
            int64_t low = read_hex(lx, *pos + 2, end, 4);
            if (low < 0xDC00 || low > 0xDFFF) return -1;
            cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
            *pos += 6;
        }
    } else if (c >= '0' && c <= '7') {
        cp = 0;
        size_t at = *pos + 1;
        for (int i = 0; i < 3 && at < end && lx->src[at] >= '0' && lx->src[at] <= '7'; i++)
            cp = cp * 8 + (lx->src[at++] - '0');
        *pos = at;
    } else if (c == 'N') {
        return -1; /* names of characters: no template needs the table */
    } else {
        out[0] = '\\'; /* unknown: the backslash stays, the character follows as it is */
        *pos += 1;
        return 1;
    }
    if (cp < 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) return -1;
    return (int)chat_utf8_put(out, (uint32_t)cp);
}

static int lex_string(struct lexer *lx) {
    size_t start = lx->pos, end = start + 1;
    char quote = lx->src[start];
    while (end < lx->len && lx->src[end] != quote)
        end += lx->src[end] == '\\' ? 2 : 1;
    if (end >= lx->len) return lex_fail(lx, start, "a string is not closed");
    char *text = arena_alloc(lx->arena, end - start + 4);
    if (!text) return out_of_memory(lx);
    size_t n = 0;
    for (size_t p = start + 1; p < end;) {
        if (lx->src[p] != '\\') {
            text[n++] = lx->src[p++];
            continue;
        }
        char bytes[4];
        int got = unescape(lx, &p, end, bytes);
        if (got < 0 || p > end) return lex_fail(lx, start, "a string holds a broken escape");
        memcpy(text + n, bytes, (size_t)got); /* never longer than the escape itself */
        n += (size_t)got;
    }
    struct token *t = push(lx, TOKEN_STRING, start, end + 1);
    if (!t) return out_of_memory(lx);
    t->text = chat_str_static(lx->arena, text, n);
    lx->pos = end + 1;
    return t->text ? OK : out_of_memory(lx);
}

/* Digits with single underscores between them. */
static size_t digits_end(const struct lexer *lx, size_t pos) {
    while (pos < lx->len &&
           (is_digit(lx->src[pos]) || (lx->src[pos] == '_' && pos + 1 < lx->len &&
                                       is_digit(lx->src[pos + 1]) && is_digit(lx->src[pos - 1]))))
        pos++;
    return pos;
}

static int lex_based_int(struct lexer *lx, int base) {
    size_t start = lx->pos, p = start + 2;
    int64_t v = 0;
    for (; p < lx->len; p++) {
        if (lx->src[p] == '_') continue;
        int d = hex_digit(lx->src[p]);
        if (d < 0 || d >= base) break;
        if (__builtin_mul_overflow(v, (int64_t)base, &v) || __builtin_add_overflow(v, d, &v))
            return lex_fail(lx, start, "an integer does not fit 64 bits");
    }
    struct token *t = push(lx, TOKEN_INT, start, p);
    if (!t) return out_of_memory(lx);
    t->i = v;
    lx->pos = p;
    return OK;
}

static int lex_number(struct lexer *lx) {
    size_t start = lx->pos;
    if (lx->src[start] == '0' && start + 2 < lx->len) {
        char c = lx->src[start + 1] | 0x20;
        int base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
        int d = hex_digit(lx->src[start + 2]);
        if (base && d >= 0 && d < base) return lex_based_int(lx, base);
    }
    size_t p = digits_end(lx, start);
    bool real = false;
    bool after_dot = start > 0 && lx->src[start - 1] == '.'; /* a.0.1 indexes twice */
    if (!after_dot) {
        if (p + 1 < lx->len && lx->src[p] == '.' && is_digit(lx->src[p + 1])) {
            real = true;
            p = digits_end(lx, p + 1);
        }
        size_t e = p + 1;
        if (p < lx->len && (lx->src[p] | 0x20) == 'e') {
            if (e < lx->len && (lx->src[e] == '+' || lx->src[e] == '-')) e++;
            if (e < lx->len && is_digit(lx->src[e])) {
                real = true;
                p = digits_end(lx, e);
            }
        }
    }
    char digits[400];
    size_t n = 0;
    for (size_t i = start; i < p; i++) {
        if (lx->src[i] == '_') continue;
        if (n + 1 == sizeof digits) return lex_fail(lx, start, "a number is too long");
        digits[n++] = lx->src[i];
    }
    digits[n] = '\0';
    struct token *t = push(lx, real ? TOKEN_REAL : TOKEN_INT, start, p);
    if (!t) return out_of_memory(lx);
    errno = 0;
    if (real)
        t->r = strtod(digits, NULL);
    else
        t->i = strtoll(digits, NULL, 10);
    if (!real && errno == ERANGE) return lex_fail(lx, start, "an integer does not fit 64 bits");
    lx->pos = p;
    return OK;
}

static int lex_op(struct lexer *lx) {
    static const char *const pairs[] = {"==", "!=", "<=", ">=", "//", "**"};
    size_t p = lx->pos;
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++)
        if (at_text(lx, p, pairs[i])) {
            struct token *t = push(lx, TOKEN_OP, p, p + 2);
            if (!t) return out_of_memory(lx);
            t->op = OP2(pairs[i][0], pairs[i][1]);
            lx->pos = p + 2;
            return OK;
        }
    char c = lx->src[p];
    if (c == '\0' || !strchr("+-*/%~<>=()[]{}.,:|;", c))
        return lex_fail(lx, p, "a character that is no part of an expression");
    struct token *t = push(lx, TOKEN_OP, p, p + 1);
    if (!t) return out_of_memory(lx);
    t->op = OP1(c);
    lx->pos = p + 1;
    return OK;
}

/* Brackets may hold "}}" and "%}": a tag ends only where they are balanced. */
static int track_brackets(struct lexer *lx, char *stack, uint32_t *depth, int op, size_t pos) {
    if (op == '(' || op == '[' || op == '{') {
        if (*depth == CHAT_NESTING_MAX) return lex_fail(lx, pos, "brackets nest too deeply");
        stack[(*depth)++] = op == '(' ? ')' : op == '[' ? ']' : '}';
    } else if (op == ')' || op == ']' || op == '}') {
        if (*depth == 0 || stack[*depth - 1] != op)
            return lex_fail(lx, pos, "a closing bracket without its opening one");
        (*depth)--;
    }
    return OK;
}

static int lex_tag(struct lexer *lx, size_t start, bool is_var) {
    char stack[CHAT_NESTING_MAX];
    uint32_t depth = 0;
    for (;;) {
        lx->pos = skip_blanks(lx, lx->pos);
        size_t p = lx->pos;
        if (p >= lx->len) return lex_fail(lx, start, "a tag is not closed");
        size_t end = depth ? 0 : tag_end(lx, p, is_var ? "}}" : "%}", !is_var);
        if (end) {
            if (!push(lx, is_var ? TOKEN_VAR_END : TOKEN_BLOCK_END, p, end))
                return out_of_memory(lx);
            lx->pos = end;
            return OK;
        }
        char c = lx->src[p];
        int rc;
        size_t after = name_end(lx, p);
        if (is_digit(c)) {
            rc = lex_number(lx);
        } else if (after > p) {
            struct token *t = push(lx, TOKEN_NAME, p, after);
            rc = t ? OK : out_of_memory(lx);
            lx->pos = after;
        } else if (c == '\'' || c == '"') {
            rc = lex_string(lx);
        } else {
            rc = lex_op(lx);
            if (!rc) rc = track_brackets(lx, stack, &depth, lx->tokens[lx->n - 1].op, p);
        }
        if (rc) return rc;
    }
}

static int lex_all(struct lexer *lx) {
    while (lx->pos < lx->len) {
        size_t p = lx->pos;
        while (p + 1 < lx->len &&
               !(lx->src[p] == '{' &&
                 (lx->src[p + 1] == '%' || lx->src[p + 1] == '{' || lx->src[p + 1] == '#')))
            p++;
        if (p + 1 >= lx->len) {
            int rc = push_text(lx, lx->pos, lx->len, '+', false);
            lx->pos = lx->len;
            if (rc) return rc;
            break;
        }
        char kind = lx->src[p + 1];
        size_t after = p + 2;
        char sign = after < lx->len ? lx->src[after] : '\0';
        if (sign == '-' || sign == '+') after++;
        int rc = push_text(lx, lx->pos, p, sign, kind == '{');
        if (rc) return rc;
        if (kind == '#') {
            rc = lex_comment(lx, p, after);
        } else {
            rc = kind == '%' ? lex_raw(lx, p, after) : 0;
            if (rc == 1) continue;
            if (rc) return rc;
            if (!push(lx, kind == '{' ? TOKEN_VAR_BEGIN : TOKEN_BLOCK_BEGIN, p, after))
                return out_of_memory(lx);
            lx->pos = after;
            rc = lex_tag(lx, p, kind == '{');
        }
        if (rc) return rc;
    }
    return push(lx, TOKEN_EOF, lx->len, lx->len) ? OK : out_of_memory(lx);
}

int chat_lex(const char *source, size_t len, struct arena *arena, struct token **out,
             uint32_t *n_out, struct err *err) {
    struct lexer lx = {.src = source, .len = len, .line = 1, .arena = arena, .err = err};
    int rc = lex_all(&lx);
    if (rc) {
        free(lx.tokens);
        return rc;
    }
    *out = lx.tokens;
    *n_out = lx.n;
    return OK;
}
