/* model.h: what engine/ itself sees of a loaded model. model_load (engine/load/model.c, or the scripted
 * test model's own) fills it; nothing changes after load. */
#ifndef GERYON_MODEL_H
#define GERYON_MODEL_H

#include "engine/chat/chat_probe.h"
#include "engine/engine.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/kernels.h"

struct model {
    struct model_info info;
    struct model_shape shape;  /* rope_freq is NULL after load */
    enum activations products; /* info.activations */
    enum dtype weight_dtype;   /* the type most matrix bytes have */
    const struct kernels *kernels;
    struct device *device; /* weights loaded; the engine calls reserve */
    struct tokenizer *tokenizer;
    struct chat_template *chat_template; /* NULL: the model has none */
    struct chat_traits chat_traits;      /* how it reads messages */
    char chat_template_error[256];       /* why the template could not be used, or "" */
    char notice[320];                    /* info.notice, or "" */
    char hardware[64];                   /* info.hardware, or "" */
    int32_t eos_ids[32];
    char *name, *path;
    struct model_costs costs;
    char *chat_template_text; /* the source of chat_template */
};

/* Parse and probe a template for a model that has its tokenizer. One that cannot be read leaves the
 * model without, and the reason in chat_template_error: it still completes texts. */
void model_set_chat_template(struct model *model, const char *source, size_t len);

#endif
