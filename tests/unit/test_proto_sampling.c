/* Fields of choices, logit bias, cache salt and priority, and the defaults of the server. */
#include "tests/unit/proto_requests.h"

/* ---- logit_bias --------------------------------------------------------------------------------- */

static void logit_bias_is_sorted_by_id(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct api_request r =
            accepted_field((enum route_kind)k, "logit_bias",
                           "{\"999\":100,\"3\":-100,\"0\":0,\"0017\":2.5,\"8\":-1e-9,\"5\":100.0}");
        static const struct token_bias expected[] = {{0, 0},     {3, -100}, {5, 100},
                                                     {8, -1e-9}, {17, 2.5}, {999, 100}};
        assert_int_equal(r.sampling.n_bias, 6);
        for (int i = 0; i < 6; i++) {
            assert_int_equal(r.sampling.bias[i].id, expected[i].id);
            assert_true(r.sampling.bias[i].value == expected[i].value);
        }
        api_request_free(&r);
        static const char *const none[] = {"{}", "null"};
        for (int i = 0; i < 2; i++) {
            r = accepted_field((enum route_kind)k, "logit_bias", none[i]);
            assert_int_equal(r.sampling.n_bias, 0);
            api_request_free(&r);
        }
    }
}

static void S5_03_logit_bias_names_ids_of_the_vocabulary(void **state) {
    (void)state;
    static const char *const bad[] = {"{\"99999999\":5}",
                                      "{\"1000\":5}",
                                      "{\"-1\":5}",
                                      "{\"-0\":5}",
                                      "{\"x\":5}",
                                      "{\"\":5}",
                                      "{\"+3\":5}",
                                      "{\" 3\":5}",
                                      "{\"3 \":5}",
                                      "{\"3.0\":5}",
                                      "{\"3e0\":5}",
                                      "{\"0x3\":5}",
                                      "{\"\xD9\xA3\":5}",
                                      "{\"3\":101}",
                                      "{\"3\":-100.001}",
                                      "{\"3\":1e300}",
                                      "{\"3\":-9223372036854775808}",
                                      "{\"4294967299\":5}",
                                      "{\"18446744073709551619\":5}",
                                      "{\"000000000000000000000000000001000\":5}"};
    static const char *const wrong[] = {"{\"3\":null}", "{\"3\":\"5\"}",
                                        "{\"3\":true}", "{\"3\":[5]}",
                                        "{\"3\":{}}",   "[]",
                                        "[[3,5]]",      "1",
                                        "\"{}\"",       "true"};
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < ARRAY_LEN(bad); i++)
            refused_field((enum route_kind)k, "logit_bias", bad[i], "invalid_value");
        for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
            refused_field((enum route_kind)k, "logit_bias", wrong[i], "invalid_type");
        struct api_request r = accepted_field((enum route_kind)k, "logit_bias", "{\"3\":-100}");
        assert_int_equal(r.sampling.n_bias, 1);
        assert_int_equal(r.sampling.bias[0].id, 3);
        assert_true(r.sampling.bias[0].value == -100);
        api_request_free(&r);
    }
}

static void an_id_is_biased_once(void **state) {
    (void)state;
    refused_field(ROUTE_CHAT, "logit_bias", "{\"1\":5,\"01\":5}", "invalid_value");
    refused_field(ROUTE_CHAT, "logit_bias", "{\"7\":1,\"1\":5,\"007\":1}", "invalid_value");
    char *body = body_with(ROUTE_CHAT, "logit_bias", "{\"1\":5,\"1\":5}");
    refused(ROUTE_CHAT, body, "invalid_json", "");
    free(body);
}

/* {"0":1,"1":1,...} of n ids; free it. */
static char *biases(int n) {
    char *text = malloc((size_t)n * 16 + 3), *at = text;
    assert_non_null(text);
    for (int i = 0; i < n; i++)
        at += sprintf(at, "%c\"%d\":1", i ? ',' : '{', i);
    strcpy(at, "}");
    return text;
}

static void logit_bias_holds_1024_ids(void **state) {
    (void)state;
    struct proto_limits limits = limits_default();
    limits.vocab_size = 2000;
    char *most = biases(1024), *more = biases(1025);
    char *body = body_with(ROUTE_COMPLETION, "logit_bias", most);
    struct api_request r = accepted_with(ROUTE_COMPLETION, body, &limits);
    assert_int_equal(r.sampling.n_bias, 1024);
    assert_int_equal(r.sampling.bias[1023].id, 1023);
    api_request_free(&r);
    free(body);
    body = body_with(ROUTE_COMPLETION, "logit_bias", more);
    refused_with(ROUTE_COMPLETION, body, &limits, "invalid_value", "logit_bias");
    free(body);
    free(most);
    free(more);
}

/* ---- choices ------------------------------------------------------------------------------------ */

static void best_of_must_equal_n(void **state) {
    (void)state;
    static const struct {
        const char *body, *code, *param;
    } bad[] = {
        {"{\"prompt\":\"p\",\"best_of\":2}", "unsupported_parameter", "best_of"},
        {"{\"prompt\":\"p\",\"best_of\":16,\"n\":2}", "unsupported_parameter", "best_of"},
        {"{\"prompt\":\"p\",\"best_of\":1,\"n\":2}", "invalid_value", "best_of"},
        {"{\"prompt\":\"p\",\"best_of\":0}", "invalid_value", "best_of"},
        {"{\"prompt\":\"p\",\"best_of\":17,\"n\":2}", "invalid_value", "best_of"},
        {"{\"prompt\":\"p\",\"best_of\":true}", "invalid_type", "best_of"},
        {"{\"prompt\":\"p\",\"best_of\":\"1\"}", "invalid_type", "best_of"},
        {"{\"prompt\":\"p\",\"best_of\":1.5}", "invalid_type", "best_of"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        refused(ROUTE_COMPLETION, bad[i].body, bad[i].code, bad[i].param);
    static const char *const good[] = {"{\"prompt\":\"p\",\"best_of\":2,\"n\":2}",
                                       "{\"prompt\":\"p\",\"best_of\":2.0,\"n\":2}",
                                       "{\"prompt\":\"p\",\"best_of\":null,\"n\":2}"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        struct api_request r = accepted(ROUTE_COMPLETION, good[i]);
        assert_int_equal(r.n, 2);
        api_request_free(&r);
    }
    struct api_request r = accepted(ROUTE_COMPLETION, "{\"prompt\":\"p\",\"best_of\":1}");
    assert_int_equal(r.n, 1);
    api_request_free(&r);
}

static void n_times_prompts_has_a_limit(void **state) {
    (void)state;
    struct proto_limits limits = limits_default();
    limits.max_choices = 6;
    struct api_request r =
        accepted_with(ROUTE_COMPLETION, "{\"prompt\":[\"a\",\"b\",\"c\"],\"n\":2}", &limits);
    assert_int_equal(r.n, 2);
    assert_int_equal(r.n_prompts, 3);
    api_request_free(&r);
    refused_with(ROUTE_COMPLETION, "{\"prompt\":[\"a\",\"b\",\"c\"],\"n\":3}", &limits,
                 "invalid_value", "n");
    refused_with(ROUTE_COMPLETION, "{\"prompt\":\"a\",\"n\":7}", &limits, "invalid_value", "n");
    refused_with(ROUTE_COMPLETION, "{\"prompt\":[[1],[1],[1],[1],[1],[1],[1]]}", &limits,
                 "invalid_value", "prompt");
    char *body = body_with(ROUTE_CHAT, "n", "7");
    refused_with(ROUTE_CHAT, body, &limits, "invalid_value", "n");
    free(body);
    body = body_with(ROUTE_CHAT, "n", "6");
    r = accepted_with(ROUTE_CHAT, body, &limits);
    assert_int_equal(r.n, 6);
    api_request_free(&r);
    free(body);
    limits.max_n = 2; /* the range of the field */
    body = body_with(ROUTE_CHAT, "n", "3");
    refused_with(ROUTE_CHAT, body, &limits, "invalid_value", "n");
    free(body);
}

/* ---- salt and priority -------------------------------------------------------------------------- */

static void cache_salt_is_a_text_of_up_to_128_bytes(void **state) {
    (void)state;
    char most[131] = "\"", more[132] = "\"";
    memset(most + 1, 's', 128);
    strcpy(most + 129, "\"");
    memset(more + 1, 's', 129);
    strcpy(more + 130, "\"");
    for (int k = 0; k < 2; k++) {
        enum route_kind kind = (enum route_kind)k;
        static const char *const none[] = {"null", "\"\""};
        for (int i = 0; i < 2; i++) {
            struct api_request r = accepted_field(kind, "cache_salt", none[i]);
            assert_int_equal(r.cache_salt_len, 0);
            assert_non_null(r.cache_salt);
            api_request_free(&r);
        }
        struct api_request r = accepted_field(kind, "cache_salt", "\"a\\u0000\\u00e9\"");
        assert_int_equal(r.cache_salt_len, 4);
        assert_memory_equal(r.cache_salt, "a\0\xC3\xA9", 4);
        api_request_free(&r);
        r = accepted_field(kind, "cache_salt", most);
        assert_int_equal(r.cache_salt_len, CACHE_SALT_BYTES_MAX);
        api_request_free(&r);
        refused_field(kind, "cache_salt", more, "invalid_value");
        refused_field(kind, "cache_salt", "5", "invalid_type");
        refused_field(kind, "cache_salt", "[\"s\"]", "invalid_type");
        refused_field(kind, "cache_salt", "false", "invalid_type");
    }
}

static void priority_needs_its_scheduling(void **state) {
    (void)state;
    struct proto_limits with = limits_default();
    with.has_priorities = true;
    for (int k = 0; k < 2; k++) {
        enum route_kind kind = (enum route_kind)k;
        static const struct {
            const char *json;
            int value;
        } good[] = {{"-1000", -1000}, {"1000", 1000}, {"0", 0}, {"-1.0", -1}, {"null", 0}};
        for (size_t i = 0; i < ARRAY_LEN(good); i++) {
            char *body = body_with(kind, "priority", good[i].json);
            struct api_request r = accepted_with(kind, body, &with);
            assert_int_equal(r.priority, good[i].value);
            api_request_free(&r);
            if (good[i].value) refused(kind, body, "invalid_value", "priority");
            free(body);
        }
        static const char *const outside[] = {"-1001", "1001", "1e30"};
        for (size_t i = 0; i < ARRAY_LEN(outside); i++) {
            char *body = body_with(kind, "priority", outside[i]);
            refused_with(kind, body, &with, "invalid_value", "priority");
            free(body);
        }
        refused_field(kind, "priority", "0.5", "invalid_type");
        refused_field(kind, "priority", "\"0\"", "invalid_type");
        refused_field(kind, "priority", "false", "invalid_type");
        struct api_request r = accepted_field(kind, "priority", "0.0");
        assert_int_equal(r.priority, 0);
        api_request_free(&r);
    }
}

/* ---- the server's defaults ---------------------------------------------------------------------- */

static void a_request_begins_with_the_servers_defaults(void **state) {
    (void)state;
    struct sampling defaults;
    struct proto_limits limits = limits_default();
    sampling_defaults(&defaults);
    defaults.temperature = 0.6;
    defaults.top_p = 0.95;
    defaults.top_k = 20;
    defaults.min_p = 0.01;
    defaults.repetition_penalty = 1.05;
    limits.defaults = &defaults;
    struct api_request r = accepted_with(
        ROUTE_COMPLETION, "{\"prompt\":\"p\",\"temperature\":null,\"top_k\":null}", &limits);
    assert_true(r.sampling.temperature == 0.6 && r.sampling.top_p == 0.95);
    assert_true(r.sampling.top_k == 20 && r.sampling.min_p == 0.01);
    assert_true(r.sampling.repetition_penalty == 1.05);
    api_request_free(&r);
    r = accepted_with(ROUTE_COMPLETION,
                      "{\"prompt\":\"p\",\"temperature\":1,\"top_p\":1,\"top_k\":-1,\"min_p\":0,"
                      "\"repetition_penalty\":1}",
                      &limits);
    assert_true(r.sampling.temperature == 1 && r.sampling.top_p == 1);
    assert_true(r.sampling.top_k == 0 && r.sampling.min_p == 0);
    assert_true(r.sampling.repetition_penalty == 1);
    api_request_free(&r);
}

static void new_faults_keep_the_fixed_order(void **state) {
    (void)state;
    static const struct {
        const char *body, *code, *param;
    } steps[] = {
        /* Each body repairs the fault of the one before. */
        {"{\"n\":99,\"best_of\":3,\"logit_bias\":{\"x\":\"\"},\"cache_salt\":5,\"priority\":5,"
         "\"prompt\":\"p\",\"frequency_penalty\":7}",
         "invalid_type", "cache_salt"},
        {"{\"n\":99,\"best_of\":3,\"logit_bias\":{\"x\":\"\"},\"priority\":5,"
         "\"prompt\":\"p\",\"frequency_penalty\":7}",
         "invalid_type", "logit_bias"},
        {"{\"n\":99,\"best_of\":3,\"logit_bias\":{\"x\":1},\"priority\":5,"
         "\"prompt\":\"p\",\"frequency_penalty\":7}",
         "invalid_value", "n"},
        {"{\"n\":2,\"best_of\":3,\"logit_bias\":{\"x\":1},\"priority\":5,"
         "\"prompt\":\"p\",\"frequency_penalty\":7}",
         "invalid_value", "frequency_penalty"},
        {"{\"n\":2,\"best_of\":3,\"logit_bias\":{\"x\":1},\"priority\":5,\"prompt\":\"p\"}",
         "invalid_value", "logit_bias"},
        {"{\"n\":2,\"best_of\":3,\"priority\":5,\"prompt\":\"p\"}", "unsupported_parameter",
         "best_of"},
        {"{\"n\":2,\"best_of\":2,\"priority\":5,\"prompt\":\"p\"}", "invalid_value", "priority"},
    };
    for (size_t i = 0; i < ARRAY_LEN(steps); i++)
        refused(ROUTE_COMPLETION, steps[i].body, steps[i].code, steps[i].param);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logit_bias_is_sorted_by_id),
        cmocka_unit_test(S5_03_logit_bias_names_ids_of_the_vocabulary),
        cmocka_unit_test(an_id_is_biased_once),
        cmocka_unit_test(logit_bias_holds_1024_ids),
        cmocka_unit_test(best_of_must_equal_n),
        cmocka_unit_test(n_times_prompts_has_a_limit),
        cmocka_unit_test(cache_salt_is_a_text_of_up_to_128_bytes),
        cmocka_unit_test(priority_needs_its_scheduling),
        cmocka_unit_test(a_request_begins_with_the_servers_defaults),
        cmocka_unit_test(new_faults_keep_the_fixed_order),
    };
    return cmocka_run_group_tests_name("proto_sampling", tests, NULL, NULL);
}
