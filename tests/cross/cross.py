#!/usr/bin/env python3
"""The program for another system, run by an emulator: cross.py PART DATA EMULATOR... DARTLM. PART is demo (the evaluations of tools/demo.sh, of all
sequences or, where the emulator is slow, of the first eight), files (names that are not ASCII, files that are replaced), errors (the system's
words in messages), conform (some ops against fp64) or vulkan (an evaluation on a Vulkan device).

Ends with 77 where the emulator is not there."""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

PART, DATA, COMMAND = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
WINDOWS = COMMAND[-1].endswith(".exe")
# Right answers of 64 queries a sequence: of all 128 sequences, as tools/demo.sh has them, and of the first 8, as the CPU backend on x86-64 gives.
RIGHT = [("mqar-dart", [], 8134, 510), ("mqar-dart", ["--no-sma"], 935, 46), ("mqar-mamba2", [], 4055, 267)]


def skip(reason):
    print(f"NOT RUN: {reason}")
    sys.exit(77)


def call(*arguments, status=0):
    """Standard output and errors."""
    try:
        done = subprocess.run([*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False)
    except FileNotFoundError:
        skip(f"{COMMAND[0]} is not installed")
    output, errors = done.stdout.decode(), done.stderr.decode()
    if done.returncode == 125 and "with-wine: " in errors:
        skip(errors.strip().splitlines()[-1])
    if done.returncode != status:
        sys.exit(f"{' '.join(map(str, arguments))} ended with {done.returncode}, not {status}: {output}{errors}")
    return output, errors


def first_sequences(source, to, count):
    """The first sequences of a file of tensors."""
    data = source.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    header, kept, body = json.loads(data[8:8 + size]), {}, b""
    for name, tensor in header.items():
        if name == "__metadata__":
            kept[name] = tensor
            continue
        begin, end = tensor["data_offsets"]
        part = data[8 + size + begin:8 + size + begin + (end - begin) // tensor["shape"][0] * count]
        kept[name] = {"dtype": tensor["dtype"], "shape": [count, *tensor["shape"][1:]], "data_offsets": [len(body), len(body) + len(part)]}
        body += part
    text = json.dumps(kept).encode()
    text += b" " * (-len(text) % 8)
    to.write_bytes(struct.pack("<Q", len(text)) + text + body)


def evaluate(model, options, device, file, right):
    output, _ = call("eval", "mqar", "--model", DATA / model, "--data", file, "--device", device, "--csv", *options)
    print(output, end="")
    found = int(output.splitlines()[1].split(",")[0])
    if found != right:
        sys.exit(f"{model} {' '.join(options)} on {device}: {found} right, {right} expected")


def demo(folder):
    for model, options, right_of_all, right_of_first in RIGHT:
        file, right = DATA / model / "test.safetensors", right_of_all
        if not WINDOWS:
            first_sequences(file, folder / "first.safetensors", 8)
            file, right = folder / "first.safetensors", right_of_first
        evaluate(model, options, "cpu", file, right)


def files(folder):
    place = folder / "größe 模型 ✓"
    shutil.copytree(DATA / "mqar-dart", place)
    state = place / "zustand ü.state"
    # As in the README; the second state takes the place of the first.
    for ids, count, expected in (("17,4301", 1, None), ("17,4301,25,4999,17", 3, "4301 6732 6732")):
        output, _ = call("generate", "--model", place, "--device", "cpu", "--ids", ids, "-n", count, "--save-state", state)
        if expected is not None and output.strip() != expected:
            sys.exit(f"generate printed {output!r}, not {expected}")
    output, _ = call("generate", "--model", place, "--device", "cpu", "--load-state", state, "-n", 2)
    if output != "6732 6732\n":
        sys.exit(f"after the state: {output!r}")
    ids = place / "числа.ids"
    call("tokenize", "--tokenizer", DATA / "tokenizer", "--out", place / "t.safetensors", DATA / "tokenizer" / "tokenizer.json")
    ids.write_bytes(call("tokenize", "--tokenizer", DATA / "tokenizer", DATA.parent.parent / "LICENSE")[0].encode())
    back, _ = call("detokenize", "--tokenizer", DATA / "tokenizer", ids)
    if back != (DATA.parent.parent / "LICENSE").read_text(encoding="utf-8"):
        sys.exit("detokenize of tokenize is another text")
    left = [path.name for path in place.iterdir() if path.name.endswith(".tmp")]
    if left or not state.is_file():
        sys.exit(f"temporary files are left: {left}")


def errors(folder):
    words = {True: ["ile not found", "ath not found"], False: ["No such file or directory"]}[WINDOWS]
    for name in ("nowhere", "nirgendwo ü"):
        _, text = call("detokenize", "--tokenizer", folder / name / "tokenizer.json", DATA / "nothing", status=1)
        print(text, end="")
        if name not in text or not any(word in text for word in words):
            sys.exit(f"the message is not the system's: {text}")
    (folder / "taken").mkdir()
    _, text = call("generate", "--model", DATA / "mqar-dart", "--device", "cpu", "--ids", "1", "-n", "1", "--save-state", folder / "taken", status=1)
    if "is a folder" not in text:
        sys.exit(f"a folder in the place of a file: {text}")


def conform(_):
    for name in ("norm B1", "choice B1", "linear B1 L1 ", "ssd B1 L1 ", "sma B1 L1 "):
        output, _ = call("conform", "--device", "cpu", "--filter", name)
        summary = output.strip().splitlines()[-1]
        print(f"{name}: {summary}")
        if " 0 failed" not in summary or "seed 1: 0 passed" in summary:
            sys.exit(output)


def vulkan(folder):
    output, _ = call("devices")
    print(output, end="")
    if "vulkan:0" not in output:
        sys.exit("no Vulkan device")
    file = folder / "first.safetensors"
    for model, options, _, right in RIGHT[::2]:
        first_sequences(DATA / model / "test.safetensors", file, 8)
        evaluate(model, options, "vulkan", file, right)


os.environ["LC_ALL"] = "C.UTF-8"
with tempfile.TemporaryDirectory() as made:
    {"demo": demo, "files": files, "errors": errors, "conform": conform, "vulkan": vulkan}[PART](pathlib.Path(made))
