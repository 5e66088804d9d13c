#!/usr/bin/env python3
"""Makes model.safetensors of pytorch_model.bin: to_safetensors.py FOLDER.

Needs PyTorch and safetensors (pip install torch safetensors). The file is read by PyTorch's loader of plain tensors (weights_only), which runs no
code of the file. Tensors that share memory, such as an embedding and its tied head, are written once each.
"""
import pathlib
import sys


def main():
    if sys.argv[1:] in (["--help"], ["-h"]):
        print(__doc__)
        return
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    source, target = folder / "pytorch_model.bin", folder / "model.safetensors"
    if not source.is_file():
        sys.exit(f"to_safetensors: {source} is not there")
    if target.exists():
        sys.exit(f"to_safetensors: {target} is there already")
    try:
        import torch
        from safetensors.torch import save_file
    except ImportError as error:
        sys.exit(f"to_safetensors: {error}; pip install torch safetensors")
    tensors = torch.load(source, map_location="cpu", weights_only=True)
    aside = target.with_suffix(".tmp")
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, aside, metadata={"format": "pt"})
    aside.rename(target)
    print(f"{target}: {len(tensors)} tensors")


main()
