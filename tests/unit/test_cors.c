/* Which origins may read answers, and the headers that say so; paths that need no key. */
#include "tests/harness.h"

#include <stdio.h>
#include <string.h>

#include "server/cors.h"
#include "server/keys.h"

static struct option_list list_of(const char *a, const char *b) {
    struct option_list list = {0};
    if (a) list.items[list.n++] = a;
    if (b) list.items[list.n++] = b;
    return list;
}

static void origins_are_checked(void **state) {
    (void)state;
    static const struct {
        const char *origin;
        bool good;
    } CASES[] = {
        {"*", true},
        {"https://a.example", true},
        {"http://localhost:3000", true},
        {"http://[::1]:80", true},
        {"chrome-extension://abcdef", true},
        {"", false},
        {"a.example", false},
        {"://a", false},
        {"https://", false},
        {"https://a/", false},
        {"https://a/b", false},
        {"https://a?b", false},
        {"https://u@a", false},
        {"https://*.a", false},
        {"https://a, https://b", false},
        {"https://a\r\nSet-Cookie: x", false},
        {"https://\xc3\xa4", false},
        {"null", false},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        struct option_list list = list_of("https://first", CASES[i].origin);
        struct err err = {0};
        int rc = cors_check(&list, &err);
        if ((rc == OK) != CASES[i].good) fail_msg("%s: %d", CASES[i].origin, rc);
        if (rc) assert_non_null(strstr(err.msg, "--cors-origin"));
    }
}

static void only_listed_origins_are_allowed(void **state) {
    (void)state;
    struct option_list none = {0}, any = list_of("https://a", "*"),
                       two = list_of("https://a", "http://b:1");
    assert_null(cors_allowed(&none, "https://a"));
    assert_string_equal(cors_allowed(&any, "https://x"), "*");
    assert_string_equal(cors_allowed(&any, NULL), "*");
    assert_string_equal(cors_allowed(&two, "http://b:1"), "http://b:1");
    static const char *const OTHERS[] = {"https://a.b", "https://", "http://a", "HTTPS://A",
                                         "*",           "",         "null"};
    for (size_t i = 0; i < sizeof OTHERS / sizeof OTHERS[0]; i++)
        assert_null(cors_allowed(&two, OTHERS[i]));
    assert_null(cors_allowed(&two, NULL));
}

struct text {
    char bytes[1024];
};

static void put(void *to, const char *name, const char *value) {
    struct text *text = to;
    size_t len = strlen(text->bytes);
    snprintf(text->bytes + len, sizeof text->bytes - len, "%s=%s;", name, value);
}

static void headers_follow_the_decision(void **state) {
    (void)state;
    static const char REST[] =
        "Access-Control-Allow-Methods=GET, POST, OPTIONS;"
        "Access-Control-Allow-Headers=authorization, content-type, x-request-id;"
        "Access-Control-Expose-Headers=x-request-id, retry-after;";
    struct option_list none = {0}, any = list_of("*", NULL), one = list_of("https://a", NULL);
    struct text off = {{0}}, star = {{0}}, allowed = {{0}}, refused = {{0}};
    char expected[1024];
    cors_headers(&none, NULL, put, &off);
    assert_string_equal(off.bytes, "");
    cors_headers(&any, "*", put, &star);
    snprintf(expected, sizeof expected, "Access-Control-Allow-Origin=*;%s", REST);
    assert_string_equal(star.bytes, expected);
    cors_headers(&one, "https://a", put, &allowed);
    snprintf(expected, sizeof expected, "Vary=Origin;Access-Control-Allow-Origin=https://a;%s",
             REST);
    assert_string_equal(allowed.bytes, expected);
    cors_headers(&one, NULL, put, &refused);
    assert_string_equal(refused.bytes, "Vary=Origin;");
}

static void open_paths_are_whole_paths(void **state) {
    (void)state;
    struct option_list list = list_of("/v1/models/", "/v1/completions/render");
    struct err err = {0};
    assert_int_equal(keys_check_open_paths(&list, &err), OK);
    assert_true(keys_path_is_open(&list, "/v1/models", 10));
    assert_true(keys_path_is_open(&list, "/v1/completions/render", 22));
    assert_false(keys_path_is_open(&list, "/v1/models/x", 12));
    assert_false(keys_path_is_open(&list, "/v1/model", 9));
    assert_false(keys_path_is_open(&list, "/v1/completions", 15));
    assert_false(keys_path_is_open(&list, "/", 1));
    static const char *const BAD[] = {"v1", "", "/a?b", "/a#b", "/%61"};
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        struct option_list bad = list_of(BAD[i], NULL);
        assert_int_equal(keys_check_open_paths(&bad, &err), ERR_INVALID);
        assert_non_null(strstr(err.msg, "--open-path"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(origins_are_checked),
        cmocka_unit_test(only_listed_origins_are_allowed),
        cmocka_unit_test(headers_follow_the_decision),
        cmocka_unit_test(open_paths_are_whole_paths),
    };
    return cmocka_run_group_tests_name("cors", tests, NULL, NULL);
}
