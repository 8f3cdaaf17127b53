/* a.b, a[b], a[b:c:d] and dotted paths. */
#include <string.h>

#include "engine/chat/chat_internal.h"

static bool bind_method(struct interp *in, const struct method_def *def, struct val self,
                        struct val *out) {
    struct method *method = chat_alloc(in, sizeof *method);
    if (!method) return false;
    *method = (struct method){.def = def, .self = self};
    *out = (struct val){.kind = VAL_METHOD, .method = method};
    return true;
}

static bool ns_get(const struct namespace *ns, const struct str *name, struct val *out) {
    for (uint32_t i = 0; i < ns->n; i++)
        if (chat_str_equal(ns->vars[i].name, name)) {
            *out = ns->vars[i].val;
            return true;
        }
    return false;
}

/* What Python finds as an attribute: methods, loop variables, namespace entries. */
static bool find_attr(struct interp *in, struct val v, const struct str *name, struct val *out,
                      bool *found) {
    bool unsafe = false;
    *found = true;
    if (v.kind == VAL_LOOP) return chat_loop_attr(in, v.loop, name, out);
    if (v.kind == VAL_NAMESPACE) {
        *found = ns_get(v.ns, name, out);
        return chat_charge(in, v.ns->n / 8);
    }
    const struct method_def *def = chat_method_find(v, name, &unsafe);
    if (def) return bind_method(in, def, v, out);
    *found = unsafe; /* a method that would change the value is as good as undefined */
    *out = val_undefined(name);
    return true;
}

bool chat_get_attr(struct interp *in, struct val v, const struct str *name, struct val *out) {
    bool found;
    if (v.kind == VAL_UNDEFINED) return chat_fail_undefined(in, v);
    if (!find_attr(in, v, name, out, &found)) return false;
    if (found) return true;
    if (v.kind == VAL_DICT) {
        if (!chat_dict_find(in, v.dict, val_str(name), out, &found)) return false;
        if (found) return true;
    }
    *out = val_undefined(name);
    return true;
}

static bool char_at(struct interp *in, struct val v, int64_t i, struct val *out) {
    size_t at = chat_str_offset(v.s, (uint32_t)i);
    uint32_t cp;
    if (!chat_charge_bytes(in, v.s->n_chars == v.s->len ? 0 : at)) return false;
    size_t n = chat_utf8_next(v.s->text, v.s->len, at, &cp);
    const struct str *s = chat_str_slice(in, v.s, at, at + n);
    if (!s) return false;
    *out = val_str(s);
    out->marked = v.marked;
    return true;
}

static bool get_index(struct interp *in, struct val v, int64_t i, struct val *out) {
    int64_t n;
    if (!chat_length(in, v, &n)) return false;
    if (i < 0) i += n;
    *out = val_undefined(NULL);
    if (i < 0 || i >= n) return true;
    if (v.kind == VAL_STR) return char_at(in, v, i, out);
    *out = v.kind == VAL_RANGE ? val_int(range_at(v.range, i)) : v.list->items[i];
    return true;
}

bool chat_get_item(struct interp *in, struct val v, struct val key, struct val *out) {
    bool found = false;
    if (v.kind == VAL_UNDEFINED) return chat_fail_undefined(in, v);
    if (v.kind == VAL_DICT) {
        if (!chat_dict_find(in, v.dict, key, out, &found)) return false;
        if (found) return true;
    }
    bool indexable = v.kind == VAL_STR || val_is_seq(v) || v.kind == VAL_RANGE;
    if (indexable && val_is_int(key)) return get_index(in, v, val_as_int(key), out);
    if (key.kind == VAL_STR) {
        if (!find_attr(in, v, key.s, out, &found)) return false;
        if (found) return true;
    }
    *out = val_undefined(key.kind == VAL_STR ? key.s : NULL);
    return true;
}

/* ---- slices ------------------------------------------------------------------------------------ */

/* Python's slice.indices(): start, count and step within n items. */
static bool slice_indices(struct interp *in, const struct val bounds[3], int64_t n, int64_t *start,
                          int64_t *count, int64_t *step) {
    int64_t v[3];
    bool given[3];
    for (int i = 0; i < 3; i++) {
        given[i] = bounds[i].kind != VAL_MISSING && bounds[i].kind != VAL_NONE;
        if (given[i] && !chat_want_int(in, "a slice", bounds[i], &v[i])) return false;
    }
    *step = given[2] ? v[2] : 1;
    if (*step == 0) return chat_fail(in, "a slice's step is 0");
    if (*step < -INT64_MAX) *step = -INT64_MAX;
    int64_t low = *step < 0 ? -1 : 0, high = *step < 0 ? n - 1 : n;
    int64_t from = *step < 0 ? high : low, to = *step < 0 ? low : high;
    for (int i = 0; i < 2; i++) {
        if (!given[i]) continue;
        int64_t x = v[i];
        if (x < 0) x = x < -n ? low : x + n;
        if (x > high) x = high;
        *(i ? &to : &from) = x;
    }
    *start = from;
    if (*step > 0)
        *count = to > from ? (to - from - 1) / *step + 1 : 0;
    else
        *count = from > to ? (from - to - 1) / -*step + 1 : 0;
    return true;
}

static bool slice_string(struct interp *in, struct val v, int64_t start, int64_t count,
                         int64_t step, struct val *out) {
    const struct str *s = v.s;
    if (!chat_charge_bytes(in, s->len)) return false;
    if (step == 1 || count == 0) {
        size_t lo = count ? chat_str_offset(s, (uint32_t)start) : 0;
        size_t hi = count ? chat_str_offset(s, (uint32_t)(start + count)) : 0;
        const struct str *part = chat_str_slice(in, s, lo, hi);
        if (!part) return false;
        *out = val_str(part);
        out->marked = v.marked;
        return true;
    }
    uint32_t *offsets = NULL; /* of each character, unless they are bytes */
    if (s->n_chars != s->len) {
        offsets = chat_alloc_array(in, s->n_chars, sizeof *offsets);
        if (!offsets) return false;
        size_t at = 0;
        for (uint32_t i = 0; i < s->n_chars; i++) {
            uint32_t cp;
            offsets[i] = (uint32_t)at;
            at += chat_utf8_next(s->text, s->len, at, &cp);
        }
    }
    if (!chat_charge(in, (uint64_t)count / 16)) return false;
    struct buf buf;
    chat_buf_init(in, &buf);
    for (int64_t k = 0, i = start; k < count; k++, i += step) {
        size_t at = offsets ? offsets[i] : (size_t)i;
        uint32_t cp;
        size_t n = chat_utf8_next(s->text, s->len, at, &cp);
        if (!chat_buf_slice(&buf, s, at, at + n)) break;
        if (k + 1 == count) break; /* a huge step would overflow */
    }
    if (!chat_buf_finish(&buf, out)) return false;
    out->marked = v.marked;
    return true;
}

static bool slice_list(struct interp *in, struct val v, int64_t start, int64_t count, int64_t step,
                       struct val *out) {
    const struct val *items = v.list->items;
    if (step == 1 || count <= 1)
        return chat_make_list(in, v.kind, count ? items + start : NULL, (uint32_t)count, out);
    if (!chat_charge(in, (uint64_t)count)) return false;
    struct val *copy = chat_alloc_array(in, (size_t)count, sizeof *copy);
    if (!copy) return false;
    for (int64_t k = 0; k < count; k++)
        copy[k] = items[start + k * step];
    return chat_make_list(in, v.kind, copy, (uint32_t)count, out);
}

bool chat_get_slice(struct interp *in, struct val v, const struct val bounds[3], struct val *out) {
    int64_t n, start = 0, count = 0, step = 1;
    if (v.kind == VAL_UNDEFINED) return chat_fail_undefined(in, v);
    if (v.kind != VAL_STR && !val_is_seq(v) && v.kind != VAL_RANGE)
        return chat_fail(in, "%s cannot be sliced", chat_type_name(v));
    if (!chat_length(in, v, &n)) return false;
    if (!slice_indices(in, bounds, n, &start, &count, &step)) return false;
    if (v.kind == VAL_STR) return slice_string(in, v, start, count, step, out);
    if (v.kind != VAL_RANGE) return slice_list(in, v, start, count, step, out);
    struct range *range = chat_alloc(in, sizeof *range);
    if (!range) return false;
    const struct range *r = v.range;
    *range = (struct range){.start = range_at(r, start), .step = r->step, .n = (uint32_t)count};
    if (count > 1) range->step = (int64_t)((uint64_t)r->step * (uint64_t)step);
    range->stop = range_at(range, count);
    *out = (struct val){.kind = VAL_RANGE, .range = range};
    return true;
}

/* ---- paths ------------------------------------------------------------------------------------- */

static bool all_digits(const struct str *s) {
    for (uint32_t i = 0; i < s->len; i++)
        if (s->text[i] < '0' || s->text[i] > '9') return false;
    return s->len > 0 && s->len < 10;
}

static bool step_into(struct interp *in, struct val *v, struct val key, struct val fallback) {
    if (key.kind == VAL_STR && all_digits(key.s)) {
        int64_t i = 0;
        for (uint32_t k = 0; k < key.s->len; k++)
            i = i * 10 + (key.s->text[k] - '0');
        key = val_int(i);
    }
    if (!chat_get_item(in, *v, key, v)) return false;
    if (v->kind == VAL_UNDEFINED && fallback.kind != VAL_MISSING) *v = fallback;
    return true;
}

bool chat_get_path(struct interp *in, struct val v, struct val path, struct val fallback,
                   struct val *out) {
    *out = v;
    if (path.kind == VAL_MISSING || path.kind == VAL_NONE) return true;
    if (path.kind != VAL_STR) return step_into(in, out, path, fallback);
    const struct str *s = path.s;
    for (size_t lo = 0;;) {
        const char *dot = memchr(s->text + lo, '.', s->len - lo);
        size_t hi = dot ? (size_t)(dot - s->text) : s->len;
        const struct str *part = chat_str_slice(in, s, lo, hi);
        if (!part || !chat_charge(in, 1)) return false;
        if (!step_into(in, out, val_str(part), fallback)) return false;
        if (!dot) return true;
        lo = hi + 1;
    }
}
