/* The forms of a prompt: texts, token ids, lists of either. */
#include "tests/unit/proto_requests.h"

static void S4_08_prompt_arrays(void **state) {
    (void)state;
    struct api_request r = accepted(ROUTE_COMPLETION, "{\"prompt\":[\"a\",\"b\\u0000\",\"c\"]}");
    assert_int_equal(r.n_prompts, 3);
    assert_string_equal(r.prompts[0].text, "a");
    assert_int_equal(r.prompts[1].text_len, 2);
    assert_string_equal(r.prompts[2].text, "c");
    api_request_free(&r);
    r = accepted(ROUTE_COMPLETION, "{\"prompt\":[[1,2],[3]]}");
    assert_int_equal(r.n_prompts, 2);
    assert_null(r.prompts[0].text);
    assert_int_equal(r.prompts[0].n_ids, 2);
    assert_int_equal(r.prompts[0].ids[1], 2);
    assert_int_equal(r.prompts[1].n_ids, 1);
    assert_int_equal(r.prompts[1].ids[0], 3);
    api_request_free(&r);
    r = accepted(ROUTE_COMPLETION, "{\"prompt\":[1,2.0,999]}");
    assert_int_equal(r.n_prompts, 1);
    assert_int_equal(r.prompts[0].n_ids, 3);
    assert_int_equal(r.prompts[0].ids[1], 2);
    assert_int_equal(r.prompts[0].ids[2], 999);
    api_request_free(&r);
    refused(ROUTE_COMPLETION, "{\"prompt\":[]}", "invalid_value", "prompt");
    refused(ROUTE_COMPLETION, "{\"prompt\":[[]]}", "invalid_value", "prompt[0]");
    refused(ROUTE_COMPLETION, "{\"prompt\":[[1],[]]}", "invalid_value", "prompt[1]");
    refused(ROUTE_COMPLETION, "{\"prompt\":[\"SECRET\",5]}", "invalid_type", "prompt[1]");
    refused(ROUTE_COMPLETION, "{\"prompt\":[5,\"SECRET\"]}", "invalid_type", "prompt");
    refused(ROUTE_COMPLETION, "{\"prompt\":[[1],\"SECRET\"]}", "invalid_type", "prompt[1]");
    refused(ROUTE_COMPLETION, "{\"prompt\":[[1],2]}", "invalid_type", "prompt[1]");
    refused(ROUTE_COMPLETION, "{\"prompt\":[[1],[\"SECRET\"]]}", "invalid_type", "prompt[1]");
    refused(ROUTE_COMPLETION, "{\"prompt\":[[[1]]]}", "invalid_type", "prompt[0]");
    refused(ROUTE_COMPLETION, "{\"prompt\":[null]}", "invalid_type", "prompt");
    refused(ROUTE_COMPLETION, "{\"prompt\":[{}]}", "invalid_type", "prompt");
    refused(ROUTE_COMPLETION, "{\"prompt\":{}}", "invalid_type", "prompt");
    refused(ROUTE_COMPLETION, "{\"prompt\":7}", "invalid_type", "prompt");
    refused(ROUTE_COMPLETION, "{\"prompt\":true}", "invalid_type", "prompt");
    refused(ROUTE_COMPLETION, "{\"prompt\":null}", "missing_required_parameter", "prompt");
    refused(ROUTE_COMPLETION, "{}", "missing_required_parameter", "prompt");
}

static void prompts_end_at_the_limit(void **state) {
    (void)state;
    char *list = list_of("\"p\"", 128), *more = list_of("[1]", 129), body[2048];
    snprintf(body, sizeof body, "{\"prompt\":%s}", list);
    struct api_request r = accepted(ROUTE_COMPLETION, body);
    assert_int_equal(r.n_prompts, 128);
    api_request_free(&r);
    snprintf(body, sizeof body, "{\"prompt\":%s}", more);
    refused(ROUTE_COMPLETION, body, "invalid_value", "prompt");
    free(list);
    free(more);
    /* Ids of one prompt are not prompts. */
    list = list_of("1", 500);
    snprintf(body, sizeof body, "{\"prompt\":%s}", list);
    r = accepted(ROUTE_COMPLETION, body);
    assert_int_equal(r.n_prompts, 1);
    assert_int_equal(r.prompts[0].n_ids, 500);
    api_request_free(&r);
    free(list);
}

static void S4_09_token_ids_out_of_range(void **state) {
    (void)state;
    refused(ROUTE_COMPLETION, "{\"prompt\":[1,-1]}", "invalid_value", "prompt");
    refused(ROUTE_COMPLETION, "{\"prompt\":[1,1000]}", "invalid_value", "prompt");
    refused(ROUTE_COMPLETION, "{\"prompt\":[1,4294967295]}", "invalid_value", "prompt");
    refused(ROUTE_COMPLETION, "{\"prompt\":[1,9007199254740993]}", "invalid_value", "prompt");
    refused(ROUTE_COMPLETION, "{\"prompt\":[1,1e300]}", "invalid_value", "prompt");
    refused(ROUTE_COMPLETION, "{\"prompt\":[1,2.5]}", "invalid_type", "prompt");
    refused(ROUTE_COMPLETION, "{\"prompt\":[true]}", "invalid_type", "prompt");
    refused(ROUTE_COMPLETION, "{\"prompt\":[[1],[1000]]}", "invalid_value", "prompt[1]");
}

static void S6_01_empty_prompt_needs_a_start_token(void **state) {
    (void)state;
    static const char *const bodies[] = {"{\"prompt\":\"\"}", "{\"prompt\":[\"\"]}"};
    static const char *const params[] = {"prompt", "prompt[0]"};
    struct proto_limits with = limits_default(), without = limits_default();
    without.tokenizer_adds_bos = false;
    for (int i = 0; i < 2; i++) {
        struct api_request r = accepted_with(ROUTE_COMPLETION, bodies[i], &with);
        assert_int_equal(r.n_prompts, 1);
        assert_non_null(r.prompts[0].text);
        assert_int_equal(r.prompts[0].text_len, 0);
        api_request_free(&r);
        refused_with(ROUTE_COMPLETION, bodies[i], &without, "invalid_value", params[i]);
    }
    refused(ROUTE_COMPLETION, "{\"prompt\":\"\",\"add_special_tokens\":false}", "invalid_value",
            "prompt");
    refused(ROUTE_CHAT, "{\"messages\":[]}", "invalid_value", "messages");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(S4_08_prompt_arrays),
        cmocka_unit_test(prompts_end_at_the_limit),
        cmocka_unit_test(S4_09_token_ids_out_of_range),
        cmocka_unit_test(S6_01_empty_prompt_needs_a_start_token),
    };
    return cmocka_run_group_tests_name("proto_prompt", tests, NULL, NULL);
}
