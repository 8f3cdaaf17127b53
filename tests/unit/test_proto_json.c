/* JSON bytes to values: bounds, order, and what a message may say. */
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/proto.h"

struct parsed {
    struct arena *arena;
    struct value value;
    struct api_error err;
    int rc;
};

/* The text lies flush against an unreadable page. */
static struct parsed parse_bytes(const char *text, size_t len) {
    struct parsed p = {.arena = arena_create(1u << 28)};
    assert_non_null(p.arena);
    char *copy = guard_copy(text, len);
    p.rc = proto_parse_json(copy, len, p.arena, &p.value, &p.err);
    guard_free(copy, len);
    return p;
}

static void assert_refused_bytes(const char *text, size_t len, const char *what) {
    struct parsed p = parse_bytes(text, len);
    assert_int_equal(p.rc, ERR_INVALID);
    assert_int_equal(p.err.status, 400);
    assert_string_equal(p.err.code, "invalid_json");
    assert_string_equal(p.err.param, "");
    if (!strstr(p.err.message, what)) fail_msg("'%s' does not say '%s'", p.err.message, what);
    if (!strstr(p.err.message, "line ") || !strstr(p.err.message, "column "))
        fail_msg("'%s' names no place", p.err.message);
    arena_destroy(p.arena);
}

static void assert_refused(const char *text, const char *what) {
    assert_refused_bytes(text, strlen(text), what);
}

static void every_kind_of_value_is_read(void **state) {
    (void)state;
    const char text[] = " {\"z\":[1,-2.5,true,false,null],\"a\":{\"s\":\"x\\u0000y\\n\\u00e9"
                        "\\ud83d\\ude00\"},\"m\":-9223372036854775808,\"e\":{},\"l\":[]}\r\n";
    struct parsed p = parse_bytes(text, strlen(text));
    assert_int_equal(p.rc, OK);
    assert_int_equal(p.value.kind, VALUE_OBJECT);
    assert_int_equal(p.value.n_items, 5);
    const char *const order[] = {"z", "a", "m", "e", "l"};
    for (size_t i = 0; i < 5; i++)
        assert_string_equal(p.value.keys[i].text, order[i]);
    const struct value *z = value_get(&p.value, "z");
    assert_int_equal(z->kind, VALUE_ARRAY);
    assert_int_equal(z->n_items, 5);
    assert_int_equal(z->items[0].kind, VALUE_INT);
    assert_int_equal(z->items[0].integer, 1);
    assert_int_equal(z->items[1].kind, VALUE_REAL);
    assert_true(z->items[1].real == -2.5);
    assert_int_equal(z->items[2].kind, VALUE_BOOL);
    assert_true(z->items[2].boolean);
    assert_false(z->items[3].boolean);
    assert_int_equal(z->items[4].kind, VALUE_NULL);
    const struct value *s = value_get(value_get(&p.value, "a"), "s");
    assert_int_equal(s->len, 10);
    assert_memory_equal(s->text, "x\0y\n\xC3\xA9\xF0\x9F\x98\x80", 11);
    assert_true(value_get(&p.value, "m")->integer == INT64_MIN);
    assert_int_equal(value_get(&p.value, "e")->n_items, 0);
    assert_int_equal(value_get(&p.value, "l")->n_items, 0);
    arena_destroy(p.arena);
}

static void keys_keep_the_order_of_the_text(void **state) {
    (void)state;
    char text[16384];
    size_t at = 0;
    at += (size_t)sprintf(text, "{");
    for (unsigned i = 0; i < 500; i++)
        at += (size_t)sprintf(text + at, "%s\"k%u\":%u", i ? "," : "", i * 7919 % 500, i);
    at += (size_t)sprintf(text + at, "}");
    struct parsed p = parse_bytes(text, at);
    assert_int_equal(p.rc, OK);
    for (unsigned i = 0; i < 500; i++) {
        char key[16];
        sprintf(key, "k%u", i * 7919 % 500);
        assert_string_equal(p.value.keys[i].text, key);
        assert_int_equal(p.value.items[i].integer, i);
    }
    arena_destroy(p.arena);
}

static void faults_are_refused_with_their_name(void **state) {
    (void)state;
    assert_refused("", "ends too early");
    assert_refused("{", "ends too early");
    assert_refused("{\"a\":1,\"a\":2}", "duplicate object key");
    assert_refused("{\"x\":{\"a\":1,\"\\u0061\":2}}", "duplicate object key");
    assert_refused("{\"a\":1}x", "more bytes after the value");
    assert_refused("{\"a\":1}{}", "more bytes after the value");
    assert_refused("{\"a\" 1}", "expected ':'");
    assert_refused("{\"a\":1,}", "expected a string");
    assert_refused("[1,]", "invalid token");
    assert_refused("[1 2]", "expected ',' or ']'");
    assert_refused("[01]", "");
    assert_refused("[1.]", "invalid token");
    assert_refused("[+1]", "invalid token");
    assert_refused("['a']", "invalid token");
    assert_refused("[tru]", "invalid token");
    assert_refused("[\"\\q\"]", "invalid escape");
    assert_refused("[\"\\u12g4\"]", "escape");
    assert_refused("[\"a\nb\"]", "line break inside a string");
    assert_refused("[\"a\tb\"]", "control character inside a string");
    assert_refused("{\"a\\u0000\":1}", "NUL in an object key");
    assert_refused("\xEF\xBB\xBF{}", "invalid token");
    assert_refused("/* c */ {}", "invalid token");
    assert_refused_bytes("{}\0", 3, "");
    assert_refused_bytes("{\0}", 3, "");
}

static void S5_07_integers_outside_64_bits_are_refused(void **state) {
    (void)state;
    assert_refused("[18446744073709551616]", "an integer outside signed 64 bits");
    assert_refused("[9223372036854775808]", "an integer outside signed 64 bits");
    assert_refused("[-9223372036854775809]", "an integer outside signed 64 bits");
    struct parsed p = parse_bytes("[9223372036854775807]", 21);
    assert_int_equal(p.rc, OK);
    assert_true(p.value.items[0].integer == INT64_MAX);
    arena_destroy(p.arena);
}

static void S5_01_numbers_that_json_has_not_are_refused(void **state) {
    (void)state;
    assert_refused("[NaN]", "invalid token");
    assert_refused("[Infinity]", "invalid token");
    assert_refused("[-Infinity]", "invalid token");
    assert_refused("[nan]", "invalid token");
    assert_refused("[1e999]", "too large for a double");
    assert_refused("[-1e999]", "too large for a double");
    struct parsed p = parse_bytes("[1e-999,1.7976931348623157e308]", 31);
    assert_int_equal(p.rc, OK);
    assert_true(p.value.items[0].real == 0);
    assert_true(isfinite(p.value.items[1].real));
    arena_destroy(p.arena);
}

static void S5_10_bad_utf8_is_refused_and_never_repeated(void **state) {
    (void)state;
    const char raw[] = "\x7B\x22\x70\x72\x6F\x6D\x70\x74\x22\x3A\x22\xC3\x28\x22\x7D";
    assert_refused(raw, "invalid UTF-8 at line 1, column 12");
    assert_refused("{\"a\":\"\\ud800\"}", "lone surrogate");
    assert_refused("{\"a\":\"\\udc00\"}", "lone surrogate");
    assert_refused("{\"a\":\"\\ud800\\u0041\"}", "lone surrogate");
    assert_refused("[\"\xED\xA0\x80\"]", "invalid UTF-8");
    assert_refused("[\"\xF5\x80\x80\x80\"]", "invalid UTF-8");
    assert_refused("[\"\\\xC3(\"]", "invalid UTF-8");
    assert_refused("[\"\xE2\x82", "invalid UTF-8");
    const char *const secrets[] = {
        "{\"SECRET\" 5}", "{\"a\":\"SECRET",     "{\"SECRET\":1,\"SECRET\":2}",
        "[SECRET]",       "[\"SECRET\\ud800\"]", "[\"SECRET\xC3(\"]",
        "{}SECRET",       "[\"SECRET\\q\"]"};
    for (size_t i = 0; i < ARRAY_LEN(secrets); i++) {
        struct parsed p = parse_bytes(secrets[i], strlen(secrets[i]));
        assert_int_equal(p.rc, ERR_INVALID);
        assert_null(strstr(p.err.message, "SECRET"));
        assert_null(strstr(p.err.message, "near"));
        arena_destroy(p.arena);
    }
}

static void S5_10_nul_escape_is_a_character(void **state) {
    (void)state;
    struct parsed p = parse_bytes("\"a\\u0000b\"", 10);
    assert_int_equal(p.rc, OK);
    assert_int_equal(p.value.len, 3);
    assert_memory_equal(p.value.text, "a\0b", 4);
    arena_destroy(p.arena);
}

static void place_counts_lines_and_characters(void **state) {
    (void)state;
    assert_refused("[1,\n \"\xC3\xA9\xE2\x82\xAC\", \"\xFF\"]", "line 2, column 9");
    assert_refused("[1,\n\n  nope]", "line 3");
}

static char *nested(size_t depth, char open, char close, size_t *len) {
    char *text = malloc(2 * depth);
    memset(text, open, depth);
    memset(text + depth, close, depth);
    *len = 2 * depth;
    return text;
}

static void nesting_ends_at_64(void **state) {
    (void)state;
    size_t len;
    char *text = nested(64, '[', ']', &len);
    struct parsed p = parse_bytes(text, len);
    assert_int_equal(p.rc, OK);
    arena_destroy(p.arena);
    free(text);
    text = nested(65, '[', ']', &len);
    assert_refused_bytes(text, len, "64 levels of nesting at line 1, column 65");
    free(text);
    text = nested(1000000, '[', ']', &len);
    assert_refused_bytes(text, len, "64 levels of nesting at line 1, column 65");
    free(text);
    /* Brackets inside strings do not nest. */
    char quoted[256] = "[\"\\\"";
    memset(quoted + 4, '[', 200);
    strcpy(quoted + 204, "\"]");
    p = parse_bytes(quoted, strlen(quoted));
    assert_int_equal(p.rc, OK);
    arena_destroy(p.arena);
}

/* [1,1,...] of n elements: n + 1 values. */
static char *many(size_t n, size_t *len) {
    char *text = malloc(2 * n + 2);
    text[0] = '[';
    for (size_t i = 0; i < n; i++) {
        text[1 + 2 * i] = '1';
        text[2 + 2 * i] = i + 1 < n ? ',' : ']';
    }
    *len = 2 * n + 1;
    return text;
}

static void values_end_at_a_million(void **state) {
    (void)state;
    size_t len;
    char *text = many(999999, &len);
    struct parsed p = parse_bytes(text, len);
    assert_int_equal(p.rc, OK);
    assert_int_equal(p.value.n_items, 999999);
    arena_destroy(p.arena);
    free(text);
    text = many(1000000, &len);
    assert_refused_bytes(text, len, "more than 1000000 values");
    free(text);
}

static void keys_are_not_counted_as_values(void **state) {
    (void)state;
    /* 600,000 members: 1,200,000 tokens, but 600,001 values. */
    size_t n = 600000, at = 1;
    char *text = malloc(n * 16 + 2);
    text[0] = '{';
    for (size_t i = 0; i < n; i++)
        at += (size_t)sprintf(text + at, "\"%zx\":0,", i);
    text[at - 1] = '}';
    struct parsed p = parse_bytes(text, at);
    assert_int_equal(p.rc, OK);
    assert_int_equal(p.value.n_items, n);
    arena_destroy(p.arena);
    free(text);
}

static void colons_do_not_hide_values(void **state) {
    (void)state;
    size_t len, n = 1500000, colons = 600000;
    char *text = many(n, &len);
    text = realloc(text, len + colons);
    memset(text + len, ':', colons);
    assert_refused_bytes(text, len + colons, "more than 1000000 values at line 1");
    free(text);
}

static void a_full_arena_is_an_internal_error(void **state) {
    (void)state;
    struct arena *arena = arena_create(256);
    struct value value = {.kind = VALUE_BOOL};
    struct api_error err;
    const char text[] = "[[1,2,3,4,5,6,7,8,9,10],\"a long text that does not fit\",{\"k\":1}]";
    assert_int_equal(proto_parse_json(text, strlen(text), arena, &value, &err), ERR_INVALID);
    assert_int_equal(err.status, 500);
    assert_int_equal(value.kind, VALUE_BOOL);
    arena_destroy(arena);
}

static void text_cut_at_every_byte_is_refused(void **state) {
    (void)state;
    const char text[] = "{\"a\":[1,-2.5e3,true,null],\"\xC3\xA9\":\"\\u00e9\\ud83d\\ude00\xF0\x9F"
                        "\x98\x80\",\"o\":{\"k\":\"v\"}}";
    for (size_t n = 0; n < strlen(text); n++)
        assert_refused_bytes(text, n, "");
    struct parsed p = parse_bytes(text, strlen(text));
    assert_int_equal(p.rc, OK);
    arena_destroy(p.arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_value_is_read),
        cmocka_unit_test(keys_keep_the_order_of_the_text),
        cmocka_unit_test(faults_are_refused_with_their_name),
        cmocka_unit_test(S5_07_integers_outside_64_bits_are_refused),
        cmocka_unit_test(S5_01_numbers_that_json_has_not_are_refused),
        cmocka_unit_test(S5_10_bad_utf8_is_refused_and_never_repeated),
        cmocka_unit_test(S5_10_nul_escape_is_a_character),
        cmocka_unit_test(place_counts_lines_and_characters),
        cmocka_unit_test(nesting_ends_at_64),
        cmocka_unit_test(values_end_at_a_million),
        cmocka_unit_test(keys_are_not_counted_as_values),
        cmocka_unit_test(colons_do_not_hide_values),
        cmocka_unit_test(a_full_arena_is_an_internal_error),
        cmocka_unit_test(text_cut_at_every_byte_is_refused),
    };
    return cmocka_run_group_tests_name("proto_json", tests, NULL, NULL);
}
