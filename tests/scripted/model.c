/* model.c: the scripted model's load, in place of engine/load/model.c. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/scheduler.h"
#include "tests/scripted/device.h"
#include "tests/scripted/scripted.h"

enum { SCRIPT_BYTES_MAX = 64 << 20, LOAD_SLICE_MS = 10 };

/* ---- making one -------------------------------------------------------------------------------- */

static void fill_shape(const struct script *script, uint32_t window, struct model_shape *shape) {
    *shape = (struct model_shape){
        .n_layers = 1, /* the smallest there is: nothing is computed */
        .d_model = 2,
        .n_heads = 1,
        .n_kv_heads = 1,
        .head_dim = 2,
        .d_ff = 2,
        .vocab_size = script->n_vocab,
        .rms_eps = 1e-6f,
        .tied_head = true,
        .orthros = window > 0,
        .window = window,
        .block_size = script->block_size,
        .mask_token = 0, /* draft rows know their place without one */
        .max_position = script->context,
        .rope_scale = 1,
    };
}

static int make_tokenizer(const struct script *script, struct tokenizer **out, struct err *err) {
    const char **pieces = calloc(script->n_vocab, sizeof *pieces);
    size_t *lens = calloc(script->n_vocab, sizeof *lens);
    bool *special = calloc(script->n_vocab, sizeof *special);
    int rc = ERR_NOMEM;
    if (pieces && lens && special) {
        for (uint32_t i = 0; i < script->n_vocab; i++) {
            pieces[i] = script->vocab[i].bytes;
            lens[i] = script->vocab[i].len;
            special[i] = script->vocab[i].special;
        }
        rc = tokenizer_from_pieces(pieces, lens, special, script->n_vocab, out, err);
    } else {
        err_set(err, ERR_NOMEM, "script: no memory");
    }
    free(pieces);
    free(lens);
    free(special);
    return rc;
}

/* The script's name as a model: the file's without its folder and suffix. */
static char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    const char *base = slash && slash[1] ? slash + 1 : path;
    size_t len = strlen(base);
    if (len > 5 && strcmp(base + len - 5, ".json") == 0) len -= 5;
    return strndup(base, len);
}

static uint64_t fingerprint(const char *json, size_t len, uint32_t window) {
    uint64_t hash = 0xCBF29CE484222325u; /* FNV-1a */
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ (unsigned char)json[i]) * 0x100000001B3u;
    return (hash ^ window) * 0x100000001B3u;
}

static void fill_info(struct model *model, const struct script *script, const char *json,
                      size_t len) {
    memcpy(model->eos_ids, script->eos, script->n_eos * sizeof *script->eos);
    model->info = (struct model_info){
        .name = model->name,
        .path = model->path,
        .architecture = "scripted",
        .weight_dtype = "f32",
        .backend = "cpu",
        .kernel_table = model->kernels->name,
        .activations = "f32",
        .vocab_size = script->n_vocab,
        .context_length = script->context,
        .block_size = script->block_size,
        .window = model->shape.window,
        .eos_ids = model->eos_ids,
        .n_eos_ids = script->n_eos,
        .has_chat_template = true,
        .adds_bos = tokenizer_adds_bos(model->tokenizer),
        .weight_bytes = len,
        .fingerprint = fingerprint(json, len, model->shape.window),
    };
}

/* The simulated load, in slices so that its progress moves and it can be cancelled. */
static int pretend_to_load(double ms, struct load_progress *progress, struct err *err) {
    if (progress) atomic_store(&progress->phase, LOAD_WEIGHTS);
    for (double done = 0; done < ms; done += LOAD_SLICE_MS) {
        if (progress && atomic_load(&progress->cancel))
            return err_set(err, ERR_CANCELLED, "loading was cancelled");
        if (progress) atomic_store(&progress->permille, (uint32_t)(900 * done / ms));
        struct timespec left = {.tv_nsec = LOAD_SLICE_MS * 1000000L};
        while (nanosleep(&left, &left) != 0 && errno == EINTR) {
        }
    }
    if (progress) atomic_store(&progress->permille, 900); /* the cache is still to come */
    return OK;
}

int scripted_model_create(const char *json, size_t len, const struct model_options *options,
                          struct model **out, struct err *err) {
    static const char source[] = "{% for m in messages %}{{ m.content }}{% endfor %}";
    const char *path = options->path ? options->path : "script";
    struct script *script = NULL;
    int rc = script_parse(json, len, &script, err);
    if (rc != OK) return rc;
    struct model *model = calloc(1, sizeof *model);
    if (!model) {
        script_destroy(script);
        return err_set(err, ERR_NOMEM, "script: no memory");
    }
    scheduler_checks = true; /* whatever build this is */
    model->kernels = kernels_scripted();
    model->weight_dtype = DTYPE_F32;
    fill_shape(script, options->window, &model->shape);
    rc = model->kernels->open(&model->shape, 1, &model->device, err);
    if (rc != OK) {
        script_destroy(script);
        goto fail;
    }
    device_set_script(model->device, script);
    model->path = strdup(path);
    model->name = options->name ? strdup(options->name) : name_of(path);
    if (!model->path || !model->name) {
        rc = err_set(err, ERR_NOMEM, "script: no memory");
        goto fail;
    }
    rc = make_tokenizer(script, &model->tokenizer, err);
    if (rc == OK) model_set_chat_template(model, source, strlen(source));
    if (rc == OK) rc = pretend_to_load(script->load_ms, options->progress, err);
    if (rc != OK) goto fail;
    fill_info(model, script, json, len);
    model->info.chat_template = source;
    *out = model;
    return OK;
fail:
    model_destroy(model);
    return rc;
}

int scripted_model_from_json(const char *json, size_t len, struct model **out, struct err *err) {
    return scripted_model_create(json, len, &(struct model_options){.path = "script"}, out, err);
}

/* ---- engine.h's part --------------------------------------------------------------------------- */

static int read_whole(const char *path, char **out, size_t *len, struct err *err) {
    FILE *f = fopen(path, "rb");
    if (!f) return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    char *data = NULL;
    int rc = OK;
    long n = -1;
    if (fseek(f, 0, SEEK_END) == 0) n = ftell(f);
    if (n < 0 || n > SCRIPT_BYTES_MAX || fseek(f, 0, SEEK_SET) != 0)
        rc = err_set(err, ERR_INVALID, "%s: expected a script of at most %d bytes", path,
                     SCRIPT_BYTES_MAX);
    else if (!(data = malloc((size_t)n + 1)))
        rc = err_set(err, ERR_NOMEM, "%s: no memory for %ld bytes", path, n);
    else if (fread(data, 1, (size_t)n, f) != (size_t)n)
        rc = err_set(err, ERR_IO, "%s: cannot be read", path);
    fclose(f);
    if (rc != OK) {
        free(data);
        return rc;
    }
    *out = data;
    *len = (size_t)n;
    return OK;
}

int model_load(const struct model_options *options, struct model **out, struct err *err) {
    char *json;
    size_t len;
    if (!options->path) return err_set(err, ERR_INVALID, "the scripted model needs a path");
    int rc = read_whole(options->path, &json, &len, err);
    if (rc != OK) return rc;
    rc = scripted_model_create(json, len, options, out, err);
    free(json);
    return rc;
}

void model_destroy(struct model *model) {
    if (!model) return;
    model->kernels->close(model->device);
    tokenizer_destroy(model->tokenizer);
    chat_template_destroy(model->chat_template);
    free(model->name);
    free(model->path);
    free(model);
}

const struct model_info *model_info(const struct model *model) {
    return &model->info;
}

int model_inspect(const struct model_options *options, FILE *out, struct err *err) {
    char *json;
    size_t len;
    struct script *script;
    int rc = read_whole(options->path, &json, &len, err);
    if (rc != OK) return rc;
    rc = script_parse(json, len, &script, err);
    free(json);
    if (rc != OK) return rc;
    fprintf(out, "architecture  scripted\nvocabulary    %u\ncontext       %u\nblock size    %u\n",
            script->n_vocab, script->context, script->block_size);
    script_destroy(script);
    return OK;
}

/* ---- for tests --------------------------------------------------------------------------------- */

void scripted_set_time(struct model *model, struct scripted_time *time) {
    device_set_time(model->device, time);
}

uint64_t scripted_clock(void *time) {
    return ((struct scripted_time *)time)->now_us;
}

void scripted_logits(const struct model *model, const int32_t *history, uint32_t n_history,
                     uint32_t prompt_len, float *logits) {
    script_logits(device_script(model->device), false, history, n_history, prompt_len, logits);
}

void scripted_draft_logits(const struct model *model, const int32_t *history, uint32_t n_history,
                           uint32_t prompt_len, float *logits) {
    script_logits(device_script(model->device), true, history, n_history, prompt_len, logits);
}
