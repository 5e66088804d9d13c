#!/usr/bin/env python3
"""Files of tokens: corpus.py DARTLM DEVICE_SPEC.

Bytes and the same tokens as shards of 16 and of 32 bits train to the same model; `eval ppl` of what was held out agrees with the last validation of
`train lm`; files that are no tokens are refused.
"""
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

LENGTH = 32
END = 256


def shard(path, tokens, dtype, vocabulary="257", name="tokens", end=None):
    data = struct.pack(f"<{len(tokens)}{'H' if dtype == 'U16' else 'I'}", *tokens)
    metadata = {} if vocabulary is None else {"vocabulary": vocabulary}
    if end is not None:
        metadata["end"] = end
    header = json.dumps({"__metadata__": metadata, name: {"dtype": dtype, "shape": [len(tokens)], "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


class Program:
    def __init__(self, path, device):
        self.path, self.options = path, ["--device", device, "--cache", "off"]

    def call(self, *arguments):
        done = subprocess.run([self.path, *map(str, arguments), *self.options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        return done.returncode, done.stdout

    def must(self, *arguments):
        status, text = self.call(*arguments)
        if status != 0:
            raise AssertionError(f"{' '.join(map(str, arguments))} ends with {status}: {text}")
        return text

    def train(self, folder, *data):
        lines = self.must("train", "lm", *data, "--length", LENGTH, "--batch-tokens", 256, "--epochs", 2, "--held-out", "0.25", "--width", 32,
                          "--head-dim", 32, "--state", 8, "--chunk-size", 8, "--lr", "0.01", "--warm-up", 4, "--json", folder)
        return [json.loads(line) for line in lines.splitlines()][-1]

    def refused(self, word, *arguments):
        status, text = self.call("eval", "ppl", *arguments)
        if status != 1 or word not in text:
            raise AssertionError(f"eval ppl {' '.join(map(str, arguments))} ends with {status}, not 1 and '{word}': {text}")


def separate(program, work):
    """Documents apart: no target behind an end; bytes and shards alike; without the id that ends them, or with a wrong one, refused."""
    texts = [bytes(random.choices(b"abcd", k=random.randrange(1, 160))) for _ in range(16)]
    files, tokens = [], []
    for i, text in enumerate(texts):
        (work / f"short{i}.txt").write_bytes(text)
        files += ["--data", work / f"short{i}.txt"]
        tokens += [*text, END]
    shard(work / "short.tokens", tokens, "U16", end=str(END))
    last = program.train(work / "apart", "--bytes", "--separate", *files)
    program.train(work / "apart-shard", "--separate", "--data", work / "short.tokens")
    program.train(work / "joined", "--bytes", *files)
    models = [(work / name / "model.safetensors").read_bytes() for name in ("apart", "apart-shard", "joined")]
    if models[0] != models[1]:
        raise AssertionError("bytes and a shard of the same documents train to different models")
    if models[0] == models[2]:
        raise AssertionError("--separate changes nothing")
    sequences = (len(tokens) - 1) // LENGTH
    held = tokens[(sequences - sequences // 4) * LENGTH:sequences * LENGTH]
    if last["targets"] != len(held) - held.count(END):
        raise AssertionError(f"{last['targets']} targets, not {len(held) - held.count(END)}")
    for end, word in ((None, "what id ends a document"), ("257", "end in the metadata"), ("x", "end in the metadata")):
        shard(work / "wrong", tokens, "U16", end=end)
        status, text = program.call("train", "lm", "--separate", "--data", work / "wrong", "--length", LENGTH, "--batch-tokens", 256, work / "none")
        if status == 0 or word not in text:
            raise AssertionError(f"an end of {end}: {status}, {text}")


def test(program, work):
    seed = random.randrange(1 << 32)
    random.seed(seed)
    print(f"  seed {seed}")
    texts = [bytes(random.choices(b"abcdefgh \n", weights=range(1, 11), k=count)) for count in (1500, 1, 900)]
    files, shards = [], []
    for i, text in enumerate(texts):
        (work / f"{i}.txt").write_bytes(text)
        shard(work / f"{i}.tokens", [*text, END], "U16" if i % 2 == 0 else "U32")
        files += ["--data", work / f"{i}.txt"]
        shards += ["--data", work / f"{i}.tokens"]
    last = program.train(work / "bytes", "--bytes", *files)
    program.train(work / "shards", *shards)
    if (work / "bytes/model.safetensors").read_bytes() != (work / "shards/model.safetensors").read_bytes():
        raise AssertionError("bytes and shards of the same tokens train to different models")

    tokens = [token for text in texts for token in (*text, END)]
    sequences = (len(tokens) - 1) // LENGTH
    first = (sequences - sequences // 4) * LENGTH
    separate(program, work)
    shard(work / "held", tokens[first:], "U32")
    measured = ["--model", work / "bytes", "--data", work / "held", "--length", LENGTH, "--json"]
    for batch in (1, 3):
        found = json.loads(program.must("eval", "ppl", *measured, "--batch", batch))
        if found["tokens"] != last["targets"] or abs(found["loss"] - last["validation_loss"]) > 1e-5:
            raise AssertionError(f"eval ppl: {found}, but the last validation: {last}")
        # Ties between logits are as likely to be counted here as there.
        if abs(found["accuracy"] - last["validation_accuracy"]) > 1e-9:
            raise AssertionError(f"eval ppl: {found}, but the last validation: {last}")
    print(f"  eval ppl and validation of {last['targets']} tokens: loss {found['loss']:.5f} and {last['validation_loss']:.5f}")

    model = ["--model", work / "bytes", "--length", LENGTH]
    wrong = [([END + 1], "U16", "257", "tokens", "token 0 is 257"), ([1, 2, 1 << 31], "U32", "257", "tokens", "token 2 is 2147483648"),
             ([], "U16", "257", "tokens", "no tokens"), ([1] * 99, "U16", None, "tokens", "vocabulary"),
             ([1] * 99, "U16", "0", "tokens", "vocabulary"),
             ([1] * 99, "U16", "1e3", "tokens", "vocabulary"), ([1] * 99, "U16", "257", "ids", "no tensor tokens"),
             ([1] * 99, "U16", "300", "tokens", "257 ids, the data 300"), ([1] * LENGTH, "U16", "257", "tokens", "a sequence takes 32")]
    for values, dtype, vocabulary, name, word in wrong:
        shard(work / "wrong", values, dtype, vocabulary, name)
        program.refused(word, *model, "--data", work / "wrong")
    shard(work / "wrong", [1] * 99, "U16", "300")
    program.refused("300 ids, that of the files before has 257", *model, "--data", work / "0.tokens", "--data", work / "wrong")
    program.refused("0.txt", *model, "--data", work / "0.txt")
    program.refused("none", *model, "--data", work / "none")
    (work / "empty").write_bytes(b"")
    program.refused("no tokens", *model, "--bytes", "--data", work / "empty")
    print(f"  {len(wrong) + 4} wrong files refused")


def main():
    with tempfile.TemporaryDirectory() as work:
        try:
            test(Program(*sys.argv[1:]), pathlib.Path(work))
        except AssertionError as wrong:
            print(f"corpus: {wrong}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
