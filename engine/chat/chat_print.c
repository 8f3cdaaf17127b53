/* Python's str() and repr(). Inside a container only the characters of strings keep their origin;
 * brackets, quotes and numbers there count as untrusted, since the data decides them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/chat/chat_internal.h"

size_t chat_format_real(double r, char out[32]) {
    if (isnan(r)) return (size_t)snprintf(out, 32, "nan");
    if (isinf(r)) return (size_t)snprintf(out, 32, r < 0 ? "-inf" : "inf");
    char sci[40];
    for (int digits = 0; digits < 17; digits++) { /* the fewest that read back as r */
        snprintf(sci, sizeof sci, "%.*e", digits, r);
        if (strtod(sci, NULL) == r) break;
    }
    const char *p = sci;
    char digits[24] = "0";
    int n = 0;
    bool negative = *p == '-';
    if (negative) p++;
    for (; *p && *p != 'e'; p++)
        if (*p != '.') digits[n++] = *p;
    int exp = (int)strtol(p + 1, NULL, 10);
    char *o = out;
    if (negative) *o++ = '-';
    if (exp < -4 || exp >= 16) { /* d.ddde+XX */
        *o++ = digits[0];
        if (n > 1) {
            *o++ = '.';
            memcpy(o, digits + 1, (size_t)n - 1);
            o += n - 1;
        }
        o += snprintf(o, 8, "e%c%02d", exp < 0 ? '-' : '+', abs(exp));
    } else if (exp < 0) { /* 0.000ddd */
        *o++ = '0';
        *o++ = '.';
        for (int i = -1; i > exp; i--)
            *o++ = '0';
        memcpy(o, digits, (size_t)n);
        o += n;
    } else { /* ddd.ddd, a zero on each side if need be */
        for (int i = 0; i <= exp || i < n; i++) {
            if (i == exp + 1) *o++ = '.';
            *o++ = i < n ? digits[i] : '0';
        }
        if (n <= exp + 1) {
            *o++ = '.';
            *o++ = '0';
        }
    }
    *o = '\0';
    return (size_t)(o - out);
}

static bool add_text(struct buf *buf, const char *text, bool trusted) {
    return chat_buf_add(buf, text, strlen(text), trusted);
}

static bool add_scalar(struct buf *buf, struct val v, bool trusted) {
    char text[32];
    switch (v.kind) {
    case VAL_NONE:
        return add_text(buf, "None", trusted);
    case VAL_BOOL:
        return add_text(buf, v.b ? "True" : "False", trusted);
    case VAL_INT:
        snprintf(text, sizeof text, "%lld", (long long)v.i);
        return add_text(buf, text, trusted);
    default:
        return chat_buf_add(buf, text, chat_format_real(v.r, text), trusted);
    }
}

static bool repr_char(struct buf *buf, const struct str *s, size_t at, size_t n, uint32_t cp,
                      char quote) {
    bool trusted = chat_str_trusted_at(s, at);
    char text[16];
    if (cp == '\n') return chat_buf_add(buf, "\\n", 2, trusted);
    if (cp == '\r') return chat_buf_add(buf, "\\r", 2, trusted);
    if (cp == '\t') return chat_buf_add(buf, "\\t", 2, trusted);
    if (cp == '\\' || cp == (unsigned char)quote) {
        text[0] = '\\';
        text[1] = (char)cp;
        return chat_buf_add(buf, text, 2, trusted);
    }
    if (chat_is_printable(cp)) return chat_buf_add(buf, s->text + at, n, trusted);
    const char *fmt = cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x";
    /* the format is one of three literals above */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(text, sizeof text, fmt, cp);
#pragma GCC diagnostic pop
    return add_text(buf, text, trusted);
}

static bool repr_string(struct buf *buf, const struct str *s) {
    bool single = memchr(s->text, '\'', s->len) != NULL;
    bool twice = memchr(s->text, '"', s->len) != NULL;
    char quote = single && !twice ? '"' : '\'';
    if (!chat_charge_bytes(buf->in, s->len * 4u)) return false;
    if (!chat_buf_add(buf, &quote, 1, false)) return false;
    for (size_t at = 0; at < s->len;) {
        uint32_t cp;
        size_t n = chat_utf8_next(s->text, s->len, at, &cp);
        if (!repr_char(buf, s, at, n, cp, quote)) return false;
        at += n;
    }
    return chat_buf_add(buf, &quote, 1, false);
}

static bool repr_list(struct buf *buf, const struct list *list, bool tuple) {
    if (!add_text(buf, tuple ? "(" : "[", false)) return false;
    for (uint32_t i = 0; i < list->n; i++) {
        if (i && !add_text(buf, ", ", false)) return false;
        if (!chat_repr(buf, list->items[i])) return false;
    }
    return add_text(buf, !tuple ? "]" : list->n == 1 ? ",)" : ")", false);
}

static bool repr_dict(struct buf *buf, const struct dict *dict) {
    if (!add_text(buf, "{", false)) return false;
    for (uint32_t i = 0; i < dict->n; i++) {
        if (i && !add_text(buf, ", ", false)) return false;
        if (!chat_repr(buf, dict->keys[i]) || !add_text(buf, ": ", false)) return false;
        if (!chat_repr(buf, dict->vals[i])) return false;
    }
    return add_text(buf, "}", false);
}

static bool repr_view(struct buf *buf, const struct view *view) {
    static const char *const names[] = {"dict_keys([", "dict_values([", "dict_items(["};
    if (!add_text(buf, names[view->kind], false)) return false;
    struct iter it;
    struct val v = {.kind = VAL_VIEW, .view = view};
    if (!chat_iter_init(buf->in, &it, v)) return false;
    for (uint32_t i = 0;; i++) {
        bool more;
        if (!chat_iter_next(buf->in, &it, &v, &more)) return false;
        if (!more) break;
        if (i && !add_text(buf, ", ", false)) return false;
        if (!chat_repr(buf, v)) return false;
    }
    return add_text(buf, "])", false);
}

static bool repr_namespace(struct buf *buf, const struct namespace *ns) {
    if (!add_text(buf, "<Namespace {", false)) return false;
    for (uint32_t i = 0; i < ns->n; i++) {
        if (i && !add_text(buf, ", ", false)) return false;
        if (!repr_string(buf, ns->vars[i].name) || !add_text(buf, ": ", false)) return false;
        if (!chat_repr(buf, ns->vars[i].val)) return false;
    }
    return add_text(buf, "}>", false);
}

static bool repr_range(struct buf *buf, const struct range *range) {
    char text[96];
    if (range->step == 1)
        snprintf(text, sizeof text, "range(%lld, %lld)", (long long)range->start,
                 (long long)range->stop);
    else
        snprintf(text, sizeof text, "range(%lld, %lld, %lld)", (long long)range->start,
                 (long long)range->stop, (long long)range->step);
    return add_text(buf, text, false);
}

static bool repr_open(struct buf *buf, struct val v) {
    switch (v.kind) {
    case VAL_LIST:
        return repr_list(buf, v.list, false);
    case VAL_TUPLE:
        return repr_list(buf, v.list, true);
    case VAL_DICT:
        return repr_dict(buf, v.dict);
    case VAL_VIEW:
        return repr_view(buf, v.view);
    case VAL_NAMESPACE:
        return repr_namespace(buf, v.ns);
    default:
        return add_text(buf, "<", false) && add_text(buf, chat_type_name(v), false) &&
               add_text(buf, ">", false);
    }
}

bool chat_repr(struct buf *buf, struct val v) {
    switch (v.kind) {
    case VAL_UNDEFINED:
        return add_text(buf, "Undefined", false);
    case VAL_NONE:
    case VAL_BOOL:
    case VAL_INT:
    case VAL_REAL:
        return add_scalar(buf, v, false);
    case VAL_STR:
        if (!v.marked) return repr_string(buf, v.s);
        return add_text(buf, "Markup(", false) && repr_string(buf, v.s) &&
               add_text(buf, ")", false);
    case VAL_RANGE:
        return repr_range(buf, v.range);
    default:
        break;
    }
    if (!chat_deeper(buf->in)) return false;
    bool ok = repr_open(buf, v);
    chat_shallower(buf->in);
    return ok;
}

bool chat_print(struct buf *buf, struct val v) {
    switch (v.kind) {
    case VAL_UNDEFINED:
        return true;
    case VAL_STR:
        return chat_buf_str(buf, v.s);
    case VAL_NONE:
    case VAL_BOOL:
    case VAL_INT:
    case VAL_REAL:
        return add_scalar(buf, v, true);
    default:
        return chat_repr(buf, v);
    }
}

bool chat_to_str(struct interp *in, struct val v, struct val *out) {
    if (v.kind == VAL_STR) {
        *out = v;
        return true;
    }
    struct buf buf;
    chat_buf_init(in, &buf);
    if (!chat_print(&buf, v)) {
        chat_buf_drop(&buf);
        return false;
    }
    return chat_buf_finish(&buf, out);
}
