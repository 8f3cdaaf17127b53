/* Fields of the generation routes: for each its default, both ends of its range, one step outside,
 * wrong types and null; then what belongs to more than one field. */
#include "tests/unit/proto_requests.h"

/* ---- numbers and flags -------------------------------------------------------------------------- */

struct number_case {
    const char *name;
    bool routes[2]; /* completion, chat */
    double (*get)(const struct api_request *request);
    double def;
    struct {
        const char *json;
        double value;
    } good[5];
    const char *outside[5];
    bool whole; /* an integer: halves are of the wrong type */
};

static double get_temperature(const struct api_request *r) {
    return r->sampling.temperature;
}
static double get_top_p(const struct api_request *r) {
    return r->sampling.top_p;
}
static double get_min_p(const struct api_request *r) {
    return r->sampling.min_p;
}
static double get_top_k(const struct api_request *r) {
    return r->sampling.top_k;
}
static double get_min_tokens(const struct api_request *r) {
    return r->sampling.min_tokens;
}
static double get_max_tokens(const struct api_request *r) {
    return (double)r->max_tokens;
}
static double get_n(const struct api_request *r) {
    return r->n;
}
static double get_frequency(const struct api_request *r) {
    return r->sampling.frequency_penalty;
}
static double get_presence(const struct api_request *r) {
    return r->sampling.presence_penalty;
}
static double get_repetition(const struct api_request *r) {
    return r->sampling.repetition_penalty;
}
static double get_stream(const struct api_request *r) {
    return r->stream;
}
static double get_token_ids(const struct api_request *r) {
    return r->return_token_ids;
}
static double get_timings(const struct api_request *r) {
    return r->return_timings;
}
static double get_add_special(const struct api_request *r) {
    return r->add_special_tokens;
}
static double get_generation_prompt(const struct api_request *r) {
    return r->add_generation_prompt;
}
static double get_include_stop(const struct api_request *r) {
    return r->sampling.include_stop_str_in_output;
}
static double get_ignore_eos(const struct api_request *r) {
    return r->sampling.ignore_eos;
}
static double get_skip_special(const struct api_request *r) {
    return r->sampling.skip_special_tokens;
}

static const struct number_case numbers[] = {
    {"temperature",
     {true, true},
     get_temperature,
     1,
     {{"0", 0}, {"2", 2}, {"0.0", 0}, {"2.0", 2}, {"0.7", 0.7}},
     {"-1e-9", "2.0001", "-1", "3", "1e300"},
     false},
    {"top_p",
     {true, true},
     get_top_p,
     1,
     {{"0", 0}, {"1", 1}, {"1.0", 1}, {"1e-9", 1e-9}},
     {"-1e-9", "1.0001", "2", "-1"},
     false},
    {"min_p",
     {true, true},
     get_min_p,
     0,
     {{"0", 0}, {"1", 1}, {"0.05", 0.05}},
     {"-1e-9", "1.0001", "2"},
     false},
    {"top_k",
     {true, true},
     get_top_k,
     0,
     {{"-1", 0}, {"0", 0}, {"1", 1}, {"1000", VOCAB}, {"40.0", 40}},
     {"-2", "1001", "9223372036854775807", "1e30", "-1e30"},
     true},
    {"frequency_penalty",
     {true, true},
     get_frequency,
     0,
     {{"-2", -2}, {"2", 2}, {"2.0", 2}, {"0.6", 0.6}, {"-0.0", 0}},
     {"-2.0001", "2.0001", "-3", "1e300", "9223372036854775807"},
     false},
    {"presence_penalty",
     {true, true},
     get_presence,
     0,
     {{"-2", -2}, {"2", 2}, {"1e-300", 1e-300}, {"0", 0}},
     {"-2.0001", "2.0001", "3", "-1e300"},
     false},
    {"repetition_penalty", /* S5-04 */
     {true, true},
     get_repetition,
     1,
     {{"1.0", 1}, {"10", 10}, {"0.5", 0.5}, {"1e-30", 1e-30}},
     {"0", "-1", "1e-320", "10.0001", "1e300"},
     false},
    {"n",
     {true, true},
     get_n,
     1,
     {{"1", 1}, {"16", 16}, {"2.0", 2}},
     {"0", "-1", "17", "4294967297", "1e30"},
     true},
    {"min_tokens",
     {true, true},
     get_min_tokens,
     0,
     {{"0", 0}, {"16", 16}, {"16.0", 16}},
     {"-1", "-9223372036854775808", "1e30"},
     true},
    {"max_tokens",
     {true, false},
     get_max_tokens,
     16,
     {{"1", 1}, {"4.0", 4}, {"2147483648", 2147483648.0}, {"9223372036854775807", 0x1p63}},
     {"-1", "0", "1e30", "1e19"},
     true},
    {"max_tokens",
     {false, true},
     get_max_tokens,
     -1,
     {{"1", 1}, {"4.0", 4}, {"2147483648", 2147483648.0}, {"9223372036854775807", 0x1p63}},
     {"-1", "0", "1e30", "1e19"},
     true},
    {"max_completion_tokens",
     {false, true},
     get_max_tokens,
     -1,
     {{"1", 1}, {"7.0", 7}, {"2147483648", 2147483648.0}},
     {"-1", "0", "1e30"},
     true},
};

static void numbers_keep_their_ranges_on_both_routes(void **state) {
    (void)state;
    static const char *const wrong[] = {"\"1\"", "true", "false", "[]", "[1]", "{}"};
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        const struct number_case *c = &numbers[i];
        for (int k = 0; k < 2; k++) {
            enum route_kind kind = (enum route_kind)k;
            if (!c->routes[k]) continue;
            struct api_request r = accepted_field(kind, "user", "null");
            assert_true(c->get(&r) == c->def);
            api_request_free(&r);
            r = accepted_field(kind, c->name, "null");
            assert_true(c->get(&r) == c->def);
            api_request_free(&r);
            for (size_t j = 0; j < 5 && c->good[j].json; j++) {
                r = accepted_field(kind, c->name, c->good[j].json);
                if (c->get(&r) != c->good[j].value)
                    fail_msg("%s: %s was read as %g", c->name, c->good[j].json, c->get(&r));
                api_request_free(&r);
            }
            for (size_t j = 0; j < 5 && c->outside[j]; j++)
                refused_field(kind, c->name, c->outside[j], "invalid_value");
            for (size_t j = 0; j < ARRAY_LEN(wrong); j++)
                refused_field(kind, c->name, wrong[j], "invalid_type");
            if (c->whole) refused_field(kind, c->name, "1.5", "invalid_type");
        }
    }
}

static void flags_are_booleans_and_nothing_else(void **state) {
    (void)state;
    static const struct {
        const char *name;
        bool routes[2];
        double (*get)(const struct api_request *request);
        bool def;
    } flags[] = {
        {"stream", {true, true}, get_stream, false},
        {"return_token_ids", {true, true}, get_token_ids, false},
        {"return_timings", {true, true}, get_timings, false},
        {"add_special_tokens", {true, false}, get_add_special, true},
        {"add_generation_prompt", {false, true}, get_generation_prompt, true},
        {"include_stop_str_in_output", {true, true}, get_include_stop, false},
        {"ignore_eos", {true, true}, get_ignore_eos, false},
        {"skip_special_tokens", {true, true}, get_skip_special, true},
    };
    static const char *const wrong[] = {"\"yes\"", "\"true\"", "0", "1", "1.0", "[]", "{}"};
    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        for (int k = 0; k < 2; k++) {
            enum route_kind kind = (enum route_kind)k;
            if (!flags[i].routes[k]) continue;
            static const char *const values[] = {"false", "true", "null"};
            for (int v = 0; v < 3; v++) {
                struct api_request r = accepted_field(kind, flags[i].name, values[v]);
                assert_true(flags[i].get(&r) == (v == 2 ? flags[i].def : v));
                api_request_free(&r);
            }
            for (size_t j = 0; j < ARRAY_LEN(wrong); j++)
                refused_field(kind, flags[i].name, wrong[j], "invalid_type");
        }
    }
}

static void seed_is_any_signed_64_bit_integer(void **state) {
    (void)state;
    static const struct {
        const char *json;
        uint64_t seed;
    } good[] = {{"0", 0},
                {"7", 7},
                {"7.0", 7},
                {"-1", UINT64_MAX},
                {"9223372036854775807", INT64_MAX},
                {"-9223372036854775808", (uint64_t)INT64_MIN}};
    for (int k = 0; k < 2; k++) {
        enum route_kind kind = (enum route_kind)k;
        for (size_t i = 0; i < ARRAY_LEN(good); i++) {
            struct api_request r = accepted_field(kind, "seed", good[i].json);
            assert_true(r.sampling.has_seed);
            assert_true(r.sampling.seed == good[i].seed);
            api_request_free(&r);
        }
        struct api_request r = accepted_field(kind, "seed", "null");
        assert_false(r.sampling.has_seed);
        api_request_free(&r);
        refused_field(kind, "seed", "1e19", "invalid_value");
        refused_field(kind, "seed", "9223372036854775808.0", "invalid_value");
        refused_field(kind, "seed", "-1e300", "invalid_value");
        refused_field(kind, "seed", "1.5", "invalid_type");
        refused_field(kind, "seed", "\"7\"", "invalid_type");
        refused_field(kind, "seed", "true", "invalid_type");
    }
}

static void S5_01_not_a_number_is_refused(void **state) {
    (void)state;
    static const char *const names[] = {"temperature", "top_p", "frequency_penalty",
                                        "presence_penalty", "repetition_penalty"};
    static const char *const raw[] = {"NaN", "Infinity", "-Infinity", "1e999"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        for (size_t j = 0; j < ARRAY_LEN(raw); j++) {
            char *body = body_with(ROUTE_COMPLETION, names[i], raw[j]);
            refused(ROUTE_COMPLETION, body, "invalid_json", "");
            free(body);
        }
    }
    refused_field(ROUTE_COMPLETION, "temperature", "-1e-9", "invalid_value");
    refused_field(ROUTE_COMPLETION, "temperature", "2.0001", "invalid_value");
    struct api_request r = accepted_field(ROUTE_COMPLETION, "temperature", "2");
    assert_true(r.sampling.temperature == 2);
    api_request_free(&r);
}

static void S5_05_wrong_types_are_named(void **state) {
    (void)state;
    refused_field(ROUTE_CHAT, "stream", "\"yes\"", "invalid_type");
    refused_field(ROUTE_CHAT, "max_tokens", "\"12\"", "invalid_type");
    refused_field(ROUTE_CHAT, "temperature", "true", "invalid_type");
    refused_field(ROUTE_CHAT, "n", "1.5", "invalid_type");
    refused(ROUTE_CHAT, "{\"messages\":{}}", "invalid_type", "messages");
    for (int k = 0; k < 2; k++) {
        struct api_request r = accepted_field((enum route_kind)k, "temperature", "1");
        assert_true(r.sampling.temperature == 1);
        api_request_free(&r);
        r = accepted_field((enum route_kind)k, "max_tokens", "4.0");
        assert_int_equal(r.max_tokens, 4);
        api_request_free(&r);
    }
}

static void S5_06_null_means_absent(void **state) {
    (void)state;
    struct api_request r = accepted(
        ROUTE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"SECRET\"}],"
                    "\"max_tokens\":null,\"temperature\":null,\"top_p\":null,\"stop\":null,"
                    "\"n\":null,\"seed\":null,\"logit_bias\":null,\"stream\":null,"
                    "\"stream_options\":null,\"tools\":null,\"user\":null,\"model\":null,"
                    "\"audio\":null,\"functions\":null,\"response_format\":null}");
    struct api_request plain = accepted_field(ROUTE_CHAT, "user", "\"me\"");
    assert_memory_equal(&r.sampling, &plain.sampling, sizeof r.sampling);
    assert_int_equal(r.max_tokens, -1);
    assert_false(r.stream);
    assert_string_equal(r.model, "first");
    api_request_free(&r);
    api_request_free(&plain);
}

static void S5_07_very_large_max_tokens_has_one_rule(void **state) {
    (void)state;
    static const char *const large[] = {"2147483647", "2147483648", "9223372036854775807", "1e18"};
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < ARRAY_LEN(large); i++) {
            struct api_request r = accepted_field((enum route_kind)k, "max_tokens", large[i]);
            assert_true(r.max_tokens >= 2147483647);
            assert_true(arena_used(r.arena) < 4096);
            api_request_free(&r);
        }
        char *body = body_with((enum route_kind)k, "max_tokens", "18446744073709551616");
        refused((enum route_kind)k, body, "invalid_json", "");
        free(body);
    }
    /* A minimum beyond 32 bits is one that no text reaches. */
    struct api_request r = accepted_field(ROUTE_CHAT, "min_tokens", "9223372036854775807");
    assert_true(r.sampling.min_tokens == UINT32_MAX);
    api_request_free(&r);
}

/* ---- lists -------------------------------------------------------------------------------------- */

static void stop_is_up_to_16_strings_of_up_to_256_bytes(void **state) {
    (void)state;
    struct api_request r = accepted_field(ROUTE_COMPLETION, "stop", "\"\\u0000END\\u00e9\"");
    assert_int_equal(r.sampling.n_stop, 1);
    assert_int_equal(r.sampling.stop[0].len, 6);
    assert_memory_equal(r.sampling.stop[0].text, "\0END\xC3\xA9", 6);
    api_request_free(&r);
    char *longest = string_of(256), *longer = string_of(257);
    char *most = list_of(longest, 16), *more = list_of("\"x\"", 17);
    for (int k = 0; k < 2; k++) {
        r = accepted_field((enum route_kind)k, "stop", most);
        assert_int_equal(r.sampling.n_stop, 16);
        assert_int_equal(r.sampling.stop[15].len, 256);
        api_request_free(&r);
        refused_field((enum route_kind)k, "stop", more, "invalid_value");
        refused_field((enum route_kind)k, "stop", longer, "invalid_value");
        refused_field((enum route_kind)k, "stop", "7", "invalid_type");
        refused_field((enum route_kind)k, "stop", "true", "invalid_type");
        refused_field((enum route_kind)k, "stop", "{}", "invalid_type");
        refused_field((enum route_kind)k, "stop", "[\"a\",null]", "invalid_type");
        refused_field((enum route_kind)k, "stop", "[[\"a\"]]", "invalid_type");
    }
    free(longest);
    free(longer);
    free(most);
    free(more);
}

static void S3_07_empty_stop_string_is_refused(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        refused_field((enum route_kind)k, "stop", "[\"\"]", "invalid_value");
        refused_field((enum route_kind)k, "stop", "\"\"", "invalid_value");
        refused_field((enum route_kind)k, "stop", "[\"\",\"x\"]", "invalid_value");
        static const char *const none[] = {"[]", "null"};
        for (int i = 0; i < 2; i++) {
            struct api_request r = accepted_field((enum route_kind)k, "stop", none[i]);
            assert_int_equal(r.sampling.n_stop, 0);
            api_request_free(&r);
        }
    }
}

static void S3_08_stop_token_ids_stay_in_the_vocabulary(void **state) {
    (void)state;
    char *most = list_of("999", 64), *more = list_of("1", 65);
    for (int k = 0; k < 2; k++) {
        enum route_kind kind = (enum route_kind)k;
        refused_field(kind, "stop_token_ids", "[1000]", "invalid_value");
        refused_field(kind, "stop_token_ids", "[-1]", "invalid_value");
        refused_field(kind, "stop_token_ids", "[4294967296]", "invalid_value");
        refused_field(kind, "stop_token_ids", "[1e30]", "invalid_value");
        refused_field(kind, "stop_token_ids", more, "invalid_value");
        refused_field(kind, "stop_token_ids", "[1.5]", "invalid_type");
        refused_field(kind, "stop_token_ids", "[\"1\"]", "invalid_type");
        refused_field(kind, "stop_token_ids", "[true]", "invalid_type");
        refused_field(kind, "stop_token_ids", "5", "invalid_type");
        struct api_request r = accepted_field(kind, "stop_token_ids", "[0,999,2.0]");
        assert_int_equal(r.sampling.n_stop_ids, 3);
        assert_int_equal(r.sampling.stop_ids[0], 0);
        assert_int_equal(r.sampling.stop_ids[1], 999);
        assert_int_equal(r.sampling.stop_ids[2], 2);
        api_request_free(&r);
        r = accepted_field(kind, "stop_token_ids", most);
        assert_int_equal(r.sampling.n_stop_ids, 64);
        api_request_free(&r);
        r = accepted_field(kind, "stop_token_ids", "null");
        assert_int_equal(r.sampling.n_stop_ids, 0);
        api_request_free(&r);
    }
    free(most);
    free(more);
}

/* ---- model, stream options, fields to come ------------------------------------------------------ */

static void model_is_a_served_name(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        enum route_kind kind = (enum route_kind)k;
        static const struct {
            const char *json, *name;
        } good[] = {{"null", "first"}, {"\"first\"", "first"}, {"\"second\"", "second"}};
        for (size_t i = 0; i < ARRAY_LEN(good); i++) {
            struct api_request r = accepted_field(kind, "model", good[i].json);
            assert_string_equal(r.model, good[i].name);
            api_request_free(&r);
        }
        refused_field(kind, "model", "\"third\"", "model_not_found");
        refused_field(kind, "model", "\"\"", "model_not_found");
        refused_field(kind, "model", "\"first\\u0000\"", "model_not_found");
        refused_field(kind, "model", "\"fir\"", "model_not_found");
        refused_field(kind, "model", "5", "invalid_type");
        refused_field(kind, "model", "[\"first\"]", "invalid_type");
    }
    struct proto_limits limits = limits_default();
    struct api_request r;
    struct api_error err;
    const char body[] = "{\"prompt\":\"p\",\"model\":\"third\"}";
    assert_int_equal(parse_with(ROUTE_COMPLETION, body, strlen(body), &limits, &r, &err),
                     ERR_INVALID);
    assert_int_equal(err.status, 404);
    assert_non_null(strstr(err.message, "\"third\""));
}

static void offending_values_are_cut_at_200_bytes(void **state) {
    (void)state;
    for (size_t shift = 0; shift < 4; shift++) {
        char body[2048];
        size_t at = (size_t)sprintf(body, "{\"prompt\":\"p\",\"model\":\"%.*s", (int)shift, "xxxx");
        for (int i = 0; i < 300; i++)
            at += (size_t)sprintf(body + at, "\xF0\x9F\x98\x80");
        sprintf(body + at, "\"}");
        struct proto_limits limits = limits_default();
        struct api_request r;
        struct api_error err;
        assert_int_equal(parse_with(ROUTE_COMPLETION, body, strlen(body), &limits, &r, &err),
                         ERR_INVALID);
        const char *open = strchr(err.message, '"'), *dots = strstr(err.message, "...\"");
        assert_non_null(open);
        assert_non_null(dots);
        assert_in_range(dots - open - 1, 197, 200);
        assert_int_equal(((size_t)(dots - open - 1) - shift) % 4, 0);
    }
}

static void stream_options_only_with_stream(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        enum route_kind kind = (enum route_kind)k;
        refused_field(kind, "stream_options", "{\"include_usage\":true}", "invalid_value");
        refused_field(kind, "stream_options", "{}", "invalid_value");
        refused_field(kind, "stream_options", "[]", "invalid_type");
        refused_field(kind, "stream_options", "true", "invalid_type");
        struct api_request r = accepted_field(kind, "stream_options", "null");
        assert_false(r.include_usage);
        api_request_free(&r);
        char *body = body_with(kind, "stream_options",
                               "{\"include_usage\":true,\"include_obfuscation\":true,"
                               "\"other\":1},\"stream\":true");
        r = accepted(kind, body);
        assert_true(r.stream && r.include_usage && !r.continuous_usage_stats);
        api_request_free(&r);
        free(body);
        body =
            body_with(kind, "stream_options",
                      "{\"include_usage\":null,\"continuous_usage_stats\":true},\"stream\":true");
        r = accepted(kind, body);
        assert_true(!r.include_usage && r.continuous_usage_stats);
        api_request_free(&r);
        free(body);
        body = body_with(kind, "stream_options", "{\"include_usage\":1},\"stream\":true");
        refused(kind, body, "invalid_type", "stream_options.include_usage");
        free(body);
    }
}

static void fields_to_come_are_accepted_at_their_default_only(void **state) {
    (void)state;
    static const struct {
        const char *name;
        bool routes[2];
        const char *defaults[3], *others[4], *wrong[4];
    } fields[] = {
        {"logprobs", {1, 0}, {"null"}, {"0", "5"}, {"true", "false", "\"1\""}},
        {"logprobs", {0, 1}, {"false"}, {"true"}, {"0", "1", "\"true\""}},
        {"top_logprobs", {0, 1}, {"0", "0.0"}, {"3"}, {"true", "\"0\""}},
        {"echo", {1, 0}, {"false"}, {"true"}, {"0", "\"\""}},
        {"suffix", {1, 0}, {"null"}, {"\"SECRET\"", "\"\""}, {"1", "[]"}},
        {"response_format",
         {1, 1},
         {"{\"type\":\"text\"}", "{\"type\": \"text\"}"},
         {"{\"type\":\"json_object\"}", "{}", "{\"type\":\"text\",\"x\":1}"},
         {"\"text\"", "[]"}},
        {"structured_outputs", {1, 1}, {"null"}, {"{\"regex\":\"a\"}"}, {"[]", "1"}},
        {"tools", {0, 1}, {"[]"}, {"[{\"type\":\"function\"}]"}, {"{}", "\"\""}},
        {"tool_choice", {0, 1}, {"\"none\""}, {"\"auto\"", "\"required\"", "{}"}, {"1", "[]"}},
        {"parallel_tool_calls", {0, 1}, {"true"}, {"false"}, {"1"}},
        {"prediction", {0, 1}, {"null"}, {"{\"type\":\"content\",\"content\":\"SECRET\"}"}, {"[]"}},
        {"continue_final_message", {0, 1}, {"false"}, {"true"}, {"0"}},
        {"return_progress", {1, 1}, {"false"}, {"true"}, {"0"}},
        {"modalities", {0, 1}, {"[\"text\"]"}, {"[\"text\",\"audio\"]", "[]"}, {"\"text\""}},
        {"audio", {0, 1}, {"null"}, {"{}", "\"x\""}, {NULL}},
        {"functions", {0, 1}, {"null"}, {"[]"}, {NULL}},
        {"function_call", {0, 1}, {"null"}, {"\"auto\""}, {NULL}},
        {"web_search_options", {0, 1}, {"null"}, {"{}"}, {NULL}},
        {"moderation", {0, 1}, {"null"}, {"{}"}, {NULL}},
    };
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        for (int k = 0; k < 2; k++) {
            enum route_kind kind = (enum route_kind)k;
            if (!fields[i].routes[k]) continue;
            struct api_request r = accepted_field(kind, fields[i].name, "null");
            api_request_free(&r);
            for (size_t j = 0; j < 3 && fields[i].defaults[j]; j++) {
                r = accepted_field(kind, fields[i].name, fields[i].defaults[j]);
                api_request_free(&r);
            }
            for (size_t j = 0; j < 4 && fields[i].others[j]; j++)
                refused_field(kind, fields[i].name, fields[i].others[j], "unsupported_parameter");
            for (size_t j = 0; j < 4 && fields[i].wrong[j]; j++)
                refused_field(kind, fields[i].name, fields[i].wrong[j], "invalid_type");
        }
    }
}

static void long_values_are_not_taken_for_a_default(void **state) {
    (void)state;
    char *list = list_of("\"text\"", 5000), *text = string_of(5000);
    refused_field(ROUTE_CHAT, "modalities", list, "unsupported_parameter");
    refused_field(ROUTE_CHAT, "tool_choice", text, "unsupported_parameter");
    free(list);
    free(text);
}

static void some_fields_are_accepted_without_effect(void **state) {
    (void)state;
    static const char *const names[] = {"user",
                                        "metadata",
                                        "store",
                                        "service_tier",
                                        "safety_identifier",
                                        "prompt_cache_key",
                                        "prompt_cache_options",
                                        "prompt_cache_retention",
                                        "verbosity"};
    static const char *const values[] = {"null", "true", "7", "\"text\"", "[1]", "{\"a\":1}"};
    struct proto_limits strict = limits_default();
    strict.strict_params = true;
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < ARRAY_LEN(names); i++) {
            for (size_t j = 0; j < ARRAY_LEN(values); j++) {
                char *body = body_with((enum route_kind)k, names[i], values[j]);
                struct api_request r = accepted_with((enum route_kind)k, body, &strict);
                api_request_free(&r);
                free(body);
            }
        }
    }
}

static void unknown_fields_are_refused_only_when_strict(void **state) {
    (void)state;
    struct proto_limits strict = limits_default();
    strict.strict_params = true;
    for (int k = 0; k < 2; k++) {
        enum route_kind kind = (enum route_kind)k;
        struct api_request r = accepted_field(kind, "temprature", "7");
        api_request_free(&r);
        char *body = body_with(kind, "temprature", "7");
        refused_with(kind, body, &strict, "unknown_parameter", "temprature");
        free(body);
        body = body_with(kind, "temprature", "null");
        refused_with(kind, body, &strict, "unknown_parameter", "temprature");
        free(body);
        body = body_with(kind, "stream_options", "{\"odd\":1},\"stream\":true");
        refused_with(kind, body, &strict, "unknown_parameter", "stream_options");
        free(body);
    }
    /* Fields of the other route are unknown here. */
    refused_with(ROUTE_COMPLETION, "{\"prompt\":\"p\",\"messages\":[]}", &strict,
                 "unknown_parameter", "messages");
    struct api_request r = accepted(ROUTE_COMPLETION, "{\"prompt\":\"p\",\"messages\":5}");
    api_request_free(&r);
}

static void fields_that_contradict_are_refused(void **state) {
    (void)state;
    refused(ROUTE_COMPLETION, "{\"prompt\":\"p\",\"max_tokens\":4,\"min_tokens\":5}",
            "invalid_value", "min_tokens");
    refused(ROUTE_COMPLETION, "{\"prompt\":\"p\",\"min_tokens\":17}", "invalid_value",
            "min_tokens");
    refused(ROUTE_COMPLETION, "{\"prompt\":\"p\",\"max_tokens\":0}", "invalid_value", "max_tokens");
    char *body = body_with(ROUTE_CHAT, "min_tokens", "17");
    struct api_request r = accepted(ROUTE_CHAT, body); /* no limit but the room left */
    assert_int_equal(r.sampling.min_tokens, 17);
    api_request_free(&r);
    free(body);
    body = body_with(ROUTE_CHAT, "max_completion_tokens", "5,\"max_tokens\":9,\"min_tokens\":5");
    r = accepted(ROUTE_CHAT, body);
    assert_int_equal(r.max_tokens, 5); /* the first counts */
    api_request_free(&r);
    free(body);
    body = body_with(ROUTE_CHAT, "max_completion_tokens", "5,\"max_tokens\":9,\"min_tokens\":6");
    refused(ROUTE_CHAT, body, "invalid_value", "min_tokens");
    free(body);
    /* Beyond what is stored, but compared as sent, and named so. */
    struct proto_limits limits = limits_default();
    struct api_request out;
    struct api_error err;
    const char *huge = "{\"prompt\":\"p\",\"max_tokens\":8000000000,\"min_tokens\":9000000000}";
    assert_int_equal(parse_with(ROUTE_COMPLETION, huge, strlen(huge), &limits, &out, &err),
                     ERR_INVALID);
    assert_string_equal(err.param, "min_tokens");
    assert_non_null(strstr(err.message, "8000000000, got 9000000000"));
}

static void faults_are_reported_in_the_fixed_order(void **state) {
    (void)state;
    static const struct {
        const char *body, *code, *param;
    } steps[] = {
        /* Each body repairs the fault of the one before. */
        {"{\"temperature\":9,\"top_p\":[],\"model\":\"no\",\"stream_options\":{},\"stop\":[3],",
         "invalid_json", ""},
        {"{\"temperature\":9,\"top_p\":[],\"model\":\"no\",\"stream_options\":{},\"stop\":[3]}",
         "model_not_found", "model"},
        {"{\"temperature\":9,\"top_p\":[],\"stream_options\":{},\"stop\":[3]}",
         "missing_required_parameter", "prompt"},
        {"{\"temperature\":9,\"top_p\":[],\"stream_options\":{},\"stop\":[3],\"prompt\":[1,{}]}",
         "invalid_type", "top_p"},
        {"{\"temperature\":9,\"top_p\":0,\"stream_options\":{},\"stop\":[3],\"prompt\":[1,{}]}",
         "invalid_type", "prompt"},
        {"{\"temperature\":9,\"top_p\":0,\"stream_options\":{},\"stop\":[3],\"prompt\":[1,-1]}",
         "invalid_type", "stop"},
        {"{\"temperature\":9,\"top_p\":0,\"stream_options\":{},\"stop\":\"\",\"prompt\":[1,-1]}",
         "invalid_value", "temperature"},
        {"{\"top_p\":0,\"stream_options\":{},\"stop\":\"\",\"prompt\":[1,-1]}", "invalid_value",
         "prompt"},
        {"{\"top_p\":0,\"stream_options\":{},\"stop\":\"\",\"prompt\":[1]}", "invalid_value",
         "stop"},
        {"{\"top_p\":0,\"stream_options\":{},\"prompt\":[1]}", "invalid_value", "stream_options"},
    };
    for (size_t i = 0; i < ARRAY_LEN(steps); i++)
        refused(ROUTE_COMPLETION, steps[i].body, steps[i].code, steps[i].param);
}

static void the_body_must_be_an_object(void **state) {
    (void)state;
    static const char *const bodies[] = {
        "",       "[]",   "5",
        "\"{}\"", "null", "true",
        "{}{}",   "{",    "{\"prompt\":\"SECRET\",\"prompt\":\"SECRET\"}"};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < ARRAY_LEN(bodies); i++)
            refused((enum route_kind)k, bodies[i], "invalid_json", "");
    struct proto_limits limits = limits_default();
    struct api_request r;
    struct api_error err;
    assert_int_equal(proto_parse_request(ROUTE_CHAT, NULL, 0, &limits, &r, &err), ERR_INVALID);
    assert_string_equal(err.code, "invalid_json");
}

static void S5_10_bad_utf8_in_a_body(void **state) {
    (void)state;
    refused(ROUTE_COMPLETION, "\x7B\x22\x70\x72\x6F\x6D\x70\x74\x22\x3A\x22\xC3\x28\x22\x7D",
            "invalid_json", "");
    refused(ROUTE_COMPLETION, "{\"prompt\":\"SECRET\\ud800\"}", "invalid_json", "");
    struct api_request r = accepted(ROUTE_COMPLETION, "{\"prompt\":\"a\\u0000b\"}");
    assert_int_equal(r.prompts[0].text_len, 3);
    assert_memory_equal(r.prompts[0].text, "a\0b", 4);
    api_request_free(&r);
}

static void message_of_the_api_page(void **state) {
    (void)state;
    struct proto_limits limits = limits_default();
    struct api_request r;
    struct api_error err;
    const char body[] = "{\"prompt\":\"p\",\"temperature\":3.5}";
    assert_int_equal(parse_with(ROUTE_COMPLETION, body, strlen(body), &limits, &r, &err),
                     ERR_INVALID);
    struct buf out = {0};
    proto_error_body(&out, &err);
    buf_add(&out, "", 1);
    assert_string_equal(
        out.data,
        "{\"error\":{\"message\":\"temperature must be between 0 and 2, got 3.5\",\"type\":"
        "\"invalid_request_error\",\"param\":\"temperature\",\"code\":\"invalid_value\"}}");
    buf_free(&out);
}

static void bodies_cut_at_every_byte_are_refused(void **state) {
    (void)state;
    static const struct {
        enum route_kind kind;
        const char *body;
    } bodies[] = {
        {ROUTE_COMPLETION,
         "{\"model\":\"second\",\"prompt\":[\"SECRET "
         "\xC3\xA9\",\"\\ud83d\\ude00\"],\"stream\":true,"
         "\"stream_options\":{\"include_usage\":true},\"temperature\":0.5,\"top_p\":0.9,\"top_k\":"
         "40,"
         "\"min_p\":0.05,\"seed\":-7,\"stop\":[\"\\n\\n\",\"END\"],\"stop_token_ids\":[1,2],"
         "\"max_tokens\":64,\"min_tokens\":1,\"ignore_eos\":true,\"logit_bias\":{\"7\":-1.5,\"08\":"
         "2},\"n\":2,\"cache_salt\":\"s\",\"user\":"
         "\"u\"}"},
        {ROUTE_COMPLETION, "{\"prompt\":[[1,2,3],[4]],\"max_tokens\":1.6e1}"},
        {ROUTE_CHAT,
         "{\"messages\":[{\"role\":\"system\",\"content\":\"SECRET\"},{\"role\":\"user\","
         "\"content\":"
         "[{\"type\":\"text\",\"text\":\"A\"}]},{\"role\":\"assistant\",\"content\":null,"
         "\"tool_calls\":[{\"id\":\"call_1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
         "\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"call_1\","
         "\"content\":\"4\"}],\"chat_template_kwargs\":{\"k\":[null,true]},\"reasoning_effort\":"
         "\"low\",\"max_completion_tokens\":5}"},
    };
    struct proto_limits limits = limits_default();
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        size_t len = strlen(bodies[i].body);
        struct api_request r = accepted(bodies[i].kind, bodies[i].body);
        api_request_free(&r);
        for (size_t n = 0; n < len; n++) {
            struct api_error err;
            assert_int_equal(parse_with(bodies[i].kind, bodies[i].body, n, &limits, &r, &err),
                             ERR_INVALID);
            assert_string_equal(err.code, "invalid_json");
        }
    }
}

/* One byte changed anywhere: parsed or refused, never more; under the sanitizers. */
static void bodies_with_a_changed_byte_do_no_harm(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, test_seed());
    struct proto_limits limits = limits_default();
    const char body[] =
        "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\","
        "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[1]}\"}}]}],"
        "\"stop\":[\"a\"],\"stop_token_ids\":[1],\"seed\":1,\"top_k\":1,\"logit_bias\":{\"5\":-1},"
        "\"n\":2,\"prompt\":[[1],[2]]}";
    for (int round = 0; round < 4000; round++) {
        char copy[sizeof body];
        memcpy(copy, body, sizeof body);
        static const char bytes[] = "\"\\{}[]:,0-9.eEtfn \xFF\xC3\0";
        copy[rng_below(&rng, sizeof body - 1)] = bytes[rng_below(&rng, sizeof bytes)];
        struct api_request r;
        struct api_error err;
        enum route_kind kind = rng_below(&rng, 2) ? ROUTE_CHAT : ROUTE_COMPLETION;
        if (parse_with(kind, copy, sizeof body - 1, &limits, &r, &err) == OK) api_request_free(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_keep_their_ranges_on_both_routes),
        cmocka_unit_test(flags_are_booleans_and_nothing_else),
        cmocka_unit_test(seed_is_any_signed_64_bit_integer),
        cmocka_unit_test(S5_01_not_a_number_is_refused),
        cmocka_unit_test(S5_05_wrong_types_are_named),
        cmocka_unit_test(S5_06_null_means_absent),
        cmocka_unit_test(S5_07_very_large_max_tokens_has_one_rule),
        cmocka_unit_test(stop_is_up_to_16_strings_of_up_to_256_bytes),
        cmocka_unit_test(S3_07_empty_stop_string_is_refused),
        cmocka_unit_test(S3_08_stop_token_ids_stay_in_the_vocabulary),
        cmocka_unit_test(model_is_a_served_name),
        cmocka_unit_test(offending_values_are_cut_at_200_bytes),
        cmocka_unit_test(stream_options_only_with_stream),
        cmocka_unit_test(fields_to_come_are_accepted_at_their_default_only),
        cmocka_unit_test(long_values_are_not_taken_for_a_default),
        cmocka_unit_test(some_fields_are_accepted_without_effect),
        cmocka_unit_test(unknown_fields_are_refused_only_when_strict),
        cmocka_unit_test(fields_that_contradict_are_refused),
        cmocka_unit_test(faults_are_reported_in_the_fixed_order),
        cmocka_unit_test(the_body_must_be_an_object),
        cmocka_unit_test(S5_10_bad_utf8_in_a_body),
        cmocka_unit_test(message_of_the_api_page),
        cmocka_unit_test(bodies_cut_at_every_byte_are_refused),
        cmocka_unit_test(bodies_with_a_changed_byte_do_no_harm),
    };
    return cmocka_run_group_tests_name("proto_request", tests, NULL, NULL);
}
