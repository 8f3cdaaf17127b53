/* A conversation to token ids: messages as the template reads them, template, tokenizer. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/chat/chat_adapt.h"
#include "engine/model.h"

/* The named special tokens that transformers hands to a template. */
static const char *const special_names[] = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
};

static size_t set_variables(const struct model *model,
                            struct chat_variable out[ARRAY_LEN(special_names)]) {
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(special_names); i++) {
        const char *text = tokenizer_named_special(model->tokenizer, special_names[i]);
        if (text) out[n++] = (struct chat_variable){special_names[i], text};
    }
    return n;
}

void model_set_chat_template(struct model *model, const char *source, size_t len) {
    struct err why = {0};
    struct chat_variable variables[ARRAY_LEN(special_names)];
    if (chat_template_create(source, len, &model->chat_template, &why)) {
        model->chat_template = NULL;
        snprintf(model->chat_template_error, sizeof model->chat_template_error, "%s", why.msg);
        return;
    }
    size_t n = set_variables(model, variables);
    chat_probe(model->chat_template, variables, n, &model->chat_traits);
}

int model_render_chat(const struct model *model, const struct chat *chat, struct tokens *out,
                      char **text_out, size_t *text_len, struct err *err) {
    if (!model->chat_template) {
        const char *why = model->chat_template_error;
        return err_set(err, ERR_INVALID, "%s", why[0] ? why : "this model has no chat template");
    }
    struct chat_variable variables[ARRAY_LEN(special_names)];
    size_t n = set_variables(model, variables);
    struct rendered rendered;
    int rc = chat_adapt_render(model->chat_template, &model->chat_traits, chat, variables, n,
                               &rendered, err);
    if (rc) return rc;
    /* The template writes the start token itself where the model wants one. */
    rc = tokenizer_encode(model->tokenizer, rendered.runs, rendered.n_runs, false, out, err);
    if (!rc && text_out) {
        *text_out = rendered.text;
        *text_len = rendered.len;
        rendered.text = NULL;
    }
    rendered_free(&rendered);
    return rc;
}
