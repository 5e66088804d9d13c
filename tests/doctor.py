#!/usr/bin/env python3
"""What `dartlm doctor` tells: doctor.py DARTLM DATA_DIR DEVICE_SPEC.

It names a device for commands, and the kernels of a model that it is given; a backend without devices is told with its reason, which is also the
error of a command that asks for that backend.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


def call(program, *arguments, **environment):
    done = subprocess.run([program, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def expect(got, status, *words):
    text = got[1] + got[2]
    for word in words:
        if word not in text:
            raise AssertionError(f"no '{word}' in: {text}")
    if got[0] != status:
        raise AssertionError(f"status {got[0]}, not {status}: {text}")


def main():
    program, data, device = sys.argv[1:]
    expect(call(program, "doctor"), 0, "dartlm ", "Vulkan\n", "CUDA\n", "CPU\n  cpu: ", "Commands take ")
    told = call(program, "doctor", f"{data}/mqar-dart", "--device", device, "--cache", "off")
    expect(told, 0, f"Commands take {device}", "\n  sma_query ", "\n  ssd_step ")
    found = call(program, "doctor", "--preset", "mamba2-130m", "--device", device, "--cache", "off")
    expect(found, 0, "\n  ssd_step ")
    if "sma" in found[1].split("Kernels")[1]:
        raise AssertionError(f"a Mamba-2 with kernels of SMA: {found[1]}")
    expect(call(program, "doctor", "--preset", "nonsense"), 2, "no preset is called nonsense")
    expect(call(program, "doctor", f"{data}/mqar-dart", "--preset", "dart-130m"), 2, "not both")
    expect(call(program, "doctor", f"{data}/nothing"), 1, "nothing")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(f"{data}/mqar-dart/config.json", folder)
        expect(call(program, "doctor", folder), 1, "neither model.safetensors nor")
        (pathlib.Path(folder) / "pytorch_model.bin").write_bytes(b"")
        expect(call(program, "doctor", folder), 1, "pytorch_model.bin", "tools/to_safetensors.py")
    hidden = {"VK_DRIVER_FILES": os.devnull, "VK_ICD_FILENAMES": os.devnull}
    expect(call(program, "doctor", **hidden), 0, "Vulkan\n  ", "Commands take ")
    expect(call(program, "logits", "--model", f"{data}/mqar-dart", "x", "y", "--device", "vulkan", **hidden), 1, "device 'vulkan': vulkan: ")
    print("doctor: all as expected")


main()
