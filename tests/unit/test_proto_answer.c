/* Answers, chunks and small objects, byte for byte as the API page shows them. */
#include "tests/harness.h"

#include <math.h>
#include <string.h>

#include "proto/proto.h"

#define FP "\"system_fingerprint\":\"fp_5d0c1a7be24f\""

static void assert_written(struct buf *buf, const char *expected) {
    assert_false(buf->failed);
    buf_add(buf, "", 1);
    assert_string_equal(buf->data, expected);
    buf_free(buf);
}

static struct answer_head head_of(enum route_kind kind, const char *id, const char *model) {
    return (struct answer_head){.kind = kind,
                                .id = id,
                                .created = 1764000000,
                                .model = model,
                                .fingerprint = "fp_5d0c1a7be24f"};
}

static const struct usage usage_completion = {
    .prompt_tokens = 5, .completion_tokens = 3, .accepted_tokens = 1, .rejected_tokens = 30};
#define USAGE_COMPLETION                                                                         \
    "{\"prompt_tokens\":5,\"completion_tokens\":3,\"total_tokens\":8,\"prompt_tokens_details\":" \
    "{\"cached_tokens\":0},\"completion_tokens_details\":{\"reasoning_tokens\":0,"               \
    "\"accepted_prediction_tokens\":1,\"rejected_prediction_tokens\":30}}"

static const struct answer_choice paris = {
    .text = " Paris.", .text_len = 7, .finish_reason = "stop", .stop_id = -1};

static void completion_is_the_one_of_the_api_page(void **state) {
    (void)state;
    struct answer_head head =
        head_of(ROUTE_COMPLETION, "cmpl-8kQe0Zt5vXyB3nLrW7uHsJ2aPc4dF", "orthrus-qwen3-8b");
    struct buf buf = {0};
    proto_answer(&buf, &head, &paris, 1, &usage_completion, NULL);
    assert_written(&buf,
                   "{\"id\":\"cmpl-8kQe0Zt5vXyB3nLrW7uHsJ2aPc4dF\",\"object\":\"text_completion\","
                   "\"created\":1764000000,\"model\":\"orthrus-qwen3-8b\"," FP ",\"choices\":["
                   "{\"index\":0,\"text\":\" Paris.\",\"logprobs\":null,\"finish_reason\":"
                   "\"stop\",\"stop_reason\":null}],\"usage\":" USAGE_COMPLETION "}");
}

static void chat_answer_has_the_message_of_the_api_page(void **state) {
    (void)state;
    struct answer_head head =
        head_of(ROUTE_CHAT, "chatcmpl-8kQe0Zt5vXyB3nLrW7uHsJ2aPc4dF", "orthrus-qwen3-8b");
    struct answer_choice hello = {
        .text = "Hello!", .text_len = 6, .finish_reason = "stop", .stop_id = -1};
    struct usage usage = {
        .prompt_tokens = 9, .completion_tokens = 3, .accepted_tokens = 1, .rejected_tokens = 30};
    struct buf buf = {0};
    proto_answer(&buf, &head, &hello, 1, &usage, NULL);
    /* The page's example with its log-probabilities taken out. */
    assert_written(
        &buf,
        "{\"id\":\"chatcmpl-8kQe0Zt5vXyB3nLrW7uHsJ2aPc4dF\",\"object\":\"chat.completion\","
        "\"created\":1764000000,\"model\":\"orthrus-qwen3-8b\"," FP ",\"choices\":[{\"index\":0,"
        "\"message\":{\"role\":\"assistant\",\"content\":\"Hello!\",\"refusal\":null,"
        "\"reasoning_content\":null},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":"
        "null}],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\"total_tokens\":12,"
        "\"prompt_tokens_details\":{\"cached_tokens\":0},\"completion_tokens_details\":"
        "{\"reasoning_tokens\":0,\"accepted_prediction_tokens\":1,\"rejected_prediction_tokens\":"
        "30}}}");
}

static void completion_stream_is_the_one_of_the_api_page(void **state) {
    (void)state;
    struct answer_head head = head_of(ROUTE_COMPLETION, "cmpl-1", "m");
    head.include_usage = true;
    struct buf buf = {0};
    proto_chunk_text(&buf, &head, 0, " Paris.", 7, NULL, 0, NULL, 0, NULL);
    proto_chunk_finish(&buf, &head, &paris, NULL, NULL);
    proto_chunk_usage(&buf, &head, &usage_completion, NULL);
    proto_sse_done(&buf);
#define START                                                                                   \
    "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1764000000,\"model\":" \
    "\"m\"," FP ",\"choices\":["
    assert_written(&buf, START "{\"index\":0,\"text\":\" Paris.\",\"logprobs\":null,"
                               "\"finish_reason\":null}],\"usage\":null}\n\n" START
                               "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":"
                               "\"stop\",\"stop_reason\":null}],\"usage\":null}\n\n" START
                               "],\"usage\":" USAGE_COMPLETION "}\n\ndata: [DONE]\n\n");
#undef START
}

#define CHAT_START                                                                              \
    "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1764000000," \
    "\"model\":\"m\"," FP ",\"choices\":["

static void chat_stream_is_the_one_of_the_api_page(void **state) {
    (void)state;
    struct answer_head head = head_of(ROUTE_CHAT, "chatcmpl-1", "m");
    head.include_usage = true;
    struct answer_choice end = {.finish_reason = "stop", .stop_id = -1};
    struct usage usage = {.prompt_tokens = 120,
                          .completion_tokens = 21,
                          .cached_tokens = 96,
                          .accepted_tokens = 17,
                          .rejected_tokens = 45};
    struct buf buf = {0};
    proto_chunk_role(&buf, &head, 0, NULL, 0, NULL);
    proto_chunk_text(&buf, &head, 0, "Hello!", 6, NULL, 0, NULL, 0, NULL);
    proto_sse_keepalive(&buf);
    proto_chunk_finish(&buf, &head, &end, NULL, NULL);
    proto_chunk_usage(&buf, &head, &usage, NULL);
    proto_sse_done(&buf);
    /* The page's stream without its tool call. */
    assert_written(&buf, CHAT_START
                   "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":"
                   "null,\"finish_reason\":null}],\"usage\":null}\n\n" CHAT_START
                   "{\"index\":0,\"delta\":{\"content\":\"Hello!\"},\"logprobs\":null,"
                   "\"finish_reason\":null}],\"usage\":null}\n\n: keep-alive\n\n" CHAT_START
                   "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\","
                   "\"stop_reason\":null}],\"usage\":null}\n\n" CHAT_START
                   "],\"usage\":{\"prompt_tokens\":120,\"completion_tokens\":21,\"total_tokens\":"
                   "141,\"prompt_tokens_details\":{\"cached_tokens\":96},"
                   "\"completion_tokens_details\":{\"reasoning_tokens\":0,"
                   "\"accepted_prediction_tokens\":17,\"rejected_prediction_tokens\":45}}}\n\n"
                   "data: [DONE]\n\n");
}

static void S1_01_without_include_usage_no_chunk_names_usage(void **state) {
    (void)state;
    for (int kind = ROUTE_COMPLETION; kind <= ROUTE_CHAT; kind++) {
        struct answer_head head = head_of((enum route_kind)kind, "id", "m");
        struct buf buf = {0};
        if (kind == ROUTE_CHAT) proto_chunk_role(&buf, &head, 0, NULL, 0, NULL);
        proto_chunk_text(&buf, &head, 0, "x", 1, NULL, 0, NULL, 0, NULL);
        proto_chunk_finish(&buf, &head, &paris, NULL, NULL);
        buf_add(&buf, "", 1);
        assert_null(strstr(buf.data, "usage"));
        buf_free(&buf);
    }
}

static void continuous_usage_stands_on_every_chunk(void **state) {
    (void)state;
    struct answer_head head = head_of(ROUTE_CHAT, "chatcmpl-1", "m");
    struct answer_choice end = {.finish_reason = "length", .stop_id = -1};
    struct buf buf = {0};
    proto_chunk_role(&buf, &head, 0, NULL, 0, &usage_completion);
    proto_chunk_text(&buf, &head, 0, "x", 1, NULL, 0, NULL, 0, &usage_completion);
    proto_chunk_finish(&buf, &head, &end, &usage_completion, NULL);
    buf_add(&buf, "", 1);
    int n = 0;
    for (const char *at = buf.data; (at = strstr(at, ",\"usage\":" USAGE_COMPLETION "}\n\n")); at++)
        n++;
    assert_int_equal(n, 3);
    buf_free(&buf);
}

static void stop_reason_is_the_string_or_token_that_matched(void **state) {
    (void)state;
    struct answer_head head = head_of(ROUTE_COMPLETION, "cmpl-1", "m");
    struct answer_choice choice = paris;
    choice.stop_text = "\n\"end\"";
    choice.stop_len = 6;
    choice.stop_id = 7; /* the string counts */
    struct buf buf = {0};
    proto_chunk_finish(&buf, &head, &choice, NULL, NULL);
    buf_add(&buf, "", 1);
    assert_non_null(
        strstr(buf.data, "\"finish_reason\":\"stop\",\"stop_reason\":\"\\n\\\"end\\\"\"}]}\n\n"));
    buf_free(&buf);
    choice.stop_text = NULL;
    proto_answer(&buf, &head, &choice, 1, &usage_completion, NULL);
    buf_add(&buf, "", 1);
    assert_non_null(strstr(buf.data, "\"finish_reason\":\"stop\",\"stop_reason\":7}]"));
    buf_free(&buf);
    choice.stop_id = 0;
    proto_answer(&buf, &head, &choice, 1, &usage_completion, NULL);
    buf_add(&buf, "", 1);
    assert_non_null(strstr(buf.data, "\"stop_reason\":0}]"));
    buf_free(&buf);
}

static void token_ids_stand_on_the_choice_when_asked_for(void **state) {
    (void)state;
    const int32_t prompt[] = {5, 6}, ids[] = {7, 2147483647};
    struct answer_head head = head_of(ROUTE_COMPLETION, "cmpl-1", "m");
    struct answer_choice choice = paris;
    choice.token_ids = ids;
    choice.n_token_ids = 2;
    choice.prompt_ids = prompt;
    choice.n_prompt_ids = 2;
    struct buf buf = {0};
    proto_answer(&buf, &head, &choice, 1, &usage_completion, NULL);
    buf_add(&buf, "", 1);
    assert_null(strstr(buf.data, "token_ids")); /* not asked for */
    buf_free(&buf);

    head.return_token_ids = true;
    proto_answer(&buf, &head, &choice, 1, &usage_completion, NULL);
    buf_add(&buf, "", 1);
    assert_non_null(strstr(buf.data, "\"stop_reason\":null,\"token_ids\":[7,2147483647],"
                                     "\"prompt_token_ids\":[5,6]}],\"usage\""));
    buf_free(&buf);

    proto_chunk_text(&buf, &head, 0, "x", 1, ids, 1, prompt, 2, NULL);
    buf_add(&buf, "", 1);
    assert_non_null(strstr(buf.data, "\"finish_reason\":null,\"token_ids\":[7],"
                                     "\"prompt_token_ids\":[5,6]}]}\n\n"));
    buf_free(&buf);
    proto_chunk_text(&buf, &head, 0, "x", 1, ids, 1, NULL, 0, NULL);
    buf_add(&buf, "", 1);
    assert_null(strstr(buf.data, "prompt_token_ids"));
    buf_free(&buf);

    choice.n_token_ids = 0;
    choice.prompt_ids = NULL;
    proto_chunk_finish(&buf, &head, &choice, NULL, NULL);
    buf_add(&buf, "", 1);
    assert_non_null(strstr(buf.data, "\"stop_reason\":null,\"token_ids\":[]}]}\n\n"));
    buf_free(&buf);

    head.kind = ROUTE_CHAT;
    proto_chunk_role(&buf, &head, 3, prompt, 2, NULL);
    buf_add(&buf, "", 1);
    assert_non_null(strstr(buf.data, "{\"index\":3,"));
    assert_non_null(strstr(buf.data, "\"token_ids\":[],\"prompt_token_ids\":[5,6]}]}\n\n"));
    buf_free(&buf);
}

static void several_choices_keep_their_index(void **state) {
    (void)state;
    struct answer_head head = head_of(ROUTE_COMPLETION, "cmpl-1", "m");
    struct answer_choice choices[3];
    for (uint32_t i = 0; i < 3; i++) {
        choices[i] = paris;
        choices[i].index = i;
        choices[i].text = "abc" + i;
        choices[i].text_len = 1;
    }
    struct buf buf = {0};
    proto_answer(&buf, &head, choices, 3, &usage_completion, NULL);
    buf_add(&buf, "", 1);
#define END "\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}"
    assert_non_null(strstr(buf.data, "[{\"index\":0,\"text\":\"a\"," END ",{\"index\":1,\"text\":"
                                     "\"b\"," END ",{\"index\":2,\"text\":\"c\"," END "],"));
#undef END
    buf_free(&buf);
}

static const struct timings timings = {.queue_ms = 0.25,
                                       .prefill_ms = 12,
                                       .ttft_ms = 12.3456,
                                       .decode_ms = 1000.5,
                                       .tokens_per_second = 31.98,
                                       .cached_tokens = 16,
                                       .prefill_passes = 1,
                                       .draft_passes = 9,
                                       .verify_passes = 10,
                                       .mean_accepted_length = 3.2,
                                       .preemptions = 2};
#define TIMINGS                                                                                  \
    ",\"timings\":{\"queue_ms\":0.25,\"prefill_ms\":12,\"ttft_ms\":12.346,\"decode_ms\":1000.5," \
    "\"tokens_per_second\":31.98,\"cached_tokens\":16,\"prefill_passes\":1,\"draft_passes\":9,"  \
    "\"verify_passes\":10,\"mean_accepted_length\":3.2,\"preemptions\":2}}"

static void each_choice_of_an_answer_has_its_own_ids(void **state) {
    (void)state;
    struct answer_head head = head_of(ROUTE_COMPLETION, "cmpl-1", "m");
    head.return_token_ids = true;
    static const int32_t ids[] = {7, 8, 9}, prompt[] = {1, 2};
    struct answer_choice choices[3];
    for (uint32_t i = 0; i < 3; i++)
        choices[i] = (struct answer_choice){.index = i,
                                            .text = "abc",
                                            .text_len = i,
                                            .token_ids = ids,
                                            .n_token_ids = i,
                                            .prompt_ids = prompt,
                                            .n_prompt_ids = 2,
                                            .finish_reason = i == 1 ? "stop" : "length",
                                            .stop_id = i == 1 ? 9 : -1};
    struct usage usage = {.prompt_tokens = 2, .completion_tokens = 4, .cached_tokens = 1};
    struct buf buf = {0};
    proto_answer(&buf, &head, choices, 3, &usage, NULL);
#define LENGTH ",\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":"
    assert_written(&buf,
                   "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1764000000,"
                   "\"model\":\"m\"," FP ",\"choices\":[{\"index\":0,\"text\":\"\"" LENGTH
                   "[],\"prompt_token_ids\":[1,2]},{\"index\":1,\"text\":\"a\",\"logprobs\":null,"
                   "\"finish_reason\":\"stop\",\"stop_reason\":9,\"token_ids\":[7],"
                   "\"prompt_token_ids\":[1,2]},{\"index\":2,\"text\":\"ab\"" LENGTH
                   "[7,8],\"prompt_token_ids\":[1,2]}],\"usage\":{\"prompt_tokens\":2,"
                   "\"completion_tokens\":4,\"total_tokens\":6,\"prompt_tokens_details\":"
                   "{\"cached_tokens\":1},\"completion_tokens_details\":{\"reasoning_tokens\":0,"
                   "\"accepted_prediction_tokens\":0,\"rejected_prediction_tokens\":0}}}");
#undef LENGTH
}

/* GET /props: what a client may ask for, and what it gets where it asks for nothing. */
static void props_tell_defaults_and_limits(void **state) {
    (void)state;
    static const char *const names[] = {"m"};
    struct props props = {.names = names,
                          .n_names = 1,
                          .path = "/m",
                          .architecture = "llama",
                          .fingerprint = "fp_1",
                          .weight_dtype = "f32",
                          .kv_dtype = "q8_0",
                          .kernels = "ref",
                          .activations = "bf16",
                          .max_n = 16,
                          .max_choices = 128,
                          .scheduling = "priority"};
    sampling_defaults(&props.defaults);
    props.defaults.repetition_penalty = 1.05;
    props.defaults.temperature = 0.6;
    struct buf buf = {0};
    proto_props(&buf, &props);
    struct arena *arena = arena_create(1 << 16);
    struct value root;
    struct api_error err;
    assert_int_equal(proto_parse_json(buf.data, buf.len, arena, &root, &err), OK);
    const struct value *defaults = value_get(&root, "defaults"),
                       *limits = value_get(&root, "limits");
    assert_int_equal(value_get(defaults, "n")->integer, 1);
    assert_true(value_get(defaults, "repetition_penalty")->real == 1.05);
    assert_true(value_get(defaults, "temperature")->real == 0.6);
    assert_int_equal(value_get(defaults, "frequency_penalty")->integer, 0);
    assert_int_equal(value_get(defaults, "presence_penalty")->integer, 0);
    assert_int_equal(value_get(limits, "n")->integer, 16);
    assert_int_equal(value_get(limits, "choices")->integer, 128);
    assert_int_equal(value_get(limits, "logit_bias")->integer, LOGIT_BIAS_MAX);
    assert_int_equal(value_get(limits, "cache_salt_bytes")->integer, CACHE_SALT_BYTES_MAX);
    assert_string_equal(value_get(&root, "scheduling")->text, "priority");
    assert_string_equal(value_get(&root, "kernels")->text, "ref");
    assert_string_equal(value_get(&root, "activations")->text, "bf16");
    arena_destroy(arena);
    buf_free(&buf);
}

static void timings_come_last(void **state) {
    (void)state;
    struct answer_head head = head_of(ROUTE_COMPLETION, "cmpl-1", "m");
    struct buf buf = {0};
    proto_answer(&buf, &head, &paris, 1, &usage_completion, &timings);
    buf_add(&buf, "", 1);
    assert_non_null(strstr(buf.data, ",\"usage\":" USAGE_COMPLETION TIMINGS));
    buf_free(&buf);
    proto_chunk_finish(&buf, &head, &paris, NULL, &timings);
    buf_add(&buf, "", 1);
    assert_non_null(strstr(buf.data, "\"stop_reason\":null}]" TIMINGS "\n\n"));
    buf_free(&buf);
    head.include_usage = true;
    proto_chunk_usage(&buf, &head, &usage_completion, &timings);
    buf_add(&buf, "", 1);
    assert_non_null(strstr(buf.data, "\"choices\":[],\"usage\":" USAGE_COMPLETION TIMINGS "\n\n"));
    buf_free(&buf);
}

static void measures_that_are_no_numbers_are_written_as_zero(void **state) {
    (void)state;
    struct answer_head head = head_of(ROUTE_COMPLETION, "cmpl-1", "m");
    struct timings odd = {.queue_ms = NAN,
                          .prefill_ms = INFINITY,
                          .ttft_ms = -0.0001,
                          .decode_ms = 1e300,
                          .tokens_per_second = -INFINITY};
    struct buf buf = {0};
    proto_answer(&buf, &head, &paris, 1, &usage_completion, &odd);
    struct arena *arena = arena_create(1 << 20);
    struct value value;
    struct api_error err;
    assert_int_equal(proto_parse_json(buf.data, buf.len, arena, &value, &err), OK);
    const struct value *t = value_get(&value, "timings");
    assert_int_equal(value_get(t, "queue_ms")->integer, 0);
    assert_int_equal(value_get(t, "prefill_ms")->integer, 0);
    assert_int_equal(value_get(t, "ttft_ms")->integer, 0);
    assert_true(value_get(t, "decode_ms")->real == 1e300);
    assert_int_equal(value_get(t, "tokens_per_second")->integer, 0);
    arena_destroy(arena);
    buf_free(&buf);
}

/* Whatever a model writes stays one line of strict JSON and comes back unchanged. */
static void any_text_survives_a_chunk(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, test_seed());
    struct answer_head head = head_of(ROUTE_CHAT, "chatcmpl-1", "m");
    for (int round = 0; round < 300; round++) {
        char text[64];
        size_t len = 0;
        while (len + 4 <= sizeof text) {
            static const char *const pieces[] = {"a",        "\"",           "\\",
                                                 "\n\n",     "\r",           "\t",
                                                 "\xC3\xA9", "\xE2\x80\xA8", "\xF0\x9F\x98\x80",
                                                 "data: ",   "\x01"};
            const char *piece = pieces[rng_below(&rng, ARRAY_LEN(pieces))];
            if (len + strlen(piece) > sizeof text) break;
            memcpy(text + len, piece, strlen(piece));
            len += strlen(piece);
        }
        struct buf buf = {0};
        proto_chunk_text(&buf, &head, 0, text, len, NULL, 0, NULL, 0, NULL);
        assert_memory_equal(buf.data, "data: ", 6);
        assert_memory_equal(buf.data + buf.len - 2, "\n\n", 2);
        assert_null(memchr(buf.data, '\r', buf.len));
        assert_ptr_equal(memchr(buf.data, '\n', buf.len), buf.data + buf.len - 2);
        struct arena *arena = arena_create(1 << 20);
        struct value value;
        struct api_error err;
        assert_int_equal(proto_parse_json(buf.data + 6, buf.len - 8, arena, &value, &err), OK);
        const struct value *choice = &value_get(&value, "choices")->items[0];
        const struct value *content = value_get(value_get(choice, "delta"), "content");
        assert_int_equal(content->len, len);
        assert_memory_equal(content->text, text, len);
        arena_destroy(arena);
        buf_free(&buf);
    }
}

static void error_event_is_one_data_event(void **state) {
    (void)state;
    struct api_error err;
    struct buf buf = {0};
    api_error_set(&err, API_SHUTTING_DOWN, NULL, "the server is shutting down");
    proto_sse_error(&buf, &err);
    assert_written(&buf, "data: {\"error\":{\"message\":\"the server is shutting down\",\"type\":"
                         "\"unavailable_error\",\"param\":null,\"code\":\"shutting_down\"}}\n\n");
}

static void models_are_those_of_the_api_page(void **state) {
    (void)state;
    struct model_card card = {.id = "orthrus-qwen3-8b",
                              .root = "/models/orthrus-qwen3-8b",
                              .created = 1764000000,
                              .max_model_len = 40960};
#define CARD                                                                                 \
    "{\"id\":\"orthrus-qwen3-8b\",\"object\":\"model\",\"created\":1764000000,\"owned_by\":" \
    "\"local\",\"root\":\"/models/orthrus-qwen3-8b\",\"parent\":null,\"max_model_len\":40960}"
    struct buf buf = {0};
    proto_models(&buf, &card, 1);
    assert_written(&buf, "{\"object\":\"list\",\"data\":[" CARD "]}");
    proto_model(&buf, &card);
    assert_written(&buf, CARD);
    struct model_card two[] = {card, card};
    proto_models(&buf, two, 2);
    assert_written(&buf, "{\"object\":\"list\",\"data\":[" CARD "," CARD "]}");
#undef CARD
}

static void probes_and_version_are_those_of_the_api_page(void **state) {
    (void)state;
    struct buf buf = {0};
    proto_status(&buf, "ok", NULL, -1, NULL);
    assert_written(&buf, "{\"status\":\"ok\"}");
    proto_status(&buf, "loading", "weights", 0.42, NULL);
    assert_written(&buf, "{\"status\":\"loading\",\"phase\":\"weights\",\"progress\":0.42}");
    proto_status(&buf, "loading", "open", 0, NULL);
    assert_written(&buf, "{\"status\":\"loading\",\"phase\":\"open\",\"progress\":0}");
    proto_status(&buf, "failed", NULL, NAN, "device \"0\" lost");
    assert_written(&buf, "{\"status\":\"failed\",\"reason\":\"device \\\"0\\\" lost\"}");
    proto_version(&buf, "0.1.0", "5fa142d", "cpu");
    assert_written(&buf, "{\"version\":\"0.1.0\",\"commit\":\"5fa142d\",\"backend\":\"cpu\"}");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completion_is_the_one_of_the_api_page),
        cmocka_unit_test(chat_answer_has_the_message_of_the_api_page),
        cmocka_unit_test(completion_stream_is_the_one_of_the_api_page),
        cmocka_unit_test(chat_stream_is_the_one_of_the_api_page),
        cmocka_unit_test(S1_01_without_include_usage_no_chunk_names_usage),
        cmocka_unit_test(continuous_usage_stands_on_every_chunk),
        cmocka_unit_test(stop_reason_is_the_string_or_token_that_matched),
        cmocka_unit_test(token_ids_stand_on_the_choice_when_asked_for),
        cmocka_unit_test(several_choices_keep_their_index),
        cmocka_unit_test(each_choice_of_an_answer_has_its_own_ids),
        cmocka_unit_test(props_tell_defaults_and_limits),
        cmocka_unit_test(timings_come_last),
        cmocka_unit_test(measures_that_are_no_numbers_are_written_as_zero),
        cmocka_unit_test(any_text_survives_a_chunk),
        cmocka_unit_test(error_event_is_one_data_event),
        cmocka_unit_test(models_are_those_of_the_api_page),
        cmocka_unit_test(probes_and_version_are_those_of_the_api_page),
    };
    return cmocka_run_group_tests_name("proto_answer", tests, NULL, NULL);
}
