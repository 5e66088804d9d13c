#!/usr/bin/env python3
"""The same text for a seed on every backend: same_text.py DARTLM DATA_DIR PLACE...

A PLACE is a device, or a driver of tools/with-vulkan.sh. `dartlm generate` continues a prompt with each model, in f32, the first of them by each
way to choose, on the CPU and there. Texts must be the same. Seeds are fixed: where two tokens share a border of the distribution to the last digits,
backends may draw either of them, about once in 10^5 tokens.
"""
import pathlib
import subprocess
import sys

MODELS = ("mqar-dart", "hf-mamba2", "hf-llama", "hf-neox")
WAYS = (["--temperature", "1", "--seed", "5"],
        ["--temperature", "0.8", "--top-k", "20", "--top-p", "0.9", "--min-p", "0.01", "--repetition-penalty", "1.1", "--seed", "11"],
        ["--repetition-penalty", "1.3"])
DRIVERS = {"lavapipe": MODELS, "swiftshader": ("mqar-dart", "hf-neox")} # SwiftShader compiles for 10 s a model, and keeps nothing
TOKENS = 80


def texts(dartlm, data, place):
    tool = pathlib.Path(__file__).resolve().parent.parent / "tools" / "with-vulkan.sh"
    start = [tool, place] if place in DRIVERS else []
    found = {}
    for model in DRIVERS.get(place, MODELS):
        for number, way in enumerate(WAYS if model == MODELS[0] else WAYS[:1]):
            call = [*start, dartlm, "generate", "--model", data / model, "--tokenizer", data / "tokenizer", "--ids", "1,2,3,5,8,13,21",
                    "-n", str(TOKENS), "--no-end", "--dtype", "f32", "--cache", "off", "--device", "vulkan" if start else place, *way]
            done = subprocess.run(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
            if done.returncode == 125 and start:
                print(f"NOT RUN: {done.stderr.decode().strip().splitlines()[-1]}")
                return None
            if done.returncode != 0:
                raise AssertionError(f"{place}, {model}, {' '.join(way)}: ends with {done.returncode}: {done.stderr.decode(errors='replace')}")
            found[model, number] = done.stdout
    return found


def main():
    dartlm, data, places = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    wanted = texts(dartlm, data, "cpu")
    # Seeds do something, and so do models.
    if len(set(wanted.values())) != len(wanted):
        raise AssertionError("two of the texts are the same")
    skipped = 0
    for place in places:
        found = texts(dartlm, data, place)
        skipped += found is None
        for key, text in (found or {}).items():
            if text != wanted[key]:
                raise AssertionError(f"{place}, {key[0]}, {' '.join(WAYS[key[1]])}:\n{text!r}\ncpu:\n{wanted[key]!r}")
        if found is not None:
            print(f"{place}: {len(found)} texts of {TOKENS} tokens are those of the CPU")
    sys.exit(77 if skipped == len(places) > 0 else 0)


if __name__ == "__main__":
    main()
