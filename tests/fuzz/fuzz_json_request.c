/* fuzz_json_request.c: a body from outside, on either route. The first byte chooses: bit 0 the route,
 * bit 1 strict parameters, bit 2 a tokenizer without start token, bit 3 priorities. Whatever the bytes, the request is
 * refused with an error that a client can read, or every value of it is within its range.
 *
 *   build/fuzz/fuzz_json_request tests/fuzz/corpus/json_request */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/proto.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCAB = 50 };

static void require(bool holds) {
    if (!holds) abort();
}

/* The error body is strict JSON with its four members. */
static void check_error(const struct api_error *err) {
    require(err->status == 400 || err->status == 404);
    require(memchr(err->message, '\0', sizeof err->message) != NULL);
    require(memchr(err->param, '\0', sizeof err->param) != NULL);
    struct buf body = {0};
    proto_error_body(&body, err);
    struct arena *arena = arena_create(1 << 16);
    struct value value;
    struct api_error none;
    require(!body.failed && arena);
    require(proto_parse_json(body.data, body.len, arena, &value, &none) == OK);
    require(value_get(&value, "error") && value_get(&value, "error")->n_items == 4);
    arena_destroy(arena);
    buf_free(&body);
}

static void check_sampling(const struct sampling *s) {
    require(s->temperature >= 0 && s->temperature <= 2);
    require(s->top_p >= 0 && s->top_p <= 1 && s->min_p >= 0 && s->min_p <= 1);
    require(s->top_k >= 0 && s->top_k <= VOCAB);
    require(fabs(s->frequency_penalty) <= 2 && fabs(s->presence_penalty) <= 2);
    require((float)s->repetition_penalty > 0 && s->repetition_penalty <= 10);
    require(isfinite(1e6f / (float)s->repetition_penalty));
    require(s->n_bias <= LOGIT_BIAS_MAX);
    for (uint32_t i = 0; i < s->n_bias; i++) {
        require(s->bias[i].id >= 0 && s->bias[i].id < VOCAB && fabs(s->bias[i].value) <= 100);
        require(i == 0 || s->bias[i].id > s->bias[i - 1].id);
    }
    require(s->n_stop <= STOP_STRINGS_MAX && s->n_stop_ids <= STOP_IDS_MAX);
    for (uint32_t i = 0; i < s->n_stop; i++)
        require(s->stop[i].len >= 1 && s->stop[i].len <= STOP_STRING_BYTES_MAX);
    for (uint32_t i = 0; i < s->n_stop_ids; i++)
        require(s->stop_ids[i] >= 0 && s->stop_ids[i] < VOCAB);
}

static void check_prompt(const struct prompt *prompt, const struct proto_limits *limits) {
    if (prompt->text) {
        require(prompt->text_len > 0 || limits->tokenizer_adds_bos);
        require(prompt->text[prompt->text_len] == '\0');
        return;
    }
    require(prompt->n_ids > 0);
    for (uint32_t i = 0; i < prompt->n_ids; i++)
        require(prompt->ids[i] >= 0 && prompt->ids[i] < VOCAB);
}

static void check_message(const struct value *message) {
    const struct value *role = value_get(message, "role"), *content = value_get(message, "content");
    require(role && role->kind == VALUE_STRING);
    require(content && (content->kind == VALUE_STRING || content->kind == VALUE_ARRAY));
    for (size_t i = 0; content->kind == VALUE_ARRAY && i < content->n_items; i++)
        require(value_get(&content->items[i], "text")->kind == VALUE_STRING);
    const struct value *calls = value_get(message, "tool_calls");
    for (size_t i = 0; calls && i < calls->n_items; i++) {
        const struct value *function = value_get(&calls->items[i], "function");
        const struct value *arguments = value_get(function, "arguments");
        require(arguments && arguments->kind == VALUE_OBJECT);
    }
}

static void check_request(const struct api_request *r, const struct proto_limits *limits) {
    require(strcmp(r->model, "m") == 0);
    require(r->max_tokens == -1 || r->max_tokens >= 1);
    require(r->max_tokens == -1 || r->sampling.min_tokens <= r->max_tokens);
    require(r->n >= 1 && r->n <= limits->max_n);
    require(r->cache_salt && r->cache_salt_len <= CACHE_SALT_BYTES_MAX);
    require(r->priority >= -1000 && r->priority <= 1000);
    require(limits->has_priorities || r->priority == 0);
    check_sampling(&r->sampling);
    if (r->kind == ROUTE_COMPLETION) {
        require(r->n_prompts >= 1 && r->n_prompts * r->n <= limits->max_choices);
        for (uint32_t i = 0; i < r->n_prompts; i++)
            check_prompt(&r->prompts[i], limits);
    } else {
        require(r->messages->n_items >= 1 && r->messages->n_items <= 4096);
        for (size_t i = 0; i < r->messages->n_items; i++)
            check_message(&r->messages->items[i]);
        require(!r->template_kwargs || r->template_kwargs->kind == VALUE_OBJECT);
    }
}

/* The same bytes as a body of /tokenize and /detokenize. */
static void try_tokens(enum route_kind kind, const char *body, size_t len,
                       const struct proto_limits *limits) {
    struct api_request request;
    struct api_error err;
    if (proto_parse_tokens(kind, body, len, limits, &request, &err)) {
        check_error(&err);
        return;
    }
    const struct prompt *prompt = &request.prompts[0];
    require(request.n_prompts == 1 && strcmp(request.model, "m") == 0);
    require(kind == ROUTE_TOKENIZE ? !prompt->ids : !prompt->text && !request.messages);
    require(kind != ROUTE_TOKENIZE || (prompt->text != NULL) != (request.messages != NULL));
    for (uint32_t i = 0; i < prompt->n_ids; i++)
        require(prompt->ids[i] >= 0 && prompt->ids[i] < VOCAB);
    for (size_t i = 0; request.messages && i < request.messages->n_items; i++)
        check_message(&request.messages->items[i]);
    api_request_free(&request);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"m"};
    if (size == 0) return 0;
    struct proto_limits limits = {.vocab_size = VOCAB,
                                  .max_n = 3,
                                  .max_choices = 4,
                                  .has_priorities = data[0] & 8,
                                  .tokenizer_adds_bos = !(data[0] & 4),
                                  .strict_params = data[0] & 2,
                                  .has_chat_template = true,
                                  .model_names = names,
                                  .n_model_names = 1};
    struct api_request request;
    struct api_error err;
    enum route_kind kind = data[0] & 1 ? ROUTE_CHAT : ROUTE_COMPLETION;
    if (proto_parse_request(kind, (const char *)data + 1, size - 1, &limits, &request, &err)) {
        check_error(&err);
    } else {
        check_request(&request, &limits);
        api_request_free(&request);
    }
    try_tokens(data[0] & 1 ? ROUTE_TOKENIZE : ROUTE_DETOKENIZE, (const char *)data + 1, size - 1,
               &limits);
    return 0;
}
