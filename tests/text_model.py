#!/usr/bin/env python3
"""A trained model of bytes: text_model.py DARTLM DATA_DIR DEVICE [RUNNER...]. RUNNER is a program with arguments that runs dartlm.

tests/data/text-dart has the perplexity on its text.txt, which it was not trained on, that was noted on the CPU, with state memories and, worse,
without. What it writes byte by byte is what it writes when a part of that is read at once, in front of and behind the end of a chunk (S = 64).
"""
import json
import pathlib
import subprocess
import sys

NOTED = (([], 3.8676), (["--no-sma"], 4.1199)) # options, perplexity a byte of the first 1,024 bytes
TOLERANCE = 1e-4 # relative; f32 sums in another order change the loss by some 1e-6, the figures above are rounded by 1.3e-5
PROMPT = "This function returns "
TEXT = "the first thread in the first thread in the\nfirst field of"


def main():
    program, model, device, runner = sys.argv[1], pathlib.Path(sys.argv[2]) / "text-dart", sys.argv[3], sys.argv[4:]

    def call(*arguments):
        options = ["--model", model, "--device", device, "--activations", "f32", "--cache", "off"]
        done = subprocess.run([*runner, program, *map(str, arguments), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        if done.returncode == 125 and runner:
            print(f"NOT RUN: {done.stderr.decode().strip().splitlines()[-1]}")
            sys.exit(77)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout.decode()

    for options, noted in NOTED:
        found = json.loads(call("eval", "ppl", "--bytes", "--data", model / "text.txt", "--length", 1024, "--json", *options))["perplexity"]
        assert abs(found - noted) <= TOLERANCE * noted, f"{options}: a perplexity of {found}, {noted} was noted"

    n = 60
    whole = call("generate", "--prompt", PROMPT, "-n", n)[:-1] # without the line's end that generate prints behind a text
    assert len(whole) == n and whole.startswith(TEXT), whole
    for read in (63, 65):
        taken = read - len(PROMPT)
        rest = call("generate", "--prompt", PROMPT + whole[:taken], "-n", n - taken)[:-1]
        assert rest == whole[taken:], f"{read} bytes read at once: {rest!r}, not {whole[taken:]!r}"


main()
