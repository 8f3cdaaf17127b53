/* Framing rules of a request's head, on plain bytes. */
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

#include "server/http_headers.h"

struct line {
    const char *key, *value;
};

static struct http_headers read_lines(const struct line *lines) {
    struct http_headers h = {0};
    for (; lines->key; lines++)
        http_headers_add(&h, lines->key, strlen(lines->key), lines->value, strlen(lines->value));
    return h;
}

static void framing_faults_are_found(void **state) {
    (void)state;
    static const struct {
        struct line lines[5];
        bool is_http_1_1;
        const char *fault; /* part of it, or NULL */
    } CASES[] = {
        {{{"Host", "a"}}, true, NULL},
        {{{"host", "a"}, {"CONTENT-LENGTH", "3"}}, true, NULL},
        {{{"Host", "a"}, {"Transfer-Encoding", "Chunked"}}, true, NULL},
        {{{0}}, false, NULL}, /* 1.0 needs no Host */
        {{{0}}, true, "Host is missing"},
        {{{"Host", "a"}, {"Host", "a"}}, true, "more than one Host"},
        {{{"Host", "a"}, {"Host", "a"}}, false, "more than one Host"},
        {{{"Host", "a"}, {"Content-Length", "3"}, {"content-length", "3"}}, true, "one Content-L"},
        {{{"Host", "a"}, {"Content-Length", "3"}, {"Transfer-Encoding", "chunked"}},
         true,
         "together"},
        {{{"Host", "a"}, {"Transfer-Encoding", "chunked"}, {"Transfer-Encoding", "chunked"}},
         true,
         "more than one Transfer"},
        {{{"Host", "a"}, {"Transfer-Encoding", "gzip"}}, true, "chunked alone"},
        {{{"Host", "a"}, {"Transfer-Encoding", "gzip, chunked"}}, true, "chunked alone"},
        {{{"Host", "a"}, {"Transfer-Encoding", "xchunked"}}, true, "chunked alone"},
        {{{"Host", "a"}, {"Authorization", "x"}, {"Authorization", "x"}}, true, "Authorization"},
        {{{"Host", "a"}, {"Content-Length ", "3"}}, true, "name"},
        {{{"Host", "a"}, {"", "3"}}, true, "name"},
        {{{"Host", "a"}, {"X", "a\rb"}}, true, "control"},
        {{{"Host", "a"}, {"X", "a\x01"}}, true, "control"},
        {{{"Host", "a"}, {"X", "a\x7f"}}, true, "control"},
        {{{"Host", "a"}, {"X", "a\tb \xc3\xa9"}}, true, NULL},
        {{{"Host", "a"}, {"Content-Length", "-1"}}, true, "whole number"},
        {{{"Host", "a"}, {"Content-Length", "+1"}}, true, "whole number"},
        {{{"Host", "a"}, {"Content-Length", ""}}, true, "whole number"},
        {{{"Host", "a"}, {"Content-Length", "3, 3"}}, true, "whole number"},
        {{{"Host", "a"}, {"Content-Length", "18446744073709551616"}}, true, "whole number"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        struct http_headers h = read_lines(CASES[i].lines);
        const char *fault = http_headers_fault(&h, CASES[i].is_http_1_1);
        if (!CASES[i].fault != !fault || (fault && !strstr(fault, CASES[i].fault)))
            fail_msg("case %zu: %s", i, fault ? fault : "accepted");
    }
}

static void facts_are_read(void **state) {
    (void)state;
    static const struct line LINES[] = {{"Content-Length", " 17 "},      {"X-Request-Id", "bad id"},
                                        {"x-request-id", " good.id:1 "}, {"X-Request-Id", "second"},
                                        {"Expect", "100-Continue"},      {NULL, NULL}};
    struct http_headers h = read_lines(LINES);
    assert_true(h.content_length == 17);
    assert_true(h.expect_continue);
    assert_int_equal(h.request_id_len, 9);
    assert_memory_equal(h.request_id, "good.id:1", 9);
    static const struct line MEDIA[] = {{"Content-Type", "Multipart/form-data; boundary=x"},
                                        {"Content-Encoding", "gzip"},
                                        {NULL, NULL}};
    h = read_lines(MEDIA);
    assert_true(h.multipart && h.encoded);
    static const struct line PLAIN[] = {
        {"Content-Type", "text/plain"}, {"Content-Encoding", "Identity"}, {NULL, NULL}};
    h = read_lines(PLAIN);
    assert_false(h.multipart || h.encoded);
}

/* The library's buffer after parsing; the input sits before an unreadable page and is also cut
 * short at every byte. */
static void the_raw_scan_sees_what_the_library_hides(void **state) {
    (void)state;
#define LINE1 "GET\0/x\0HTTP/1.1\0\0"
    static const struct {
        const char *bytes;
        size_t len;
        uint32_t n_headers;
        bool good;
    } CASES[] = {
#define HEAD(bytes, n, good) {bytes, sizeof bytes - 1, n, good}
        HEAD(LINE1 "Host\0 a\0\0"
                   "\0\0",
             1, true),
        HEAD(LINE1 "Host\0 a\0\0"
                   "X\0\0\0"
                   "\0\0",
             2, true),
        HEAD(LINE1 "\0\0", 0, true),
        HEAD(LINE1 "Host\0 a\0\0"
                   " folded\0\0"
                   "\0\0",
             1, false),
        HEAD(LINE1 "Host\0 a\0\0"
                   "\tfolded\0x\0\0"
                   "\0\0",
             2, false),
        HEAD(LINE1 "Host\0 a\0"
                   "X\0 b\0\0"
                   "\0\0",
             2, false), /* bare LF or CR */
        HEAD(LINE1 "Host\0 a\0b\0\0"
                   "\0\0",
             1, false), /* NUL in a value */
        HEAD(LINE1 "Host\0 a\0\0b\0\0"
                   "\0\0",
             1, false), /* two NULs in a value */
        HEAD(LINE1 "Host\0 a\0\0b: c\0\0"
                   "\0\0",
             2, false), /* a line made by them */
        HEAD(LINE1 "Ho st\0 a\0\0"
                   "\0\0",
             1, false),
        HEAD(LINE1 "\0 a\0\0"
                   "\0\0",
             1, false),
        HEAD(LINE1 "Host\0 a\0\0"
                   "\0\0",
             2, false), /* the library counts another */
        HEAD(LINE1 "Host\0 a\0\0"
                   "\0\0"
                   "junk",
             1, false),
        HEAD("GET\0/x\0HTTP/1.1\0Host\0 a\0\0"
             "\0\0",
             1, false), /* request line ends in LF */
        HEAD("GET\0/x\0HTTP/2.0\0\0"
             "\0\0",
             0, false),
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        char *copy = guard_copy(CASES[i].bytes, CASES[i].len);
        const char *fault = http_headers_raw_fault(copy, CASES[i].len, 7, CASES[i].n_headers);
        if (CASES[i].good != !fault) fail_msg("case %zu: %s", i, fault ? fault : "accepted");
        guard_free(copy, CASES[i].len);
        for (size_t cut = 0; cut < CASES[i].len; cut++) {
            copy = guard_copy(CASES[i].bytes, cut);
            fault = http_headers_raw_fault(copy, cut, 7, CASES[i].n_headers);
            if (CASES[i].good && !fault) fail_msg("case %zu cut at %zu was accepted", i, cut);
            guard_free(copy, cut);
        }
    }
    assert_non_null(http_headers_raw_fault("GET", 3, SIZE_MAX, 0));
}

static void paths_lose_host_query_and_trailing_slash(void **state) {
    (void)state;
    static const struct {
        const char *target, *path;
    } CASES[] = {
        {"/health", "/health"},
        {"/health/", "/health"},
        {"/health//?a=b", "/health"},
        {"/", "/"},
        {"/?x", "/"},
        {"http://host:80/v1/models", "/v1/models"},
        {"HTTPS://host/v1?x=/y", "/v1"},
        {"http://host", NULL},
        {"http://host?x", NULL},
        {"*", NULL},
        {"", NULL},
        {"health", NULL},
        {"/a/../b", "/a/../b"},
        {"/%2e%2e/x", "/%2e%2e/x"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        const char *path = NULL;
        size_t len = 0;
        bool found = http_headers_path(CASES[i].target, &path, &len);
        if (found != (CASES[i].path != NULL)) fail_msg("%s", CASES[i].target);
        if (!found) continue;
        if (len != strlen(CASES[i].path) || memcmp(path, CASES[i].path, len))
            fail_msg("%s: %.*s", CASES[i].target, (int)len, path);
    }
}

static void escapes_are_decoded_once_and_never_to_nul(void **state) {
    (void)state;
    static const struct {
        const char *text, *out;
    } CASES[] = {{"plain", "plain"}, {"a%2Fb", "a/b"},
                 {"%41", "A"},       {"%2541", "%41"},
                 {"a%00b", NULL},    {"%4", NULL},
                 {"%", NULL},        {"%zz", NULL},
                 {"12345678", NULL}, /* does not fit */ {"1234567", "1234567"}};
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        char out[8];
        char *copy = guard_copy(CASES[i].text, strlen(CASES[i].text));
        bool ok = http_headers_unescape(copy, strlen(CASES[i].text), out, sizeof out);
        guard_free(copy, strlen(CASES[i].text));
        if (ok != (CASES[i].out != NULL)) fail_msg("%s", CASES[i].text);
        if (ok) assert_string_equal(out, CASES[i].out);
    }
}

static void request_ids_have_an_alphabet_and_a_length(void **state) {
    (void)state;
    char longest[130];
    memset(longest, 'a', sizeof longest);
    assert_true(http_headers_request_id_ok("aZ9._:-", 7));
    assert_true(http_headers_request_id_ok(longest, 128));
    assert_false(http_headers_request_id_ok(longest, 129));
    assert_false(http_headers_request_id_ok("", 0));
    assert_false(http_headers_request_id_ok("a b", 3));
    assert_false(http_headers_request_id_ok("a\r\nb", 4));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(framing_faults_are_found),
        cmocka_unit_test(facts_are_read),
        cmocka_unit_test(the_raw_scan_sees_what_the_library_hides),
        cmocka_unit_test(paths_lose_host_query_and_trailing_slash),
        cmocka_unit_test(escapes_are_decoded_once_and_never_to_nul),
        cmocka_unit_test(request_ids_have_an_alphabet_and_a_length),
    };
    return cmocka_run_group_tests_name("http_headers", tests, NULL, NULL);
}
