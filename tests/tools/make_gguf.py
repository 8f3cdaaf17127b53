#!/usr/bin/env python3
"""Convert a checkpoint directory of the golden kind to one GGUF file, as the usual converter does.

    make_gguf.py CHECKPOINT OUT.gguf [--type f32|f16|bf16|q8_0|q4_0|q4_1|q5_0|q5_1|q4_k|q5_k|q6_k|
                                             q4_k_m|q5_k_m] [--widened] [--pre NAME]

Matrices get --type, vectors and all of MSAR's tensors stay float32. Matrices whose rows are no whole
blocks of 256 get q5_0, q5_1 or q8_0 for q4_k, q5_k or q6_k; those whose rows are no multiple of 32 stay
f16. q4_k_m and q5_k_m are q4_k and q5_k with embedding, head, v and down in q6_k. --widened writes
the numbers of that type as float32, as the package gguf widens them. The rows of llama's q and k are permuted within each head; extension tensors (q_affine,
*_diff, MSAR) keep their safetensors names and order, their settings go to `geryon.*` keys. Needs the
PyPI packages gguf and numpy.
"""

import argparse
import json
import math
import pathlib
import struct
import sys

import gguf
import numpy as np

TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q5_0": gguf.GGMLQuantizationType.Q5_0,
    "q5_1": gguf.GGMLQuantizationType.Q5_1,
    "q4_k": gguf.GGMLQuantizationType.Q4_K,
    "q5_k": gguf.GGMLQuantizationType.Q5_K,
    "q6_k": gguf.GGMLQuantizationType.Q6_K,
}
PLAIN_TYPES = {"f32", "f16", "bf16"}
MIXES = {"q4_k_m": "q4_k", "q5_k_m": "q5_k"}
FINER = ("token_embd", "output", "attn_v", "ffn_down")  # of a mix: q6_k
NARROW_ROWS = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}  # in place of blocks of 256

ONCE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    "model.norm.weight": "output_norm.weight",
}
LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def read_safetensors(path):
    """{name: float32 array}; read by hand so that BF16 needs no other package."""
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + n]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = data[8 + n + begin : 8 + n + end]
        if entry["dtype"] == "BF16":
            wide = np.frombuffer(raw, "<u2").astype("<u4") << 16
            values = wide.view("<f4")
        else:
            values = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[entry["dtype"]])
        tensors[name] = values.astype(np.float32).reshape(entry["shape"])
    return tensors


def read_weights(directory):
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return read_safetensors(directory / "model.safetensors")
    tensors = {}
    for shard in sorted(set(json.loads(index.read_text())["weight_map"].values())):
        tensors.update(read_safetensors(directory / shard))
    return tensors


def permute(values, n_heads):
    """Row m + s * e/2 of each head moves to row 2m + s: pairs of the rotation become neighbours."""
    shape = values.shape
    return values.reshape(n_heads, 2, shape[0] // n_heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def gguf_name(name):
    if name in ONCE:
        return ONCE[name]
    parts = name.split(".")
    if name.startswith("model.layers.") and ".".join(parts[3:-1]) in LAYER:
        return f"blk.{parts[2]}.{LAYER['.'.join(parts[3:-1])]}.{parts[-1]}"
    return name


def llama3_factors(rope, theta, head_dim, positions):
    """rope_freqs.weight: what each frequency is divided by."""
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    original = rope.get("original_max_position_embeddings", positions)
    factors = []
    for m in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * m / head_dim)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


def pre_tokenizer_name(tokenizer):
    text = json.dumps(tokenizer["pre_tokenizer"])
    if "p{N}{1,3}" in text:
        return "llama-bpe"
    if "p{N}|" in text:
        return "qwen2"
    sys.exit("unknown pre-tokeniser: give --pre")


def add_vocabulary(writer, directory, config, pre):
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    n = config["vocab_size"]
    tokens = [f"[PAD{i}]" for i in range(n)]
    types = [gguf.TokenType.UNUSED] * n
    for text, i in tokenizer["model"]["vocab"].items():
        tokens[i], types[i] = text, gguf.TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre or pre_tokenizer_name(tokenizer))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    generation = directory / "generation_config.json"
    ends = []
    for source in [config, json.loads(generation.read_text()) if generation.exists() else {}]:
        eos = source.get("eos_token_id")
        ends += [i for i in (eos if isinstance(eos, list) else [eos]) if i is not None and i not in ends]
    if ends:
        writer.add_eos_token_id(ends[0])
    if len(ends) > 1:
        writer.add_eot_token_id(ends[1])
    if settings.get("bos_token") in tokens:
        writer.add_bos_token_id(tokens.index(settings["bos_token"]))
    writer.add_add_bos_token("TemplateProcessing" in json.dumps(tokenizer.get("post_processor")))
    jinja = directory / "chat_template.jinja"
    template = jinja.read_text() if jinja.exists() else settings.get("chat_template")
    if template:
        writer.add_chat_template(template)


def add_settings(writer, arch, config, head_dim):
    positions = config["max_position_embeddings"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(positions)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-6))
    writer.add_vocab_size(config["vocab_size"])
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(theta)
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
        if "original_max_position_embeddings" in rope:
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(rope, theta, head_dim, positions))
    if "orthros" in config:
        writer.add_uint32("geryon.orthros.window", config["orthros"]["window"])
    orthrus = config.get("orthrus") or ("block_size" in config and config)
    if orthrus:
        writer.add_uint32("geryon.orthrus.block_size", orthrus["block_size"])
        writer.add_uint32("geryon.orthrus.mask_token_id", orthrus["mask_token_id"])
    if "msar" in config:
        writer.add_array("geryon.msar.kernels", config["msar"]["kernels"])
        writer.add_uint32("geryon.msar.branches_per_block", config["msar"]["branches_per_block"])


def half_bytes(values):
    return values.astype("<f2").view(np.uint8)


def nearest(values, steps, lo, hi):
    """values / steps rounded, within lo .. hi; 0 where a step is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.clip(np.nan_to_num(np.rint(values / steps)), lo, hi).astype(np.int32)


def halves(values):
    """d of each block, as float16 stores it."""
    return values.astype("<f2").astype(np.float32)


def quantize_k(values, bits):
    """Q4_K or Q5_K, blocks of 8 steps of 32: scales and minima from the range of each step. The package
    gguf only reads these types; a real writer searches for better scales."""
    x = values.reshape(-1, 8, 32)
    least = np.minimum(x.min(2), 0)
    scale = (x.max(2) - least) / (2 ** bits - 1)
    d, m = halves(scale.max(1, keepdims=True) / 63), halves(-least.min(1, keepdims=True) / 63)
    sc, mn = nearest(scale, d, 0, 63), nearest(-least, m, 0, 63)
    q = nearest(x + (m * mn)[..., None], (d * sc)[..., None], 0, 2 ** bits - 1)
    six = np.concatenate([sc[:, :4] | sc[:, 4:] >> 4 << 6, mn[:, :4] | mn[:, 4:] >> 4 << 6,
                          sc[:, 4:] & 15 | (mn[:, 4:] & 15) << 4], 1)
    pairs = q.reshape(-1, 4, 2, 32) & 15
    nibbles = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    high = ((q >> 4) << np.arange(8)[None, :, None]).sum(1) if bits == 5 else np.zeros((len(q), 0))
    parts = [half_bytes(d), half_bytes(m), *(p.astype(np.uint8) for p in (six, high, nibbles))]
    return np.concatenate(parts, 1).reshape(*values.shape[:-1], -1)


def quantize_q6_k(values):
    x = values.reshape(-1, 16, 16)
    extreme = np.take_along_axis(x, np.abs(x).argmax(2)[..., None], 2)[..., 0]
    scale = extreme / -32
    d = halves(np.abs(scale).max(1, keepdims=True) / 127)
    sc = nearest(scale, d, -128, 127)
    q = nearest(x, (d * sc)[..., None], -32, 31).reshape(-1, 2, 4, 32) + 32
    low = (q[:, :, :2] & 15 | (q[:, :, 2:] & 15) << 4).reshape(-1, 128)
    high = (q >> 4 << (2 * np.arange(4))[None, None, :, None]).sum(2).reshape(-1, 64)
    parts = [*(p.astype(np.uint8) for p in (low, high)), sc.astype(np.int8).view(np.uint8), half_bytes(d)]
    return np.concatenate(parts, 1).reshape(*values.shape[:-1], -1)


def quantize(values, kind):
    if kind in ("q4_k", "q5_k"):
        return quantize_k(values, int(kind[1]))
    return quantize_q6_k(values) if kind == "q6_k" else gguf.quants.quantize(values, TYPES[kind])


def type_of(target, values, kind):
    """What a matrix is written in."""
    kind = "q6_k" if kind in MIXES and target.split(".")[-2] in FINER else MIXES.get(kind, kind)
    if kind in NARROW_ROWS and values.shape[-1] % 256:
        kind = NARROW_ROWS[kind]
    return "f16" if kind not in PLAIN_TYPES and values.shape[-1] % 32 else kind


def add_weights(writer, arch, config, tensors, kind, widened):
    for name, values in tensors.items():
        target = gguf_name(name)
        if arch == "llama" and ".attn_q." in target:
            values = permute(values, config["num_attention_heads"])
        if arch == "llama" and ".attn_k." in target:
            values = permute(values, config["num_key_value_heads"])
        msar = "model.msar." in name or "_read." in name  # loaded as float32 whatever the model's type
        this = "f32" if values.ndim == 1 or msar else type_of(target, values, kind)
        values = np.ascontiguousarray(values)
        if widened and this not in PLAIN_TYPES:
            this, values = "f32", gguf.quants.dequantize(quantize(values, this), TYPES[this])
        if this == "f32":
            writer.add_tensor(target, values)
        elif this == "f16":
            writer.add_tensor(target, values.astype(np.float16))
        else:
            data = quantize(values, this)
            writer.add_tensor(target, data, raw_dtype=TYPES[this])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--type", choices=sorted([*TYPES, *MIXES]), default="f32")
    parser.add_argument("--widened", action="store_true", help="the type's numbers, as float32")
    parser.add_argument("--pre", help="tokenizer.ggml.pre; by default told from tokenizer.json")
    options = parser.parse_args()
    config = json.loads((options.checkpoint / "config.json").read_text())
    arch = {"orthrus": "qwen3"}.get(config["model_type"], config["model_type"])
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer = gguf.GGUFWriter(options.out, arch)
    writer.add_name(options.checkpoint.name)
    add_settings(writer, arch, config, head_dim)
    add_vocabulary(writer, options.checkpoint, config, options.pre)
    tensors = read_weights(options.checkpoint)
    if config.get("tie_word_embeddings", False):
        tensors.pop("lm_head.weight", None)
    add_weights(writer, arch, config, tensors, options.type, options.widened)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
