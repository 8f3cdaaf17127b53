/* logits.c: forwards without sampling, for checking an engine against another one. */
#include <stdlib.h>

#include "engine/engine_internal.h"

struct run {
    struct engine *engine;
    const struct logits_job *job;
    uint32_t *pages;
    float *logits;
    void (*row)(void *arg, uint32_t position, const float *logits);
    void *arg;
};

static int forward(struct run *run, const struct segment *segments, uint32_t n) {
    const struct model *model = run->engine->model;
    struct forward fwd = {.n_segments = n, .segments = segments};
    return forward_run(model->kernels, model->device, &model->shape, &fwd);
}

/* Hand out the last forward's n logit rows, which belong to positions from `position` on. */
static int report(struct run *run, uint32_t position, uint32_t n) {
    const struct model *model = run->engine->model;
    for (uint32_t i = 0; i < n; i++) {
        int rc = model->kernels->read_logits(model->device, i, run->logits);
        if (rc != OK) return rc;
        run->row(run->arg, position + i, run->logits);
    }
    return OK;
}

/* One chunk [pos, pos + n) of the tokens; rows with logits: all of them, the last, or none. */
static int prefill_chunk(struct run *run, uint32_t pos, uint32_t n, uint32_t n_logits) {
    bool orthros = run->engine->model->shape.orthros;
    struct segment base = {
        .view = VIEW_BASE,
        .pick = PICK_NONE,
        .pos = pos,
        .n_rows = n,
        .n_logits = orthros ? 0 : n_logits,
        .prompt_len = run->job->n_tokens,
        .tokens = run->job->tokens + pos,
        .pages = run->pages,
    };
    struct segment segments[2] = {base, base};
    uint32_t skip = n - n_logits;
    segments[1].view = VIEW_OUTPUT;
    segments[1].pos = pos + skip;
    segments[1].n_rows = segments[1].n_logits = n_logits;
    segments[1].tokens += skip;
    int rc = forward(run, segments, orthros && n_logits ? 2 : 1);
    return rc == OK ? report(run, pos + skip, n_logits) : rc;
}

static int draft_block(struct run *run) {
    const struct logits_job *job = run->job;
    int32_t tokens[DRAFT_MAX];
    tokens[0] = job->next;
    for (uint32_t i = 1; i < job->block; i++)
        tokens[i] = run->engine->model->shape.mask_token;
    struct segment draft = {
        .view = VIEW_DRAFT,
        .pick = PICK_NONE,
        .pos = job->n_tokens,
        .n_rows = job->block,
        .n_logits = job->block,
        .prompt_len = job->n_tokens,
        .tokens = tokens,
        .pages = run->pages,
    };
    int rc = forward(run, &draft, 1);
    return rc == OK ? report(run, job->n_tokens, job->block) : rc;
}

static int check_job(const struct engine *engine, const struct logits_job *job, struct err *err) {
    const struct model_shape *shape = &engine->model->shape;
    uint32_t room = engine->info.max_model_len;
    if (job->n_tokens == 0) return err_set(err, ERR_INVALID, "tokens: none given");
    if (job->n_tokens + (uint64_t)(job->draft ? job->block : 0) > room)
        return err_set(err, ERR_TOO_LONG, "tokens: %u, the engine holds %u", job->n_tokens, room);
    for (uint32_t i = 0; i < job->n_tokens; i++)
        if (job->tokens[i] < 0 || (uint32_t)job->tokens[i] >= shape->vocab_size)
            return err_set(err, ERR_INVALID, "tokens[%u]: %d, expected 0 to %u", i, job->tokens[i],
                           shape->vocab_size - 1);
    if (!job->draft) return OK;
    if (!shape->block_size)
        return err_set(err, ERR_INVALID, "view draft: the model has no draft view");
    if (job->next < 0 || (uint32_t)job->next >= shape->vocab_size)
        return err_set(err, ERR_INVALID, "next: %d, expected 0 to %u", job->next,
                       shape->vocab_size - 1);
    if (job->block < 1 || job->block > shape->block_size)
        return err_set(err, ERR_INVALID, "block: %u rows, expected 1 to %u", job->block,
                       shape->block_size);
    if (job->block > engine->limits.max_logit_rows)
        return err_set(err, ERR_INVALID, "block: %u rows, a forward holds %u", job->block,
                       engine->limits.max_logit_rows);
    return OK;
}

int engine_logits(struct engine *engine, const struct logits_job *job,
                  void (*row)(void *arg, uint32_t position, const float *logits), void *arg,
                  struct err *err) {
    ASSERT(!engine->running && engine->n_live == 0);
    int rc = check_job(engine, job, err);
    if (rc != OK) return rc;
    const struct model *model = engine->model;
    uint32_t n_pages = (uint32_t)div_ceil(job->n_tokens, PAGE_TOKENS);
    struct run run = {.engine = engine, .job = job, .row = row, .arg = arg};
    run.pages = calloc(n_pages, sizeof *run.pages);
    run.logits = calloc(model->shape.vocab_size, sizeof *run.logits);
    if (!run.pages || !run.logits || page_pool_acquire(engine->pool, n_pages, run.pages) != OK) {
        free(run.pages);
        free(run.logits);
        return err_set(err, ERR_NOMEM, "no memory for %u tokens", job->n_tokens);
    }
    model->kernels->pages_clear(model->device, run.pages, n_pages);
    uint32_t chunk = engine->limits.max_rows / (model->shape.orthros ? 2 : 1);
    if (job->all && chunk > engine->limits.max_logit_rows) chunk = engine->limits.max_logit_rows;
    if (job->chunk && job->chunk < chunk) chunk = job->chunk;
    for (uint32_t pos = 0; rc == OK && pos < job->n_tokens; pos += chunk) {
        uint32_t n = job->n_tokens - pos < chunk ? job->n_tokens - pos : chunk;
        uint32_t n_logits = job->all ? n : pos + n == job->n_tokens ? 1 : 0;
        rc = prefill_chunk(&run, pos, n, job->draft ? 0 : n_logits);
    }
    if (rc == OK && job->draft) rc = draft_block(&run);
    if (rc != OK) {
        const char *fault = model->kernels->fault ? model->kernels->fault(model->device) : NULL;
        err_set(err, rc, "the device failed%s%s", fault ? ": " : "", fault ? fault : "");
    }
    for (uint32_t i = 0; i < n_pages; i++)
        page_pool_release(engine->pool, run.pages[i]);
    free(run.pages);
    free(run.logits);
    return rc;
}
