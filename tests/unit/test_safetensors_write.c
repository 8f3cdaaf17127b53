/* Weights written by our writer, read by our reader: layout, shards, index. */
#include "engine/load/safetensors_write.h"

#include <unistd.h>

#include "engine/load/safetensors.h"
#include "tests/unit/model_files.h"

static const struct safetensors_entry entries[] = {
    {"a.weight", "I8", 2, {3, 32}, false},    {"a.weight_scale", "F16", 2, {3, 1}, true},
    {"b", "F32", 1, {5, 0}, false},           {"c", "BF16", 2, {2, 7}, false},
    {"d.weight", "U8", 2, {1, 16}, false},    {"d.weight_scale", "F16", 2, {1, 1}, true},
    {"d.weight_min", "F16", 2, {1, 1}, true}, {"e \"quoted\"", "F32", 2, {1, 1}, false},
};

static uint8_t byte_of(size_t entry, size_t at) {
    return (uint8_t)(entry * 37 + at);
}

static struct safetensors_writer *create(struct out_dir *dir, uint64_t shard_bytes) {
    struct safetensors_writer *w = NULL;
    struct err err = {0};
    if (safetensors_writer_create(dir, entries, ARRAY_LEN(entries), shard_bytes, &w, &err))
        fail_msg("%s", err.msg);
    return w;
}

/* Everything in pieces of up to 7 bytes, each entry from its end to its start. */
static void put_all(struct safetensors_writer *w) {
    struct err err = {0};
    for (size_t i = 0; i < ARRAY_LEN(entries); i++) {
        uint64_t left = safetensors_entry_bytes(&entries[i]);
        while (left > 0) {
            size_t n = left < 7 ? (size_t)left : 7;
            uint8_t data[7];
            left -= n;
            for (size_t k = 0; k < n; k++)
                data[k] = byte_of(i, (size_t)left + k);
            if (safetensors_writer_put(w, i, left, data, n, &err)) fail_msg("%s", err.msg);
        }
    }
}

static size_t element_size(const char *dtype) {
    return !strcmp(dtype, "F32") ? 4 : dtype[strlen(dtype) - 1] == '6' ? 2 : 1;
}

/* The entries of one file are whole; marks them in seen. */
static void check_file(const char *path, bool seen[ARRAY_LEN(entries)]) {
    size_t len;
    char *data = read_file(path, &len);
    uint64_t n;
    struct err err = {0};
    struct safetensors *h = NULL;
    if (safetensors_header_bytes(data, 8, len, "file", &n, &err) ||
        safetensors_parse_header(data + 8, (size_t)n, len - 8 - n, "file", &h, &err))
        fail_msg("%s: %s", path, err.msg);
    assert_int_equal(n % 8, 0);
    assert_non_null(strstr(data + 8, "\"format\":\"pt\""));
    for (size_t t = 0; t < h->n_tensors; t++) {
        size_t i = 0;
        while (i < ARRAY_LEN(entries) && strcmp(entries[i].name, h->tensors[t].name) != 0)
            i++;
        assert_true(i < ARRAY_LEN(entries) && !seen[i]);
        seen[i] = true;
        assert_string_equal(h->tensors[t].dtype, entries[i].dtype);
        assert_int_equal(h->tensors[t].n_dims, entries[i].n_dims);
        assert_memory_equal(h->tensors[t].shape, entries[i].shape, entries[i].n_dims * 8);
        assert_int_equal(h->tensors[t].begin % element_size(entries[i].dtype), 0);
        uint64_t bytes = safetensors_entry_bytes(&entries[i]);
        assert_int_equal(h->tensors[t].end - h->tensors[t].begin, bytes);
        for (size_t k = 0; k < bytes; k++)
            assert_int_equal((uint8_t)data[8 + n + h->tensors[t].begin + k], byte_of(i, k));
    }
    safetensors_destroy(h);
    free(data);
}

static void one_file_when_it_fits(void **state) {
    (void)state;
    const char *path = keep(path_in(keep(scratch_dir()), "out"));
    struct out_dir *dir;
    struct err err;
    assert_int_equal(out_dir_create(path, &dir, &err), OK);
    struct safetensors_writer *w = create(dir, 1 << 20);
    put_all(w);
    assert_int_equal(safetensors_writer_finish(w, &err), OK);
    assert_int_equal(safetensors_writer_n_files(w), 1);
    bool seen[ARRAY_LEN(entries)] = {false};
    check_file(path_in(path, "model.safetensors"), seen);
    for (size_t i = 0; i < ARRAY_LEN(entries); i++)
        assert_true(seen[i]);
    assert_int_not_equal(access(path_in(path, "model.safetensors.index.json"), F_OK), 0);
    safetensors_writer_destroy(w);
    assert_int_equal(out_dir_commit(dir, "config.json", "{}", 2, &err), OK);
    out_dir_destroy(dir);
}

/* 102 bytes of a with its scales are over the bound and stay together; 20 + 28 fit in one file; d's
 * three with e. */
static void shards_keep_scales_beside_their_weight(void **state) {
    (void)state;
    static const uint32_t file_of[] = {1, 1, 2, 2, 3, 3, 3, 3};
    const char *path = keep(path_in(keep(scratch_dir()), "out"));
    struct out_dir *dir;
    struct err err;
    assert_int_equal(out_dir_create(path, &dir, &err), OK);
    struct safetensors_writer *w = create(dir, 50);
    put_all(w);
    assert_int_equal(safetensors_writer_finish(w, &err), OK);
    assert_int_equal(safetensors_writer_n_files(w), 3);
    bool seen[ARRAY_LEN(entries)] = {false};
    char *index = read_file(path_in(path, "model.safetensors.index.json"), NULL);
    assert_non_null(strstr(index, "\"total_size\": 174"));
    for (uint32_t f = 1; f <= 3; f++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05u-of-00003.safetensors", f);
        check_file(path_in(path, name), seen);
        for (size_t i = 0; i < ARRAY_LEN(entries); i++)
            assert_true(seen[i] == (file_of[i] <= f));
    }
    assert_non_null(strstr(index, "\"a.weight_scale\": \"model-00001-of-00003.safetensors\""));
    assert_non_null(strstr(index, "\"d.weight_min\": \"model-00003-of-00003.safetensors\""));
    free(index);
    safetensors_writer_destroy(w);
    out_dir_destroy(dir);
    assert_int_not_equal(access(path, F_OK), 0);
}

static void too_many_shards_are_refused(void **state) {
    (void)state;
    const char *path = keep(path_in(keep(scratch_dir()), "out"));
    struct out_dir *dir;
    struct err err;
    assert_int_equal(out_dir_create(path, &dir, &err), OK);
    static struct safetensors_entry many[1001];
    for (size_t i = 0; i < ARRAY_LEN(many); i++)
        many[i] = (struct safetensors_entry){"x", "F32", 1, {4, 0}, false};
    struct safetensors_writer *w = NULL;
    assert_int_equal(safetensors_writer_create(dir, many, 1001, 16, &w, &err), ERR_TOO_LONG);
    assert_null(w);
    assert_non_null(strstr(err.msg, "1001"));
    assert_int_equal(safetensors_writer_create(dir, many, 1001, 32, &w, &err), OK);
    assert_int_equal(safetensors_writer_n_files(w), 501);
    safetensors_writer_destroy(w);
    out_dir_destroy(dir);
}

static void a_tensor_that_is_not_whole_asserts(void **state) {
    (void)state;
    const char *path = keep(path_in(keep(scratch_dir()), "out"));
    struct out_dir *dir;
    struct err err;
    assert_int_equal(out_dir_create(path, &dir, &err), OK);
    struct safetensors_writer *w = create(dir, 1 << 20);
    assert_int_equal(safetensors_writer_put(w, 2, 0, "1234", 4, &err), OK);
    assert_trips(safetensors_writer_finish(w, &err));
    assert_trips(safetensors_writer_put(w, 2, 18, "1234", 4, &err));
    safetensors_writer_destroy(w);
    out_dir_destroy(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_file_when_it_fits),
        cmocka_unit_test(shards_keep_scales_beside_their_weight),
        cmocka_unit_test(too_many_shards_are_refused),
        cmocka_unit_test(a_tensor_that_is_not_whole_asserts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
