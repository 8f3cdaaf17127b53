/* tojson, as transformers sets it up: json.dumps with ensure_ascii off, nothing sorted, nothing
 * escaped for HTML. Only the characters of strings keep their origin; the rest is untrusted. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/chat/chat_internal.h"

struct writer {
    struct buf buf;
    bool ascii, sort;
    bool pretty;
    struct val indent; /* a string, or VAL_MISSING for spaces */
    int64_t spaces;
    const struct str *item_sep, *key_sep; /* NULL: the defaults */
};

static bool put(struct writer *w, const char *text) {
    return chat_buf_add(&w->buf, text, strlen(text), false);
}

static bool put_unit(struct writer *w, uint32_t unit, bool trusted) {
    char text[8];
    snprintf(text, sizeof text, "\\u%04x", unit & 0xFFFF);
    return chat_buf_add(&w->buf, text, 6, trusted);
}

static bool put_char(struct writer *w, const struct str *s, size_t at, size_t n, uint32_t cp) {
    bool trusted = chat_str_trusted_at(s, at);
    static const char shorts[] = "\"\"\\\\\nn\rr\tt\bb\ff";
    for (size_t i = 0; cp < 0x80 && i + 1 < sizeof shorts; i += 2)
        if ((char)cp == shorts[i]) {
            char text[2] = {'\\', shorts[i + 1]};
            return chat_buf_add(&w->buf, text, 2, trusted);
        }
    if (cp < 0x20) return put_unit(w, cp, trusted);
    if (cp < 0x80 || !w->ascii) return chat_buf_add(&w->buf, s->text + at, n, trusted);
    if (cp < 0x10000) return put_unit(w, cp, trusted);
    cp -= 0x10000;
    return put_unit(w, 0xD800 + (cp >> 10), trusted) && put_unit(w, 0xDC00 + (cp & 0x3FF), trusted);
}

static bool put_string(struct writer *w, const struct str *s) {
    if (!chat_charge_bytes(w->buf.in, s->len * 4u) || !put(w, "\"")) return false;
    for (size_t at = 0; at < s->len;) {
        uint32_t cp;
        size_t n = chat_utf8_next(s->text, s->len, at, &cp);
        if (!put_char(w, s, at, n, cp)) return false;
        at += n;
    }
    return put(w, "\"");
}

static bool put_number(struct writer *w, struct val v) {
    char text[32];
    if (v.kind == VAL_INT) {
        snprintf(text, sizeof text, "%lld", (long long)v.i);
        return put(w, text);
    }
    if (isnan(v.r)) return put(w, "NaN");
    if (isinf(v.r)) return put(w, v.r < 0 ? "-Infinity" : "Infinity");
    chat_format_real(v.r, text);
    return put(w, text);
}

static bool put_break(struct writer *w, uint32_t depth) {
    if (!w->pretty) return true;
    if (!put(w, "\n")) return false;
    for (uint32_t i = 0; i < depth; i++) {
        bool ok = w->indent.kind == VAL_STR
                      ? chat_buf_str(&w->buf, w->indent.s)
                      : chat_buf_fill(&w->buf, ' ', w->spaces > 0 ? (size_t)w->spaces : 0, false);
        if (!ok || !chat_charge(w->buf.in, 1)) return false;
    }
    return true;
}

static bool put_separator(struct writer *w, uint32_t depth) {
    bool ok = w->item_sep ? chat_buf_str(&w->buf, w->item_sep) : put(w, w->pretty ? "," : ", ");
    return ok && put_break(w, depth);
}

static bool put_value(struct writer *w, struct val v, uint32_t depth);

static bool put_list(struct writer *w, const struct list *list, uint32_t depth) {
    if (!list->n) return put(w, "[]");
    if (!put(w, "[") || !put_break(w, depth + 1)) return false;
    for (uint32_t i = 0; i < list->n; i++) {
        if (i && !put_separator(w, depth + 1)) return false;
        if (!put_value(w, list->items[i], depth + 1)) return false;
    }
    return put_break(w, depth) && put(w, "]");
}

static bool put_key(struct writer *w, struct val key) {
    switch (key.kind) {
    case VAL_STR:
        return put_string(w, key.s);
    case VAL_NONE:
        return put(w, "\"null\"");
    case VAL_BOOL:
        return put(w, key.b ? "\"true\"" : "\"false\"");
    case VAL_INT:
    case VAL_REAL:
        return put(w, "\"") && put_number(w, key) && put(w, "\"");
    default:
        return chat_fail(w->buf.in, "tojson: a %s cannot be a key", chat_type_name(key));
    }
}

/* Positions of the members in the order of their keys; insertion, as objects are small. */
static bool sorted_order(struct interp *in, const struct dict *dict, uint32_t *order) {
    for (uint32_t i = 0; i < dict->n; i++) {
        uint32_t at = i;
        for (; at > 0; at--) {
            int c;
            if (!chat_charge(in, 1)) return false;
            if (!chat_compare(in, dict->keys[i], dict->keys[order[at - 1]], &c)) return false;
            if (c >= 0) break;
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    return true;
}

static bool put_dict(struct writer *w, const struct dict *dict, uint32_t depth) {
    uint32_t *order = NULL;
    if (!dict->n) return put(w, "{}");
    if (w->sort) {
        order = chat_alloc_array(w->buf.in, dict->n, sizeof *order);
        if (!order || !sorted_order(w->buf.in, dict, order)) return false;
    }
    if (!put(w, "{") || !put_break(w, depth + 1)) return false;
    for (uint32_t k = 0; k < dict->n; k++) {
        uint32_t i = order ? order[k] : k;
        if (k && !put_separator(w, depth + 1)) return false;
        if (!put_key(w, dict->keys[i])) return false;
        if (!(w->key_sep ? chat_buf_str(&w->buf, w->key_sep) : put(w, ": "))) return false;
        if (!put_value(w, dict->vals[i], depth + 1)) return false;
    }
    return put_break(w, depth) && put(w, "}");
}

static bool put_value(struct writer *w, struct val v, uint32_t depth) {
    struct interp *in = w->buf.in;
    if (!chat_charge(in, 1)) return false;
    switch (v.kind) {
    case VAL_NONE:
        return put(w, "null");
    case VAL_BOOL:
        return put(w, v.b ? "true" : "false");
    case VAL_INT:
    case VAL_REAL:
        return put_number(w, v);
    case VAL_STR:
        return put_string(w, v.s);
    case VAL_LIST:
    case VAL_TUPLE:
    case VAL_DICT:
        break;
    case VAL_UNDEFINED:
        return chat_fail_undefined(in, v);
    default:
        return chat_fail(in, "tojson cannot write a %s", chat_type_name(v));
    }
    if (!chat_deeper(in)) return false;
    bool ok = v.kind == VAL_DICT ? put_dict(w, v.dict, depth) : put_list(w, v.list, depth);
    chat_shallower(in);
    return ok;
}

static bool take_separators(struct interp *in, struct writer *w, struct val v) {
    if (v.kind == VAL_MISSING || v.kind == VAL_NONE) return true;
    if (!val_is_seq(v) || v.list->n != 2)
        return chat_fail(in, "tojson: separators need two strings");
    return chat_want_str(in, "tojson", v.list->items[0], &w->item_sep) &&
           chat_want_str(in, "tojson", v.list->items[1], &w->key_sep);
}

static bool take_indent(struct interp *in, struct writer *w, struct val v) {
    if (v.kind == VAL_MISSING || v.kind == VAL_NONE) return true;
    w->pretty = true;
    if (v.kind == VAL_STR) {
        w->indent = v;
        return true;
    }
    return chat_want_int(in, "tojson", v, &w->spaces) &&
           chat_check_width(in, "an indent", w->spaces);
}

bool chat_json(struct interp *in, struct val v, const struct args *args, struct val *out) {
    static const char *const params[] = {"ensure_ascii", "indent", "separators", "sort_keys"};
    struct val a[4];
    if (!chat_bind(in, "tojson", args, params, 4, 0, a)) return false;
    struct writer w = {.ascii = chat_truth(a[0]), .sort = chat_truth(a[3])};
    w.indent.kind = VAL_MISSING;
    if (!take_indent(in, &w, a[1]) || !take_separators(in, &w, a[2])) return false;
    chat_buf_init(in, &w.buf);
    if (put_value(&w, v, 0)) return chat_buf_finish(&w.buf, out);
    chat_buf_drop(&w.buf);
    return false;
}
