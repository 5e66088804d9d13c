"""Writes tests/data/hf-neox and hf-neox-sequential: make.py FOLDER_OF_BOTH. Needs numpy.

GPT-NeoX models with random weights, in files with Hugging Face's names, and the logits of `ids` in fp64 by the formulas of that architecture,
written here without any other code. hf-neox: parallel residual, GELU by erf, the keys of older configurations, and tables that old files hold
besides weights. hf-neox-sequential: residuals one after the other, GELU by tanh, the keys of newer configurations.
"""
import json
import math
import pathlib
import struct
import sys

import numpy as np

V, W, LAYERS, H, F, EPS, BASE = 61, 32, 2, 2, 40, 1e-5, 500.0
D = W // H
NAMES = {np.dtype(np.float32): "F32", np.dtype(np.int32): "I32", np.dtype(np.uint8): "U8"}


def write(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, value in tensors.items():
        header[name] = {"dtype": NAMES[value.dtype], "shape": list(value.shape), "data_offsets": [at, at + value.nbytes]}
        at += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(np.ascontiguousarray(value).tobytes() for value in tensors.values()))


def make_weights(random):
    def matrix(rows, columns):
        return (random.standard_normal((rows, columns)) * 1.2 / math.sqrt(columns)).astype(np.float32)

    def vector(size, middle, spread):
        return (middle + spread * random.standard_normal(size)).astype(np.float32)

    weights = {"gpt_neox.embed_in.weight": random.standard_normal((V, W)).astype(np.float32)}
    for layer in range(LAYERS):
        at = f"gpt_neox.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{at}{norm}.weight"] = vector(W, 1, 0.3)
            weights[f"{at}{norm}.bias"] = vector(W, 0, 0.3)
        for name, rows, columns in (("attention.query_key_value", 3 * W, W), ("attention.dense", W, W), ("mlp.dense_h_to_4h", F, W),
                                    ("mlp.dense_4h_to_h", W, F)):
            weights[f"{at}{name}.weight"] = matrix(rows, columns)
            weights[f"{at}{name}.bias"] = vector(rows, 0, 0.3)
    weights["gpt_neox.final_layer_norm.weight"] = vector(W, 1, 0.3)
    weights["gpt_neox.final_layer_norm.bias"] = vector(W, 0, 0.3)
    weights["embed_out.weight"] = matrix(V, W)
    return weights


def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred ** 2).mean(-1, keepdims=True) + EPS) * weight + bias


def gelu(x, by_tanh):
    if by_tanh:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def turn(x, rotary):
    """x: tokens, heads, D."""
    rates = BASE ** (-2 * np.arange(rotary // 2) / rotary)
    angles = np.arange(len(x))[:, None, None] * rates
    first, second, rest = x[..., :rotary // 2], x[..., rotary // 2:rotary], x[..., rotary:]
    return np.concatenate([first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles), rest], -1)


def attention(u, w, at, rotary):
    qkv = (u @ w[at + "attention.query_key_value.weight"].T + w[at + "attention.query_key_value.bias"]).reshape(len(u), H, 3, D)
    q, k, v = turn(qkv[:, :, 0], rotary), turn(qkv[:, :, 1], rotary), qkv[:, :, 2]
    scores = np.einsum("thd,shd->hts", q, k) / math.sqrt(D)
    scores = np.where(np.tril(np.ones((len(u), len(u)), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    o = np.einsum("hts,shd->thd", weights / weights.sum(-1, keepdims=True), v).reshape(len(u), W)
    return o @ w[at + "attention.dense.weight"].T + w[at + "attention.dense.bias"]


def mlp(u, w, at, by_tanh):
    hidden = gelu(u @ w[at + "mlp.dense_h_to_4h.weight"].T + w[at + "mlp.dense_h_to_4h.bias"], by_tanh)
    return hidden @ w[at + "mlp.dense_4h_to_h.weight"].T + w[at + "mlp.dense_4h_to_h.bias"]


def logits(ids, weights, rotary, parallel, by_tanh):
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    x = w["gpt_neox.embed_in.weight"][ids]
    for layer in range(LAYERS):
        at = f"gpt_neox.layers.{layer}."

        def norm(name, x, at=at):
            return layer_norm(x, w[f"{at}{name}.weight"], w[f"{at}{name}.bias"])

        added = x + attention(norm("input_layernorm", x), w, at, rotary)
        x = added + mlp(norm("post_attention_layernorm", x if parallel else added), w, at, by_tanh)
    x = layer_norm(x, w["gpt_neox.final_layer_norm.weight"], w["gpt_neox.final_layer_norm.bias"])
    return x @ w["embed_out.weight"].T


def make(folder, config, seed, rotary, parallel, by_tanh, others):
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(seed)
    weights = make_weights(random)
    ids = random.integers(0, V, (2, 33)).astype(np.int32)
    write(folder / "model.safetensors", {**weights, **others})
    expected = np.stack([logits(row, weights, rotary, parallel, by_tanh) for row in ids]).astype(np.float32)
    write(folder / "expected.safetensors", {"ids": ids, "logits": expected})
    common = {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "vocab_size": V, "hidden_size": W, "num_hidden_layers": LAYERS,
              "num_attention_heads": H, "intermediate_size": F, "layer_norm_eps": EPS, "max_position_embeddings": 64, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps({**common, **config}, indent=2) + "\n")


def main():
    folder = pathlib.Path(sys.argv[1])
    tables = {f"gpt_neox.layers.{layer}.attention.{name}": value for layer in range(LAYERS) for name, value in (
        ("bias", np.tril(np.ones((1, 1, 8, 8), np.uint8))), ("masked_bias", np.float32(-1e9).reshape(1)),
        ("rotary_emb.inv_freq", np.ones(2, np.float32)))}
    make(folder / "hf-neox", {"hidden_act": "gelu", "rotary_pct": 0.25, "rotary_emb_base": BASE, "use_parallel_residual": True}, 1, D // 4, True,
         False, tables)
    make(folder / "hf-neox-sequential", {"hidden_act": "gelu_fast", "use_parallel_residual": False, "attention_bias": True, "rope_parameters": {
        "rope_theta": BASE, "partial_rotary_factor": 0.5, "rope_type": "default"}}, 2, D // 2, False, True, {})


main()
