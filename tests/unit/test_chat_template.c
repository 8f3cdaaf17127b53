#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/chat.h"
#include "tests/harness.h"

/* ---- JSON to values ---------------------------------------------------------------------------- */

static void to_value(struct arena *arena, const json_t *json, struct value *out) {
    switch (json_typeof(json)) {
    case JSON_NULL:
        out->kind = VALUE_NULL;
        return;
    case JSON_TRUE:
    case JSON_FALSE:
        out->kind = VALUE_BOOL;
        out->boolean = json_is_true(json);
        return;
    case JSON_INTEGER:
        out->kind = VALUE_INT;
        out->integer = json_integer_value(json);
        return;
    case JSON_REAL:
        out->kind = VALUE_REAL;
        out->real = json_real_value(json);
        return;
    case JSON_STRING:
        out->kind = VALUE_STRING;
        out->len = json_string_length(json);
        out->text = arena_strndup(arena, json_string_value(json), out->len);
        assert_non_null(out->text);
        return;
    default:
        break;
    }
    bool array = json_is_array(json);
    out->kind = array ? VALUE_ARRAY : VALUE_OBJECT;
    out->n_items = array ? json_array_size(json) : json_object_size(json);
    out->items = arena_alloc(arena, out->n_items * sizeof *out->items);
    out->keys = array ? NULL : arena_alloc(arena, out->n_items * sizeof *out->keys);
    assert_non_null(out->items);
    if (array) {
        for (size_t i = 0; i < out->n_items; i++)
            to_value(arena, json_array_get(json, i), &out->items[i]);
        return;
    }
    size_t i = 0;
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)(uintptr_t)json, key, member) {
        out->keys[i].len = strlen(key);
        out->keys[i].text = arena_strndup(arena, key, strlen(key));
        to_value(arena, member, &out->items[i++]);
    }
}

static struct value parse_value(struct arena *arena, const char *text) {
    json_error_t error;
    json_t *json = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!json) fail_msg("test JSON: %s in %s", error.text, text);
    struct value v = {0};
    to_value(arena, json, &v);
    json_decref(json);
    return v;
}

/* ---- rendering in one call --------------------------------------------------------------------- */

static const int64_t NOON = 1772366400; /* 2026-03-01 12:00 UTC, a Sunday */

static int try_render(const char *source, size_t len, const struct value *context,
                      struct rendered *out, struct err *err) {
    struct chat_template *tmpl = NULL;
    int rc = chat_template_create(source, len, &tmpl, err);
    if (rc) return rc;
    rc = chat_template_render_context(tmpl, context, NOON, out, err);
    chat_template_destroy(tmpl);
    return rc;
}

static void check_runs(const struct rendered *r) {
    size_t at = 0;
    for (size_t i = 0; i < r->n_runs; i++) {
        assert_ptr_equal(r->runs[i].text, r->text + at);
        assert_true(r->runs[i].len > 0);
        if (i) assert_true(r->runs[i].trusted != r->runs[i - 1].trusted);
        at += r->runs[i].len;
    }
    assert_int_equal(at, r->len);
    assert_int_equal(r->text[r->len], 0);
}

static void expect_text(const char *name, const char *source, const char *context,
                        const char *wanted, size_t wanted_len) {
    struct arena *arena = arena_create(64u << 20);
    struct value v = parse_value(arena, context);
    struct rendered r = {0};
    struct err err = {0};
    if (try_render(source, strlen(source), &v, &r, &err)) fail_msg("%s: %s", name, err.msg);
    check_runs(&r);
    if (r.len != wanted_len || memcmp(r.text, wanted, wanted_len) != 0)
        fail_msg("%s: got\n%s\nexpected\n%s", name, r.text, wanted);
    rendered_free(&r);
    arena_destroy(arena);
}

static void gives(const char *source, const char *context, const char *wanted) {
    expect_text(source, source, context, wanted, strlen(wanted));
}

/* Fails, at load or when run, with a message that holds part. */
static void refuses(const char *source, const char *context, const char *part) {
    struct arena *arena = arena_create(64u << 20);
    struct value v = parse_value(arena, context);
    struct rendered r = {0};
    struct err err = {0};
    int rc = try_render(source, strlen(source), &v, &r, &err);
    if (rc == OK) fail_msg("%.200s: rendered \"%.200s\"", source, r.text);
    assert_true(rc == ERR_INVALID || rc == ERR_TOO_LONG);
    assert_int_equal(err.code, rc);
    if (!strstr(err.msg, part)) fail_msg("%.200s: \"%s\" lacks \"%s\"", source, err.msg, part);
    arena_destroy(arena);
}

/* ---- the published cases ----------------------------------------------------------------------- */

static void every_case_of_the_file_gives_its_text_or_error(void **state) {
    (void)state;
    size_t len;
    char *text = read_file(golden_path("chat-template-cases.json"), &len);
    json_t *cases = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
    assert_true(json_is_array(cases));
    assert_true(json_array_size(cases) >= 85);
    size_t i;
    json_t *c;
    json_array_foreach(cases, i, c) {
        const char *name = json_string_value(json_object_get(c, "name"));
        const json_t *source = json_object_get(c, "template");
        const json_t *wanted = json_object_get(c, "expected");
        struct arena *arena = arena_create(64u << 20);
        struct value context = {.kind = VALUE_OBJECT};
        if (json_object_get(c, "context")) to_value(arena, json_object_get(c, "context"), &context);
        struct rendered r = {0};
        struct err err = {0};
        int rc =
            try_render(json_string_value(source), json_string_length(source), &context, &r, &err);
        if (wanted) {
            if (rc) fail_msg("%s: %s", name, err.msg);
            check_runs(&r);
            if (r.len != json_string_length(wanted) ||
                memcmp(r.text, json_string_value(wanted), r.len) != 0)
                fail_msg("%s: got\n%s\nexpected\n%s", name, r.text, json_string_value(wanted));
            rendered_free(&r);
        } else {
            const char *error = json_string_value(json_object_get(c, "error"));
            if (rc == OK) fail_msg("%s: rendered %s", name, r.text);
            assert_int_equal(rc, ERR_INVALID);
            if (strncmp(error, "raise: ", 7) == 0)
                assert_string_equal(err.msg, error + 7);
            else
                assert_non_null(strstr(err.msg, "line "));
        }
        arena_destroy(arena);
    }
    json_decref(cases);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_of_the_file_gives_its_text_or_error),
    };
    (void)gives;
    (void)refuses;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
