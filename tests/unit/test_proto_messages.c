/* Conversations: what a message may hold, and the form that templates get. */
#include "tests/unit/proto_requests.h"

#define USER "{\"role\":\"user\",\"content\":\"SECRET\"}"

/* A chat body of the given messages; free it. */
static char *chat_of(const char *messages) {
    size_t cap = strlen(messages) + 32;
    char *body = malloc(cap);
    assert_non_null(body);
    snprintf(body, cap, "{\"messages\":[%s]}", messages);
    return body;
}

static struct api_request accepted_chat(const char *messages) {
    char *body = chat_of(messages);
    struct api_request r = accepted(ROUTE_CHAT, body);
    free(body);
    return r;
}

static void refused_chat(const char *messages, const char *code, const char *param) {
    char *body = chat_of(messages);
    refused(ROUTE_CHAT, body, code, param);
    free(body);
}

/* Compact JSON of a value: what a test can read. */
static void print(struct buf *out, const struct value *v) {
    switch (v->kind) {
    case VALUE_NULL:
        buf_str(out, "null");
        break;
    case VALUE_BOOL:
        buf_str(out, v->boolean ? "true" : "false");
        break;
    case VALUE_INT:
        buf_fmt(out, "%lld", (long long)v->integer);
        break;
    case VALUE_REAL:
        buf_fmt(out, "%g", v->real);
        break;
    case VALUE_STRING:
        buf_json(out, v->text, v->len);
        break;
    case VALUE_ARRAY:
    case VALUE_OBJECT:
        buf_str(out, v->kind == VALUE_ARRAY ? "[" : "{");
        for (size_t i = 0; i < v->n_items; i++) {
            if (i) buf_str(out, ",");
            if (v->kind == VALUE_OBJECT) {
                buf_json(out, v->keys[i].text, v->keys[i].len);
                buf_str(out, ":");
            }
            print(out, &v->items[i]);
        }
        buf_str(out, v->kind == VALUE_ARRAY ? "]" : "}");
        break;
    }
}

static void assert_value(const struct value *v, const char *expected) {
    struct buf out = {0};
    print(&out, v);
    buf_add(&out, "", 1);
    assert_string_equal(out.data, expected);
    buf_free(&out);
}

/* The messages become exactly these. */
static void assert_becomes(const char *messages, const char *expected) {
    struct api_request r = accepted_chat(messages);
    assert_value(r.messages, expected);
    api_request_free(&r);
}

static void plain_messages_pass_unchanged(void **state) {
    (void)state;
    assert_becomes("{\"role\":\"system\",\"content\":\"S\"},{\"content\":\"\",\"role\":\"user\","
                   "\"name\":\"bob\"},{\"role\":\"assistant\",\"content\":\"A\\u0000B\"}",
                   "[{\"role\":\"system\",\"content\":\"S\"},{\"content\":\"\",\"role\":\"user\","
                   "\"name\":\"bob\"},{\"role\":\"assistant\",\"content\":\"A\\u0000B\"}]");
    /* Keys that only a template knows pass on. */
    assert_becomes(
        "{\"role\":\"user\",\"content\":\"x\",\"weight\":0.5,\"tags\":[1,{\"a\":null}]}",
        "[{\"role\":\"user\",\"content\":\"x\",\"weight\":0.5,\"tags\":[1,{\"a\":null}]}]");
}

/* Roles and parts wait for the engine, which knows what the template reads. */
static void developer_is_a_role(void **state) {
    (void)state;
    assert_becomes(
        "{\"role\":\"developer\",\"content\":\"D\"},{\"role\":\"user\",\"content\":\"U\"}",
        "[{\"role\":\"developer\",\"content\":\"D\"},{\"role\":\"user\",\"content\":\"U\"}]");
}

static void S5_08_text_parts_keep_their_order(void **state) {
    (void)state;
    static const char same[] =
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"A\"},{\"type\":\"text\","
        "\"text\":\"B\",\"cache_control\":{}}]},{\"role\":\"assistant\",\"content\":[{\"type\":"
        "\"text\",\"text\":\"C\"},{\"text\":\"\\u0000D\",\"type\":\"text\"}]},{\"role\":\"user\","
        "\"content\":[]}";
    char expected[sizeof same + 2];
    snprintf(expected, sizeof expected, "[%s]", same);
    assert_becomes(same, expected);
}

static void S5_08_other_parts_are_named(void **state) {
    (void)state;
    refused_chat(USER ",{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"SECRET\"},"
                      "{\"type\":\"image_url\",\"image_url\":{\"url\":\"SECRET\"}}]}",
                 "unsupported_parameter", "messages[1].content[1]");
    refused_chat("{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}",
                 "unsupported_parameter", "messages[0].content[0]");
    refused_chat("{\"role\":\"user\",\"content\":[{\"text\":\"SECRET\"}]}",
                 "missing_required_parameter", "messages[0].content[0].type");
    refused_chat("{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}",
                 "missing_required_parameter", "messages[0].content[0].text");
    refused_chat("{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":[\"SECRET\"]}]}",
                 "invalid_type", "messages[0].content[0].text");
    refused_chat("{\"role\":\"user\",\"content\":[{\"type\":1}]}", "invalid_type",
                 "messages[0].content[0].type");
    refused_chat("{\"role\":\"user\",\"content\":[\"SECRET\"]}", "invalid_type",
                 "messages[0].content[0]");
    refused_chat("{\"role\":\"user\",\"content\":[null]}", "invalid_type",
                 "messages[0].content[0]");
}

#define CALL(arguments)                                                                 \
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\",\"type\":" \
    "\"function\",\"function\":{\"name\":\"f\"" arguments "}}]}"

static void S5_08_content_may_be_absent_only_beside_calls(void **state) {
    (void)state;
    assert_becomes(CALL(",\"arguments\":\"{}\""),
                   "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"c1\","
                   "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]}]");
    assert_becomes("{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]}",
                   "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                   "\"arguments\":{}}}],\"content\":\"\"}]");
    static const char *const without[] = {
        "{\"role\":\"assistant\",\"content\":null}",
        "{\"role\":\"assistant\"}",
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[]}",
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":null}",
        "{\"role\":\"user\",\"content\":null}",
        "{\"role\":\"system\"}",
        "{\"role\":\"tool\",\"tool_call_id\":\"c\"}",
    };
    for (size_t i = 0; i < ARRAY_LEN(without); i++)
        refused_chat(without[i], "missing_required_parameter", "messages[0].content");
}

static void arguments_become_objects_in_the_clients_order(void **state) {
    (void)state;
#define WITH(object)                                                                     \
    "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"c1\",\"type\":" \
    "\"function\",\"function\":{\"name\":\"f\",\"arguments\":" object "}}]}]"
    assert_becomes(CALL(",\"arguments\":\"{\\\"z\\\":1,\\\"a\\\":[\\\"\\\\u00e9\\\",null]}\""),
                   WITH("{\"z\":1,\"a\":[\"\xC3\xA9\",null]}"));
    assert_becomes(CALL(",\"arguments\":\" {} \""), WITH("{}"));
    assert_becomes(CALL(",\"arguments\":\"\""), WITH("{}"));
    assert_becomes(CALL(",\"arguments\":null"), WITH("{}"));
    assert_becomes(CALL(""), WITH("{}"));
#undef WITH
    static const char *const wrong[] = {
        CALL(",\"arguments\":\"SECRET\""),
        CALL(",\"arguments\":\"[1]\""),
        CALL(",\"arguments\":\"5\""),
        CALL(",\"arguments\":\"null\""),
        CALL(",\"arguments\":\"{\\\"a\\\":\""),
        CALL(",\"arguments\":\"{}{}\""),
        CALL(",\"arguments\":\" \""),
        CALL(",\"arguments\":\"{\\\"a\\\":1,\\\"a\\\":2}\""),
    };
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        refused_chat(wrong[i], "invalid_value", "messages[0].tool_calls[0].function.arguments");
    refused_chat(CALL(",\"arguments\":{\"a\":1}"), "invalid_type",
                 "messages[0].tool_calls[0].function.arguments");
}

static void arguments_are_kept_as_sent_too(void **state) {
    (void)state;
    static const char two[] = "{\"role\":\"assistant\",\"tool_calls\":["
                              "{\"function\":{\"name\":\"f\",\"arguments\":\"\"}},"
                              "{\"function\":{\"name\":\"g\",\"arguments\":\"{\\\"b\\\":[]}\"}}]}";
    char messages[1024];
    snprintf(messages, sizeof messages, "%s,%s,%s,%s,%s", USER,
             CALL(",\"arguments\":\" {\\\"z\\\" :1}\""), CALL(",\"arguments\":null"), USER, two);
    struct api_request r = accepted_chat(messages);
    assert_value(r.call_arguments, "[\" {\\\"z\\\" :1}\",\"{}\",\"{}\",\"{\\\"b\\\":[]}\"]");
    api_request_free(&r);
    r = accepted_chat(USER);
    assert_value(r.call_arguments, "[]");
    api_request_free(&r);
}

/* JSON in strings counts to the body's million of values: no memory grows past the bound. */
static void arguments_share_the_bound_on_values(void **state) {
    (void)state;
    enum { CALLS = 3, EACH = 400000 };
    char *body = malloc((size_t)CALLS * (2 * EACH + 128) + 256), *at = body;
    at += sprintf(at, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[");
    for (int i = 0; i < CALLS; i++) {
        at += sprintf(at, "%s{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[",
                      i ? "," : "");
        for (int k = 0; k < EACH; k++) {
            *at++ = '1';
            *at++ = k + 1 < EACH ? ',' : ']';
        }
        at += sprintf(at, "}\"}}");
    }
    sprintf(at, "]}]}");
    refused(ROUTE_CHAT, body, "invalid_value", "messages[0].tool_calls[2].function.arguments");
    free(body);
}

static void calls_are_checked(void **state) {
    (void)state;
#define CALLS(calls) USER ",{\"role\":\"assistant\",\"tool_calls\":" calls "}"
    refused_chat(CALLS("{}"), "invalid_type", "messages[1].tool_calls");
    refused_chat(CALLS("\"SECRET\""), "invalid_type", "messages[1].tool_calls");
    refused_chat(CALLS("[1]"), "invalid_type", "messages[1].tool_calls[0]");
    refused_chat(CALLS("[{}]"), "missing_required_parameter", "messages[1].tool_calls[0].function");
    refused_chat(CALLS("[{\"function\":{}}]"), "missing_required_parameter",
                 "messages[1].tool_calls[0].function.name");
    refused_chat(CALLS("[{\"function\":[]}]"), "invalid_type",
                 "messages[1].tool_calls[0].function");
    refused_chat(CALLS("[{\"function\":{\"name\":1}}]"), "invalid_type",
                 "messages[1].tool_calls[0].function.name");
    refused_chat(CALLS("[{\"id\":1,\"function\":{\"name\":\"f\"}}]"), "invalid_type",
                 "messages[1].tool_calls[0].id");
    refused_chat(CALLS("[{\"type\":1,\"function\":{\"name\":\"f\"}}]"), "invalid_type",
                 "messages[1].tool_calls[0].type");
    refused_chat(CALLS("[{\"function\":{\"name\":\"f\"}},{\"type\":\"custom\",\"custom\":{}}]"),
                 "unsupported_parameter", "messages[1].tool_calls[1].type");
    refused_chat("{\"role\":\"user\",\"content\":\"SECRET\",\"tool_calls\":[{\"function\":"
                 "{\"name\":\"f\"}}]}",
                 "invalid_value", "messages[0].tool_calls");
#undef CALLS
}

static void tool_results_name_their_call(void **state) {
    (void)state;
    assert_becomes(
        "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"4\",\"name\":\"f\"}",
        "[{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"4\",\"name\":\"f\"}]");
    refused_chat("{\"role\":\"tool\",\"content\":\"SECRET\"}", "missing_required_parameter",
                 "messages[0].tool_call_id");
    refused_chat("{\"role\":\"tool\",\"content\":\"SECRET\",\"tool_call_id\":null}",
                 "missing_required_parameter", "messages[0].tool_call_id");
    refused_chat("{\"role\":\"tool\",\"content\":\"SECRET\",\"tool_call_id\":1}", "invalid_type",
                 "messages[0].tool_call_id");
}

static void absent_things_leave_no_key(void **state) {
    (void)state;
    /* What the OpenAI client sends back when a history is dumped whole. */
    assert_becomes(
        "{\"content\":\"Hi\",\"refusal\":null,\"role\":\"assistant\",\"annotations\":null,"
        "\"audio\":null,\"function_call\":null,\"tool_calls\":null,"
        "\"reasoning_content\":null}",
        "[{\"content\":\"Hi\",\"role\":\"assistant\"}]");
    assert_becomes("{\"role\":\"assistant\",\"content\":\"Hi\",\"tool_calls\":[]}",
                   "[{\"role\":\"assistant\",\"content\":\"Hi\"}]");
    assert_becomes("{\"role\":\"user\",\"content\":\"Hi\",\"tool_calls\":[],\"name\":null}",
                   "[{\"role\":\"user\",\"content\":\"Hi\"}]");
}

static void reasoning_has_one_name(void **state) {
    (void)state;
    assert_becomes("{\"role\":\"assistant\",\"content\":\"A\",\"reasoning\":\"R\"}",
                   "[{\"role\":\"assistant\",\"content\":\"A\",\"reasoning_content\":\"R\"}]");
    assert_becomes("{\"role\":\"assistant\",\"content\":\"A\",\"reasoning_content\":\"R\"}",
                   "[{\"role\":\"assistant\",\"content\":\"A\",\"reasoning_content\":\"R\"}]");
    assert_becomes("{\"role\":\"assistant\",\"reasoning_content\":null,\"reasoning\":\"R\","
                   "\"content\":\"A\"}",
                   "[{\"role\":\"assistant\",\"reasoning_content\":\"R\",\"content\":\"A\"}]");
    refused_chat("{\"role\":\"assistant\",\"content\":\"A\",\"reasoning\":[\"SECRET\"]}",
                 "invalid_type", "messages[0].reasoning");
    refused_chat("{\"role\":\"assistant\",\"content\":\"A\",\"reasoning_content\":{}}",
                 "invalid_type", "messages[0].reasoning_content");
}

static void roles_and_types_are_checked(void **state) {
    (void)state;
    refused_chat(USER "," USER ",{\"role\":\"robot\",\"content\":\"SECRET\"}", "invalid_value",
                 "messages[2].role");
    refused_chat("{\"role\":\"function\",\"content\":\"SECRET\",\"name\":\"f\"}", "invalid_value",
                 "messages[0].role");
    refused_chat("{\"role\":\"User\",\"content\":\"SECRET\"}", "invalid_value", "messages[0].role");
    refused_chat("{\"role\":\"\",\"content\":\"SECRET\"}", "invalid_value", "messages[0].role");
    refused_chat("{\"role\":\"user\\u0000\",\"content\":\"SECRET\"}", "invalid_value",
                 "messages[0].role");
    refused_chat("{\"content\":\"SECRET\"}", "missing_required_parameter", "messages[0].role");
    refused_chat("{\"role\":null,\"content\":\"SECRET\"}", "missing_required_parameter",
                 "messages[0].role");
    refused_chat("{\"role\":1,\"content\":\"SECRET\"}", "invalid_type", "messages[0].role");
    refused_chat(USER "," USER ",{\"role\":\"user\",\"content\":5}", "invalid_type",
                 "messages[2].content");
    refused_chat("{\"role\":\"user\",\"content\":{\"text\":\"SECRET\"}}", "invalid_type",
                 "messages[0].content");
    refused_chat("{\"role\":\"user\",\"content\":\"SECRET\",\"name\":7}", "invalid_type",
                 "messages[0].name");
    refused_chat(USER ",\"SECRET\"", "invalid_type", "messages[1]");
    refused_chat("null", "invalid_type", "messages[0]");
    refused_chat(USER ",[]", "invalid_type", "messages[1]");
    refused_chat("{\"role\":\"assistant\",\"content\":\"SECRET\",\"audio\":{\"id\":\"x\"}}",
                 "unsupported_parameter", "messages[0].audio");
    refused_chat("{\"role\":\"assistant\",\"content\":\"SECRET\",\"function_call\":{}}",
                 "unsupported_parameter", "messages[0].function_call");
    refused(ROUTE_CHAT, "{\"messages\":\"SECRET\"}", "invalid_type", "messages");
    refused(ROUTE_CHAT, "{\"messages\":null}", "missing_required_parameter", "messages");
    refused(ROUTE_CHAT, "{}", "missing_required_parameter", "messages");
    /* Types of all messages come before the values of any. */
    refused_chat("{\"role\":\"robot\",\"content\":\"SECRET\"},{\"role\":\"user\",\"content\":5}",
                 "invalid_type", "messages[1].content");
}

static void messages_are_1_to_4096(void **state) {
    (void)state;
    refused_chat("", "invalid_value", "messages");
    size_t one = strlen(USER) + 1;
    char *messages = malloc(4097 * one + 1);
    for (size_t i = 0; i < 4097; i++)
        memcpy(messages + i * one, USER ",", one);
    messages[4097 * one - 1] = '\0';
    refused_chat(messages, "invalid_value", "messages");
    messages[4096 * one - 1] = '\0';
    struct api_request r = accepted_chat(messages);
    assert_int_equal(r.messages->n_items, 4096);
    api_request_free(&r);
    free(messages);
}

static void a_model_without_a_template_refuses_messages(void **state) {
    (void)state;
    struct proto_limits limits = limits_default();
    limits.has_chat_template = false;
    refused_with(ROUTE_CHAT, "{\"messages\":[" USER "]}", &limits, "invalid_value", "messages");
    limits.chat_template_error = "chat template: line 7: broken";
    struct api_request r;
    struct api_error err;
    const char *body = "{\"messages\":[" USER "]}";
    assert_int_equal(parse_with(ROUTE_CHAT, body, strlen(body), &limits, &r, &err), ERR_INVALID);
    assert_non_null(strstr(err.message, "line 7: broken"));
    r = accepted_with(ROUTE_COMPLETION, "{\"prompt\":\"p\"}", &limits);
    api_request_free(&r);
}

static void assert_kwargs(const char *members, const char *expected) {
    size_t cap = strlen(members) + 256;
    char *body = malloc(cap);
    snprintf(body, cap, "{\"messages\":[" USER "]%s}", members);
    struct api_request r = accepted(ROUTE_CHAT, body);
    if (expected)
        assert_value(r.template_kwargs, expected);
    else
        assert_null(r.template_kwargs);
    api_request_free(&r);
    free(body);
}

static void template_variables_pass_on(void **state) {
    (void)state;
    assert_kwargs("", NULL);
    assert_kwargs(",\"chat_template_kwargs\":null,\"reasoning_effort\":null", NULL);
    assert_kwargs(",\"chat_template_kwargs\":{}", "{}");
    assert_kwargs(",\"chat_template_kwargs\":{\"enable_thinking\":false,\"x\":[null,\"y\"]}",
                  "{\"enable_thinking\":false,\"x\":[null,\"y\"]}");
    refused_field(ROUTE_CHAT, "chat_template_kwargs", "[]", "invalid_type");
    refused_field(ROUTE_CHAT, "chat_template_kwargs", "\"SECRET\"", "invalid_type");
    refused_field(ROUTE_CHAT, "chat_template_kwargs", "{\"messages\":[]}", "invalid_value");
    refused_field(ROUTE_CHAT, "chat_template_kwargs", "{\"tools\":null}", "invalid_value");
    refused_field(ROUTE_CHAT, "chat_template_kwargs", "{\"add_generation_prompt\":false}",
                  "invalid_value");
}

static void reasoning_effort_is_a_template_variable(void **state) {
    (void)state;
    static const char *const efforts[] = {"minimal", "low", "medium", "high", "xhigh", "max"};
    for (size_t i = 0; i < ARRAY_LEN(efforts); i++) {
        char members[64], expected[64];
        snprintf(members, sizeof members, ",\"reasoning_effort\":\"%s\"", efforts[i]);
        snprintf(expected, sizeof expected, "{\"reasoning_effort\":\"%s\"}", efforts[i]);
        assert_kwargs(members, expected);
    }
    assert_kwargs(",\"reasoning_effort\":\"none\"",
                  "{\"reasoning_effort\":\"none\",\"enable_thinking\":false}");
    assert_kwargs(",\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"a\":1}",
                  "{\"a\":1,\"reasoning_effort\":\"low\"}");
    /* A variable set by its own name is the nearer wish. */
    assert_kwargs(",\"reasoning_effort\":\"none\",\"chat_template_kwargs\":"
                  "{\"enable_thinking\":true,\"reasoning_effort\":\"odd\"}",
                  "{\"enable_thinking\":true,\"reasoning_effort\":\"odd\"}");
    refused_field(ROUTE_CHAT, "reasoning_effort", "\"extreme\"", "invalid_value");
    refused_field(ROUTE_CHAT, "reasoning_effort", "\"\"", "invalid_value");
    refused_field(ROUTE_CHAT, "reasoning_effort", "1", "invalid_type");
    refused_field(ROUTE_CHAT, "reasoning_effort", "false", "invalid_type");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_messages_pass_unchanged),
        cmocka_unit_test(developer_is_a_role),
        cmocka_unit_test(S5_08_text_parts_keep_their_order),
        cmocka_unit_test(S5_08_other_parts_are_named),
        cmocka_unit_test(S5_08_content_may_be_absent_only_beside_calls),
        cmocka_unit_test(arguments_become_objects_in_the_clients_order),
        cmocka_unit_test(arguments_are_kept_as_sent_too),
        cmocka_unit_test(arguments_share_the_bound_on_values),
        cmocka_unit_test(calls_are_checked),
        cmocka_unit_test(tool_results_name_their_call),
        cmocka_unit_test(absent_things_leave_no_key),
        cmocka_unit_test(reasoning_has_one_name),
        cmocka_unit_test(roles_and_types_are_checked),
        cmocka_unit_test(messages_are_1_to_4096),
        cmocka_unit_test(a_model_without_a_template_refuses_messages),
        cmocka_unit_test(template_variables_pass_on),
        cmocka_unit_test(reasoning_effort_is_a_template_variable),
    };
    return cmocka_run_group_tests_name("proto_messages", tests, NULL, NULL);
}
