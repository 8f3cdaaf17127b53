/* Filters that give their result at once. Those of text take anything and work on its str(). */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "engine/chat/chat_internal.h"

/* filter NAME(in, input, args, out) */
#define FILTER(name) \
    static bool name(struct interp *in, struct val input, const struct args *args, struct val *out)

static bool no_args(struct interp *in, const char *what, const struct args *args) {
    return chat_bind(in, what, args, NULL, 0, 0, NULL);
}

/* ---- text -------------------------------------------------------------------------------------- */

static bool cased(struct interp *in, struct val input, const struct args *args, enum case_op op,
                  struct val *out) {
    struct val s;
    if (!no_args(in, "this filter", args) || !chat_to_str(in, input, &s)) return false;
    if (!chat_str_case(in, s.s, op, out)) return false;
    out->marked = s.marked && op != CASE_TITLE_WORDS;
    return true;
}

FILTER(filter_upper) {
    return cased(in, input, args, CASE_UPPER, out);
}
FILTER(filter_lower) {
    return cased(in, input, args, CASE_LOWER, out);
}
FILTER(filter_capitalize) {
    return cased(in, input, args, CASE_CAPITALIZE, out);
}
FILTER(filter_title) {
    return cased(in, input, args, CASE_TITLE_WORDS, out);
}

FILTER(filter_string) {
    return no_args(in, "string", args) && chat_to_str(in, input, out);
}

FILTER(filter_safe) {
    if (!filter_string(in, input, args, out)) return false;
    out->marked = true;
    return true;
}

FILTER(filter_escape) {
    struct val s;
    if (!filter_string(in, input, args, &s)) return false;
    if (!s.marked) return chat_str_escape_html(in, s.s, out);
    *out = s;
    return true;
}

FILTER(filter_trim) {
    static const char *const params[] = {"chars"};
    struct val chars, s;
    const struct str *set = NULL;
    size_t lo, hi;
    if (!chat_bind(in, "trim", args, params, 1, 0, &chars)) return false;
    if (chars.kind != VAL_MISSING && chars.kind != VAL_NONE &&
        !chat_want_str(in, "trim", chars, &set))
        return false;
    if (!chat_to_str(in, input, &s)) return false;
    if (!chat_charge_bytes(in, (size_t)s.s->len * (1 + (set ? set->len / 16 : 0)))) return false;
    chat_str_strip(s.s, set, STRIP_LEFT | STRIP_RIGHT, &lo, &hi);
    const struct str *part = chat_str_slice(in, s.s, lo, hi);
    if (!part) return false;
    *out = val_str(part);
    out->marked = s.marked;
    return true;
}

FILTER(filter_replace) {
    static const char *const params[] = {"old", "new", "count"};
    struct val a[3], s;
    if (!chat_bind(in, "replace", args, params, 3, 2, a)) return false;
    if (!chat_to_str(in, input, &s) || !chat_to_str(in, a[0], &a[0]) ||
        !chat_to_str(in, a[1], &a[1]))
        return false;
    s.marked = false;
    bool unused;
    const struct method_def *method =
        chat_method_find(s, &(struct str){.text = "replace", .len = 7}, &unused);
    uint32_t n = a[2].kind == VAL_MISSING || a[2].kind == VAL_NONE ? 2 : 3;
    return method->fn(in, s, &(struct args){.pos = a, .n_pos = n}, out);
}

/* Where the line at lo ends, and where the next starts; Python's splitlines(). */
static size_t line_end(const struct str *s, size_t lo, size_t *next) {
    for (size_t at = lo; at < s->len;) {
        uint32_t cp;
        size_t n = chat_utf8_next(s->text, s->len, at, &cp);
        bool ends = (cp >= 10 && cp <= 13) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 ||
                    cp == 0x2028 || cp == 0x2029;
        if (ends) {
            *next = at + n;
            if (cp == '\r' && *next < s->len && s->text[*next] == '\n') (*next)++;
            return at;
        }
        at += n;
    }
    *next = s->len;
    return s->len;
}

/* The spaces or the text that indent puts before a line. */
static bool take_indent(struct interp *in, struct val width, struct val *out) {
    if (width.kind == VAL_STR) {
        *out = width;
        return true;
    }
    int64_t n = 4;
    if (width.kind != VAL_MISSING && !chat_want_int(in, "indent", width, &n)) return false;
    if (!chat_check_width(in, "an indent", n)) return false;
    struct buf buf;
    chat_buf_init(in, &buf);
    chat_buf_fill(&buf, ' ', n > 0 ? (size_t)n : 0, true);
    return chat_buf_finish(&buf, out);
}

FILTER(filter_indent) {
    static const char *const params[] = {"width", "first", "blank"};
    struct val a[3], pad;
    const struct str *s;
    if (!chat_bind(in, "indent", args, params, 3, 0, a)) return false;
    if (!chat_want_str(in, "indent", input, &s) || !take_indent(in, a[0], &pad)) return false;
    bool first = chat_truth(a[1]), blank = chat_truth(a[2]);
    struct buf buf;
    chat_buf_init(in, &buf);
    if (first) chat_buf_str(&buf, pad.s);
    /* s gets one more newline, then its lines are joined again: the last newline goes. */
    for (size_t lo = 0, next = 0; !buf.failed; lo = next) {
        size_t end = line_end(s, lo, &next);
        if (lo && (blank || end > lo)) chat_buf_str(&buf, pad.s);
        chat_buf_slice(&buf, s, lo, end);
        if (!chat_charge(in, 1 + (next - lo) / CHAT_STEP_BYTES)) break;
        if (next == end) break; /* no line end here */
        if (next == s->len) {   /* the text ends with a line end: an empty line follows */
            chat_buf_slice(&buf, &(struct str){.text = "\n", .len = 1, .trusted = true}, 0, 1);
            if (blank) chat_buf_str(&buf, pad.s);
            break;
        }
        chat_buf_add(&buf, "\n", 1, chat_str_trusted_at(s, end));
    }
    if (!chat_buf_finish(&buf, out)) return false;
    out->marked = input.marked;
    return true;
}

FILTER(filter_format) {
    struct val s, right;
    if (!chat_to_str(in, input, &s)) return false;
    if (args->n_kw && args->n_pos) return chat_fail(in, "format takes one kind of arguments");
    if (!args->n_kw) {
        if (!chat_make_list(in, VAL_TUPLE, args->pos, args->n_pos, &right)) return false;
        return chat_str_percent(in, s, right, out);
    }
    struct val *keys = chat_alloc_array(in, args->n_kw, sizeof *keys);
    struct val *vals = keys ? chat_alloc_array(in, args->n_kw, sizeof *vals) : NULL;
    if (!vals) return false;
    for (uint32_t i = 0; i < args->n_kw; i++) {
        keys[i] = val_str(args->kw[i].name);
        vals[i] = args->kw[i].val;
    }
    return chat_make_dict(in, keys, vals, args->n_kw, &right) &&
           chat_str_percent(in, s, right, out);
}

FILTER(filter_wordcount) {
    struct val s;
    if (!no_args(in, "wordcount", args) || !chat_to_str(in, input, &s)) return false;
    if (!chat_charge_bytes(in, s.s->len * 4u)) return false;
    int64_t n = 0;
    bool inside = false;
    for (size_t at = 0; at < s.s->len;) {
        uint32_t cp;
        at += chat_utf8_next(s.s->text, s.s->len, at, &cp);
        utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
        bool word = cp == '_' || (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) ||
                    (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO);
        if (word && !inside) n++;
        inside = word;
    }
    *out = val_int(n);
    return true;
}

/* ---- numbers ----------------------------------------------------------------------------------- */

/* A Python number in text, blanks around it and single underscores allowed, into digits[400]. */
static bool number_text(const struct str *s, char digits[400]) {
    size_t lo, hi, n = 0;
    chat_str_strip(s, NULL, STRIP_LEFT | STRIP_RIGHT, &lo, &hi);
    for (size_t i = lo; i < hi; i++) {
        char c = s->text[i];
        if (c == '_') {
            bool between = i > lo && i + 1 < hi && isxdigit((unsigned char)s->text[i - 1]) &&
                           isxdigit((unsigned char)s->text[i + 1]);
            if (!between) return false;
            continue;
        }
        if (c == '\0' || n + 1 >= 400) return false;
        digits[n++] = c;
    }
    digits[n] = '\0';
    return n > 0;
}

static bool parse_real(const struct str *s, double *out) {
    char digits[400], *end;
    if (!number_text(s, digits) || strpbrk(digits, "xXpP(")) return false; /* no hex, no nan(...) */
    if (isspace((unsigned char)digits[0])) return false;
    *out = strtod(digits, &end);
    return *end == '\0';
}

/* 1 parsed, 0 no integer, -1 too large. */
static int parse_int(const struct str *s, int base, int64_t *out) {
    char digits[400], *end;
    if (!number_text(s, digits)) return 0;
    const char *p = digits;
    bool negative = *p == '-';
    if (*p == '-' || *p == '+') p++;
    char tag = *p == '0' ? (char)(p[1] | 0x20) : '\0';
    int tagged = tag == 'x' ? 16 : tag == 'o' ? 8 : tag == 'b' ? 2 : 0;
    if (tagged && (base == tagged || base == 0)) {
        p += 2;
        base = tagged;
    } else if (base == 0) {
        if (*p == '0' && strspn(p, "0") != strlen(p)) return 0;
        base = 10;
    }
    if (!isalnum((unsigned char)*p)) return 0;
    if (base == 16 && *p == '0' && (p[1] | 0x20) == 'x') return 0;
    char signed_text[404];
    snprintf(signed_text, sizeof signed_text, "%s%s", negative ? "-" : "", p);
    errno = 0;
    long long v = strtoll(signed_text, &end, base);
    if (*end) return 0;
    if (errno == ERANGE) return -1;
    *out = v;
    return 1;
}

static bool real_to_int(struct interp *in, double r, struct val *out) {
    if (!(r >= -0x1p63 && r < 0x1p63)) return chat_fail(in, "int: a number does not fit 64 bits");
    *out = val_int((int64_t)r);
    return true;
}

FILTER(filter_int) {
    static const char *const params[] = {"default", "base"};
    struct val a[2];
    int64_t base = 10, i;
    double r;
    if (input.kind == VAL_UNDEFINED) return chat_fail_undefined(in, input);
    if (!chat_bind(in, "int", args, params, 2, 0, a)) return false;
    if (a[1].kind != VAL_MISSING && !chat_want_int(in, "int", a[1], &base)) return false;
    if (base != 0 && (base < 2 || base > 36)) return chat_fail(in, "int: base is 2 to 36 or 0");
    *out = a[0].kind == VAL_MISSING ? val_int(0) : a[0];
    if (val_is_int(input)) {
        *out = val_int(val_as_int(input));
        return true;
    }
    if (input.kind == VAL_REAL) return isnan(input.r) || real_to_int(in, input.r, out);
    if (input.kind != VAL_STR) return true;
    if (!chat_charge_bytes(in, input.s->len)) return false;
    int got = parse_int(input.s, (int)base, &i);
    if (got < 0) return chat_fail(in, "int: a number does not fit 64 bits");
    if (got) *out = val_int(i);
    if (got || !parse_real(input.s, &r) || isnan(r) || isinf(r)) return true;
    return real_to_int(in, r, out);
}

FILTER(filter_float) {
    static const char *const params[] = {"default"};
    struct val fallback;
    double r;
    if (input.kind == VAL_UNDEFINED) return chat_fail_undefined(in, input);
    if (!chat_bind(in, "float", args, params, 1, 0, &fallback)) return false;
    *out = fallback.kind == VAL_MISSING ? val_real(0) : fallback;
    if (val_is_number(input)) *out = val_real(val_as_real(input));
    if (input.kind == VAL_STR && parse_real(input.s, &r)) *out = val_real(r);
    return input.kind != VAL_STR || chat_charge_bytes(in, input.s->len);
}

FILTER(filter_abs) {
    if (!no_args(in, "abs", args)) return false;
    if (!val_is_number(input)) return chat_negate(in, input, out) && false;
    bool negative = input.kind == VAL_REAL ? signbit(input.r) : val_as_int(input) < 0;
    if (negative) return chat_negate(in, input, out);
    *out = input.kind == VAL_REAL ? input : val_int(val_as_int(input));
    return true;
}

enum { ROUND_DIGITS_MAX = 300 };

/* Python's round(): half to even on the exact binary value, which is what printf does. */
static double round_common(double r, int digits) {
    char text[700];
    if (digits < 0) {
        double scale = pow(10, -digits);
        return rint(r / scale) * scale;
    }
    snprintf(text, sizeof text, "%.*f", digits, r);
    return strtod(text, NULL);
}

FILTER(filter_round) {
    static const char *const params[] = {"precision", "method"};
    struct val a[2];
    int64_t digits = 0;
    if (!chat_bind(in, "round", args, params, 2, 0, a)) return false;
    if (a[0].kind != VAL_MISSING && !chat_want_int(in, "round", a[0], &digits)) return false;
    if (digits < -ROUND_DIGITS_MAX || digits > ROUND_DIGITS_MAX)
        return chat_fail(in, "round: precision is within %d", ROUND_DIGITS_MAX);
    if (!val_is_number(input)) return chat_negate(in, input, out) && false;
    bool common =
        a[1].kind == VAL_MISSING || (a[1].kind == VAL_STR && chat_str_is(a[1].s, "common"));
    bool up = a[1].kind == VAL_STR && chat_str_is(a[1].s, "ceil");
    bool down = a[1].kind == VAL_STR && chat_str_is(a[1].s, "floor");
    if (!common && !up && !down) return chat_fail(in, "round: method is common, ceil or floor");
    double r = val_as_real(input);
    if (common && val_is_int(input) && digits >= 0)
        *out = val_int(val_as_int(input));
    else if (common && val_is_int(input))
        return real_to_int(in, round_common(r, (int)digits), out);
    else if (common)
        *out = val_real(isfinite(r) ? round_common(r, (int)digits) : r);
    else
        *out =
            val_real((up ? ceil(r * pow(10, (double)digits)) : floor(r * pow(10, (double)digits))) /
                     pow(10, (double)digits));
    return true;
}

/* ---- sequences --------------------------------------------------------------------------------- */

FILTER(filter_default) {
    static const char *const params[] = {"default_value", "boolean"};
    struct val a[2];
    if (!chat_bind(in, "default", args, params, 2, 0, a)) return false;
    bool use = input.kind == VAL_UNDEFINED || (chat_truth(a[1]) && !chat_truth(input));
    *out = input;
    if (!use) return true;
    *out = a[0];
    return a[0].kind != VAL_MISSING || chat_make_text(in, "", 0, out);
}

FILTER(filter_length) {
    int64_t n;
    if (!no_args(in, "length", args) || !chat_length(in, input, &n)) return false;
    *out = val_int(n);
    return true;
}

FILTER(filter_list) {
    return no_args(in, "list", args) && chat_collect(in, input, out);
}

FILTER(filter_first) {
    struct iter it;
    bool more;
    if (!no_args(in, "first", args) || !chat_iter_init(in, &it, input)) return false;
    /* A generator goes on from where this leaves it, so it is its own position that moves. */
    if (!chat_iter_next(in, &it, out, &more)) return false;
    if (!more) *out = val_undefined(NULL);
    return true;
}

FILTER(filter_last) {
    struct val list;
    if (!no_args(in, "last", args)) return false;
    if (input.kind == VAL_GEN) return chat_fail(in, "last needs a sequence, not a generator");
    if (input.kind == VAL_STR) return chat_get_item(in, input, val_int(-1), out);
    if (!chat_collect(in, input, &list)) return false;
    *out = list.list->n ? list.list->items[list.list->n - 1] : val_undefined(NULL);
    return true;
}

static bool add_joined(struct interp *in, struct buf *buf, struct iter *it, const struct str *sep,
                       struct val attr) {
    struct val missing = {.kind = VAL_MISSING};
    for (bool first = true;; first = false) {
        struct val v;
        bool more;
        if (!chat_iter_next(in, it, &v, &more)) return false;
        if (!more) return true;
        if (!chat_get_path(in, v, attr, missing, &v)) return false;
        if (!first && !chat_buf_str(buf, sep)) return false;
        if (!chat_print(buf, v)) return false;
    }
}

FILTER(filter_join) {
    static const char *const params[] = {"d", "attribute"};
    struct val a[2];
    struct iter it;
    if (!chat_bind(in, "join", args, params, 2, 0, a)) return false;
    if (!chat_iter_init(in, &it, input)) return false;
    if (a[0].kind == VAL_MISSING) a[0] = val_undefined(NULL);
    if (!chat_to_str(in, a[0], &a[0])) return false;
    struct buf buf;
    chat_buf_init(in, &buf);
    if (add_joined(in, &buf, &it, a[0].s, a[1])) return chat_buf_finish(&buf, out);
    chat_buf_drop(&buf);
    return false;
}

FILTER(filter_sum) {
    static const char *const params[] = {"attribute", "start"};
    struct val a[2], missing = {.kind = VAL_MISSING};
    struct iter it;
    if (!chat_bind(in, "sum", args, params, 2, 0, a)) return false;
    if (!chat_iter_init(in, &it, input)) return false;
    *out = a[1].kind == VAL_MISSING ? val_int(0) : a[1];
    if (out->kind == VAL_STR) return chat_fail(in, "sum does not add strings, join does");
    for (;;) {
        struct val v;
        bool more;
        if (!chat_iter_next(in, &it, &v, &more)) return false;
        if (!more) return true;
        if (!chat_get_path(in, v, a[0], missing, &v) || !chat_add(in, *out, v, out)) return false;
    }
}

/* What an item is ordered by: an attribute or itself, strings without case unless told. */
static bool sort_key(struct interp *in, struct val item, struct val attr, bool case_sensitive,
                     struct val *out) {
    struct val missing = {.kind = VAL_MISSING};
    if (!chat_get_path(in, item, attr, missing, out)) return false;
    if (case_sensitive || out->kind != VAL_STR) return true;
    return chat_str_case(in, out->s, CASE_LOWER, out);
}

static bool extreme(struct interp *in, struct val input, const struct args *args, int sign,
                    struct val *out) {
    static const char *const params[] = {"case_sensitive", "attribute"};
    struct val a[2], best = val_none();
    struct iter it;
    if (!chat_bind(in, "min and max", args, params, 2, 0, a)) return false;
    if (!chat_iter_init(in, &it, input)) return false;
    *out = val_undefined(NULL);
    for (bool first = true;; first = false) {
        struct val v, key;
        bool more;
        int c = 0;
        if (!chat_iter_next(in, &it, &v, &more)) return false;
        if (!more) return true;
        if (!sort_key(in, v, a[1], chat_truth(a[0]), &key)) return false;
        if (!first && !chat_compare(in, key, best, &c)) return false;
        if (!first && (c == 2 || c * sign <= 0)) continue;
        *out = v;
        best = key;
    }
}

FILTER(filter_min) {
    return extreme(in, input, args, -1, out);
}
FILTER(filter_max) {
    return extreme(in, input, args, 1, out);
}

struct keyed {
    struct val key, item;
};

/* Stable: bottom-up merges, the left side wins ties. */
static bool merge_sort(struct interp *in, struct keyed *items, uint32_t n, bool reverse) {
    struct keyed *other = chat_alloc_array(in, n, sizeof *other);
    if (!other) return false;
    for (uint32_t width = 1; width < n; width *= 2) {
        for (uint32_t lo = 0; lo < n; lo += 2 * width) {
            uint32_t mid = lo + width < n ? lo + width : n;
            uint32_t hi = lo + 2 * width < n ? lo + 2 * width : n;
            uint32_t a = lo, b = mid;
            for (uint32_t at = lo; at < hi; at++) {
                bool left = b == hi;
                if (a < mid && b < hi) {
                    int c;
                    if (!chat_charge(in, 1)) return false;
                    if (!chat_compare(in, items[b].key, items[a].key, &c)) return false;
                    left = c == 2 || (reverse ? c <= 0 : c >= 0);
                }
                other[at] = left ? items[a++] : items[b++];
            }
        }
        memcpy(items, other, n * sizeof *items);
    }
    return true;
}

static bool sorted(struct interp *in, struct keyed *keyed, uint32_t n, bool reverse,
                   struct val *out) {
    struct val *items = chat_alloc_array(in, n, sizeof *items);
    if (!items || !merge_sort(in, keyed, n, reverse)) return false;
    for (uint32_t i = 0; i < n; i++)
        items[i] = keyed[i].item;
    return chat_make_list(in, VAL_LIST, items, n, out);
}

FILTER(filter_sort) {
    static const char *const params[] = {"reverse", "case_sensitive", "attribute"};
    struct val a[3], list;
    if (!chat_bind(in, "sort", args, params, 3, 0, a)) return false;
    if (!chat_collect(in, input, &list)) return false;
    struct keyed *keyed = chat_alloc_array(in, list.list->n, sizeof *keyed);
    if (!keyed) return false;
    for (uint32_t i = 0; i < list.list->n; i++) {
        keyed[i].item = list.list->items[i];
        if (!sort_key(in, keyed[i].item, a[2], chat_truth(a[1]), &keyed[i].key)) return false;
    }
    return sorted(in, keyed, list.list->n, chat_truth(a[0]), out);
}

FILTER(filter_dictsort) {
    static const char *const params[] = {"case_sensitive", "by", "reverse"};
    struct val a[3], missing = {.kind = VAL_MISSING};
    if (!chat_bind(in, "dictsort", args, params, 3, 0, a)) return false;
    if (input.kind == VAL_UNDEFINED) return chat_fail_undefined(in, input);
    if (input.kind != VAL_DICT)
        return chat_fail(in, "dictsort needs a mapping, not %s", chat_type_name(input));
    bool by_value = a[1].kind == VAL_STR && chat_str_is(a[1].s, "value");
    if (!by_value && a[1].kind != VAL_MISSING &&
        !(a[1].kind == VAL_STR && chat_str_is(a[1].s, "key")))
        return chat_fail(in, "dictsort: by is 'key' or 'value'");
    uint32_t n = input.dict->n;
    struct keyed *keyed = chat_alloc_array(in, n, sizeof *keyed);
    if (!keyed) return false;
    for (uint32_t i = 0; i < n; i++) {
        struct val *pair = chat_alloc_array(in, 2, sizeof *pair);
        if (!pair) return false;
        pair[0] = input.dict->keys[i];
        pair[1] = input.dict->vals[i];
        if (!chat_make_list(in, VAL_TUPLE, pair, 2, &keyed[i].item)) return false;
        if (!sort_key(in, pair[by_value], missing, chat_truth(a[0]), &keyed[i].key)) return false;
    }
    return sorted(in, keyed, n, chat_truth(a[2]), out);
}

const struct filter *chat_filter_find(const struct str *name) {
    static const struct filter filters[] = {
        {"tojson", chat_json},
        {"length", filter_length},
        {"count", filter_length},
        {"trim", filter_trim},
        {"string", filter_string},
        {"default", filter_default},
        {"d", filter_default},
        {"join", filter_join},
        {"list", filter_list},
        {"lower", filter_lower},
        {"upper", filter_upper},
        {"safe", filter_safe},
        {"dictsort", filter_dictsort},
        {"capitalize", filter_capitalize},
        {"replace", filter_replace},
        {"title", filter_title},
        {"last", filter_last},
        {"int", filter_int},
        {"first", filter_first},
        {"indent", filter_indent},
        {"sort", filter_sort},
        {"min", filter_min},
        {"max", filter_max},
        {"format", filter_format},
        {"e", filter_escape},
        {"escape", filter_escape},
        {"float", filter_float},
        {"abs", filter_abs},
        {"sum", filter_sum},
        {"round", filter_round},
        {"wordcount", filter_wordcount},
    };
    for (size_t i = 0; i < ARRAY_LEN(filters); i++)
        if (chat_str_is(name, filters[i].name)) return &filters[i];
    for (size_t i = 0; chat_gen_filters[i].name; i++)
        if (chat_str_is(name, chat_gen_filters[i].name)) return &chat_gen_filters[i];
    return NULL;
}
