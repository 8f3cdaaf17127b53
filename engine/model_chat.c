/* A conversation to token ids: template, then tokenizer. */
#include <stdlib.h>

#include "engine/model.h"

/* The named special tokens that transformers hands to a template. */
static const char *const special_names[] = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
};

int model_render_chat(const struct model *model, const struct chat *chat, struct tokens *out,
                      char **text_out, size_t *text_len, struct err *err) {
    if (!model->chat_template) {
        const char *why = model->chat_template_error;
        return err_set(err, ERR_INVALID, "%s", why[0] ? why : "this model has no chat template");
    }
    struct chat_variable variables[ARRAY_LEN(special_names)];
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(special_names); i++) {
        const char *text = tokenizer_named_special(model->tokenizer, special_names[i]);
        if (text) variables[n++] = (struct chat_variable){special_names[i], text};
    }
    struct rendered rendered;
    int rc = chat_template_render(model->chat_template, chat, variables, n, &rendered, err);
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
