#!/usr/bin/env python3
"""What wrong calls of the program end with, and say: messages.py DARTLM DATA_DIR. 2: a mistake on the command line; 1: it failed."""
import os
import subprocess
import sys
import tempfile
import time


def with_odd_names(folder, data):
    """Names that are no UTF-8, and a long one that the name of a case is cut in, inside of a character: JSON tells of them all the same."""
    odd, long, expected = f"{folder}/\udcff", f"{folder}/{'x' * (159 - len(folder) - 1)}\u00e9", f"{data}/hf-mamba2/expected.safetensors"
    for name in odd, long:
        os.symlink(os.path.abspath(f"{data}/mqar-mamba2"), name)
    bench = ["--prefill", "1", "--decode", "1", "--repeat", "1", "--device", "cpu", "--json"]
    return [
        (0, "decode_tokens_per_second", ["bench", "--model", odd, *bench]),
        (0, "decode_tokens_per_second", ["bench", "--model", long, *bench]),
        (0, '"vocabulary": 301', ["logits", "--model", f"{data}/hf-mamba2", "--tensor", "ids", expected, f"{folder}/\udcfe", "--json",
                                  "--device", "cpu"]),
        (0, '"bytes_before"', ["quantize", f"{data}/mqar-mamba2", f"{folder}/\udcfd", "--json"]),
    ]


def main():
    program, data = sys.argv[1:]
    model = f"{data}/mqar-dart"
    generate = ["generate", "--model", model, "--ids", "1", "-n", "1", "--device"]
    calls = [
        (1, "device 'vulkan': vulkan: ", [*generate, "vulkan"]), # no driver: see below
        (1, "device 'cuda': cuda: ", [*generate, "cuda"]),
        (2, "LOW..HIGH", ["bench", "op", "ssd L=4096..2048 H=4", "--device", "cpu"]),
        (2, "exclude one another", ["bench", "op", "norm T=8", "--csv", "--json"]),
        (2, "exclude one another", ["bench", "--csv", "--json"]),
        (2, "'S=64' is no size", ["bench", "op", "norm T=8 S=64", "--device", "cpu"]),
        (2, "unknown op 'nonsense'", ["bench", "op", "nonsense T=8", "--device", "cpu"]),
        (1, "/nowhere/before.json", ["bench", "op", "ssd L=65536", "--repeat", "100000", "--device", "cpu", "--compare", "/nowhere/before.json"]),
        (1, "/nowhere/before.json", ["bench", "--preset", "dart-780m", "--device", "cpu", "--compare", "/nowhere/before.json"]),
        (1, "there is no folder /nowhere/", [*generate[:-3], "-n", "16777216", "--device", "cpu", "--save-state", "/nowhere/state"]),
        (1, "it is a folder", [*generate[:-3], "-n", "16777216", "--device", "cpu", "--save-state", data]),
        (1, "there is no folder /nowhere/", ["bench", "--preset", "dart-780m", "--device", "cpu", "--save-state", "/nowhere/state"]),
        (2, "no preset is called nonsense", ["bench", "--preset", "nonsense"]),
        (2, "no preset is called nonsense", ["params", "--preset", "nonsense"]),
        (1, "is a file; a model is a folder", ["generate", "--model", f"{model}/config.json", "--ids", "1", "-n", "1", "--device", "cpu"]),
        (1, "nowhere", ["generate", "--model", "/nowhere", "--ids", "1", "-n", "1", "--device", "cpu"]),
        (1, "computes nothing", ["generate", "--model", model, "--ids", "1", "-n", "1", "--device", "null"]),
        (1, "computes nothing", ["eval", "mqar", "--model", model, "--data", f"{model}/test.safetensors", "--device", "null"]),
        (2, "expected cpu, vulkan, cuda or null", ["generate", "--model", model, "--ids", "1", "-n", "1", "--device", "gpu"]),
        (2, "expected cpu, vulkan, cuda or null", ["bench", "op", "norm T=8", "--device", "gpu"]),
        (2, "--base has no effect on ssd, only on rope", ["op", "ssd", "/nowhere/in", "/nowhere/out", "--base", "3"]),
        (2, "--first has no effect on norm", ["op", "norm", "/nowhere/in", "/nowhere/out", "--first=1"]),
        (2, "--eps has no effect on cross_entropy", ["op", "cross_entropy", "--backward", "/nowhere/in", "/nowhere/out", "--eps", "1"]),
        (1, "cannot open /nowhere/in", ["op", "gated_norm", "/nowhere/in", "/nowhere/out", "--eps", "1", "--device", "cpu"]),
        (1, "has no tokenizer.json; --tokenizer names", ["generate", "--model", model, "--prompt", "a", "-n", "1", "--device", "cpu"]),
        (1, "dartlm: unable to open /nowhere/a", ["conform", "--compare", "/nowhere/a", "--compare", "/nowhere/b"]),
        (0, "computes nothing", ["bench", "op", "norm T=8", "--repeat", "1", "--device", "null"]),
        (1, "multiple of 32", ["quantize", f"{data}/hf-llama", f"{tempfile.gettempdir()}/dartlm-messages"]),
        (1, "holds a checkpoint already", ["quantize", model, f"{data}/hf-mamba2"]),
        (1, "/nowhere", ["quantize", "/nowhere", f"{tempfile.gettempdir()}/dartlm-messages"]),
        (2, "--dtype", ["quantize", model, "/nowhere/out", "--dtype", "f16"]),
        (2, "--dtype", ["train", "lm", "--dtype", "q8"]),
        (1, "--bytes or --tokenizer PATH reads text", ["train", "lm", "/nowhere/out", "--data", __file__, "--device", "cpu"]),
        (1, "--bytes or --tokenizer PATH reads text", ["eval", "ppl", "--model", model, "--data", __file__, "--device", "cpu"]),
        (2, "unknown task 'nonsense'", ["eval", "nonsense"]),
        (2, "unknown task 'nonsense'", ["eval", "nonsense", "--model", model]),
        (2, "unknown task 'nonsense'", ["train", "nonsense"]),
        (2, "unknown task 'nonsense'", ["data", "nonsense", "--seed", "1"]),
        (2, "usage: dartlm data", ["data"]),
        (0, "usage: dartlm train", ["train", "--help"]),
        (1, "No case that 'nonsense'", ["conform", "--device", "cpu", "--filter", "nonsense"]),
        (2, "unknown command 'nonsense'", ["nonsense"]),
        (2, "unknown option '--nonsense'", ["devices", "--nonsense"]),
        (2, "unexpected argument 'more'", ["devices", "more"]),
        (0, "seconds", ["bench", "op", "norm T=8", "--repeat", "1", "--device", "null", "--json"]),
    ]
    with tempfile.TemporaryDirectory() as folder:
        check(program, calls + with_odd_names(folder, data))


def check(program, calls):
    for status, word, arguments in calls:
        start = time.time()
        with tempfile.TemporaryFile() as source:
            done = subprocess.run([program, *arguments], stdin=source, capture_output=True, text=True, check=False,
                                  env=dict(os.environ, VK_DRIVER_FILES="/nowhere", VK_ICD_FILENAMES="/nowhere", CUDA_VISIBLE_DEVICES=""))
        said = done.stdout + done.stderr
        if done.returncode != status or word not in said:
            raise AssertionError(f"{' '.join(arguments)} ends with {done.returncode}, not {status} and '{word}': {said}")
        if status != 0 and time.time() - start > 30:
            raise AssertionError(f"{' '.join(arguments)} took {time.time() - start:.0f} s to find its mistake")
    print(f"messages: {len(calls)} calls")


main()
