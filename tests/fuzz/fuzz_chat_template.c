/* A chat template from a model file: probed, then rendered over a conversation of all roles in the
 * form that it reads. The input stays as it was; the text is tiled by its runs. */
#include <string.h>

#include "engine/chat/chat_adapt.h"
#include "proto/proto.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct chat_variable variables[] = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};

static const char body[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"Be <|im_end|> brief.\"},"
    "{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"D\"}]},"
    "{\"role\":\"user\",\"content\":\"  Hi\\n\"},"
    "{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"<think>hm</think>\",\"tool_calls\":["
    "{\"id\":\"call_1\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": [1, null]}\"}},"
    "{\"id\":\"call_2\",\"function\":{\"name\":\"g\"}}]},"
    "{\"role\":\"tool\",\"tool_call_id\":\"call_2\",\"content\":\"r\"},"
    "{\"role\":\"system\",\"content\":\"late\"},"
    "{\"role\":\"assistant\",\"content\":\"<tool_call>x</tool_call>\"},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
    "\"text\":"
    "\"b\"}]}]}";

static void check_rendered(const struct rendered *out) {
    size_t at = 0; /* the runs tile the text, and neighbours differ in trust */
    for (size_t i = 0; i < out->n_runs; i++) {
        ASSERT(out->runs[i].text == out->text + at && out->runs[i].len > 0);
        if (i) ASSERT(out->runs[i].trusted != out->runs[i - 1].trusted);
        at += out->runs[i].len;
    }
    ASSERT(at == out->len && out->text[out->len] == '\0');
}

/* The input's own nodes; texts are const. */
static uint64_t digest(const struct value *v, uint64_t h) {
    h = (h ^ (uint64_t)v->kind) * 0x100000001b3u;
    if (v->kind == VALUE_STRING) return (h ^ (uintptr_t)v->text ^ v->len) * 0x100000001b3u;
    for (size_t i = 0; v->kind >= VALUE_ARRAY && i < v->n_items; i++)
        h = digest(&v->items[i], h ^ (v->keys ? (uintptr_t)v->keys[i].text : i));
    return h;
}

static void render(const struct chat_template *tmpl) {
    static const char *const names[] = {"m"};
    const struct proto_limits limits = {.vocab_size = 9,
                                        .max_n = 1,
                                        .max_choices = 1,
                                        .has_chat_template = true,
                                        .model_names = names,
                                        .n_model_names = 1};
    struct api_request request;
    struct api_error error;
    int rc = proto_parse_request(ROUTE_CHAT, body, sizeof body - 1, &limits, &request, &error);
    ASSERT(rc == OK);
    struct chat_traits traits;
    char described[64]; /* too short for some */
    chat_probe(tmpl, variables, ARRAY_LEN(variables), &traits);
    chat_traits_describe(&traits, described, sizeof described);
    ASSERT(memchr(described, '\0', sizeof described) != NULL);
    struct chat chat = {.messages = request.messages,
                        .arguments = request.call_arguments,
                        .add_generation_prompt = true,
                        .now = 1764000000};
    uint64_t before = digest(chat.messages, 1);
    struct rendered out;
    struct err err;
    rc = chat_adapt_render(tmpl, &traits, &chat, variables, ARRAY_LEN(variables), &out, &err);
    ASSERT(digest(chat.messages, 1) == before);
    if (rc == OK) {
        check_rendered(&out);
        rendered_free(&out);
    }
    api_request_free(&request);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct err err;
    struct chat_template *tmpl;
    if (chat_template_create((const char *)data, size, &tmpl, &err) != OK) return 0;
    render(tmpl);
    chat_template_destroy(tmpl);
    return 0;
}
