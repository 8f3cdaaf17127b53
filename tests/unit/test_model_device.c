/* Models on real devices, CPU tables and the CUDA one: what loading, failing and closing leave behind. */
#include <unistd.h>

#include "engine/engine.h"
#include "engine/load/model_internal.h"
#include "tests/unit/model_files.h"
#include "tests/unit/tables.h"

#define EVERYTHING "qwen3-orthros-standard-orthrus"

/* A table whose load goes wrong at one weight. */
enum mishap { NONE, WRONG_SHAPE, FILE_CUT, CANCELLED };
static struct {
    struct kernels table;
    const struct kernels *real;
    enum mishap mishap;
    uint32_t n_left; /* weights before it */
    const char *path;
    struct load_progress progress;
} fault;

static int load_until(struct device *dev, enum weight which, uint32_t layer,
                      const struct tensor *src, struct err *err) {
    struct tensor t = *src;
    if (fault.n_left > 0 && --fault.n_left == 0) {
        if (fault.mishap == WRONG_SHAPE) t.rows--;
        if (fault.mishap == FILE_CUT) assert_int_equal(truncate(fault.path, 4096), 0);
        if (fault.mishap == CANCELLED) atomic_store(&fault.progress.cancel, true);
    }
    return fault.real->load(dev, which, layer, &t, err);
}

static const char *copy_model(void) {
    static const char *const files[] = {"config.json", "tokenizer.json", "model.safetensors"};
    const char *dir = keep(scratch_dir());
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        copy_golden(EVERYTHING, files[i], dir);
    return dir;
}

static uint64_t bytes_left(const struct kernels *k) {
    return k->memory_left ? k->memory_left(NULL) : 0;
}

static size_t in_use(void) {
    return tables_are_cuda() ? cuda_peek_in_use() : 0;
}

static void failed_loads_give_everything_back(void **state) {
    (void)state;
    static const char *const words[] = {"", "config wants", "the file ends", "cancelled"};
    for (uint32_t i = 0; i < n_tables; i++)
        for (enum mishap mishap = WRONG_SHAPE; mishap <= CANCELLED; mishap++)
            for (uint32_t after = 1; after <= 41; after += 20) {
                const char *dir = copy_model();
                struct model *m = NULL;
                struct err err = {0};
                fault.real = tables[i];
                fault.table = *tables[i];
                fault.table.load = load_until;
                fault.mishap = mishap;
                fault.n_left = after;
                fault.path = keep(path_in(dir, "model.safetensors"));
                atomic_store(&fault.progress.cancel, false);
                struct model_options options = {
                    .path = dir, .n_threads = 3, .progress = &fault.progress};
                uint64_t left = bytes_left(tables[i]);
                size_t used = in_use();
                int rc = model_load_on(&options, &fault.table, &m, &err);
                if (rc == OK || !strstr(err.msg, words[mishap]))
                    fail_msg("%s, after %u weights: %s", words[mishap], after, err.msg);
                assert_null(m);
                assert_int_equal(bytes_left(tables[i]), left);
                assert_int_equal(in_use(), used);
                unlink(fault.path);
            }
}

static void submit_text(struct engine *engine, struct request *request) {
    static int32_t prompt[] = {5, 6, 7, 8, 9};
    struct err err;
    *request = (struct request){.id = 1, .max_tokens = 12, .n_prompt = 5, .prompt = prompt};
    sampling_defaults(&request->sampling);
    request->sampling.temperature = 0;
    request->sampling.ignore_eos = true;
    if (engine_submit(engine, request, &err) != OK) fail_msg("%s", err.msg);
}

/* Graphs and events that a text made are gone as well. */
static void closed_models_give_everything_back(void **state) {
    (void)state;
    for (uint32_t i = 0; i < n_tables; i++) {
        uint64_t left = bytes_left(tables[i]);
        size_t used = in_use();
        for (int round = 0; round < 2; round++) {
            char path[256];
            snprintf(path, sizeof path, "%s", golden_path(EVERYTHING));
            struct load_progress progress = {0};
            struct model_options options = {.path = path, .n_threads = 2, .progress = &progress};
            if (tiles_are_emulated()) options.activations = "bf16";
            struct model *m = NULL;
            struct engine *engine = NULL;
            struct engine_config config;
            struct err err = {0};
            if (model_load_on(&options, tables[i], &m, &err)) fail_msg("%s", err.msg);
            assert_int_equal(atomic_load(&progress.phase), LOAD_CACHE);
            assert_int_equal(atomic_load(&progress.permille), 900);
            engine_config_defaults(&config);
            config.max_num_seqs = 2;
            config.max_model_len = 64;
            config.drafts = 4;
            if (engine_create(m, &config, &engine, &err)) fail_msg("%s", err.msg);
            if (tables_are_cuda()) assert_true(bytes_left(tables[i]) < left);
            struct request request;
            struct event event;
            submit_text(engine, &request);
            for (uint64_t t = 0; engine_step(engine, t) > 0; t++)
                while (engine_next_event(engine, &event))
                    assert_int_not_equal(event.kind, EVENT_FAILED);
            engine_destroy(engine);
            model_destroy(m);
            assert_int_equal(bytes_left(tables[i]), left);
            assert_int_equal(in_use(), used);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failed_loads_give_everything_back),
        cmocka_unit_test(closed_models_give_everything_back),
    };
    tables_find();
    return cmocka_run_group_tests_name("model_device", tests, NULL, NULL);
}
