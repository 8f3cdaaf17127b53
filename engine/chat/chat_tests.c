/* Tests: what follows `is`, and select's first argument. */
#include "engine/chat/chat_internal.h"

static bool take(struct interp *in, const struct args *args, uint32_t n, struct val *out) {
    static const char *const params[] = {"other"};
    return chat_bind(in, "a test", args, params, n, n, out);
}

static bool no_args(struct interp *in, const struct args *args) {
    return (args->n_pos == 0 && args->n_kw == 0) || chat_fail(in, "this test takes no arguments");
}

#define KIND_TEST(name, expr)                                                               \
    static bool name(struct interp *in, struct val v, const struct args *args, bool *out) { \
        *out = (expr);                                                                      \
        return no_args(in, args);                                                           \
    }

KIND_TEST(is_defined, v.kind != VAL_UNDEFINED)
KIND_TEST(is_undefined, v.kind == VAL_UNDEFINED)
KIND_TEST(is_none, v.kind == VAL_NONE)
KIND_TEST(is_boolean, v.kind == VAL_BOOL)
KIND_TEST(is_true, v.kind == VAL_BOOL && v.b)
KIND_TEST(is_false, v.kind == VAL_BOOL && !v.b)
KIND_TEST(is_integer, v.kind == VAL_INT)
KIND_TEST(is_float, v.kind == VAL_REAL)
KIND_TEST(is_number, val_is_number(v))
KIND_TEST(is_string, v.kind == VAL_STR)
KIND_TEST(is_mapping, v.kind == VAL_DICT)
KIND_TEST(is_escaped, v.kind == VAL_STR && v.marked)
KIND_TEST(is_sequence, v.kind == VAL_STR || val_is_seq(v) || v.kind == VAL_DICT ||
                           v.kind == VAL_RANGE || v.kind == VAL_UNDEFINED)
KIND_TEST(is_iterable, v.kind == VAL_STR || val_is_seq(v) || v.kind == VAL_DICT ||
                           v.kind == VAL_RANGE || v.kind == VAL_UNDEFINED || v.kind == VAL_VIEW ||
                           v.kind == VAL_GEN || v.kind == VAL_LOOP)
KIND_TEST(is_callable, v.kind == VAL_MACRO || v.kind == VAL_METHOD || v.kind == VAL_GLOBAL ||
                           v.kind == VAL_LOOP || v.kind == VAL_JOINER || v.kind == VAL_UNDEFINED)

static bool is_cased(struct interp *in, struct val v, const struct args *args, bool want_upper,
                     bool *out) {
    if (!no_args(in, args) || !chat_to_str(in, v, &v)) return false;
    bool any = false, upper;
    *out = true;
    for (size_t at = 0; at < v.s->len;) {
        uint32_t cp;
        at += chat_utf8_next(v.s->text, v.s->len, at, &cp);
        if (!chat_is_cased(cp, &upper)) continue;
        any = true;
        if (upper != want_upper) *out = false;
    }
    *out = *out && any;
    return chat_charge_bytes(in, v.s->len * 4u);
}

static bool is_upper(struct interp *in, struct val v, const struct args *args, bool *out) {
    return is_cased(in, v, args, true, out);
}

static bool is_lower(struct interp *in, struct val v, const struct args *args, bool *out) {
    return is_cased(in, v, args, false, out);
}

static bool is_eq(struct interp *in, struct val v, const struct args *args, bool *out) {
    struct val other;
    return take(in, args, 1, &other) && chat_equal(in, v, other, out);
}

static bool is_ne(struct interp *in, struct val v, const struct args *args, bool *out) {
    if (!is_eq(in, v, args, out)) return false;
    *out = !*out;
    return true;
}

static bool order(struct interp *in, struct val v, const struct args *args, int *out) {
    struct val other;
    return take(in, args, 1, &other) && chat_compare(in, v, other, out);
}

#define ORDER_TEST(name, expr)                                                              \
    static bool name(struct interp *in, struct val v, const struct args *args, bool *out) { \
        int c;                                                                              \
        if (!order(in, v, args, &c)) return false;                                          \
        *out = (expr) && c != 2;                                                            \
        return true;                                                                        \
    }

ORDER_TEST(is_lt, c < 0)
ORDER_TEST(is_le, c <= 0)
ORDER_TEST(is_gt, c > 0)
ORDER_TEST(is_ge, c >= 0)

static bool is_in(struct interp *in, struct val v, const struct args *args, bool *out) {
    struct val other;
    return take(in, args, 1, &other) && chat_contains(in, v, other, out);
}

static bool is_sameas(struct interp *in, struct val v, const struct args *args, bool *out) {
    struct val other;
    if (!take(in, args, 1, &other)) return false;
    *out = false;
    if (v.kind != other.kind) return true;
    if (val_is_number(v) || v.kind == VAL_STR || v.kind == VAL_NONE || v.kind == VAL_UNDEFINED)
        return chat_equal(in, v, other, out);
    *out = v.gen == other.gen; /* the union's members share their place */
    return true;
}

static bool remainder_is(struct interp *in, struct val v, struct val by, int64_t want, bool *out) {
    return chat_binary(in, OP1('%'), v, by, &v) && chat_equal(in, v, val_int(want), out);
}

static bool is_odd(struct interp *in, struct val v, const struct args *args, bool *out) {
    return no_args(in, args) && remainder_is(in, v, val_int(2), 1, out);
}

static bool is_even(struct interp *in, struct val v, const struct args *args, bool *out) {
    return no_args(in, args) && remainder_is(in, v, val_int(2), 0, out);
}

static bool is_divisible(struct interp *in, struct val v, const struct args *args, bool *out) {
    struct val by;
    return take(in, args, 1, &by) && remainder_is(in, v, by, 0, out);
}

static bool is_filter(struct interp *in, struct val v, const struct args *args, bool *out) {
    const struct str *name;
    if (!no_args(in, args) || !chat_want_str(in, "the test 'filter'", v, &name)) return false;
    *out = chat_filter_find(name) != NULL;
    return true;
}

static bool is_test(struct interp *in, struct val v, const struct args *args, bool *out) {
    const struct str *name;
    if (!no_args(in, args) || !chat_want_str(in, "the test 'test'", v, &name)) return false;
    *out = chat_test_find(name) != NULL;
    return true;
}

const struct test *chat_test_find(const struct str *name) {
    static const struct test tests[] = {
        {"defined", is_defined},
        {"undefined", is_undefined},
        {"none", is_none},
        {"boolean", is_boolean},
        {"true", is_true},
        {"false", is_false},
        {"integer", is_integer},
        {"float", is_float},
        {"number", is_number},
        {"string", is_string},
        {"mapping", is_mapping},
        {"sequence", is_sequence},
        {"iterable", is_iterable},
        {"callable", is_callable},
        {"escaped", is_escaped},
        {"upper", is_upper},
        {"lower", is_lower},
        {"eq", is_eq},
        {"equalto", is_eq},
        {"==", is_eq},
        {"ne", is_ne},
        {"!=", is_ne},
        {"lt", is_lt},
        {"lessthan", is_lt},
        {"<", is_lt},
        {"le", is_le},
        {"<=", is_le},
        {"gt", is_gt},
        {"greaterthan", is_gt},
        {">", is_gt},
        {"ge", is_ge},
        {">=", is_ge},
        {"in", is_in},
        {"sameas", is_sameas},
        {"odd", is_odd},
        {"even", is_even},
        {"divisibleby", is_divisible},
        {"filter", is_filter},
        {"test", is_test},
    };
    for (size_t i = 0; i < ARRAY_LEN(tests); i++)
        if (chat_str_is(name, tests[i].name)) return &tests[i];
    return NULL;
}
