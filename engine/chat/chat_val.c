/* Values: truth, equality, order, membership, iteration. Python's rules, except that integers have
 * 64 bits. */
#include <string.h>

#include "engine/chat/chat_internal.h"

const char *chat_type_name(struct val v) {
    switch (v.kind) {
    case VAL_MISSING:
    case VAL_UNDEFINED:
        return "undefined";
    case VAL_NONE:
        return "none";
    case VAL_BOOL:
        return "bool";
    case VAL_INT:
        return "int";
    case VAL_REAL:
        return "float";
    case VAL_STR:
        return "str";
    case VAL_LIST:
        return "list";
    case VAL_TUPLE:
        return "tuple";
    case VAL_DICT:
        return "dict";
    case VAL_VIEW:
        return "dict view";
    case VAL_RANGE:
        return "range";
    case VAL_NAMESPACE:
        return "namespace";
    case VAL_GEN:
        return "generator";
    case VAL_LOOP:
        return "loop";
    case VAL_MACRO:
        return "macro";
    case VAL_METHOD:
        return "method";
    case VAL_GLOBAL:
        return "function";
    case VAL_CYCLER:
        return "cycler";
    case VAL_JOINER:
        return "joiner";
    }
    return "value";
}

bool chat_fail_undefined(struct interp *in, struct val v) {
    if (v.kind != VAL_UNDEFINED) return false;
    if (!v.s) return chat_fail(in, "an undefined value is used");
    return chat_fail(in, "'%.*s' is undefined", (int)(v.s->len < 80 ? v.s->len : 80), v.s->text);
}

bool chat_deeper(struct interp *in) {
    if (++in->data_depth <= CHAT_DATA_DEPTH_MAX && chat_charge(in, 1)) return true;
    in->data_depth--;
    return chat_fail(in, "a value is nested deeper than %d", CHAT_DATA_DEPTH_MAX);
}

void chat_shallower(struct interp *in) {
    in->data_depth--;
}

bool chat_make_list(struct interp *in, enum val_kind kind, const struct val *items, uint32_t n,
                    struct val *out) {
    struct list *list = chat_alloc(in, sizeof *list);
    if (!list) return false;
    *list = (struct list){.items = items, .n = n};
    *out = (struct val){.kind = kind, .list = list};
    return true;
}

bool chat_make_text(struct interp *in, const char *text, size_t len, struct val *out) {
    struct buf buf;
    chat_buf_init(in, &buf);
    chat_buf_add(&buf, text, len, true);
    return chat_buf_finish(&buf, out);
}

bool chat_truth(struct val v) {
    switch (v.kind) {
    case VAL_MISSING:
    case VAL_UNDEFINED:
    case VAL_NONE:
        return false;
    case VAL_BOOL:
        return v.b;
    case VAL_INT:
        return v.i != 0;
    case VAL_REAL:
        return v.r != 0;
    case VAL_STR:
        return v.s->len != 0;
    case VAL_LIST:
    case VAL_TUPLE:
        return v.list->n != 0;
    case VAL_DICT:
        return v.dict->n != 0;
    case VAL_VIEW:
        return v.view->dict->n != 0;
    case VAL_RANGE:
        return v.range->n != 0;
    default:
        return true;
    }
}

/* ---- equality and order ------------------------------------------------------------------------ */

/* Exact also where the integer has no double: -1, 0, 1; 2 when r is no number. */
static int compare_int_real(int64_t i, double r) {
    if (r != r) return 2;
    if (r >= 0x1p63) return -1;
    if (r < -0x1p63) return 1;
    int64_t whole = (int64_t)r;
    if (i != whole) return i < whole ? -1 : 1;
    double rest = r - (double)whole;
    return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

static int compare_numbers(struct val a, struct val b) {
    if (val_is_int(a) && val_is_int(b)) {
        int64_t x = val_as_int(a), y = val_as_int(b);
        return x < y ? -1 : x > y;
    }
    if (a.kind == VAL_REAL && b.kind == VAL_REAL) {
        if (a.r != a.r || b.r != b.r) return 2;
        return a.r < b.r ? -1 : a.r > b.r;
    }
    if (val_is_int(a)) return compare_int_real(val_as_int(a), b.r);
    int c = compare_int_real(val_as_int(b), a.r);
    return c == 2 ? 2 : -c;
}

static int compare_strings(const struct str *a, const struct str *b) {
    size_t n = a->len < b->len ? a->len : b->len;
    int c = memcmp(a->text, b->text, n); /* byte order of UTF-8 is code point order */
    if (c) return c < 0 ? -1 : 1;
    return a->len < b->len ? -1 : a->len > b->len;
}

static bool equal_lists(struct interp *in, const struct list *a, const struct list *b, bool *out) {
    *out = a->n == b->n;
    if (*out && !chat_charge(in, a->n)) return false;
    for (uint32_t i = 0; *out && i < a->n; i++)
        if (!chat_equal(in, a->items[i], b->items[i], out)) return false;
    return true;
}

static bool equal_dicts(struct interp *in, const struct dict *a, const struct dict *b, bool *out) {
    *out = a->n == b->n;
    for (uint32_t i = 0; *out && i < a->n; i++) {
        struct val other;
        bool found;
        if (!chat_dict_find(in, b, a->keys[i], &other, &found)) return false;
        *out = found;
        if (found && !chat_equal(in, a->vals[i], other, out)) return false;
    }
    return true;
}

bool chat_equal(struct interp *in, struct val a, struct val b, bool *out) {
    *out = false;
    if (val_is_number(a) && val_is_number(b)) {
        *out = compare_numbers(a, b) == 0;
        return true;
    }
    if (a.kind != b.kind) return true;
    switch (a.kind) {
    case VAL_STR:
        *out = chat_str_equal(a.s, b.s);
        return chat_charge_bytes(in, a.s->len);
    case VAL_UNDEFINED:
    case VAL_NONE:
        *out = true;
        return true;
    case VAL_RANGE:
        *out = a.range->n == b.range->n &&
               (a.range->n == 0 || (a.range->start == b.range->start &&
                                    (a.range->n == 1 || a.range->step == b.range->step)));
        return true;
    case VAL_LIST:
    case VAL_TUPLE:
    case VAL_DICT: {
        if (a.list == b.list) {
            *out = true;
            return true;
        }
        if (!chat_deeper(in)) return false;
        bool ok = a.kind == VAL_DICT ? equal_dicts(in, a.dict, b.dict, out)
                                     : equal_lists(in, a.list, b.list, out);
        chat_shallower(in);
        return ok;
    }
    default:
        *out = a.gen == b.gen; /* identity; the members of the union share their place */
        return true;
    }
}

static bool compare_lists(struct interp *in, const struct list *a, const struct list *b, int *out) {
    for (uint32_t i = 0; i < a->n && i < b->n; i++) {
        bool same;
        if (!chat_charge(in, 1) || !chat_equal(in, a->items[i], b->items[i], &same)) return false;
        if (!same) return chat_compare(in, a->items[i], b->items[i], out);
    }
    *out = a->n < b->n ? -1 : a->n > b->n;
    return true;
}

bool chat_compare(struct interp *in, struct val a, struct val b, int *out) {
    if (val_is_number(a) && val_is_number(b)) {
        *out = compare_numbers(a, b);
        return true;
    }
    if (a.kind == VAL_STR && b.kind == VAL_STR) {
        *out = compare_strings(a.s, b.s);
        return chat_charge_bytes(in, a.s->len < b.s->len ? a.s->len : b.s->len);
    }
    if (val_is_seq(a) && a.kind == b.kind) {
        if (!chat_deeper(in)) return false;
        bool ok = compare_lists(in, a.list, b.list, out);
        chat_shallower(in);
        return ok;
    }
    if (a.kind == VAL_UNDEFINED) return chat_fail_undefined(in, a);
    if (b.kind == VAL_UNDEFINED) return chat_fail_undefined(in, b);
    return chat_fail(in, "%s and %s have no order", chat_type_name(a), chat_type_name(b));
}

bool chat_contains(struct interp *in, struct val item, struct val container, bool *out) {
    *out = false;
    if (container.kind == VAL_STR) {
        if (item.kind == VAL_UNDEFINED) return chat_fail_undefined(in, item);
        if (item.kind != VAL_STR)
            return chat_fail(in, "'in' a string needs a string, not %s", chat_type_name(item));
        *out = chat_str_find(container.s, 0, container.s->len, item.s) != SIZE_MAX;
        return chat_charge_bytes(in, container.s->len);
    }
    if (container.kind == VAL_DICT) {
        struct val ignored;
        return chat_hashable(in, item) && chat_dict_find(in, container.dict, item, &ignored, out);
    }
    struct iter it;
    if (!chat_iter_init(in, &it, container)) return false;
    for (;;) {
        struct val v;
        bool more;
        if (!chat_iter_next(in, &it, &v, &more)) return false;
        if (!more) return true;
        if (!chat_equal(in, item, v, out)) return false;
        if (*out) return true;
    }
}

bool chat_length(struct interp *in, struct val v, int64_t *out) {
    uint32_t n;
    switch (v.kind) {
    case VAL_UNDEFINED:
        *out = 0;
        return true;
    case VAL_STR:
        if (!chat_str_chars(in, v.s, &n)) return false;
        *out = n;
        return true;
    case VAL_LIST:
    case VAL_TUPLE:
        *out = v.list->n;
        return true;
    case VAL_DICT:
        *out = v.dict->n;
        return true;
    case VAL_VIEW:
        *out = v.view->dict->n;
        return true;
    case VAL_RANGE:
        *out = v.range->n;
        return true;
    default:
        return chat_fail(in, "%s has no length", chat_type_name(v));
    }
}

/* ---- dictionaries ------------------------------------------------------------------------------ */

const struct val *chat_dict_get(const struct dict *dict, const struct str *key) {
    for (uint32_t i = 0; i < dict->n; i++)
        if (dict->keys[i].kind == VAL_STR && chat_str_equal(dict->keys[i].s, key))
            return &dict->vals[i];
    return NULL;
}

bool chat_dict_find(struct interp *in, const struct dict *dict, struct val key, struct val *out,
                    bool *found) {
    *found = false;
    if (!chat_charge(in, dict->n / 8)) return false;
    if (key.kind == VAL_STR) {
        const struct val *v = chat_dict_get(dict, key.s);
        *found = v != NULL;
        if (v) *out = *v;
        return true;
    }
    for (uint32_t i = 0; i < dict->n && !*found; i++) {
        if (!chat_equal(in, dict->keys[i], key, found)) return false;
        if (*found) *out = dict->vals[i];
    }
    return true;
}

bool chat_hashable(struct interp *in, struct val v) {
    if (v.kind == VAL_TUPLE) {
        if (!chat_deeper(in)) return false;
        bool ok = chat_charge(in, v.list->n);
        for (uint32_t i = 0; ok && i < v.list->n; i++)
            ok = chat_hashable(in, v.list->items[i]);
        chat_shallower(in);
        return ok;
    }
    if (v.kind != VAL_LIST && v.kind != VAL_DICT) return true;
    return chat_fail(in, "a %s cannot be a key", chat_type_name(v));
}

bool chat_make_dict(struct interp *in, const struct val *keys, const struct val *vals, uint32_t n,
                    struct val *out) {
    struct dict *dict = chat_alloc(in, sizeof *dict);
    struct val *k = dict ? chat_alloc_array(in, n, sizeof *k) : NULL;
    struct val *v = k ? chat_alloc_array(in, n, sizeof *v) : NULL;
    if (!v) return false;
    *dict = (struct dict){.keys = k, .vals = v};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = 0;
        bool same = false;
        if (!chat_hashable(in, keys[i])) return false;
        if (!chat_charge(in, 1 + dict->n / 8)) return false;
        for (; at < dict->n; at++) {
            if (!chat_equal(in, k[at], keys[i], &same)) return false;
            if (same) break;
        }
        if (!same) k[dict->n++] = keys[i];
        v[at] = vals[i];
    }
    *out = (struct val){.kind = VAL_DICT, .dict = dict};
    return true;
}

/* ---- iteration --------------------------------------------------------------------------------- */

bool chat_iter_init(struct interp *in, struct iter *it, struct val v) {
    switch (v.kind) {
    case VAL_UNDEFINED:
    case VAL_STR:
    case VAL_LIST:
    case VAL_TUPLE:
    case VAL_DICT:
    case VAL_VIEW:
    case VAL_RANGE:
    case VAL_GEN:
        *it = (struct iter){.src = v};
        return true;
    default:
        return chat_fail(in, "%s cannot be iterated over", chat_type_name(v));
    }
}

static bool pair(struct interp *in, struct val a, struct val b, struct val *out) {
    struct val *items = chat_alloc_array(in, 2, sizeof *items);
    if (!items) return false;
    items[0] = a;
    items[1] = b;
    return chat_make_list(in, VAL_TUPLE, items, 2, out);
}

static bool view_item(struct interp *in, const struct view *view, uint32_t i, struct val *out) {
    if (view->kind == VIEW_ITEMS) return pair(in, view->dict->keys[i], view->dict->vals[i], out);
    *out = view->kind == VIEW_KEYS ? view->dict->keys[i] : view->dict->vals[i];
    return true;
}

bool chat_iter_next(struct interp *in, struct iter *it, struct val *out, bool *more) {
    struct val src = it->src;
    *more = false;
    if (!chat_charge(in, 1)) return false;
    switch (src.kind) {
    case VAL_STR: {
        if (it->pos >= src.s->len) return true;
        uint32_t cp;
        size_t n = chat_utf8_next(src.s->text, src.s->len, it->pos, &cp);
        const struct str *s = chat_str_slice(in, src.s, it->pos, it->pos + n);
        if (!s) return false;
        *out = val_str(s); /* characters of marked text are plain, as Python's are */
        it->pos += (uint32_t)n;
        *more = true;
        return true;
    }
    case VAL_LIST:
    case VAL_TUPLE:
        *more = it->pos < src.list->n;
        if (*more) *out = src.list->items[it->pos++];
        return true;
    case VAL_DICT:
        *more = it->pos < src.dict->n;
        if (*more) *out = src.dict->keys[it->pos++];
        return true;
    case VAL_VIEW:
        *more = it->pos < src.view->dict->n;
        return !*more || view_item(in, src.view, it->pos++, out);
    case VAL_RANGE:
        *more = it->pos < src.range->n;
        if (*more) *out = val_int(range_at(src.range, it->pos++));
        return true;
    case VAL_GEN:
        return chat_gen_next(in, src.gen, out, more);
    default:
        return true; /* undefined: nothing */
    }
}

bool chat_collect(struct interp *in, struct val v, struct val *out) {
    if (val_is_seq(v)) return chat_make_list(in, VAL_LIST, v.list->items, v.list->n, out);
    struct iter it;
    if (!chat_iter_init(in, &it, v)) return false;
    struct val *items = NULL;
    uint32_t n = 0, cap = 0;
    for (;;) {
        struct val item;
        bool more;
        if (!chat_iter_next(in, &it, &item, &more)) return false;
        if (!more) break;
        if (n == cap) {
            uint32_t new_cap = cap ? cap * 2 : 8;
            struct val *grown = chat_alloc_array(in, new_cap, sizeof *grown);
            if (!grown) return false;
            if (n) memcpy(grown, items, n * sizeof *grown);
            items = grown;
            cap = new_cap;
        }
        items[n++] = item;
    }
    return chat_make_list(in, VAL_LIST, items, n, out);
}
