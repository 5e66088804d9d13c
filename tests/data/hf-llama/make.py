"""Writes tests/data/hf-llama: make.py FOLDER. Needs torch, transformers and safetensors (1.13, 4.40.2 and 0.4 were used).

A Llama with random weights, saved by Hugging Face transformers, and what its own code computes of it in fp64, but for norms and
logits, which that code computes in fp32: logits of `ids`, and the mean loss over the tokens with a `target` with the gradient of every
parameter.
"""
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

folder = pathlib.Path(sys.argv[1])
torch.manual_seed(1)
config = LlamaConfig(vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                     rms_norm_eps=1e-5, rope_theta=500.0, max_position_embeddings=64, initializer_range=0.2)
model = LlamaForCausalLM(config)
for name, p in model.named_parameters():
    if "norm" in name:
        p.data = 1 + 0.3 * torch.randn_like(p)
model.save_pretrained(folder, safe_serialization=True)

ids = torch.randint(0, 61, (2, 33))
target = torch.randint(0, 61, (2, 33))
target[torch.rand(2, 33) < 0.3] = -1
model = model.double()
logits = model(ids).logits
loss = torch.nn.functional.cross_entropy(logits.view(-1, 61), target.view(-1), ignore_index=-1)
loss.backward()
gradients = {f"grad.{name}": p.grad.float() for name, p in model.named_parameters()}
norm = torch.sqrt(sum((p.grad ** 2).sum() for p in model.parameters()))
save_file({"ids": ids.int(), "target": target.int(), "logits": logits.float().detach(), "loss": loss.float().detach().view(1),
           "norm": norm.float().view(1), **gradients}, folder / "expected.safetensors")
(folder / "generation_config.json").unlink(missing_ok=True)
