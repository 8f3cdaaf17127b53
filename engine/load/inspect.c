/* inspect.c: what `geryon inspect` prints. Reads headers only. Whatever can be shown is shown, also
 * of a model that would be refused; the last line says whether it would, and why. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/chat/chat_probe.h"
#include "engine/load/checkpoint.h"
#include "engine/load/loader.h"
#include "engine/load/model_internal.h"
#include "engine/load/weights.h"

static void print_bytes(FILE *out, const char *label, uint64_t bytes) {
    if (bytes >= 10u << 20)
        fprintf(out, "%-18s %llu bytes (%.1f MiB)\n", label, (unsigned long long)bytes,
                (double)bytes / (1 << 20));
    else
        fprintf(out, "%-18s %llu bytes (%.1f KiB)\n", label, (unsigned long long)bytes,
                (double)bytes / (1 << 10));
}

static void print_rope(FILE *out, const struct config *c) {
    const struct rope *r = &c->rope;
    fprintf(out, "%-18s theta %.9g, %s", "rope", r->theta, rope_type_name(r->type));
    if (r->type != ROPE_DEFAULT) fprintf(out, ", factor %.6g", r->factor);
    if (r->type == ROPE_LLAMA3 || r->type == ROPE_YARN)
        fprintf(out, ", original context %.0f",
                r->original_max > 0 ? r->original_max : (double)c->shape.max_position);
    if (c->shape.rope_scale != 1) fprintf(out, ", cos and sin times %.6g", c->shape.rope_scale);
    fputc('\n', out);
}

static void print_composition(FILE *out, const struct config *c, uint32_t window) {
    const struct model_shape *s = &c->shape;
    if (s->orthros)
        fprintf(out, "%-18s base and output (Orthros), window %u\n", "streams", s->window);
    else if (window)
        fprintf(out, "%-18s base and output (identity affines), window %u by option\n", "streams",
                window);
    else
        fprintf(out, "%-18s single\n", "streams");
    if (s->n_msar_streams) {
        fprintf(out, "%-18s MSAR, %u branches a block, kernels", "residual", s->msar_branches);
        for (uint32_t i = 0; i < s->n_msar_streams; i++)
            fprintf(out, " %u", s->msar_kernels[i]);
        fputc('\n', out);
    } else {
        fprintf(out, "%-18s standard\n", "residual");
    }
    if (s->block_size)
        fprintf(out, "%-18s Orthrus, blocks of up to %u rows, mask token %d\n", "drafts",
                s->block_size, s->mask_token);
    else
        fprintf(out, "%-18s none\n", "drafts");
}

static void print_config(FILE *out, const struct config *c, uint32_t window) {
    const struct model_shape *s = &c->shape;
    fprintf(out, "%-18s %s\n", "architecture", backbone_name(c->backbone));
    print_composition(out, c, window);
    fprintf(out, "%-18s %u\n", "layers", s->n_layers);
    fprintf(out, "%-18s %u query, %u key/value, of size %u\n", "heads", s->n_heads, s->n_kv_heads,
            s->head_dim);
    fprintf(out, "%-18s model %u, mlp %u\n", "widths", s->d_model, s->d_ff);
    fprintf(out, "%-18s %u rows, head %s\n", "vocabulary", s->vocab_size,
            s->tied_head ? "tied to the embedding" : "of its own");
    fprintf(out, "%-18s %u positions\n", "context", s->max_position);
    print_rope(out, c);
    fprintf(out, "%-18s", "end tokens");
    for (uint32_t i = 0; i < c->n_eos; i++)
        fprintf(out, " %d", c->eos_ids[i]);
    fputs(c->n_eos ? "\n" : " none\n", out);
    /* K and V of every layer; 8-bit vectors have an f16 scale each. */
    uint64_t vectors = 2ull * s->n_layers * s->n_kv_heads * 1000, numbers = vectors * s->head_dim;
    print_bytes(out, "KV f32 per 1000", numbers * 4);
    print_bytes(out, "KV bf16 per 1000", numbers * 2);
    print_bytes(out, "KV q8_0 per 1000", numbers + vectors * 2);
    if (s->n_msar_streams == 0) return;
    /* The vectors of one position, float32: the embedding and each branch's sum but the last. */
    uint64_t position = 2ull * s->n_layers * s->d_model * sizeof(float);
    uint32_t max_proposed = s->block_size ? s->block_size - 1 : 0; /* with --drafts auto */
    print_bytes(out, "MSAR per sequence", msar_ring_len(s, max_proposed) * position);
    print_bytes(out, "MSAR per snapshot", msar_history(s) * position);
}

/* "bf16 290, f32 113": how many tensors of each type the files hold. */
static void print_types(FILE *out, const struct checkpoint *ck) {
    fprintf(out, "%-18s", "dtypes");
    size_t n = checkpoint_n_tensors(ck);
    bool first = true;
    for (size_t i = 0; i < n; i++) {
        const char *type = checkpoint_tensor(ck, i)->type;
        bool seen = false;
        size_t count = 0;
        for (size_t j = 0; j < n; j++) {
            if (strcmp(checkpoint_tensor(ck, j)->type, type) != 0) continue;
            if (j < i) {
                seen = true;
                break;
            }
            count++;
        }
        if (seen) continue;
        fprintf(out, "%s %s x %zu", first ? "" : ",", type, count);
        first = false;
    }
    fputc('\n', out);
}

static void print_tensors(FILE *out, const struct checkpoint *ck) {
    size_t n = checkpoint_n_tensors(ck);
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += checkpoint_tensor(ck, i)->bytes;
    fprintf(out, "%-18s %zu in %s\n", "tensors", n,
            checkpoint_is_gguf(ck) ? "GGUF" : "safetensors");
    print_types(out, ck);
    print_bytes(out, "stored weights", total);
    for (size_t i = 0; i < n; i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor(ck, i);
        char name[LOADER_NAME_CAP];
        fprintf(out, "  %-60s %-8s [", loader_printable(t->name, strlen(t->name), name), t->type);
        for (uint32_t d = 0; d < t->n_dims; d++)
            fprintf(out, "%s%llu", d ? ", " : "", (unsigned long long)t->shape[d]);
        /* int8 and nibbles with their scales: the shape is that of the weight */
        bool quantised = !strcmp(t->type, "I8") || !strcmp(t->type, "U8");
        if (quantised && t->dtype >= 0)
            fprintf(out, "] as %s\n", dtype_name((enum dtype)t->dtype));
        else
            fputs("]\n", out);
    }
}

/* Memory of the weights in the wanted type, or why they cannot be loaded. */
static int weigh(const struct checkpoint *ck, const struct config *config, int want,
                 uint64_t *total, struct err *why) {
    struct weight_plan plan = {0};
    int rc = weights_plan(ck, config, &plan, why);
    *total = 0;
    for (size_t i = 0; !rc && i < plan.n_items; i++) {
        enum dtype dtype;
        rc = weights_dtype(ck, &plan.items[i], want, &dtype, why);
        if (!rc) *total += weights_bytes(&plan.items[i], dtype);
    }
    weights_plan_free(&plan);
    return rc;
}

/* The first reason for which loading would fail; OK when there is none. */
static int judge(FILE *out, struct checkpoint *ck, const struct model_options *options,
                 struct err *why) {
    struct config config;
    int want = -1;
    if (options->dtype && strcmp(options->dtype, "auto") != 0) want = dtype_parse(options->dtype);
    int rc = checkpoint_config(ck, &config, why);
    if (rc) return rc;
    print_config(out, &config, options->window);
    uint64_t total;
    rc = weigh(ck, &config, want, &total, why);
    if (!rc) print_bytes(out, "loaded weights", total);
    if (!rc && config.shape.orthros && options->window)
        rc = err_set(why, ERR_INVALID, "window: %u, this model has a window of its own (%u)",
                     options->window, config.shape.window);
    struct tokenizer *tokenizer = NULL;
    if (!rc) rc = checkpoint_tokenizer(ck, &tokenizer, why);
    if (!rc && tokenizer_n_tokens(tokenizer) > config.shape.vocab_size)
        rc = err_set(why, ERR_INVALID, "tokenizer: %u tokens, the embedding has only %u rows",
                     tokenizer_n_tokens(tokenizer), config.shape.vocab_size);
    if (!rc) fprintf(out, "%-18s %u tokens\n", "tokenizer", tokenizer_n_tokens(tokenizer));
    tokenizer_destroy(tokenizer);
    config_fini(&config);
    return rc;
}

/* What the probe finds. Templates join the special tokens to other text, so there must be some; what
 * they are changes no answer. */
static void judge_traits(FILE *out, const struct chat_template *tmpl, size_t len) {
    static const struct chat_variable specials[] = {
        {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"pad_token", "<p>"}, {"unk_token", "<u>"}};
    struct chat_traits traits;
    char text[400];
    chat_probe(tmpl, specials, ARRAY_LEN(specials), &traits);
    chat_traits_describe(&traits, text, sizeof text);
    fprintf(out, "%-18s %zu bytes%s%s\n", "chat template", len, text[0] ? ": " : "", text);
}

static void judge_template(FILE *out, struct checkpoint *ck) {
    struct err why = {0};
    struct chat_template *tmpl = NULL;
    char *source = NULL;
    size_t len;
    if (checkpoint_chat_template(ck, &source, &len, &why))
        fprintf(out, "%-18s not usable: %s\n", "chat template", why.msg);
    else if (!source)
        fprintf(out, "%-18s none\n", "chat template");
    else if (chat_template_create(source, len, &tmpl, &why))
        fprintf(out, "%-18s not usable: %s\n", "chat template", why.msg);
    else
        judge_traits(out, tmpl, len);
    chat_template_destroy(tmpl);
    free(source);
}

/* The table that would compute, and how. By the file's types: where those are mixed, the activations of
 * int8 concern some matrices alone. */
static int judge_table(FILE *out, const struct checkpoint *ck, const struct model_options *options,
                       struct err *why) {
    char notice[320], hardware[64] = "";
    const struct kernels *kernels = model_choose_kernels(options, notice, sizeof notice, why);
    if (!kernels) return why->code;
    uint64_t types[DTYPE_COUNT] = {0};
    int want = options->dtype ? dtype_parse(options->dtype) : -1;
    for (size_t i = 0; i < checkpoint_n_tensors(ck); i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor(ck, i);
        if (t->n_dims > 1 && t->dtype >= 0) types[want >= 0 ? want : t->dtype]++;
    }
    enum activations activations = ACTIVATIONS_F32;
    int rc = model_choose_activations(options->activations, kernels, types, &activations, why);
    if (kernels->hardware) kernels->hardware(hardware, sizeof hardware);
    fprintf(out, "%-18s %s%s%s\n", "backend", model_backend_name(kernels), hardware[0] ? ", " : "",
            hardware);
    fprintf(out, "%-18s %s", "kernels", kernels->name);
    if (!rc) fprintf(out, ", %s activations", activations_name(model_products(activations, types)));
    fprintf(out, "%s\n", options->deterministic && kernels->memory_left ? ", deterministic" : "");
    if (notice[0]) fprintf(out, "%-18s %s\n", "notice", notice);
    return rc;
}

int model_inspect(const struct model_options *options, FILE *out, struct err *err) {
    struct checkpoint *ck;
    int rc = checkpoint_open(options->path, &ck, err);
    if (rc) return rc;
    struct err why = {0};
    fprintf(out, "%-18s %s\n", "path", options->path);
    int refused = judge(out, ck, options, &why);
    judge_template(out, ck);
    if (!refused) refused = judge_table(out, ck, options, &why);
    print_tensors(out, ck);
    if (refused)
        fprintf(out, "would be refused: %s\n", why.msg);
    else
        fputs("can be loaded\n", out);
    checkpoint_close(ck);
    return ferror(out) ? err_set(err, ERR_IO, "inspect: cannot write") : OK;
}
