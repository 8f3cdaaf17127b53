/* Headers of safetensors files: hostile lengths, ranges, shapes, duplicates, cuts. */
#include "engine/load/safetensors.h"

#include "tests/unit/model_files.h"

static int parse(const char *json, uint64_t data_bytes, struct safetensors **out, struct err *err) {
    size_t n = strlen(json);
    char *copy = guard_copy(json, n);
    int rc = safetensors_parse_header(copy, n, data_bytes, "toy.safetensors", out, err);
    guard_free(copy, n);
    return rc;
}

static void refused(const char *json, uint64_t data_bytes, const char *word) {
    struct safetensors *h = NULL;
    struct err err = {0};
    int rc = parse(json, data_bytes, &h, &err);
    if (rc == OK) fail_msg("accepted: %.100s", json);
    assert_null(h);
    if (!strstr(err.msg, word) || !strstr(err.msg, "toy.safetensors"))
        fail_msg("%.100s: message \"%s\" lacks \"%s\"", json, err.msg, word);
}

static void a_good_header_is_listed(void **state) {
    (void)state;
    struct safetensors *h;
    struct err err;
    assert_int_equal(parse("{\"__metadata__\":{\"format\":\"pt\"},"
                           "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
                           "\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]},"
                           "\"s\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[28,30]},"
                           "\"z\":{\"dtype\":\"U8\",\"shape\":[0,7],\"data_offsets\":[30,30]}}   ",
                           30, &h, &err),
                     OK);
    assert_int_equal(h->n_tensors, 4);
    assert_string_equal(h->tensors[0].name, "a");
    const struct safetensors_tensor *b = safetensors_find(h, "b");
    assert_string_equal(b->dtype, "F32");
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->shape[1], 3);
    assert_int_equal(b->begin, 4);
    assert_int_equal(b->end, 28);
    assert_int_equal(safetensors_find(h, "s")->n_dims, 0);
    assert_null(safetensors_find(h, "c"));
    safetensors_destroy(h);
}

static void S11_01_header_length_is_checked_first(void **state) {
    (void)state;
    static const struct {
        uint8_t first[8];
        size_t n_first;
        uint64_t file_size;
        int rc;
    } cases[] = {
        {{0}, 0, 0, ERR_INVALID},
        {{1, 2, 3, 4, 5, 6, 7}, 7, 7, ERR_INVALID},
        {{8}, 8, 8, ERR_INVALID}, /* only the length: the header is beyond the end */
        {{255, 255, 255, 255, 255, 255, 255, 255}, 8, 10, ERR_INVALID},
        {{93}, 8, 100, ERR_INVALID},                            /* file size - 7 */
        {{0x01, 0xe1, 0xf5, 0x05}, 8, UINT64_MAX, ERR_INVALID}, /* 100,000,001 */
        {{0x00, 0xe1, 0xf5, 0x05}, 8, 100000008, OK},           /* 100,000,000 */
        {{92}, 8, 100, OK},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t n = 12345;
        struct err err = {0};
        char *copy = guard_copy(cases[i].first, cases[i].n_first);
        int rc = safetensors_header_bytes(copy, cases[i].n_first, cases[i].file_size,
                                          "toy.safetensors", &n, &err);
        guard_free(copy, cases[i].n_first);
        assert_int_equal(rc, cases[i].rc);
        if (rc) {
            assert_int_equal(n, 12345);
            assert_non_null(strstr(err.msg, "toy.safetensors"));
        }
    }
}

static void S11_01_headers_that_are_no_table(void **state) {
    (void)state;
    refused("", 0, "JSON");
    refused("{}", 0, "no tensor");
    refused("{\"__metadata__\":{}}", 0, "no tensor");
    refused("[]", 0, "not a JSON object");
    refused("hello", 0, "JSON");
    refused("{\"a\":", 0, "JSON");
    char *deep = malloc(200001);
    memset(deep, '[', 200000);
    deep[200000] = 0;
    refused(deep, 0, "nested");
    for (size_t i = 0; i < 200000; i += 5)
        memcpy(deep + i, "{\"a\":", 5);
    refused(deep, 0, "nested");
    free(deep);
}

static void S11_02_ranges_shapes_and_duplicates(void **state) {
    (void)state;
    static const struct {
        const char *tensors;
        uint64_t data_bytes;
        const char *word;
    } cases[] = {
        {"\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}", 8, "w: data_offsets"},
        {"\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}", 8, "w: 4 bytes"},
        {"\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,0]}", 8, "w: data_offsets"},
        {"\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}", 8, "w: data_offsets"},
        {"\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1099511627776,1099511627784]}",
         8, "w: data_offsets"},
        {"\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8.0]}", 8, "w: data_offsets"},
        {"\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}", 8, "w: data_offsets"},
        {"\"w\":{\"dtype\":\"F32\",\"shape\":[8589934592,8589934592],\"data_offsets\":[0,8]}", 8,
         "w: shape is too large"},
        {"\"w\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}", 8, "w: shape"},
        {"\"w\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}", 8,
         "w: shape"},
        {"\"w\":{\"dtype\":\"F32\",\"shape\":\"2\",\"data_offsets\":[0,8]}", 8, "w: shape"},
        {"\"w\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,8]}", 8, "w: unknown dtype"},
        {"\"w\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}", 8, "w: unknown dtype"},
        {"\"w\":{\"dtype\":\"F32\",\"shape\":[2]}", 8, "w: not an object"},
        {"\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}", 8,
         "w: not an object"},
        {"\"w\":null", 8, "w: not an object"},
        {"\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}",
         8, "overlaps"},
        {"\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}",
         12, "w: data overlaps"},
        {"\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[16,24]}",
         24, "w: a hole of 8"},
        {"\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}", 16, "w: a hole of 8"},
        {"\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}", 16, "w: 8 bytes follow"},
        {"\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}",
         8, "duplicate object key near '\"w\"'"},
        {"\"w\":{\"dtype\":\"F32\",\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,8]}", 8,
         "duplicate object key"},
    };
    char json[512];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        snprintf(json, sizeof json, "{%s}", cases[i].tensors);
        refused(json, cases[i].data_bytes, cases[i].word);
    }
}

static void a_header_cut_anywhere_is_refused(void **state) {
    (void)state;
    const char *json = "{\"__metadata__\":{\"format\":\"pt\"},"
                       "\"a.\\u00e9\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}";
    for (size_t n = 0; n <= strlen(json); n++) {
        char *copy = guard_copy(json, n);
        struct safetensors *h = NULL;
        struct err err;
        int rc = safetensors_parse_header(copy, n, 8, "toy.safetensors", &h, &err);
        assert_int_equal(rc == OK, n == strlen(json));
        safetensors_destroy(h);
        guard_free(copy, n);
    }
}

static void a_header_of_very_many_values_is_refused(void **state) {
    (void)state;
    size_t n = 2 * SAFETENSORS_VALUES_MAX + 64;
    char *json = malloc(n);
    memset(json, '0', n);
    for (size_t i = 1; i < n; i += 2)
        json[i] = ',';
    memcpy(json, "{\"a\":[", 6);
    struct safetensors *h = NULL;
    struct err err;
    assert_int_equal(safetensors_parse_header(json, n, 0, "toy", &h, &err), ERR_TOO_LONG);
    free(json);
}

static void control_bytes_of_a_name_stay_out_of_messages(void **state) {
    (void)state;
    struct safetensors *h = NULL;
    struct err err;
    assert_int_not_equal(parse("{\"a\\nb\\u001b[2J\":{}}", 0, &h, &err), OK);
    for (const char *c = err.msg; *c; c++)
        assert_true((unsigned char)*c >= 0x20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_header_is_listed),
        cmocka_unit_test(S11_01_header_length_is_checked_first),
        cmocka_unit_test(S11_01_headers_that_are_no_table),
        cmocka_unit_test(S11_02_ranges_shapes_and_duplicates),
        cmocka_unit_test(a_header_cut_anywhere_is_refused),
        cmocka_unit_test(a_header_of_very_many_values_is_refused),
        cmocka_unit_test(control_bytes_of_a_name_stay_out_of_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
