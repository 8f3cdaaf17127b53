/* Log lines: always parseable JSON, whatever the values hold. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/proto.h"
#include "server/log.h"

static char path[512];

/* What write wrote on stderr, NUL-terminated. */
static char *captured(void (*write)(void)) {
    fflush(stderr);
    int saved = dup(STDERR_FILENO);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    dup2(fileno(f), STDERR_FILENO);
    write();
    dup2(saved, STDERR_FILENO);
    close(saved);
    fclose(f);
    size_t len;
    return read_file(path, &len);
}

static int make_path(void **state) {
    (void)state;
    snprintf(path, sizeof path, "%s/log", scratch_dir());
    return 0;
}

static struct value parse(char *line, struct arena *arena) {
    struct value v;
    struct api_error error;
    size_t len = strlen(line);
    assert_true(len && line[len - 1] == '\n' && !memchr(line, '\n', len - 1));
    if (proto_parse_json(line, len, arena, &v, &error)) fail_msg("%s: %s", error.message, line);
    return v;
}

static const char *text_of(const struct value *object, const char *key) {
    const struct value *v = value_get(object, key);
    assert_true(v && v->kind == VALUE_STRING);
    return v->text;
}

static void write_odd(void) {
    log_event(LOG_INFO, "odd", log_str("quotes", "a\"b\\c"), log_str("control", "\n\t\x01\x7f"),
              log_str("utf8", "\xc3\xa9\xf0\x9f\x98\x80"),
              log_str("bad", "\xff\xc3(\xed\xa0\x80\xf5\x80\x80\x80\xc0\xaf\xe2\x82"),
              log_str("absent", NULL), log_int("int", -5), log_real("real", 1.0 / 3));
}

static void any_bytes_become_json(void **state) {
    (void)state;
    log_init("info", "json");
    char *line = captured(write_odd);
    struct arena *arena = arena_create(1 << 20);
    struct value v = parse(line, arena);
    assert_string_equal(text_of(&v, "event"), "odd");
    assert_string_equal(text_of(&v, "quotes"), "a\"b\\c");
    assert_string_equal(text_of(&v, "control"), "\n\t\x01\x7f");
    assert_string_equal(text_of(&v, "utf8"), "\xc3\xa9\xf0\x9f\x98\x80");
    assert_string_equal(text_of(&v, "bad"), "\?\?(\?\?\?\?\?\?\?\?\?\?\?");
    assert_null(value_get(&v, "absent"));
    assert_int_equal(value_get(&v, "int")->integer, -5);
    assert_true(value_get(&v, "real")->real == 0.333);
    arena_destroy(arena);
    free(line);
}

static char long_text[9000];
static const char *unit;

static void write_long(void) {
    struct log_field fields[9];
    for (size_t i = 0; i + 1 < ARRAY_LEN(fields); i++)
        fields[i] = log_str("long", long_text);
    fields[8] = log_int("last", 7);
    for (size_t i = 0; i < 8; i++) {
        static const char *const KEYS[] = {"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"};
        fields[i].key = KEYS[i];
    }
    log_write(LOG_ERROR, "long", fields, ARRAY_LEN(fields));
}

static void too_much_is_left_out_in_whole_fields(void **state) {
    (void)state;
    static const char *const UNITS[] = {"x", "\"", "\xe2\x9c\x93", "\x01"};
    for (size_t u = 0; u < ARRAY_LEN(UNITS); u++) {
        unit = UNITS[u];
        size_t len = strlen(unit);
        for (size_t i = 0; i + len < sizeof long_text; i += len)
            memcpy(long_text + i, unit, len + 1);
        log_init("error", "json");
        char *line = captured(write_long);
        struct arena *arena = arena_create(1 << 20);
        struct value v = parse(line, arena);
        assert_string_equal(text_of(&v, "event"), "long");
        assert_int_equal(value_get(&v, "last")->integer, 7); /* short ones still find room */
        assert_null(value_get(&v, "k7"));
        arena_destroy(arena);
        free(line);
    }
}

static void write_all_levels(void) {
    log_event(LOG_ERROR, "e", log_int("n", 1));
    log_event(LOG_WARN, "w", log_str("text", "two words"));
    log_event(LOG_INFO, "i", log_int("n", 1));
    log_event(LOG_DEBUG, "d", log_int("n", 1));
}

static void levels_cut_and_text_format_quotes(void **state) {
    (void)state;
    log_init("warn", "text");
    char *lines = captured(write_all_levels);
    assert_non_null(strstr(lines, " level=error event=e n=1\n"));
    assert_non_null(strstr(lines, " level=warn event=w text=\"two words\"\n"));
    assert_null(strstr(lines, "event=i"));
    assert_null(strstr(lines, "event=d"));
    free(lines);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_bytes_become_json),
        cmocka_unit_test(too_much_is_left_out_in_whole_fields),
        cmocka_unit_test(levels_cut_and_text_format_quotes),
    };
    return cmocka_run_group_tests_name("log", tests, make_path, NULL);
}
