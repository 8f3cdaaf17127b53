/* Methods of strings, lists, dicts and cyclers. What would change a value exists only as
 * undefined: values are immutable. */
#include <string.h>

#include <utf8proc.h>

#include "engine/chat/chat_internal.h"

#define METHOD(name) \
    static bool name(struct interp *in, struct val self, const struct args *args, struct val *out)

static bool no_args(struct interp *in, const struct args *args) {
    return chat_bind(in, "this method", args, NULL, 0, 0, NULL);
}

static bool slice_out(struct interp *in, struct val self, size_t lo, size_t hi, struct val *out) {
    const struct str *part = chat_str_slice(in, self.s, lo, hi);
    if (!part) return false;
    *out = val_str(part);
    out->marked = self.marked;
    return true;
}

/* ---- case, strip, affixes ---------------------------------------------------------------------- */

static bool cased(struct interp *in, struct val self, const struct args *args, enum case_op op,
                  struct val *out) {
    if (!no_args(in, args) || !chat_str_case(in, self.s, op, out)) return false;
    out->marked = self.marked;
    return true;
}

METHOD(str_upper) {
    return cased(in, self, args, CASE_UPPER, out);
}
METHOD(str_lower) {
    return cased(in, self, args, CASE_LOWER, out);
}
METHOD(str_title) {
    return cased(in, self, args, CASE_TITLE, out);
}
METHOD(str_capitalize) {
    return cased(in, self, args, CASE_CAPITALIZE, out);
}
METHOD(str_swapcase) {
    return cased(in, self, args, CASE_SWAP, out);
}

static bool strip(struct interp *in, struct val self, const struct args *args, int sides,
                  struct val *out) {
    static const char *const params[] = {"chars"};
    struct val chars;
    const struct str *set = NULL;
    size_t lo, hi;
    if (!chat_bind(in, "strip", args, params, 1, 0, &chars)) return false;
    if (chars.kind != VAL_MISSING && chars.kind != VAL_NONE &&
        !chat_want_str(in, "strip", chars, &set))
        return false;
    if (!chat_charge_bytes(in, (size_t)self.s->len * (1 + (set ? set->len / 16 : 0)))) return false;
    chat_str_strip(self.s, set, sides, &lo, &hi);
    return slice_out(in, self, lo, hi, out);
}

METHOD(str_strip) {
    return strip(in, self, args, STRIP_LEFT | STRIP_RIGHT, out);
}
METHOD(str_lstrip) {
    return strip(in, self, args, STRIP_LEFT, out);
}
METHOD(str_rstrip) {
    return strip(in, self, args, STRIP_RIGHT, out);
}

static bool has_affix(const struct str *s, size_t lo, size_t hi, const struct str *affix,
                      bool prefix) {
    if (lo > hi || affix->len > hi - lo) return false;
    return memcmp(s->text + (prefix ? lo : hi - affix->len), affix->text, affix->len) == 0;
}

/* The bytes that optional start and end (code points, negative from the end) select; lo > hi when
 * start lies behind the end. */
static bool take_range(struct interp *in, const struct str *s, struct val start, struct val end,
                       size_t *lo, size_t *hi) {
    uint32_t n;
    int64_t at[2];
    if (!chat_str_chars(in, s, &n)) return false;
    at[0] = 0;
    at[1] = n;
    for (int i = 0; i < 2; i++) {
        struct val v = i ? end : start;
        if (v.kind == VAL_MISSING || v.kind == VAL_NONE) continue;
        if (!chat_want_int(in, "a position", v, &at[i])) return false;
        if (at[i] < 0) at[i] = at[i] < -(int64_t)n ? 0 : at[i] + n;
        if (i && at[i] > n) at[i] = n;
    }
    *lo = at[0] > n ? (size_t)s->len + 1 : chat_str_offset(s, (uint32_t)at[0]);
    *hi = chat_str_offset(s, (uint32_t)at[1]);
    return true;
}

static bool affix(struct interp *in, struct val self, const struct args *args, bool prefix,
                  struct val *out) {
    static const char *const params[] = {"prefix", "start", "end"};
    struct val a[3];
    size_t lo, hi;
    if (!chat_bind(in, "startswith and endswith", args, params, 3, 1, a)) return false;
    if (!take_range(in, self.s, a[1], a[2], &lo, &hi)) return false;
    const struct val *items = a[0].kind == VAL_TUPLE ? a[0].list->items : a;
    uint32_t n = a[0].kind == VAL_TUPLE ? a[0].list->n : 1;
    *out = val_bool(false);
    for (uint32_t i = 0; i < n; i++) {
        const struct str *s;
        if (!chat_want_str(in, "startswith and endswith", items[i], &s)) return false;
        if (!chat_charge(in, 1 + s->len / CHAT_STEP_BYTES)) return false;
        if (has_affix(self.s, lo, hi, s, prefix)) *out = val_bool(true);
    }
    return true;
}

METHOD(str_startswith) {
    return affix(in, self, args, true, out);
}
METHOD(str_endswith) {
    return affix(in, self, args, false, out);
}

static bool one_string(struct interp *in, const char *what, const struct args *args,
                       const struct str **out) {
    static const char *const params[] = {"text"};
    struct val v;
    return chat_bind(in, what, args, params, 1, 1, &v) && chat_want_str(in, what, v, out);
}

METHOD(str_removeprefix) {
    const struct str *s;
    if (!one_string(in, "removeprefix", args, &s)) return false;
    bool has = has_affix(self.s, 0, self.s->len, s, true);
    return slice_out(in, self, has ? s->len : 0, self.s->len, out);
}

METHOD(str_removesuffix) {
    const struct str *s;
    if (!one_string(in, "removesuffix", args, &s)) return false;
    bool has = has_affix(self.s, 0, self.s->len, s, false);
    return slice_out(in, self, 0, self.s->len - (has ? s->len : 0), out);
}

/* ---- search ------------------------------------------------------------------------------------ */

/* Byte offset to code point index. */
static int64_t index_of(const struct str *s, size_t off) {
    if (s->n_chars == s->len) return (int64_t)off;
    int64_t n = 0;
    uint32_t cp;
    for (size_t at = 0; at < off; n++)
        at += chat_utf8_next(s->text, s->len, at, &cp);
    return n;
}

static bool find(struct interp *in, struct val self, const struct args *args, bool last, bool must,
                 struct val *out) {
    static const char *const params[] = {"sub", "start", "end"};
    struct val a[3];
    const struct str *what;
    size_t lo, hi;
    if (!chat_bind(in, "find and index", args, params, 3, 1, a)) return false;
    if (!chat_want_str(in, "find and index", a[0], &what)) return false;
    if (!take_range(in, self.s, a[1], a[2], &lo, &hi)) return false;
    if (!chat_charge_find(in, self.s, what)) return false;
    size_t at = last ? chat_str_rfind(self.s, lo, hi, what) : chat_str_find(self.s, lo, hi, what);
    if (at == SIZE_MAX && must) return chat_fail(in, "index: the text is not found");
    *out = val_int(at == SIZE_MAX ? -1 : index_of(self.s, at));
    return true;
}

METHOD(str_find) {
    return find(in, self, args, false, false, out);
}
METHOD(str_rfind) {
    return find(in, self, args, true, false, out);
}
METHOD(str_index) {
    return find(in, self, args, false, true, out);
}
METHOD(str_rindex) {
    return find(in, self, args, true, true, out);
}

METHOD(str_count) {
    static const char *const params[] = {"sub", "start", "end"};
    struct val a[3];
    const struct str *what;
    size_t lo, hi;
    int64_t n = 0;
    if (!chat_bind(in, "count", args, params, 3, 1, a)) return false;
    if (!chat_want_str(in, "count", a[0], &what)) return false;
    if (!take_range(in, self.s, a[1], a[2], &lo, &hi)) return false;
    if (!chat_charge_find(in, self.s, what)) return false;
    if (!what->len) {
        n = lo > hi ? 0 : index_of(self.s, hi) - index_of(self.s, lo) + 1;
    } else {
        for (; (lo = chat_str_find(self.s, lo, hi, what)) != SIZE_MAX; lo += what->len)
            n++;
        if (!chat_charge(in, (uint64_t)n / 16)) return false;
    }
    *out = val_int(n);
    return true;
}

METHOD(str_replace) {
    static const char *const params[] = {"old", "new", "count"};
    struct val a[3];
    const struct str *old, *with;
    int64_t count = -1;
    if (!chat_bind(in, "replace", args, params, 3, 2, a)) return false;
    if (!chat_want_str(in, "replace", a[0], &old) || !chat_want_str(in, "replace", a[1], &with))
        return false;
    if (a[2].kind != VAL_MISSING && !chat_want_int(in, "replace", a[2], &count)) return false;
    if (self.marked && !a[1].marked) { /* marked text escapes what comes into it */
        if (!chat_str_escape_html(in, with, &a[1])) return false;
        with = a[1].s;
    }
    if (!chat_charge_find(in, self.s, old)) return false;
    struct buf buf;
    chat_buf_init(in, &buf);
    size_t from = 0;
    for (size_t at = 0; count != 0 && chat_charge(in, 1); count--) {
        at = chat_str_find(self.s, at, self.s->len, old);
        if (at == SIZE_MAX) break;
        if (!chat_buf_slice(&buf, self.s, from, at) || !chat_buf_str(&buf, with)) break;
        from = at + old->len;
        at = from;
        if (old->len) continue;
        if (at >= self.s->len) break; /* the empty text stands between all characters */
        uint32_t cp;
        at += chat_utf8_next(self.s->text, self.s->len, at, &cp);
    }
    chat_buf_slice(&buf, self.s, from, self.s->len);
    if (!chat_buf_finish(&buf, out)) return false;
    out->marked = self.marked;
    return true;
}

/* ---- split and join ---------------------------------------------------------------------------- */

struct pieces {
    struct val *items;
    uint32_t n, cap;
};

static bool add_piece(struct interp *in, struct pieces *pieces, struct val self, size_t lo,
                      size_t hi) {
    if (pieces->n == pieces->cap) {
        uint32_t cap = pieces->cap ? pieces->cap * 2 : 8;
        struct val *grown = chat_alloc_array(in, cap, sizeof *grown);
        if (!grown) return false;
        if (pieces->n) memcpy(grown, pieces->items, pieces->n * sizeof *grown);
        pieces->items = grown;
        pieces->cap = cap;
    }
    return chat_charge(in, 1) && slice_out(in, self, lo, hi, &pieces->items[pieces->n++]);
}

static void reverse(struct pieces *pieces) {
    for (uint32_t i = 0; i < pieces->n / 2; i++) {
        struct val v = pieces->items[i];
        pieces->items[i] = pieces->items[pieces->n - 1 - i];
        pieces->items[pieces->n - 1 - i] = v;
    }
}

static bool split_blanks(struct interp *in, struct val self, int64_t max, struct pieces *pieces) {
    const struct str *s = self.s;
    size_t at = 0;
    while (at < s->len) {
        uint32_t cp;
        size_t n = chat_utf8_next(s->text, s->len, at, &cp);
        if (chat_is_space(cp)) {
            at += n;
            continue;
        }
        size_t lo = at;
        if (max-- == 0) return add_piece(in, pieces, self, lo, s->len);
        while (at < s->len) {
            n = chat_utf8_next(s->text, s->len, at, &cp);
            if (chat_is_space(cp)) break;
            at += n;
        }
        if (!add_piece(in, pieces, self, lo, at)) return false;
    }
    return true;
}

/* From the right: the pieces come out last first. */
static bool rsplit_blanks(struct interp *in, struct val self, int64_t max, struct pieces *pieces) {
    struct str rest = *self.s;
    rest.n_runs = 0;
    for (;;) {
        size_t lo, hi;
        chat_str_strip(&rest, NULL, STRIP_RIGHT, &lo, &hi);
        if (hi == 0) return true;
        if (max-- == 0) return add_piece(in, pieces, self, 0, hi);
        lo = hi; /* back to the character after the blank before */
        while (lo > 0) {
            size_t at = lo - 1;
            while (at > 0 && lo - at < 4 && ((unsigned char)rest.text[at] & 0xC0) == 0x80)
                at--;
            uint32_t cp;
            chat_utf8_next(rest.text, lo, at, &cp);
            if (chat_is_space(cp)) break;
            lo = at;
        }
        if (!add_piece(in, pieces, self, lo, hi)) return false;
        rest.len = (uint32_t)lo;
    }
}

static bool split_text(struct interp *in, struct val self, const struct str *sep, int64_t max,
                       struct pieces *pieces) {
    size_t from = 0;
    while (max-- != 0) {
        size_t at = chat_str_find(self.s, from, self.s->len, sep);
        if (at == SIZE_MAX) break;
        if (!add_piece(in, pieces, self, from, at)) return false;
        from = at + sep->len;
    }
    return add_piece(in, pieces, self, from, self.s->len);
}

static bool rsplit_text(struct interp *in, struct val self, const struct str *sep, int64_t max,
                        struct pieces *pieces) {
    size_t to = self.s->len;
    while (max-- != 0) {
        size_t at = chat_str_rfind(self.s, 0, to, sep);
        if (at == SIZE_MAX) break;
        if (!add_piece(in, pieces, self, at + sep->len, to)) return false;
        to = at;
    }
    return add_piece(in, pieces, self, 0, to);
}

static bool split(struct interp *in, struct val self, const struct args *args, bool right,
                  struct val *out) {
    static const char *const params[] = {"sep", "maxsplit"};
    struct val a[2];
    struct pieces pieces = {0};
    const struct str *sep = NULL;
    int64_t max = -1;
    bool ok;
    if (!chat_bind(in, "split", args, params, 2, 0, a)) return false;
    if (a[1].kind != VAL_MISSING && !chat_want_int(in, "split", a[1], &max)) return false;
    if (a[0].kind != VAL_MISSING && a[0].kind != VAL_NONE) {
        if (!chat_want_str(in, "split", a[0], &sep)) return false;
        if (!sep->len) return chat_fail(in, "split: the separator is empty");
        if (!chat_charge_find(in, self.s, sep)) return false;
        ok = right ? rsplit_text(in, self, sep, max, &pieces)
                   : split_text(in, self, sep, max, &pieces);
    } else {
        if (!chat_charge_bytes(in, self.s->len * 4u)) return false;
        ok = right ? rsplit_blanks(in, self, max, &pieces) : split_blanks(in, self, max, &pieces);
    }
    if (!ok) return false;
    if (right) reverse(&pieces);
    return chat_make_list(in, VAL_LIST, pieces.items, pieces.n, out);
}

METHOD(str_split) {
    return split(in, self, args, false, out);
}
METHOD(str_rsplit) {
    return split(in, self, args, true, out);
}

METHOD(str_splitlines) {
    static const char *const params[] = {"keepends"};
    struct val keep;
    struct pieces pieces = {0};
    const struct str *s = self.s;
    if (!chat_bind(in, "splitlines", args, params, 1, 0, &keep)) return false;
    if (!chat_charge_bytes(in, s->len * 4u)) return false;
    size_t lo = 0;
    for (size_t at = 0; at < s->len;) {
        uint32_t cp;
        size_t end = at;
        at += chat_utf8_next(s->text, s->len, at, &cp);
        bool ends = (cp >= 10 && cp <= 13) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 ||
                    cp == 0x2028 || cp == 0x2029;
        if (!ends) continue;
        if (cp == '\r' && at < s->len && s->text[at] == '\n') at++;
        if (!add_piece(in, &pieces, self, lo, chat_truth(keep) ? at : end)) return false;
        lo = at;
    }
    if (lo < s->len && !add_piece(in, &pieces, self, lo, s->len)) return false;
    return chat_make_list(in, VAL_LIST, pieces.items, pieces.n, out);
}

static bool partition(struct interp *in, struct val self, const struct args *args, bool last,
                      struct val *out) {
    const struct str *sep;
    struct pieces p = {0};
    if (!one_string(in, "partition", args, &sep)) return false;
    if (!sep->len) return chat_fail(in, "partition: the separator is empty");
    if (!chat_charge_find(in, self.s, sep)) return false;
    size_t n = self.s->len;
    size_t at = last ? chat_str_rfind(self.s, 0, n, sep) : chat_str_find(self.s, 0, n, sep);
    size_t lo = at, hi = at + sep->len;
    if (at == SIZE_MAX) lo = hi = last ? 0 : n;
    return add_piece(in, &p, self, 0, lo) && add_piece(in, &p, self, lo, hi) &&
           add_piece(in, &p, self, hi, n) && chat_make_list(in, VAL_TUPLE, p.items, 3, out);
}

METHOD(str_partition) {
    return partition(in, self, args, false, out);
}
METHOD(str_rpartition) {
    return partition(in, self, args, true, out);
}

static bool join_items(struct interp *in, struct buf *buf, struct val self, struct iter *it) {
    for (bool first = true;; first = false) {
        struct val v;
        bool more;
        if (!chat_iter_next(in, it, &v, &more)) return false;
        if (!more) return true;
        if (v.kind == VAL_UNDEFINED) return chat_fail_undefined(in, v);
        if (v.kind != VAL_STR)
            return chat_fail(in, "join needs strings, not %s", chat_type_name(v));
        if (self.marked && !v.marked && !chat_str_escape_html(in, v.s, &v)) return false;
        if (!first && !chat_buf_str(buf, self.s)) return false;
        if (!chat_buf_str(buf, v.s)) return false;
    }
}

METHOD(str_join) {
    static const char *const params[] = {"items"};
    struct val items;
    struct iter it;
    if (!chat_bind(in, "join", args, params, 1, 1, &items)) return false;
    if (!chat_iter_init(in, &it, items)) return false;
    struct buf buf;
    chat_buf_init(in, &buf);
    if (!join_items(in, &buf, self, &it)) {
        chat_buf_drop(&buf);
        return false;
    }
    if (!chat_buf_finish(&buf, out)) return false;
    out->marked = self.marked;
    return true;
}

/* ---- padding ----------------------------------------------------------------------------------- */

/* Share of the padding that goes left: 0 none, 1 all, 2 half. */
static bool pad(struct interp *in, struct val self, const struct args *args, int left,
                struct val *out) {
    static const char *const params[] = {"width", "fillchar"};
    struct val a[2];
    int64_t width;
    uint32_t n;
    struct str space = {.text = " ", .len = 1, .n_chars = 1, .trusted = true};
    const struct str *fill = &space;
    if (!chat_bind(in, "padding", args, params, 2, 1, a)) return false;
    if (!chat_want_int(in, "padding", a[0], &width) || !chat_check_width(in, "a width", width))
        return false;
    if (a[1].kind != VAL_MISSING) {
        uint32_t len;
        if (!chat_want_str(in, "padding", a[1], &fill) || !chat_str_chars(in, fill, &len))
            return false;
        if (len != 1) return chat_fail(in, "padding: the fill is one character");
    }
    if (!chat_str_chars(in, self.s, &n)) return false;
    int64_t total = width > n ? width - n : 0;
    int64_t before = left == 0 ? 0 : left == 1 ? total : total / 2 + (total & width & 1);
    struct buf buf;
    chat_buf_init(in, &buf);
    if (!chat_charge(in, (uint64_t)total / 32)) return false;
    for (int64_t i = 0; i < before && chat_buf_str(&buf, fill); i++)
        continue;
    chat_buf_str(&buf, self.s);
    for (int64_t i = before; i < total && chat_buf_str(&buf, fill); i++)
        continue;
    return chat_buf_finish(&buf, out);
}

METHOD(str_ljust) {
    return pad(in, self, args, 0, out);
}
METHOD(str_rjust) {
    return pad(in, self, args, 1, out);
}
METHOD(str_center) {
    return pad(in, self, args, 2, out);
}

METHOD(str_zfill) {
    static const char *const params[] = {"width"};
    struct val v;
    int64_t width;
    uint32_t n;
    if (!chat_bind(in, "zfill", args, params, 1, 1, &v)) return false;
    if (!chat_want_int(in, "zfill", v, &width) || !chat_check_width(in, "a width", width))
        return false;
    if (!chat_str_chars(in, self.s, &n)) return false;
    bool sign = self.s->len && (self.s->text[0] == '-' || self.s->text[0] == '+');
    struct buf buf;
    chat_buf_init(in, &buf);
    chat_buf_slice(&buf, self.s, 0, sign);
    chat_buf_fill(&buf, '0', width > n ? (size_t)(width - n) : 0, true);
    chat_buf_slice(&buf, self.s, sign, self.s->len);
    return chat_buf_finish(&buf, out);
}

/* ---- character classes ------------------------------------------------------------------------- */

enum char_class { CLASS_DIGIT, CLASS_ALPHA, CLASS_ALNUM, CLASS_SPACE, CLASS_ASCII };

static bool in_class(uint32_t cp, enum char_class class) {
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    bool alpha = c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
    bool digit = c == UTF8PROC_CATEGORY_ND || cp == 0xB2 || cp == 0xB3 || cp == 0xB9 ||
                 cp == 0x2070 || (cp >= 0x2074 && cp <= 0x2079) || (cp >= 0x2080 && cp <= 0x2089);
    switch (class) {
    case CLASS_DIGIT:
        return digit;
    case CLASS_ALPHA:
        return alpha;
    case CLASS_ALNUM:
        return alpha || digit || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
    case CLASS_SPACE:
        return chat_is_space(cp);
    case CLASS_ASCII:
        return cp < 0x80;
    }
    return false;
}

static bool all_in(struct interp *in, struct val self, const struct args *args,
                   enum char_class class, struct val *out) {
    if (!no_args(in, args) || !chat_charge_bytes(in, self.s->len * 4u)) return false;
    bool all = self.s->len || class == CLASS_ASCII;
    for (size_t at = 0; all && at < self.s->len;) {
        uint32_t cp;
        at += chat_utf8_next(self.s->text, self.s->len, at, &cp);
        all = in_class(cp, class);
    }
    *out = val_bool(all);
    return true;
}

METHOD(str_isdigit) {
    return all_in(in, self, args, CLASS_DIGIT, out);
}
METHOD(str_isalpha) {
    return all_in(in, self, args, CLASS_ALPHA, out);
}
METHOD(str_isalnum) {
    return all_in(in, self, args, CLASS_ALNUM, out);
}
METHOD(str_isspace) {
    return all_in(in, self, args, CLASS_SPACE, out);
}
METHOD(str_isascii) {
    return all_in(in, self, args, CLASS_ASCII, out);
}

static bool case_test(struct interp *in, struct val self, const struct args *args, const char *name,
                      struct val *out) {
    struct str test_name = {.text = name, .len = 5};
    bool holds;
    if (!no_args(in, args) || !chat_test_find(&test_name)->fn(in, self, args, &holds)) return false;
    *out = val_bool(holds);
    return true;
}

METHOD(str_isupper) {
    return case_test(in, self, args, "upper", out);
}
METHOD(str_islower) {
    return case_test(in, self, args, "lower", out);
}

/* ---- dicts, lists, cyclers --------------------------------------------------------------------- */

METHOD(dict_get) {
    static const char *const params[] = {"key", "default"};
    struct val a[2];
    bool found;
    if (!chat_bind(in, "get", args, params, 2, 1, a)) return false;
    if (!chat_hashable(in, a[0]) || !chat_dict_find(in, self.dict, a[0], out, &found)) return false;
    if (!found) *out = a[1].kind == VAL_MISSING ? val_none() : a[1];
    return true;
}

static bool make_view(struct interp *in, struct val self, const struct args *args,
                      enum view_kind kind, struct val *out) {
    struct view *view = no_args(in, args) ? chat_alloc(in, sizeof *view) : NULL;
    if (!view) return false;
    *view = (struct view){.dict = self.dict, .kind = kind};
    *out = (struct val){.kind = VAL_VIEW, .view = view};
    return true;
}

METHOD(dict_keys) {
    return make_view(in, self, args, VIEW_KEYS, out);
}
METHOD(dict_values) {
    return make_view(in, self, args, VIEW_VALUES, out);
}
METHOD(dict_items) {
    return make_view(in, self, args, VIEW_ITEMS, out);
}

METHOD(copy) {
    *out = self;
    return no_args(in, args);
}

static bool list_search(struct interp *in, struct val self, const struct args *args, bool count,
                        struct val *out) {
    static const char *const params[] = {"value"};
    struct val v;
    int64_t n = 0;
    if (!chat_bind(in, "index and count", args, params, 1, 1, &v)) return false;
    for (uint32_t i = 0; i < self.list->n; i++) {
        bool same;
        if (!chat_charge(in, 1) || !chat_equal(in, self.list->items[i], v, &same)) return false;
        if (same && !count) {
            *out = val_int(i);
            return true;
        }
        n += same;
    }
    *out = val_int(n);
    return count || chat_fail(in, "index: the value is not in the list");
}

METHOD(list_index) {
    return list_search(in, self, args, false, out);
}
METHOD(list_count) {
    return list_search(in, self, args, true, out);
}

METHOD(cycler_next) {
    struct cycler *cycler = self.cycler;
    *out = cycler->items[cycler->at];
    cycler->at = (cycler->at + 1) % cycler->n;
    return no_args(in, args);
}

METHOD(cycler_reset) {
    self.cycler->at = 0;
    *out = val_none();
    return no_args(in, args);
}

/* ---- tables ------------------------------------------------------------------------------------ */

static const struct method_def str_methods[] = {
    {"split", str_split},
    {"lstrip", str_lstrip},
    {"strip", str_strip},
    {"endswith", str_endswith},
    {"rstrip", str_rstrip},
    {"startswith", str_startswith},
    {"replace", str_replace},
    {"title", str_title},
    {"format", chat_str_format},
    {"upper", str_upper},
    {"lower", str_lower},
    {"casefold", str_lower},
    {"capitalize", str_capitalize},
    {"swapcase", str_swapcase},
    {"join", str_join},
    {"find", str_find},
    {"rfind", str_rfind},
    {"index", str_index},
    {"rindex", str_rindex},
    {"count", str_count},
    {"rsplit", str_rsplit},
    {"splitlines", str_splitlines},
    {"partition", str_partition},
    {"rpartition", str_rpartition},
    {"removeprefix", str_removeprefix},
    {"removesuffix", str_removesuffix},
    {"ljust", str_ljust},
    {"rjust", str_rjust},
    {"center", str_center},
    {"zfill", str_zfill},
    {"isdigit", str_isdigit},
    {"isalpha", str_isalpha},
    {"isalnum", str_isalnum},
    {"isspace", str_isspace},
    {"isascii", str_isascii},
    {"isupper", str_isupper},
    {"islower", str_islower},
};

static const struct method_def dict_methods[] = {
    {"items", dict_items},   {"get", dict_get}, {"keys", dict_keys},
    {"values", dict_values}, {"copy", copy},
};

static const struct method_def list_methods[] = {
    {"index", list_index},
    {"count", list_count},
    {"copy", copy},
};

static const struct method_def cycler_methods[] = {
    {"next", cycler_next},
    {"reset", cycler_reset},
};

static bool is_one_of(const struct str *name, const char *const *names) {
    for (; *names; names++)
        if (chat_str_is(name, *names)) return true;
    return false;
}

const struct method_def *chat_method_find(struct val v, const struct str *name, bool *unsafe) {
    static const char *const dict_unsafe[] = {"clear",  "pop",      "popitem", "setdefault",
                                              "update", "fromkeys", NULL};
    static const char *const list_unsafe[] = {"append", "clear",  "pop",    "reverse", "insert",
                                              "sort",   "extend", "remove", NULL};
    const struct method_def *table = NULL;
    size_t n = 0;
    *unsafe = false;
    if (v.kind == VAL_STR) {
        table = str_methods;
        n = ARRAY_LEN(str_methods);
    } else if (v.kind == VAL_DICT) {
        table = dict_methods;
        n = ARRAY_LEN(dict_methods);
        *unsafe = is_one_of(name, dict_unsafe);
    } else if (val_is_seq(v)) {
        table = list_methods;
        n = ARRAY_LEN(list_methods) - (v.kind == VAL_TUPLE); /* tuples have no copy */
        *unsafe = v.kind == VAL_LIST && is_one_of(name, list_unsafe);
    } else if (v.kind == VAL_CYCLER) {
        table = cycler_methods;
        n = ARRAY_LEN(cycler_methods);
    }
    for (size_t i = 0; i < n; i++)
        if (chat_str_is(name, table[i].name)) return &table[i];
    return NULL;
}
