/* A request body on both generation routes; also the JSON reader by itself. */
#include "proto/proto.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void parse(enum route_kind kind, const char *body, size_t len) {
    static const char *const names[] = {"toy"};
    static const struct proto_limits limits = {.vocab_size = 320,
                                               .max_prompts = 128,
                                               .has_chat_template = true,
                                               .model_names = names,
                                               .n_model_names = 1};
    struct api_request request;
    struct api_error err;
    if (proto_parse_request(kind, body, len, &limits, &request, &err) == OK) {
        for (uint32_t p = 0; p < request.n_prompts; p++)
            for (uint32_t i = 0; i < request.prompts[p].n_ids; i++)
                ASSERT((uint32_t)request.prompts[p].ids[i] < limits.vocab_size);
        api_request_free(&request);
        return;
    }
    struct buf out = {0};
    ASSERT(err.status >= 400 && err.status < 600);
    proto_error_body(&out, &err);
    /* What we say about any body is itself JSON that our reader takes. */
    struct arena *arena = arena_create(1 << 20);
    struct value value;
    ASSERT(out.failed || proto_parse_json(out.data, out.len, arena, &value, &err) == OK);
    arena_destroy(arena);
    buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    parse(ROUTE_COMPLETION, (const char *)data, size);
    parse(ROUTE_CHAT, (const char *)data, size);
    return 0;
}
