/* Flags: values, ranges, environment twins, messages. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/options.h"

static const char *env_names[4], *env_values[4];

static const char *fake_env(const char *name) {
    for (size_t i = 0; i < 4; i++)
        if (env_names[i] && !strcmp(env_names[i], name)) return env_values[i];
    return NULL;
}

static void set_env(const char *name, const char *value) {
    for (size_t i = 0; i < 4; i++) {
        if (env_names[i]) continue;
        env_names[i] = name;
        env_values[i] = value;
        return;
    }
    fail();
}

static int reset(void **state) {
    (void)state;
    memset(env_names, 0, sizeof env_names);
    return 0;
}

/* line: words between blanks. */
static int parse(struct options *options, const char *line, struct err *err) {
    static char copy[1024];
    static char *argv[64];
    int argc = 0;
    snprintf(copy, sizeof copy, "geryon %s", line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    return options_parse(options, argc, argv, fake_env, err);
}

static void serve_has_the_documented_defaults(void **state) {
    (void)state;
    struct options o;
    struct err err = {0};
    assert_int_equal(parse(&o, "serve --model m", &err), OK);
    assert_int_equal(o.command, COMMAND_SERVE);
    assert_string_equal(o.model, "m");
    assert_string_equal(o.host, "127.0.0.1");
    assert_int_equal(o.port, 8080);
    assert_string_equal(o.dtype, "auto");
    assert_string_equal(o.activations, "auto");
    assert_int_equal(o.max_num_seqs, 64);
    assert_int_equal(o.max_queued_requests, 1024);
    assert_true(o.max_body_bytes == 32u << 20);
    assert_int_equal(o.max_connections, 4096);
    assert_false(o.max_connections_set);
    assert_int_equal(o.drafts, -1);
    assert_true(o.sse_keepalive == 15 && o.shutdown_timeout == 30 && o.watchdog == 30);
    assert_true(o.queue_timeout == 0 && o.request_timeout == 0);
    assert_int_equal(o.served_model_names.n, 0);
    assert_int_equal(o.max_n, 16);
    assert_int_equal(o.max_choices, 128);
    assert_string_equal(o.scheduling, "fcfs");
    assert_string_equal(o.sampling_defaults, "request");
    assert_false(o.seeded_by_default);
    options_fini(&o);
}

static void offline_commands_set_memory_aside_for_one_sequence(void **state) {
    (void)state;
    struct options o;
    struct err err = {0};
    assert_int_equal(parse(&o, "generate --model m --prompt x", &err), OK);
    assert_int_equal(o.max_num_seqs, 1);
    assert_true(o.temperature == 0);
}

static void flags_take_values_in_both_forms_and_by_alias(void **state) {
    (void)state;
    struct options o;
    struct err err = {0};
    assert_int_equal(parse(&o,
                           "serve --model=m -np 3 -c 77 --drafts 8 --kv-memory 512M "
                           "--served-model-name a --served-model-name=b --strict-params",
                           &err),
                     OK);
    assert_int_equal(o.max_num_seqs, 3);
    assert_int_equal(o.max_model_len, 77);
    assert_int_equal(o.drafts, 8);
    assert_true(o.kv_memory == 512u << 20);
    assert_int_equal(o.served_model_names.n, 2);
    assert_string_equal(o.served_model_names.items[1], "b");
    assert_true(o.strict_params);
}

static void the_environment_fills_in_and_the_flag_wins(void **state) {
    (void)state;
    struct options o;
    struct err err = {0};
    set_env("GERYON_PORT", "9");
    set_env("GERYON_MAX_NUM_SEQS", "5");
    set_env("GERYON_SERVED_MODEL_NAME", "x,y,z");
    set_env("API_KEY", "k1,k2");
    assert_int_equal(parse(&o, "serve --model m --port 10", &err), OK);
    assert_int_equal(o.port, 10);
    assert_int_equal(o.max_num_seqs, 5);
    assert_int_equal(o.served_model_names.n, 3);
    assert_string_equal(o.served_model_names.items[2], "z");
    assert_int_equal(o.api_keys.n, 2);
    options_fini(&o);
}

static void a_repeatable_flag_replaces_its_twin(void **state) {
    (void)state;
    struct options o;
    struct err err = {0};
    set_env("GERYON_API_KEY", "from-env");
    assert_int_equal(parse(&o, "serve --model m --api-key from-flag", &err), OK);
    assert_int_equal(o.api_keys.n, 1);
    assert_string_equal(o.api_keys.items[0], "from-flag");
    options_fini(&o);
}

static void an_empty_list_in_the_environment_is_refused(void **state) {
    (void)state;
    struct options o;
    for (int i = 0; i < 2; i++) {
        struct err err = {0};
        set_env("GERYON_API_KEY", i ? "," : "");
        assert_int_equal(parse(&o, "serve --model m", &err), ERR_INVALID);
        assert_non_null(strstr(err.msg, "GERYON_API_KEY"));
        options_fini(&o);
    }
}

static void a_synthetic_model_takes_the_place_of_the_variable(void **state) {
    (void)state;
    struct options o;
    struct err err = {0};
    set_env("GERYON_MODEL", "/models/m.gguf");
    assert_int_equal(parse(&o, "bench --synthetic qwen3-8b", &err), OK);
    assert_null(o.model);
    options_fini(&o);
}

static void flags_without_a_command_serve(void **state) {
    (void)state;
    struct options o;
    struct err err = {0};
    assert_int_equal(parse(&o, "--model m --port 0", &err), OK);
    assert_int_equal(o.command, COMMAND_SERVE);
}

static void numbers_between_commas_keep_their_order(void **state) {
    (void)state;
    struct options o;
    struct err err = {0};
    assert_int_equal(parse(&o, "bench --synthetic qwen3-8b --batch 8,1,8", &err), OK);
    assert_int_equal(o.batch.n, 3);
    assert_int_equal(o.batch.items[0], 8);
    assert_int_equal(o.batch.items[1], 1);
    assert_int_equal(o.batch.items[2], 8);
    assert_int_equal(o.prompt_tokens.n, 2); /* the default */
    assert_int_equal(o.prompt_tokens.items[1], 2048);
    assert_false(o.forced_window.set);
    options_fini(&o);
    assert_int_equal(parse(&o, "bench --model m --accept 3", &err), OK);
    assert_true(o.forced_accept.set && o.forced_accept.value == 3 && !o.forced_window.set);
    assert_int_equal(parse(&o, "bench --model m --window 0", &err), OK);
    assert_true(o.forced_window.set);
    assert_int_equal(o.forced_window.value, 0);
    options_fini(&o);
}

static void choices_and_their_order_have_flags_and_twins(void **state) {
    (void)state;
    struct options o;
    struct err err = {0};
    set_env("GERYON_SEEDED_BY_DEFAULT", "true");
    set_env("GERYON_SAMPLING_DEFAULTS", "model");
    set_env("GERYON_MAX_CHOICES", "7");
    assert_int_equal(parse(&o, "serve --model m --max-n 1024 --scheduling priority", &err), OK);
    assert_int_equal(o.max_n, 1024);
    assert_int_equal(o.max_choices, 7);
    assert_string_equal(o.scheduling, "priority");
    assert_string_equal(o.sampling_defaults, "model");
    assert_true(o.seeded_by_default);
    options_fini(&o);
}

static void bad_values_are_refused_by_name_and_range(void **state) {
    (void)state;
    static const struct {
        const char *line, *names, *range;
    } CASES[] = {
        {"serve --model m --port 65536", "--port", "from 0 to 65535"},
        {"serve --model m --port -1", "--port", "from 0 to 65535"},
        {"serve --model m --port x", "--port", "from 0 to 65535"},
        {"serve --model m --port 1.5", "--port", "from 0 to 65535"},
        {"serve --model m -np 0", "--max-num-seqs", "from 1 to 4096"},
        {"serve --model m --dtype f8", "--dtype", "auto|f32|bf16|f16|q8_0|q4_0"},
        {"serve --model m --dtype f32|bf16", "--dtype", "auto|f32|bf16|f16|q8_0|q4_0"},
        {"serve --model m --activations fp8", "--activations", "auto|f32|bf16|int8"},
        {"serve --model m --backend gpu", "--backend", "auto|cpu|cuda"},
        {"serve --model m --cpu-table sse", "--cpu-table", "auto|ref|avx2|avx512|amx"},
        {"serve --model m --drafts ngrams", "--drafts",
         "auto, off, ngram, or a whole number from 2 to 64"},
        {"serve --model m --drafts 65", "--drafts", "from 2 to 64"},
        {"serve --model m --drafts 1", "--drafts", "from 2 to 64"},
        {"serve --model m --max-num-batched-tokens 7", "--max-num-batched-tokens",
         "from 8 to 65536"},
        {"serve --model m --kv-memory 4X", "--kv-memory", "such as 512M or 4G"},
        {"serve --model m --max-body-bytes 1", "--max-body-bytes", "from 1K to 1G"},
        {"serve --model m --watchdog nan", "--watchdog", "from 1 to 3600"},
        {"generate --model m --temperature 2.1", "--temperature", "from 0 to 2"},
        {"generate --model m --seed 9223372036854775808", "--seed", "64-bit"},
        {"bench --model m --batch 1,,8", "--batch", "1 to 16 whole numbers from 1 to 4096"},
        {"bench --model m --batch 1,8,", "--batch", "1 to 16 whole numbers from 1 to 4096"},
        {"bench --model m --batch 4097", "--batch", "1 to 16 whole numbers from 1 to 4096"},
        {"bench --model m --batch 99999999999999999999", "--batch", "from 1 to 4096"},
        {"bench --model m --batch 1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8", "--batch", "1 to 16"},
        {"bench --model m --prompt-tokens -1", "--prompt-tokens", "whole numbers from 1"},
        {"bench --model m --window -1", "--window", "from 0 to 16777216"},
        {"bench --model m --accept 64", "--accept", "from 0 to 63"},
        {"serve --model m --max-n 0", "--max-n", "from 1 to 1024"},
        {"serve --model m --max-n 1025", "--max-n", "from 1 to 1024"},
        {"serve --model m --max-choices 0", "--max-choices", "from 1 to 4096"},
        {"serve --model m --max-choices 4097", "--max-choices", "from 1 to 4096"},
        {"serve --model m --scheduling lifo", "--scheduling", "fcfs|priority"},
        {"serve --model m --sampling-defaults api", "--sampling-defaults", "request|model"},
        {"serve --model m --seeded-by-default=7", "--seeded-by-default", "true or false"},
        {"serve --model m --port", "--port", "value missing"},
        {"serve --model m --strict-params=maybe", "--strict-params", "true or false"},
        {"serve --model", "--model", "value missing"},
        {"serve", "--model", "required"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        struct options o;
        struct err err = {0};
        assert_int_equal(parse(&o, CASES[i].line, &err), ERR_INVALID);
        if (!strstr(err.msg, CASES[i].names) || !strstr(err.msg, CASES[i].range))
            fail_msg("%s: %s", CASES[i].line, err.msg);
        options_fini(&o);
    }
}

static void a_bad_environment_value_names_the_variable(void **state) {
    (void)state;
    struct options o;
    struct err err = {0};
    set_env("GERYON_PORT", "many");
    assert_int_equal(parse(&o, "serve --model m", &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "GERYON_PORT"));
}

static void unknown_words_are_refused(void **state) {
    (void)state;
    struct options o;
    struct err err = {0};
    assert_int_equal(parse(&o, "serve --model m --frob 3", &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "--frob"));
    assert_int_equal(parse(&o, "serve --model m extra", &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "extra"));
    assert_int_equal(parse(&o, "swerve --model m", &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "swerve"));
    /* a flag of another command */
    assert_int_equal(parse(&o, "serve --model m --temperature 1", &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "--temperature"));
}

static void a_list_has_a_bound(void **state) {
    (void)state;
    struct options o;
    struct err err = {0};
    char many[512] = "";
    for (int i = 0; i < 65; i++)
        strcat(many, i ? ",k" : "k");
    set_env("GERYON_API_KEY", many);
    assert_int_equal(parse(&o, "serve --model m", &err), ERR_INVALID);
    options_fini(&o);
}

static void sizes_are_powers_of_1024(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } GOOD[] = {{"0", 0},        {"17", 17},           {"1K", 1024},       {"2k", 2048},
                {"3M", 3 << 20}, {"4GiB", 4ull << 30}, {"5T", 5ull << 40}, {"6MB", 6 << 20}};
    static const char *const BAD[] = {
        "",   "M", "-1", "1.5G", "1P", "1MM", "18446744073709551616", "18014398509481984K",
        " 1", "1 "};
    for (size_t i = 0; i < sizeof GOOD / sizeof GOOD[0]; i++) {
        uint64_t bytes = 1;
        assert_int_equal(options_parse_size(GOOD[i].text, &bytes), OK);
        assert_true(bytes == GOOD[i].bytes);
    }
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        uint64_t bytes = 42;
        assert_int_equal(options_parse_size(BAD[i], &bytes), ERR_INVALID);
        assert_true(bytes == 42);
    }
}

static void convert_takes_two_words(void **state) {
    (void)state;
    struct options o;
    struct err err = {0};
    assert_int_equal(parse(&o, "convert in --orthrus 8 out --dtype q4_1 --mask-token=0", &err), OK);
    assert_string_equal(o.arguments[0], "in");
    assert_string_equal(o.arguments[1], "out");
    assert_true(o.orthrus.set && o.orthrus.value == 8 && o.mask_token.set && !o.orthros.set);
    assert_string_equal(o.dtype, "q4_1");
    assert_true(o.max_shard_size == 4ull << 30);
    options_fini(&o);
    static const char *const bad[][2] = {{"convert", "IN"},
                                         {"convert in", "OUT"},
                                         {"convert in out more", "more"},
                                         {"convert in out --orthrus 1", "--orthrus"},
                                         {"convert in out --orthros 0", "--orthros"},
                                         {"serve in --model m", "\"in\""},
                                         {"serve --model m --dtype q4_1", "--dtype"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(parse(&o, bad[i][0], &err), ERR_INVALID);
        if (!strstr(err.msg, bad[i][1])) fail_msg("%s: %s", bad[i][0], err.msg);
        options_fini(&o);
    }
}

static void help_lists_every_flag_of_a_command(void **state) {
    (void)state;
    struct err err = {0};
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    assert_non_null(out);
    assert_int_equal(options_help(out, "serve", &err), OK);
    fclose(out);
    assert_non_null(strstr(text, "--max-num-seqs, -np, --parallel N"));
    assert_non_null(strstr(text, "GERYON_MAX_NUM_SEQS"));
    assert_non_null(strstr(text, "default 64"));
    assert_null(strstr(text, "--temperature"));
    free(text);
    out = fopen("/dev/null", "w");
    assert_int_equal(options_help(out, "swerve", &err), ERR_INVALID);
    fclose(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(serve_has_the_documented_defaults, reset),
        cmocka_unit_test_setup(offline_commands_set_memory_aside_for_one_sequence, reset),
        cmocka_unit_test_setup(flags_take_values_in_both_forms_and_by_alias, reset),
        cmocka_unit_test_setup(the_environment_fills_in_and_the_flag_wins, reset),
        cmocka_unit_test_setup(a_repeatable_flag_replaces_its_twin, reset),
        cmocka_unit_test_setup(an_empty_list_in_the_environment_is_refused, reset),
        cmocka_unit_test_setup(a_synthetic_model_takes_the_place_of_the_variable, reset),
        cmocka_unit_test_setup(flags_without_a_command_serve, reset),
        cmocka_unit_test_setup(numbers_between_commas_keep_their_order, reset),
        cmocka_unit_test_setup(choices_and_their_order_have_flags_and_twins, reset),
        cmocka_unit_test_setup(bad_values_are_refused_by_name_and_range, reset),
        cmocka_unit_test_setup(a_bad_environment_value_names_the_variable, reset),
        cmocka_unit_test_setup(unknown_words_are_refused, reset),
        cmocka_unit_test_setup(a_list_has_a_bound, reset),
        cmocka_unit_test_setup(sizes_are_powers_of_1024, reset),
        cmocka_unit_test_setup(convert_takes_two_words, reset),
        cmocka_unit_test_setup(help_lists_every_flag_of_a_command, reset),
    };
    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
