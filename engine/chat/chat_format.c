/* str.format with plain fields ({}, {0}, {name}) and str % values with plain conversions. Literal
 * text keeps the format's origin, values keep theirs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/chat/chat_internal.h"

/* ---- format ------------------------------------------------------------------------------------ */

struct fields {
    const struct args *args;
    uint32_t next;
    bool automatic, numbered;
};

static bool field_value(struct interp *in, struct fields *fields, const struct str *name,
                        struct val *out) {
    uint32_t index = 0;
    bool digits = name->len < 9;
    for (uint32_t i = 0; i < name->len && digits; i++) {
        digits = name->text[i] >= '0' && name->text[i] <= '9';
        if (digits) index = index * 10 + (uint32_t)(name->text[i] - '0');
    }
    if (digits) {
        bool automatic = name->len == 0;
        if ((automatic ? fields->numbered : fields->automatic))
            return chat_fail(in, "format: numbered and automatic fields are mixed");
        fields->automatic |= automatic;
        fields->numbered |= !automatic;
        if (automatic) index = fields->next++;
        if (index >= fields->args->n_pos) return chat_fail(in, "format: no value %u", index);
        *out = fields->args->pos[index];
        return true;
    }
    for (uint32_t i = 0; i < fields->args->n_kw; i++)
        if (chat_str_equal(fields->args->kw[i].name, name)) {
            *out = fields->args->kw[i].val;
            return true;
        }
    return chat_fail(in, "format: only plain fields with a value are allowed, not '{%.*s}'",
                     (int)(name->len < 40 ? name->len : 40), name->text);
}

static bool put_fields(struct buf *buf, struct val self, struct fields *fields) {
    const struct str *s = self.s;
    struct interp *in = buf->in;
    size_t from = 0;
    for (size_t at = 0; at < s->len; at++) {
        char c = s->text[at];
        if (c != '{' && c != '}') continue;
        if (!chat_buf_slice(buf, s, from, at) || !chat_charge(in, 1)) return false;
        if (at + 1 < s->len && s->text[at + 1] == c) { /* doubled: itself */
            from = ++at;
            continue;
        }
        const char *close = c == '{' ? memchr(s->text + at, '}', s->len - at) : NULL;
        if (!close) return chat_fail(in, "format: a single brace");
        size_t end = (size_t)(close - s->text);
        struct str name = {.text = s->text + at + 1, .len = (uint32_t)(end - at - 1)};
        struct val v;
        if (!field_value(in, fields, &name, &v)) return false;
        if (self.marked && !(v.kind == VAL_STR && v.marked) &&
            !(chat_to_str(in, v, &v) && chat_str_escape_html(in, v.s, &v)))
            return false;
        if (!chat_print(buf, v)) return false;
        at = end;
        from = end + 1;
    }
    return chat_buf_slice(buf, s, from, s->len);
}

bool chat_str_format(struct interp *in, struct val self, const struct args *args, struct val *out) {
    struct fields fields = {.args = args};
    struct buf buf;
    chat_buf_init(in, &buf);
    if (!put_fields(&buf, self, &fields)) {
        chat_buf_drop(&buf);
        return false;
    }
    if (!chat_buf_finish(&buf, out)) return false;
    out->marked = self.marked;
    return true;
}

/* ---- percent ----------------------------------------------------------------------------------- */

enum { PERCENT_DIGITS_MAX = 100 };

struct conversion {
    bool left, zero, plus, blank;
    int64_t width, precision; /* precision -1: none */
    char kind;
};

/* A decimal number at *at, or 0; false when it is above the bound on output. */
static bool take_number(struct interp *in, const struct str *s, size_t *at, int64_t *out) {
    *out = 0;
    while (*at < s->len && s->text[*at] >= '0' && s->text[*at] <= '9') {
        *out = *out * 10 + (s->text[(*at)++] - '0');
        if (!chat_check_width(in, "a width", *out)) return false;
    }
    return true;
}

static bool take_conversion(struct interp *in, const struct str *s, size_t *at,
                            struct conversion *c) {
    *c = (struct conversion){.precision = -1};
    for (; *at < s->len && strchr("-0+ ", s->text[*at]) && s->text[*at]; (*at)++) {
        c->left |= s->text[*at] == '-';
        c->zero |= s->text[*at] == '0';
        c->plus |= s->text[*at] == '+';
        c->blank |= s->text[*at] == ' ';
    }
    if (!take_number(in, s, at, &c->width)) return false;
    if (*at < s->len && s->text[*at] == '.') {
        (*at)++;
        if (!take_number(in, s, at, &c->precision)) return false;
        if (c->precision > PERCENT_DIGITS_MAX)
            return chat_fail(in, "%%: a precision above %d", PERCENT_DIGITS_MAX);
    }
    c->kind = *at < s->len ? s->text[(*at)++] : '\0';
    return true;
}

static bool put_padded(struct buf *buf, const struct conversion *c, const struct str *text) {
    uint32_t n;
    if (!chat_str_chars(buf->in, text, &n)) return false;
    size_t fill = c->width > n ? (size_t)(c->width - n) : 0;
    bool zero = c->zero && !c->left && c->kind != 's' && c->kind != 'r';
    size_t sign = zero && text->len && strchr("+- ", text->text[0]) ? 1 : 0;
    if (!zero && !c->left && !chat_buf_fill(buf, ' ', fill, true)) return false;
    if (!chat_buf_slice(buf, text, 0, sign)) return false;
    if (zero && !chat_buf_fill(buf, '0', fill, true)) return false;
    if (!chat_buf_slice(buf, text, sign, text->len)) return false;
    return !c->left || chat_buf_fill(buf, ' ', fill, true);
}

static bool put_number(struct buf *buf, const struct conversion *c, struct val v) {
    struct interp *in = buf->in;
    char digits[512], text[520];
    if (!val_is_number(v))
        return chat_fail(in, "%%%c needs a number, not %s", c->kind, chat_type_name(v));
    if (c->kind == 'f') {
        int precision = c->precision < 0 ? 6 : (int)c->precision;
        snprintf(digits, sizeof digits, "%.*f", precision, val_as_real(v));
    } else {
        double r = val_as_real(v);
        if (v.kind == VAL_REAL && !(r >= -0x1p63 && r < 0x1p63))
            return chat_fail(in, "%%d: a number does not fit 64 bits");
        int64_t i = v.kind == VAL_REAL ? (int64_t)r : val_as_int(v);
        snprintf(digits, sizeof digits, "%lld", (long long)i);
    }
    const char *sign = digits[0] == '-' ? "" : c->plus ? "+" : c->blank ? " " : "";
    snprintf(text, sizeof text, "%s%s", sign, digits);
    struct str s = {.text = text, .len = (uint32_t)strlen(text), .trusted = true};
    s.n_chars = s.len;
    return put_padded(buf, c, &s);
}

static bool put_text(struct buf *buf, const struct conversion *c, struct val v) {
    struct interp *in = buf->in;
    struct val s;
    if (c->kind == 'r') {
        struct buf inner;
        chat_buf_init(in, &inner);
        if (!chat_repr(&inner, v)) {
            chat_buf_drop(&inner);
            return false;
        }
        if (!chat_buf_finish(&inner, &s)) return false;
    } else if (!chat_to_str(in, v, &s)) {
        return false;
    }
    uint32_t n;
    if (!chat_str_chars(in, s.s, &n)) return false;
    if (c->precision >= 0 && n > c->precision) {
        s.s = chat_str_slice(in, s.s, 0, chat_str_offset(s.s, (uint32_t)c->precision));
        if (!s.s) return false;
    }
    return put_padded(buf, c, s.s);
}

static bool put_conversion(struct buf *buf, const struct conversion *c, struct val v) {
    switch (c->kind) {
    case 's':
    case 'r':
        return put_text(buf, c, v);
    case 'd':
    case 'i':
    case 'u':
    case 'f':
        return put_number(buf, c, v);
    default:
        return chat_fail(buf->in, "%%: only s, r, d, i and f are allowed");
    }
}

struct values {
    struct val right;
    uint32_t next, n; /* positional ones */
};

/* The value of the conversion whose name, if any, starts at *at. */
static bool take_value(struct interp *in, const struct str *s, size_t *at, struct values *values,
                       bool *named, struct val *out) {
    *named = *at < s->len && s->text[*at] == '(';
    if (!*named) return true;
    const char *close = memchr(s->text + *at, ')', s->len - *at);
    if (!close) return chat_fail(in, "%%: a name is not closed");
    size_t end = (size_t)(close - s->text);
    struct str name = {.text = s->text + *at + 1, .len = (uint32_t)(end - *at - 1)};
    *at = end + 1;
    if (values->right.kind != VAL_DICT) return chat_fail(in, "%%: a name needs a mapping");
    const struct val *v = chat_dict_get(values->right.dict, &name);
    if (!v)
        return chat_fail(in, "%%: no value '%.*s'", (int)(name.len < 40 ? name.len : 40),
                         name.text);
    *out = *v;
    return true;
}

static bool put_percent(struct buf *buf, const struct str *s, struct values *values) {
    struct interp *in = buf->in;
    size_t from = 0;
    for (size_t at = 0; at < s->len;) {
        if (s->text[at] != '%') {
            at++;
            continue;
        }
        if (!chat_buf_slice(buf, s, from, at++) || !chat_charge(in, 1)) return false;
        struct conversion c;
        struct val v = val_none();
        bool named;
        if (!take_value(in, s, &at, values, &named, &v)) return false;
        if (!take_conversion(in, s, &at, &c)) return false;
        from = at;
        if (c.kind == '%') {
            if (!chat_buf_add(buf, "%", 1, chat_str_trusted_at(s, at - 1))) return false;
            continue;
        }
        if (!named) {
            if (values->next >= values->n) return chat_fail(in, "%%: too few values");
            v = values->right.kind == VAL_TUPLE ? values->right.list->items[values->next]
                                                : values->right;
            values->next++;
        }
        if (!put_conversion(buf, &c, v)) return false;
    }
    return chat_buf_slice(buf, s, from, s->len);
}

bool chat_str_percent(struct interp *in, struct val self, struct val right, struct val *out) {
    struct values values = {.right = right, .n = 1};
    if (right.kind == VAL_TUPLE) values.n = right.list->n;
    struct buf buf;
    chat_buf_init(in, &buf);
    if (!put_percent(&buf, self.s, &values)) {
        chat_buf_drop(&buf);
        return false;
    }
    bool lax = right.kind == VAL_DICT || right.kind == VAL_LIST || right.kind == VAL_UNDEFINED;
    if (values.next < values.n && !lax) {
        chat_buf_drop(&buf);
        return chat_fail(in, "%%: not all values are used");
    }
    return chat_buf_finish(&buf, out);
}
