/* The output buffer, exact JSON strings, the table of errors. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/proto.h"

static void assert_json(const char *text, size_t len, const char *expected) {
    struct buf buf = {0};
    char *copy = guard_copy(text, len);
    buf_json(&buf, copy, len);
    guard_free(copy, len);
    assert_false(buf.failed);
    assert_int_equal(buf.len, strlen(expected));
    assert_memory_equal(buf.data, expected, buf.len);
    buf_free(&buf);
}

static void plain_and_multibyte_text_is_copied(void **state) {
    (void)state;
    assert_json("", 0, "\"\"");
    assert_json("a/b <c>", 7, "\"a/b <c>\"");
    assert_json("\x7F", 1, "\"\x7F\"");
    assert_json("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", 9,
                "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"");
}

static void every_control_character_is_escaped(void **state) {
    (void)state;
    assert_json("\"\\\b\f\n\r\t", 7, "\"\\\"\\\\\\b\\f\\n\\r\\t\"");
    for (char c = 0; c < 0x20; c++) {
        char expected[16];
        if (strchr("\b\f\n\r\t", c) && c) continue;
        snprintf(expected, sizeof expected, "\"x\\u%04xy\"", (unsigned)c);
        assert_json((const char[]){'x', c, 'y'}, 3, expected);
    }
}

/* Unicode 15, section 3.9: one U+FFFD for each maximal subpart. */
static void invalid_utf8_becomes_replacement_characters(void **state) {
    (void)state;
#define FFFD "\xEF\xBF\xBD"
    assert_json("\xC3(", 2, "\"" FFFD "(\"");
    assert_json("\xE2\x82", 2, "\"" FFFD "\"");
    assert_json("\xF0\x9F\x98", 3, "\"" FFFD "\"");
    assert_json("\xF0\x9F\x98x", 4, "\"" FFFD "x\"");
    assert_json("\xC0\xAF", 2, "\"" FFFD FFFD "\"");
    assert_json("\xE0\x80\xAF", 3, "\"" FFFD FFFD FFFD "\"");
    assert_json("\xED\xA0\x80", 3, "\"" FFFD FFFD FFFD "\"");
    assert_json("\xF4\x90\x80\x80", 4, "\"" FFFD FFFD FFFD FFFD "\"");
    assert_json("\x80\xFF", 2, "\"" FFFD FFFD "\"");
    assert_json("a\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", 10, "\"a" FFFD FFFD FFFD FFFD "A\"");
#undef FFFD
}

static void formatted_text_grows_the_buffer(void **state) {
    (void)state;
    struct buf buf = {0};
    for (int i = 0; i < 1000; i++)
        buf_fmt(&buf, "%d,%s;", i, "abcdefghijklmnopqrstuvwxyz");
    char *expected = malloc(64 * 1000);
    size_t at = 0;
    for (int i = 0; i < 1000; i++)
        at += (size_t)sprintf(expected + at, "%d,%s;", i, "abcdefghijklmnopqrstuvwxyz");
    assert_int_equal(buf.len, at);
    assert_memory_equal(buf.data, expected, at);
    free(expected);
    char *wide = malloc(5001);
    memset(wide, 'w', 5000);
    wide[5000] = '\0';
    buf.len = 0;
    buf_fmt(&buf, "<%s>", wide);
    assert_int_equal(buf.len, 5002);
    assert_int_equal(buf.data[5001], '>');
    free(wide);
    buf_free(&buf);
    assert_null(buf.data);
}

static void growth_that_cannot_be_marks_the_buffer_failed(void **state) {
    (void)state;
    struct buf buf = {0};
    buf_str(&buf, "kept");
    buf_add(&buf, "x", SIZE_MAX - 2);
    assert_true(buf.failed);
    buf_str(&buf, "ignored");
    assert_int_equal(buf.len, 4);
    buf_free(&buf);
}

static void a_buffer_that_has_its_size_never_moves(void **state) {
    (void)state;
    struct buf buf = {0};
    buf_fmt(&buf, "%2000s", "");
    const char *data = buf.data;
    size_t cap = buf.cap;
    for (int i = 0; i < 100; i++) {
        buf.len = 0;
        buf_json(&buf, "some text\n", 10);
        buf_fmt(&buf, "%d", i);
        assert_ptr_equal(buf.data, data);
        assert_int_equal(buf.cap, cap);
    }
    buf_free(&buf);
}

/* The table of the API page, row by row. */
static void every_code_has_its_status_type_and_string(void **state) {
    (void)state;
    static const struct {
        enum api_code code;
        int status;
        const char *type, *text;
    } rows[] = {
        {API_INVALID_JSON, 400, "invalid_request_error", "invalid_json"},
        {API_MISSING_REQUIRED_PARAMETER, 400, "invalid_request_error",
         "missing_required_parameter"},
        {API_INVALID_TYPE, 400, "invalid_request_error", "invalid_type"},
        {API_INVALID_VALUE, 400, "invalid_request_error", "invalid_value"},
        {API_UNSUPPORTED_PARAMETER, 400, "invalid_request_error", "unsupported_parameter"},
        {API_MALFORMED_REQUEST, 400, "invalid_request_error", "malformed_request"},
        {API_HTTP_VERSION_NOT_SUPPORTED, 505, "invalid_request_error",
         "http_version_not_supported"},
        {API_UNKNOWN_PARAMETER, 400, "invalid_request_error", "unknown_parameter"},
        {API_CONTEXT_LENGTH_EXCEEDED, 400, "invalid_request_error", "context_length_exceeded"},
        {API_INVALID_SCHEMA, 400, "invalid_request_error", "invalid_schema"},
        {API_INVALID_API_KEY, 401, "authentication_error", "invalid_api_key"},
        {API_MODEL_NOT_FOUND, 404, "invalid_request_error", "model_not_found"},
        {API_UNKNOWN_URL, 404, "invalid_request_error", "unknown_url"},
        {API_METHOD_NOT_ALLOWED, 405, "invalid_request_error", "method_not_allowed"},
        {API_REQUEST_TIMEOUT, 408, "invalid_request_error", "request_timeout"},
        {API_REQUEST_TOO_LARGE, 413, "invalid_request_error", "request_too_large"},
        {API_URI_TOO_LONG, 414, "invalid_request_error", "uri_too_long"},
        {API_UNSUPPORTED_MEDIA_TYPE, 415, "invalid_request_error", "unsupported_media_type"},
        {API_HEADERS_TOO_LARGE, 431, "invalid_request_error", "headers_too_large"},
        {API_QUEUE_FULL, 429, "overloaded_error", "queue_full"},
        {API_INTERNAL_ERROR, 500, "server_error", "internal_error"},
        {API_MODEL_LOADING, 503, "unavailable_error", "model_loading"},
        {API_SHUTTING_DOWN, 503, "unavailable_error", "shutting_down"},
        {API_ENGINE_FAILED, 503, "unavailable_error", "engine_failed"},
        {API_TOO_MANY_CONNECTIONS, 503, "unavailable_error", "too_many_connections"},
        {API_QUEUE_TIMEOUT, 504, "timeout_error", "queue_timeout"},
        {API_DEADLINE, 504, "timeout_error", "request_timeout"},
    };
    assert_int_equal(ARRAY_LEN(rows), API_CODE_COUNT);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct api_error err;
        assert_int_equal(rows[i].code, i);
        assert_int_equal(api_error_set(&err, rows[i].code, NULL, "x"), ERR_INVALID);
        assert_int_equal(err.status, rows[i].status);
        assert_string_equal(err.type, rows[i].type);
        assert_string_equal(err.code, rows[i].text);
    }
}

static void assert_body(const struct api_error *err, const char *expected) {
    struct buf buf = {0};
    proto_error_body(&buf, err);
    buf_add(&buf, "", 1);
    assert_false(buf.failed);
    assert_string_equal(buf.data, expected);
    buf_free(&buf);
}

static void error_body_is_the_one_of_the_api_page(void **state) {
    (void)state;
    struct api_error err;
    api_error_set(&err, API_INVALID_VALUE, "temperature",
                  "temperature must be between 0 and 2, got %.1f", 3.5);
    assert_body(&err,
                "{\"error\":{\"message\":\"temperature must be between 0 and 2, got 3.5\",\"type\":"
                "\"invalid_request_error\",\"param\":\"temperature\",\"code\":\"invalid_value\"}}");
    api_error_set(&err, API_QUEUE_FULL, NULL, "say \"later\"");
    assert_body(&err, "{\"error\":{\"message\":\"say \\\"later\\\"\",\"type\":\"overloaded_error\","
                      "\"param\":null,\"code\":\"queue_full\"}}");
}

static void long_messages_and_params_are_cut_between_characters(void **state) {
    (void)state;
    /* Every shift puts the cut at another byte of a three-byte character. */
    for (size_t shift = 0; shift < 3; shift++) {
        char text[1024] = {0};
        memset(text, 'a', shift);
        for (size_t i = 0; i < 300; i++)
            memcpy(text + shift + 3 * i, "\xE2\x82\xAC", 3);
        struct api_error err;
        api_error_set(&err, API_INVALID_VALUE, text, "%s", text);
        size_t message = strlen(err.message), param = strlen(err.param);
        assert_in_range(message, sizeof err.message - 3, sizeof err.message - 1);
        assert_in_range(param, sizeof err.param - 3, sizeof err.param - 1);
        assert_int_equal((message - shift) % 3, 0);
        assert_int_equal((param - shift) % 3, 0);
        assert_memory_equal(err.message, text, message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_and_multibyte_text_is_copied),
        cmocka_unit_test(every_control_character_is_escaped),
        cmocka_unit_test(invalid_utf8_becomes_replacement_characters),
        cmocka_unit_test(formatted_text_grows_the_buffer),
        cmocka_unit_test(growth_that_cannot_be_marks_the_buffer_failed),
        cmocka_unit_test(a_buffer_that_has_its_size_never_moves),
        cmocka_unit_test(every_code_has_its_status_type_and_string),
        cmocka_unit_test(error_body_is_the_one_of_the_api_page),
        cmocka_unit_test(long_messages_and_params_are_cut_between_characters),
    };
    return cmocka_run_group_tests_name("proto_buf", tests, NULL, NULL);
}
