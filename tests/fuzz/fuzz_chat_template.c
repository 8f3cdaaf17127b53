/* A chat template from a model file, rendered over a small conversation. */
#include <string.h>

#include "engine/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void render(const struct chat_template *tmpl) {
    static struct value_key keys[] = {{"role", 4}, {"content", 7}};
    struct value system[] = {{.kind = VALUE_STRING, .text = "system", .len = 6},
                             {.kind = VALUE_STRING, .text = "Be <|im_end|> brief.", .len = 20}};
    struct value user[] = {{.kind = VALUE_STRING, .text = "user", .len = 4},
                           {.kind = VALUE_STRING, .text = "  Hi\n", .len = 5}};
    struct value items[] = {{.kind = VALUE_OBJECT, .items = system, .keys = keys, .n_items = 2},
                            {.kind = VALUE_OBJECT, .items = user, .keys = keys, .n_items = 2}};
    struct value messages = {.kind = VALUE_ARRAY, .items = items, .n_items = 2};
    struct chat chat = {.messages = &messages, .add_generation_prompt = true, .now = 1764000000};
    static const struct chat_variable variables[] = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
    struct rendered out;
    struct err err;
    if (chat_template_render(tmpl, &chat, variables, 2, &out, &err) != OK) return;
    size_t at = 0; /* the runs tile the text, and neighbours differ in trust */
    for (size_t i = 0; i < out.n_runs; i++) {
        ASSERT(out.runs[i].text == out.text + at && out.runs[i].len > 0);
        if (i) ASSERT(out.runs[i].trusted != out.runs[i - 1].trusted);
        at += out.runs[i].len;
    }
    ASSERT(at == out.len && out.text[out.len] == '\0');
    rendered_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct err err;
    struct chat_template *tmpl;
    if (chat_template_create((const char *)data, size, &tmpl, &err) != OK) return 0;
    render(tmpl);
    chat_template_destroy(tmpl);
    return 0;
}
