/* The tokenizer that SmolLM2's GGUF file describes, against Hugging Face's ids. Runs when
 * GERYON_TEST_GGUF names the file. */
#include "tests/unit/tokenizer_golden.h"

static void ids_from_the_gguf_vocabulary_are_those_of_hugging_face(void **state) {
    (void)state;
    const char *path = getenv("GERYON_TEST_GGUF");
    if (!path || !*path) skip();
    struct model_options options = {.path = path, .dtype = "auto", .cpu_table = "auto"};
    struct model *model = NULL;
    struct err err = {0};
    if (model_load(&options, &model, &err)) fail_msg("%s", err.msg);
    run_golden(model, "tokenizer-smollm2.json");
    assert_int_equal(tokenizer_n_tokens(model->tokenizer), 49152);
    assert_int_equal(tokenizer_bos(model->tokenizer), 1);
    assert_int_equal(tokenizer_eos(model->tokenizer), 2);
    assert_false(tokenizer_adds_bos(model->tokenizer));
    model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_from_the_gguf_vocabulary_are_those_of_hugging_face),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
