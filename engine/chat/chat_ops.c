/* Arithmetic. Integers have 64 bits and overflow is an error; // and % round down as Python's. */
#include <math.h>
#include <string.h>

#include "engine/chat/chat_internal.h"

static bool fail_overflow(struct interp *in) {
    return chat_fail(in, "an integer does not fit 64 bits");
}

static bool fail_operands(struct interp *in, const char *op, struct val a, struct val b) {
    if (a.kind == VAL_UNDEFINED) return chat_fail_undefined(in, a);
    if (b.kind == VAL_UNDEFINED) return chat_fail_undefined(in, b);
    return chat_fail(in, "%s %s %s is not possible", chat_type_name(a), op, chat_type_name(b));
}

bool chat_check_width(struct interp *in, const char *what, int64_t n) {
    if (n <= CHAT_OUTPUT_MAX) return true;
    return chat_fail(in, "%s of %lld is above %d", what, (long long)n, CHAT_OUTPUT_MAX);
}

/* ---- sequences --------------------------------------------------------------------------------- */

/* A string marked safe escapes what is added to it. */
static bool add_strings(struct interp *in, struct val a, struct val b, struct val *out) {
    bool marked = a.marked || b.marked;
    if (marked && !a.marked && !chat_str_escape_html(in, a.s, &a)) return false;
    if (marked && !b.marked && !chat_str_escape_html(in, b.s, &b)) return false;
    struct buf buf;
    chat_buf_init(in, &buf);
    chat_buf_str(&buf, a.s);
    chat_buf_str(&buf, b.s);
    if (!chat_buf_finish(&buf, out)) return false;
    out->marked = marked;
    return true;
}

static bool add_lists(struct interp *in, struct val a, struct val b, struct val *out) {
    uint32_t n = a.list->n + b.list->n;
    struct val *items = chat_alloc_array(in, n, sizeof *items);
    if (!items || !chat_charge(in, n / 8)) return false;
    if (a.list->n) memcpy(items, a.list->items, a.list->n * sizeof *items);
    if (b.list->n) memcpy(items + a.list->n, b.list->items, b.list->n * sizeof *items);
    return chat_make_list(in, a.kind, items, n, out);
}

static bool repeat(struct interp *in, struct val v, int64_t n, struct val *out) {
    if (n < 0) n = 0;
    size_t len = v.kind == VAL_STR ? v.s->len : v.list->n, total;
    if (mul_size(len, (size_t)n, &total) || total > CHAT_OUTPUT_MAX)
        return chat_fail(in, "a repetition makes more than %d bytes or items", CHAT_OUTPUT_MAX);
    if (!len) n = 0;
    if (v.kind == VAL_STR) {
        struct buf buf;
        if (!chat_charge(in, (uint64_t)n / 8)) return false;
        chat_buf_init(in, &buf);
        while (n-- > 0 && chat_buf_str(&buf, v.s))
            continue;
        if (!chat_buf_finish(&buf, out)) return false;
        out->marked = v.marked;
        return true;
    }
    if (!chat_charge(in, total / 8)) return false;
    struct val *items = chat_alloc_array(in, total, sizeof *items);
    if (!items) return false;
    for (size_t at = 0; at < total; at += len)
        memcpy(items + at, v.list->items, len * sizeof *items);
    return chat_make_list(in, v.kind, items, (uint32_t)total, out);
}

/* ---- numbers ----------------------------------------------------------------------------------- */

bool chat_add(struct interp *in, struct val a, struct val b, struct val *out) {
    if (a.kind == VAL_STR && b.kind == VAL_STR) return add_strings(in, a, b, out);
    if (val_is_seq(a) && a.kind == b.kind) return add_lists(in, a, b, out);
    if (!val_is_number(a) || !val_is_number(b)) return fail_operands(in, "+", a, b);
    if (val_is_int(a) && val_is_int(b)) {
        int64_t r;
        if (__builtin_add_overflow(val_as_int(a), val_as_int(b), &r)) return fail_overflow(in);
        *out = val_int(r);
    } else {
        *out = val_real(val_as_real(a) + val_as_real(b));
    }
    return true;
}

static int64_t floor_div(int64_t a, int64_t b) {
    int64_t q = a / b;
    return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}

static double floor_mod(double a, double b) {
    double r = fmod(a, b);
    if (r != 0 && (r < 0) != (b < 0)) return r + b;
    return r == 0 ? copysign(0.0, b) : r;
}

static bool power(struct interp *in, int64_t base, int64_t exp, struct val *out) {
    if (exp < 0) {
        if (base == 0) return chat_fail(in, "0 cannot be raised to a negative power");
        *out = val_real(pow((double)base, (double)exp));
        return true;
    }
    int64_t r = 1;
    while (exp) {
        if ((exp & 1) && __builtin_mul_overflow(r, base, &r)) return fail_overflow(in);
        exp >>= 1;
        if (exp && __builtin_mul_overflow(base, base, &base)) return fail_overflow(in);
    }
    *out = val_int(r);
    return true;
}

static bool int_op(struct interp *in, int op, int64_t a, int64_t b, struct val *out) {
    int64_t r = 0;
    bool over = false;
    switch (op) {
    case OP1('-'):
        over = __builtin_sub_overflow(a, b, &r);
        break;
    case OP1('*'):
        over = __builtin_mul_overflow(a, b, &r);
        break;
    case OP1('/'):
        if (b == 0) return chat_fail(in, "division by zero");
        *out = val_real((double)a / (double)b);
        return true;
    case OP2('/', '/'):
    case OP1('%'):
        if (b == 0) return chat_fail(in, "division by zero");
        if (b == -1) { /* INT64_MIN / -1 traps */
            over = op != OP1('%') && __builtin_sub_overflow((int64_t)0, a, &r);
            break;
        }
        r = op == OP1('%') ? a - floor_div(a, b) * b : floor_div(a, b);
        break;
    default:
        return power(in, a, b, out);
    }
    if (over) return fail_overflow(in);
    *out = val_int(r);
    return true;
}

static bool real_op(struct interp *in, int op, double a, double b, struct val *out) {
    switch (op) {
    case OP1('-'):
        *out = val_real(a - b);
        return true;
    case OP1('*'):
        *out = val_real(a * b);
        return true;
    case OP2('*', '*'):
        if ((a == 0 && b < 0) || (a < 0 && b != floor(b)))
            return chat_fail(in, "a power has no real value");
        *out = val_real(pow(a, b));
        if (isinf(out->r) && !isinf(a) && !isinf(b)) return chat_fail(in, "a power is too large");
        return true;
    default:
        break;
    }
    if (b == 0) return chat_fail(in, "division by zero");
    if (op == OP1('/'))
        *out = val_real(a / b);
    else if (op == OP1('%'))
        *out = val_real(floor_mod(a, b));
    else
        *out = val_real(floor((a - floor_mod(a, b)) / b + 0.5));
    return true;
}

bool chat_binary(struct interp *in, int op, struct val a, struct val b, struct val *out) {
    char text[3] = {(char)(op & 0xFF), (char)(op >> 8), '\0'};
    if (op == OP1('%') && a.kind == VAL_STR) return chat_str_percent(in, a, b, out);
    if (op == OP1('*')) {
        bool left = a.kind == VAL_STR || val_is_seq(a), right = b.kind == VAL_STR || val_is_seq(b);
        if (left && val_is_int(b)) return repeat(in, a, val_as_int(b), out);
        if (right && val_is_int(a)) return repeat(in, b, val_as_int(a), out);
    }
    if (!val_is_number(a) || !val_is_number(b)) return fail_operands(in, text, a, b);
    if (val_is_int(a) && val_is_int(b)) return int_op(in, op, val_as_int(a), val_as_int(b), out);
    return real_op(in, op, val_as_real(a), val_as_real(b), out);
}

bool chat_negate(struct interp *in, struct val v, struct val *out) {
    if (v.kind == VAL_UNDEFINED) return chat_fail_undefined(in, v);
    if (!val_is_number(v)) return chat_fail(in, "-%s is not possible", chat_type_name(v));
    if (v.kind == VAL_REAL) {
        *out = val_real(-v.r);
        return true;
    }
    int64_t r;
    if (__builtin_sub_overflow((int64_t)0, val_as_int(v), &r)) return fail_overflow(in);
    *out = val_int(r);
    return true;
}
