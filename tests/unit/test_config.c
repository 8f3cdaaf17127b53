/* config.json: what is understood, what is refused by name and value, and the rope tables. */
#include "engine/load/config.h"

#include <math.h>

#include "tests/unit/model_files.h"

/* A small llama with one more (or another) member in front: keys are looked up, not ordered. */
static int parse_with(const char *members, struct config *c, struct err *err) {
    static const char *const base[][2] = {
        {"model_type", "\"llama\""},
        {"vocab_size", "320"},
        {"hidden_size", "64"},
        {"intermediate_size", "96"},
        {"num_hidden_layers", "3"},
        {"num_attention_heads", "4"},
        {"max_position_embeddings", "1024"},
    };
    char json[4096], key[64];
    size_t n = (size_t)snprintf(json, sizeof json, "{%s", members);
    bool first = !*members;
    for (size_t i = 0; i < ARRAY_LEN(base); i++) {
        snprintf(key, sizeof key, "\"%s\":", base[i][0]);
        if (strstr(members, key)) continue;
        n += (size_t)snprintf(json + n, sizeof json - n, "%s%s%s", first ? "" : ",", key,
                              base[i][1]);
        first = false;
    }
    n += (size_t)snprintf(json + n, sizeof json - n, "}");
    char *copy = guard_copy(json, n);
    int rc = config_parse(copy, n, "config.json", c, err);
    guard_free(copy, n);
    return rc;
}

static void accepted(const char *members, struct config *c) {
    struct err err = {0};
    if (parse_with(members, c, &err)) fail_msg("%s: %s", members, err.msg);
}

static void accepted_only(const char *members) {
    struct config c;
    accepted(members, &c);
    config_fini(&c);
}

static void refused(const char *members, const char *word) {
    struct config c;
    struct err err = {0};
    if (parse_with(members, &c, &err) == OK) fail_msg("accepted: %s", members);
    if (!strstr(err.msg, word) || !strstr(err.msg, "config.json"))
        fail_msg("%s: message \"%s\" lacks \"%s\"", members, err.msg, word);
}

static void defaults_of_absent_keys(void **state) {
    (void)state;
    struct config c;
    accepted("", &c);
    assert_int_equal(c.backbone, BACKBONE_LLAMA);
    assert_int_equal(c.shape.n_kv_heads, 4);
    assert_int_equal(c.shape.head_dim, 16);
    assert_true(c.shape.rms_eps == 1e-6f);
    assert_true(c.rope.theta == 10000);
    assert_false(c.shape.tied_head || c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm);
    assert_false(c.shape.orthros || c.shape.n_msar_streams);
    assert_int_equal(c.shape.block_size, 0);
    assert_int_equal(c.n_eos, 0);
    assert_true(c.shape.rope_scale == 1);
    config_fini(&c);
    accepted("\"model_type\":\"qwen3\"", &c);
    assert_int_equal(c.shape.head_dim, 128);
    assert_true(c.qk_norm);
    config_fini(&c);
    accepted("\"model_type\":\"qwen2\"", &c);
    assert_true(c.qkv_bias && !c.o_bias && !c.qk_norm);
    config_fini(&c);
    accepted("\"attention_bias\":true,\"mlp_bias\":true,\"tie_word_embeddings\":true", &c);
    assert_true(c.qkv_bias && c.o_bias && c.mlp_bias && c.shape.tied_head);
    config_fini(&c);
}

static void every_golden_configuration_is_understood(void **state) {
    (void)state;
    static const struct {
        const char *name;
        enum backbone backbone;
        uint32_t n_layers, window, block_size;
        bool msar, tied;
    } cases[] = {
        {"qwen3-single-standard-none", BACKBONE_QWEN3, 3, 0, 0, false, true},
        {"qwen2-single-standard-none", BACKBONE_QWEN2, 2, 0, 0, false, true},
        {"llama-single-standard-none-rope-llama3-untied", BACKBONE_LLAMA, 3, 0, 0, false, false},
        {"llama-single-standard-none-rope-linear-sharded", BACKBONE_LLAMA, 2, 0, 0, false, true},
        {"qwen3-single-standard-none-rope-yarn", BACKBONE_QWEN3, 2, 0, 0, false, false},
        {"llama-orthros-standard-none", BACKBONE_LLAMA, 3, 8, 0, false, true},
        {"qwen3-single-standard-orthrus", BACKBONE_QWEN3, 3, 0, 8, false, true},
        {"qwen3-single-standard-orthrus-bf16", BACKBONE_QWEN3, 3, 0, 8, false, false},
        {"qwen3-orthros-standard-orthrus", BACKBONE_QWEN3, 3, 8, 8, false, true},
        {"llama-single-msar-none", BACKBONE_LLAMA, 4, 0, 0, true, true},
        {"qwen3-orthros-msar-none-f16", BACKBONE_QWEN3, 4, 8, 0, true, true},
        {"qwen3-single-msar-orthrus-bf16", BACKBONE_QWEN3, 4, 0, 8, true, true},
        {"qwen3-orthros-msar-orthrus", BACKBONE_QWEN3, 4, 8, 8, true, true},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char path[256];
        size_t n;
        snprintf(path, sizeof path, "%s/config.json", cases[i].name);
        char *json = read_file(golden_path(path), &n);
        struct config c;
        struct err err = {0};
        if (config_parse(json, n, "config.json", &c, &err))
            fail_msg("%s: %s", cases[i].name, err.msg);
        free(json);
        assert_int_equal(c.backbone, cases[i].backbone);
        assert_int_equal(c.shape.n_layers, cases[i].n_layers);
        assert_int_equal(c.shape.orthros ? c.shape.window : 0, cases[i].window);
        assert_int_equal(c.shape.block_size, cases[i].block_size);
        if (cases[i].block_size) assert_int_equal(c.shape.mask_token, 315);
        assert_int_equal(c.shape.n_msar_streams, cases[i].msar ? 4 : 0);
        assert_int_equal(c.shape.tied_head, cases[i].tied);
        assert_int_equal(c.shape.head_dim, 16);
        assert_int_equal(c.shape.vocab_size, 320);
        config_fini(&c);
    }
}

/* The forms in which the large families are published, keys as their files have them. */
static void published_forms_are_accepted(void **state) {
    (void)state;
    static const char *const files[] = {
        /* SmolLM2 */
        "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,"
        "\"attention_dropout\":0.0,\"bos_token_id\":1,\"eos_token_id\":2,\"hidden_act\":\"silu\","
        "\"hidden_size\":576,\"initializer_range\":0.041666666666666664,"
        "\"intermediate_size\":1536,\"is_llama_config\":true,\"max_position_embeddings\":8192,"
        "\"mlp_bias\":false,\"model_type\":\"llama\",\"num_attention_heads\":9,"
        "\"num_hidden_layers\":30,\"num_key_value_heads\":3,\"pad_token_id\":2,"
        "\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"rope_interleaved\":false,"
        "\"rope_scaling\":null,\"rope_theta\":100000,\"tie_word_embeddings\":true,"
        "\"torch_dtype\":\"bfloat16\",\"transformers.js_config\":{\"kv_cache_dtype\":{\"q4f16\":"
        "\"float16\"}},\"transformers_version\":\"4.42.3\",\"use_cache\":true,"
        "\"vocab_size\":49152}",
        /* Llama 3.2 */
        "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,"
        "\"attention_dropout\":0.0,\"bos_token_id\":128000,\"eos_token_id\":[128001,128008,128009],"
        "\"head_dim\":64,\"hidden_act\":\"silu\",\"hidden_size\":2048,\"initializer_range\":0.02,"
        "\"intermediate_size\":8192,\"max_position_embeddings\":131072,\"mlp_bias\":false,"
        "\"model_type\":\"llama\",\"num_attention_heads\":32,\"num_hidden_layers\":16,"
        "\"num_key_value_heads\":8,\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"rope_scaling\":"
        "{\"factor\":32.0,\"high_freq_factor\":4.0,\"low_freq_factor\":1.0,"
        "\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"},"
        "\"rope_theta\":500000.0,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\","
        "\"transformers_version\":\"4.45.0.dev0\",\"use_cache\":true,\"vocab_size\":128256}",
        /* Qwen2.5 */
        "{\"architectures\":[\"Qwen2ForCausalLM\"],\"attention_dropout\":0.0,"
        "\"bos_token_id\":151643,\"eos_token_id\":151645,\"hidden_act\":\"silu\","
        "\"hidden_size\":896,\"initializer_range\":0.02,\"intermediate_size\":4864,"
        "\"max_position_embeddings\":32768,\"max_window_layers\":21,\"model_type\":\"qwen2\","
        "\"num_attention_heads\":14,\"num_hidden_layers\":24,\"num_key_value_heads\":2,"
        "\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,\"sliding_window\":32768,"
        "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\","
        "\"transformers_version\":\"4.43.1\",\"use_cache\":true,\"use_sliding_window\":false,"
        "\"vocab_size\":151936}",
        /* Qwen3, and the newer library's form of the same */
        "{\"architectures\":[\"Qwen3ForCausalLM\"],\"attention_bias\":false,"
        "\"attention_dropout\":0.0,\"bos_token_id\":151643,\"eos_token_id\":151645,"
        "\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":2048,\"initializer_range\":0.02,"
        "\"intermediate_size\":6144,\"max_position_embeddings\":40960,\"max_window_layers\":28,"
        "\"model_type\":\"qwen3\",\"num_attention_heads\":16,\"num_hidden_layers\":28,"
        "\"num_key_value_heads\":8,\"rms_norm_eps\":1e-06,\"rope_scaling\":null,"
        "\"rope_theta\":1000000,\"sliding_window\":null,\"tie_word_embeddings\":true,"
        "\"torch_dtype\":\"bfloat16\",\"transformers_version\":\"4.51.0\",\"use_cache\":true,"
        "\"use_sliding_window\":false,\"vocab_size\":151936}",
        "{\"architectures\":[\"Qwen3ForCausalLM\"],\"dtype\":\"bfloat16\",\"eos_token_id\":151645,"
        "\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":1024,\"intermediate_size\":3072,"
        "\"layer_types\":[\"full_attention\",\"full_attention\"],"
        "\"max_position_embeddings\":40960,\"model_type\":\"qwen3\",\"num_attention_heads\":16,"
        "\"num_hidden_layers\":2,\"num_key_value_heads\":8,\"pad_token_id\":null,"
        "\"rms_norm_eps\":1e-06,\"rope_parameters\":{\"rope_theta\":1000000,"
        "\"rope_type\":\"default\"},\"tie_word_embeddings\":true,\"vocab_size\":151936}",
        /* Orthrus */
        "{\"architectures\":[\"OrthrusLM\"],\"auto_map\":{\"AutoModelForCausalLM\":"
        "\"modeling.OrthrusLM\"},\"block_size\":32,\"mask_token_id\":151669,\"head_dim\":128,"
        "\"hidden_act\":\"silu\",\"hidden_size\":4096,\"intermediate_size\":12288,"
        "\"max_position_embeddings\":40960,\"model_type\":\"qwen3\",\"num_attention_heads\":32,"
        "\"num_hidden_layers\":36,\"num_key_value_heads\":8,\"vocab_size\":151936}",
    };
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        struct config c;
        struct err err = {0};
        if (config_parse(files[i], strlen(files[i]), "config.json", &c, &err))
            fail_msg("file %zu: %s", i, err.msg);
        config_fini(&c);
    }
}

static void values_that_change_the_result_are_refused(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"\"hidden_act\":\"gelu\"", "hidden_act: \"gelu\""},
        {"\"model_type\":\"mixtral\"", "model_type: \"mixtral\""},
        {"\"model_type\":7", "model_type: 7"},
        {"\"model_type\":\"qwen2\",\"architectures\":[\"LlamaForCausalLM\"]",
         "architectures: [\"LlamaForCausalLM\"]"},
        {"\"architectures\":[\"LlamaForSequenceClassification\"]", "architectures"},
        {"\"architectures\":[]", "architectures"},
        {"\"num_experts\":8", "num_experts: 8"},
        {"\"num_local_experts\":8", "num_local_experts"},
        {"\"quantization_config\":{\"quant_method\":\"gptq\"}", "quantization_config"},
        {"\"use_sliding_window\":true,\"sliding_window\":512,\"model_type\":\"qwen2\"",
         "sliding_window: 512"},
        {"\"use_sliding_window\":true,\"sliding_window\":512,\"model_type\":\"qwen2\","
         "\"max_window_layers\":2",
         "sliding_window: 512"},
        {"\"sliding_window\":512", "sliding_window: 512"},
        {"\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\"]",
         "layer_types"},
        {"\"layer_types\":[\"full_attention\"]", "layer_types"},
        {"\"pretraining_tp\":2", "pretraining_tp: 2"},
        {"\"partial_rotary_factor\":0.5", "partial_rotary_factor: 0.5"},
        {"\"mlp_bias\":true,\"model_type\":\"qwen3\"", "mlp_bias: true"},
        {"\"logit_scale\":0.5", "logit_scale: 0.5"},
        {"\"vocab_size\":0", "vocab_size: 0"},
        {"\"vocab_size\":1e3", "vocab_size: 1000.0"},
        {"\"vocab_size\":-5", "vocab_size: -5"},
        {"\"vocab_size\":99999999999", "vocab_size"},
        {"\"vocab_size\":\"320\"", "vocab_size: \"320\""},
        {"\"hidden_size\":null", "hidden_size is missing"},
        {"\"num_hidden_layers\":0", "num_hidden_layers"},
        {"\"num_attention_heads\":5", "num_attention_heads: 5"},
        {"\"num_key_value_heads\":3", "num_key_value_heads: 3"},
        {"\"head_dim\":15", "head_dim: 15"},
        {"\"head_dim\":2048", "head_dim: 2048"},
        {"\"rms_norm_eps\":\"x\"", "rms_norm_eps"},
        {"\"rms_norm_eps\":-1", "rms_norm_eps: -1"},
        {"\"tie_word_embeddings\":1", "tie_word_embeddings: 1"},
        {"\"eos_token_id\":320", "eos_token_id: 320"},
        {"\"eos_token_id\":[1,-1]", "eos_token_id: -1"},
        {"\"eos_token_id\":\"</s>\"", "eos_token_id"},
        {"\"rope_theta\":0", "rope_theta: 0"},
        {"\"rope_theta\":\"1\"", "rope_theta"},
        {"\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2}",
         "rope_scaling.rope_type: \"dynamic\""},
        {"\"rope_scaling\":{\"type\":\"longrope\",\"factor\":2}",
         "rope_scaling.type: \"longrope\""},
        {"\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"yarn\",\"factor\":2}",
         "rope_scaling.type"},
        {"\"rope_scaling\":{\"type\":\"linear\"}", "rope_scaling.factor is missing"},
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}", "factor: 0"},
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"beta_fast\":3}",
         "rope_scaling.beta_fast: 3"},
        {"\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"mrope_section\":[1]}",
         "rope_scaling.mrope_section"},
        {"\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":2}", "low_freq_factor"},
        {"\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":2,\"low_freq_factor\":4,"
         "\"high_freq_factor\":4}",
         "high_freq_factor"},
        {"\"rope_scaling\":[]", "rope_scaling: []"},
        {"\"rope_theta\":5000,\"rope_parameters\":{\"rope_theta\":10000}",
         "rope_parameters.rope_theta"},
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"rope_parameters\":{\"rope_type\":"
         "\"default\"}",
         "rope_scaling"},
        {"\"block_size\":8,\"mask_token_id\":315", "block_size: 8"},
        {"\"orthrus\":{\"block_size\":8}", "orthrus.mask_token_id is missing"},
        {"\"orthrus\":{\"block_size\":8,\"mask_token_id\":320}", "orthrus.mask_token_id: 320"},
        {"\"orthrus\":{\"block_size\":1,\"mask_token_id\":3}", "orthrus.block_size: 1"},
        {"\"orthrus\":{\"block_size\":8,\"mask_token_id\":3,\"x\":1}", "orthrus.x: 1"},
        {"\"orthrus\":8", "orthrus: 8"},
        {"\"model_type\":\"orthrus\"", "block_size is missing"},
        {"\"model_type\":\"orthrus\",\"block_size\":8,\"mask_token_id\":3,\"orthrus\":{"
         "\"block_size\":9,\"mask_token_id\":3}",
         "block_size: 8"},
        {"\"orthros\":{}", "orthros.window is missing"},
        {"\"orthros\":{\"window\":0}", "orthros.window: 0"},
        {"\"orthros\":{\"window\":8,\"sink\":4}", "orthros.sink: 4"},
        {"\"msar\":{\"kernels\":[1,4]}", "msar.branches_per_block is missing"},
        {"\"msar\":{\"kernels\":[2,4],\"branches_per_block\":2}", "msar.kernels: [2,4]"},
        {"\"msar\":{\"kernels\":[],\"branches_per_block\":2}", "msar.kernels: []"},
        {"\"msar\":{\"kernels\":[1],\"branches_per_block\":7}", "msar.branches_per_block: 7"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refused(cases[i][0], cases[i][1]);
}

static void unset_and_inert_keys_are_accepted(void **state) {
    (void)state;
    accepted_only("\"some_new_switch\":false,\"another\":null,\"list\":[],\"object\":{}");
    accepted_only("\"initializer_range\":0.02,\"_name_or_path\":\"x/y\",\"use_cache\":true");
    accepted_only("\"model_type\":\"qwen2\",\"sliding_window\":4096");
    accepted_only("\"model_type\":\"qwen2\",\"sliding_window\":4096,\"use_sliding_window\":true,"
                  "\"max_window_layers\":3");
    accepted_only("\"rope_scaling\":{\"rope_type\":\"default\"}");
}

static void end_ids_are_a_union(void **state) {
    (void)state;
    struct config c;
    struct err err = {0};
    accepted("\"eos_token_id\":[3,5,3]", &c);
    const char *generation = "{\"eos_token_id\":[5,7],\"temperature\":0.6}";
    assert_int_equal(config_parse_generation(generation, strlen(generation), "g", &c, &err), OK);
    assert_int_equal(c.n_eos, 3);
    assert_int_equal(c.eos_ids[2], 7);
    for (int i = 0; i < 40 && !err.code; i++)
        config_add_eos(&c, i, &err);
    assert_int_equal(c.n_eos, CONFIG_EOS_MAX);
    config_fini(&c);
}

static void sampling_hints_are_numbers_or_absent(void **state) {
    (void)state;
    struct config c;
    struct err err = {0};
    accepted("\"eos_token_id\":3", &c);
    assert_false(c.hints.temperature.given);
    const char *some = "{\"temperature\":0.6,\"top_k\":20,\"min_p\":null,\"do_sample\":true}";
    assert_int_equal(config_parse_generation(some, strlen(some), "g", &c, &err), OK);
    assert_true(c.hints.temperature.given && c.hints.temperature.value == 0.6);
    assert_true(c.hints.top_k.given && c.hints.top_k.value == 20);
    assert_false(c.hints.top_p.given || c.hints.min_p.given || c.hints.repetition_penalty.given);
    const char *rest = "{\"top_p\":1,\"min_p\":0.05,\"repetition_penalty\":1.1}";
    assert_int_equal(config_parse_generation(rest, strlen(rest), "g", &c, &err), OK);
    assert_true(c.hints.top_p.value == 1 && c.hints.min_p.value == 0.05);
    assert_true(c.hints.repetition_penalty.value == 1.1);
    static const char *const bad[] = {"\"0.6\"", "true", "[]", "{}"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        char text[64];
        snprintf(text, sizeof text, "{\"repetition_penalty\":%s}", bad[i]);
        assert_int_equal(config_parse_generation(text, strlen(text), "g", &c, &err), ERR_INVALID);
        assert_non_null(strstr(err.msg, "g: repetition_penalty"));
    }
    config_fini(&c);
}

static void a_large_block_is_capped(void **state) {
    (void)state;
    struct config c;
    accepted("\"orthrus\":{\"block_size\":256,\"mask_token_id\":3}", &c);
    assert_int_equal(c.shape.block_size, DRAFT_MAX);
    config_fini(&c);
}

/* ---- rope: values computed apart, from the published formulas, in double ------------------------ */

static void check_table(const char *members, const double *want, size_t n, size_t stride,
                        double scale) {
    struct config c;
    accepted(members, &c);
    assert_int_equal(c.shape.head_dim, 2 * n * stride);
    for (size_t i = 0; i < n; i++)
        if (fabs(c.shape.rope_freq[i * stride] / want[i] - 1) > 1e-13)
            fail_msg("%.60s: frequency %zu is %.17g, wanted %.17g", members, i * stride,
                     c.shape.rope_freq[i * stride], want[i]);
    assert_true(fabs(c.shape.rope_scale - scale) < 1e-15);
    config_fini(&c);
}

static void rope_tables_match_known_values(void **state) {
    (void)state;
    static const double plain[] = {1,    0.31622776601683794,   0.1,   0.031622776601683791,
                                   0.01, 0.0031622776601683794, 0.001, 0.00031622776601683794};
    static const double halves[] = {0.5,   0.15811388300841897,   0.05,   0.015811388300841896,
                                    0.005, 0.0015811388300841897, 0.0005, 0.00015811388300841897};
    static const double llama3[] = {1,
                                    0.0794030091792082,
                                    0.0047007538663579916,
                                    0.00091158309215213867,
                                    0.00017677669529663688,
                                    3.4281021959525912e-05,
                                    6.6478698711812354e-06,
                                    1.2891731721515574e-06};
    static const double llama32[] = {1,
                                     0.19392274474868576,
                                     0.037606030930863933,
                                     0.0072926647372171093,
                                     0.00042955679655936815,
                                     8.5702554898814781e-06,
                                     1.6619674677953088e-06,
                                     3.2229329303788936e-07};
    static const double yarn[] = {1,
                                  0.19764235376052372,
                                  0.025000000000000001,
                                  0.0079056941504209478,
                                  0.0025000000000000001,
                                  0.00079056941504209474,
                                  0.00025000000000000001,
                                  7.9056941504209485e-05};
    static const double yarn_qwen[] = {1,
                                       0.17782794100389226,
                                       0.031622776601683791,
                                       0.0053753214907901019,
                                       0.00060294117647058821,
                                       4.4456985250973067e-05,
                                       7.9056941504209488e-06,
                                       1.4058533129758728e-06};
    check_table("\"rope_theta\":10000.0", plain, 8, 1, 1);
    check_table("\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0}", halves, 8, 1, 1);
    check_table("\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
                "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                "\"original_max_position_embeddings\":64}",
                llama3, 8, 1, 1);
    check_table("\"head_dim\":64,\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":"
                "\"llama3\",\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                "\"original_max_position_embeddings\":8192}",
                llama32, 8, 4, 1);
    check_table("\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4.0,"
                "\"original_max_position_embeddings\":32,\"rope_theta\":10000.0}",
                yarn, 8, 1, 1.1386294361119891);
    check_table("\"head_dim\":128,\"rope_theta\":1000000.0,\"rope_scaling\":{\"rope_type\":"
                "\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32768}",
                yarn_qwen, 8, 8, 1.1386294361119891);
}

static void yarn_attention_factor(void **state) {
    (void)state;
    static const struct {
        const char *extra;
        double scale;
    } cases[] = {
        {"", 1.1386294361119891},
        {",\"attention_factor\":0.5", 0.5},
        {",\"mscale\":0.707,\"mscale_all_dim\":0.707", 1},
        {",\"mscale\":1,\"mscale_all_dim\":0.5", 1.1386294361119891 / 1.0693147180559945},
        {",\"mscale\":0.5", 1.1386294361119891},
        {",\"mscale\":0.5,\"mscale_all_dim\":0", 1.1386294361119891},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char members[256];
        struct config c;
        snprintf(members, sizeof members,
                 "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0%s}", cases[i].extra);
        accepted(members, &c);
        if (fabs(c.shape.rope_scale - cases[i].scale) > 1e-14)
            fail_msg("%s: %.17g", cases[i].extra, c.shape.rope_scale);
        config_fini(&c);
    }
    struct config c; /* truncate false: the borders stay real */
    accepted("\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,\"truncate\":false,"
             "\"original_max_position_embeddings\":32}",
             &c);
    /* high = 16 ln(32 / 2 pi) / (2 ln 10000) = 1.41382..; low < 0 becomes 0 */
    double high = 16 * log(32 / (2 * 3.14159265358979323846)) / (2 * log(10000));
    double want = 0.31622776601683794 * (1 - 1 / high) + 0.31622776601683794 / 4 / high;
    assert_true(fabs(c.shape.rope_freq[1] / want - 1) < 1e-13);
    config_fini(&c);
}

static void a_file_cut_anywhere_is_refused(void **state) {
    (void)state;
    size_t n;
    char *json = read_file(golden_path("qwen3-orthros-msar-orthrus/config.json"), &n);
    while (n > 0 && json[n - 1] != '}')
        n--;
    for (size_t cut = 0; cut <= n; cut++) {
        char *copy = guard_copy(json, cut);
        struct config c;
        int rc = config_parse(copy, cut, "config.json", &c, NULL);
        assert_int_equal(rc == OK, cut == n);
        if (!rc) config_fini(&c);
        guard_free(copy, cut);
    }
    free(json);
}

static void duplicate_and_deep_json_is_refused(void **state) {
    (void)state;
    refused("\"rope_theta\":10000,\"rope_theta\":5000", "duplicate");
    refused("\"x\":[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]", "nested");
    struct config c;
    struct err err;
    assert_int_equal(config_parse("[]", 2, "config.json", &c, &err), ERR_INVALID);
    assert_int_equal(config_parse("", 0, "config.json", &c, &err), ERR_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_of_absent_keys),
        cmocka_unit_test(every_golden_configuration_is_understood),
        cmocka_unit_test(published_forms_are_accepted),
        cmocka_unit_test(values_that_change_the_result_are_refused),
        cmocka_unit_test(unset_and_inert_keys_are_accepted),
        cmocka_unit_test(end_ids_are_a_union),
        cmocka_unit_test(sampling_hints_are_numbers_or_absent),
        cmocka_unit_test(a_large_block_is_capped),
        cmocka_unit_test(rope_tables_match_known_values),
        cmocka_unit_test(yarn_attention_factor),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(duplicate_and_deep_json_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
