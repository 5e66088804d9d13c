#!/usr/bin/env python3
"""Text on the command line: text.py DARTLM DATA_DIR DEVICE_SPEC.

`tokenize` and `detokenize` invert each other; a model trained on text by `--tokenizer` is the one trained on the tokens that `tokenize --out` writes;
`generate --prompt` prints the text of the ids that `generate --ids` prints, and stops before texts and behind the end of text.
"""
import json
import pathlib
import sys
import tempfile
import unicodedata

from program import Program

SAMPLE = ("The quick brown fox, it's said, jumps  over the lazy dog.\n\n    indented = {1: 'é', 22: \"日本\"}\n"
          "Fu\u0308hrer \U0001f600 \U0001f468\u200d\U0001f469 <|endoftext|> end\n") * 40


class Text(Program):
    def __init__(self, path, data, device):
        super().__init__(path, device)
        self.tokenizer = pathlib.Path(data) / "tokenizer"

    def train(self, folder, *data):
        self.must("train", "lm", *data, "--length", 32, "--batch-tokens", 256, "--epochs", 3, "--width", 32, "--head-dim", 32, "--state", 8,
                  "--chunk-size", 8, "--lr", "0.01", "--warm-up", 4, *self.device, folder)
        return (folder / "model.safetensors").read_bytes()


def same(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: {got!r}, not {wanted!r}")


def invert(program, work):
    sample, other = work / "sample.txt", work / "other.txt"
    sample.write_text(SAMPLE, encoding="utf-8")
    other.write_text("x\n", encoding="utf-8")
    where = ["--tokenizer", program.tokenizer]
    ids = program.must("tokenize", *where, sample)
    same("standard input", program.must("tokenize", *where, source=SAMPLE.encode()), ids)
    same("JSON", json.loads(program.must("tokenize", *where, "--json", sample))["ids"], list(map(int, ids.split())))
    same("detokenize", program.must("detokenize", *where, "--special", source=ids).decode(), unicodedata.normalize("NFC", SAMPLE))
    same("without special tokens", program.must("detokenize", "--model", program.tokenizer, source=ids.replace(b" ", b",")).decode(),
         unicodedata.normalize("NFC", SAMPLE).replace("<|endoftext|>", ""))
    same("plain", program.must("detokenize", *where, source=program.must("tokenize", *where, "--plain", sample)).decode(),
         unicodedata.normalize("NFC", SAMPLE))
    same("lines", len(program.must("tokenize", *where, sample, other).splitlines()), 2)
    program.refused(1, "byte 2 is 0xFF", "tokenize", *where, source=b"ab\xff")
    program.refused(1, "byte 3 begins no token id", "detokenize", *where, source=b"12 x")
    program.refused(1, "no-file", "tokenize", *where, work / "no-file")
    program.refused(1, "no-file", "tokenize", "--tokenizer", work / "no-file")
    program.refused(2, "--tokenizer or --model", "tokenize")
    return sample, other


def learn(program, work, sample, other):
    where = ["--tokenizer", program.tokenizer]
    trained = program.train(work / "text", *where, "--data", sample, "--data", other)
    program.must("tokenize", *where, "--out", work / "tokens", sample, other)
    same("the model of tokens is that of text", program.train(work / "shard", "--data", work / "tokens") == trained, True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        same(name, (work / "text" / name).read_bytes(), (program.tokenizer / name).read_bytes())
    program.must("eval", "ppl", "--model", work / "text", "--tokenizer", work / "text", "--data", sample, "--length", 32, *program.device)
    (work / "broken.txt").write_bytes(b"\xff" * 5000)
    program.refused(1, "broken.txt: the text is not UTF-8: byte 0", "train", "lm", *where, "--data", work / "broken.txt",
                    *program.device, work / "none")
    program.refused(1, "exclude each other", "train", "lm", *where, "--bytes", "--data", sample, *program.device, work / "none")
    return work / "text"


def learn_bytes(program, work, sample):
    """A model of bytes has a tokenizer: text goes in and out as it is, and the reference, where it is installed, agrees on every character."""
    folder = work / "bytes"
    program.train(folder, "--bytes", "--data", sample)
    odd = "".join(map(chr, range(1, 0x180))) + "e\u0301 \U0001f600 <|endoftext|>x"
    ids = program.must("tokenize", "--model", folder, source=odd.encode())
    wanted = list(odd[:-len("<|endoftext|>x")].encode()) + [256, ord("x")]
    same("bytes are ids", list(map(int, ids.split())), wanted)
    same("and back", program.must("detokenize", "--model", folder, "--special", source=ids).decode(), odd)
    try:
        import tokenizers
        same("the reference", tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(odd).ids, wanted)
    except ImportError:
        print("  pip's tokenizers is not here to compare with")
    base = ["generate", "--model", folder, *program.device, "-n", 20]
    new = program.must(*base, "--ids", ",".join(str(b) for b in "Führer".encode()))
    same("--prompt", program.must(*base, "--no-end", "--prompt", "Führer"), program.must("detokenize", "--model", folder, source=new) + b"\n")
    plain = work / "plain.txt"
    plain.write_text(SAMPLE.replace("<|endoftext|>", ""), encoding="utf-8")
    scores = [program.must("eval", "ppl", "--model", folder, *how, "--data", plain, "--length", 32, *program.device).splitlines()[0]
              for how in (["--bytes"], ["--tokenizer", folder])]
    same("the same file as bytes and as text", *scores)


def generate(program, work, model):
    prompt, count = "The quick brown", 60
    base = ["generate", "--model", model, *program.device, "-n", count]
    ids = program.must("tokenize", "--model", model, source=prompt.encode()).decode().strip().replace(" ", ",")
    new = program.must(*base, "--ids", ids)
    text = program.must("detokenize", "--model", model, source=new).decode()
    shown = program.must(*base, "--no-end", "--prompt", prompt).decode()
    same("--prompt", shown, text + "\n")
    (work / "prompt").write_text(prompt, encoding="utf-8")
    same("--prompt-file", program.must(*base, "--no-end", "--prompt-file", work / "prompt").decode(), shown)
    same("standard input", program.must(*base, "--no-end", "--prompt-file", "-", source=prompt.encode()).decode(), shown)
    same("--ids and --tokenizer", program.must(*base, "--no-end", "--ids", ids, "--tokenizer", model).decode(), shown)
    same("--ids-file", program.must(*base, "--ids-file", "-", source=ids.replace(",", "\n").encode()), new)
    program.refused(1, "'x' is no token id", *base, "--ids-file", "-", source=b"1 x")
    drawn = [*base, "--no-end", "--prompt", prompt, "--temperature", 1, "--top-p", "0.9", "--min-p", "0.02", "--seed", 5]
    same("the same seed", program.must(*drawn), program.must(*drawn))
    same("another seed", program.must(*drawn[:-1], 6) == program.must(*drawn), False)
    same("top-p of next to nothing", program.must(*drawn, "--top-p", "1e-6").decode(), shown)
    fresh = list(map(int, program.must(*base, "--ids", ids, "--repetition-penalty", 1000).split()))
    if len(set(fresh)) <= len(set(new.split())):
        raise AssertionError(f"a heavy penalty leaves {len(set(fresh))} different tokens, without it there are {len(set(new.split()))}")
    program.refused(2, "need a --temperature", *base, "--prompt", prompt, "--top-p", "0.5")
    found = json.loads(program.must(*base, "--no-end", "--prompt", prompt, "--json"))
    same("JSON", (found["text"], found["ids"]), (text, list(map(int, new.split()))))
    stop = text[len(text) // 2:len(text) // 2 + 3]
    same("--stop", program.must(*base, "--no-end", "--prompt", prompt, "--stop", stop).decode(), text[:text.index(stop)] + "\n")
    long = ["generate", "--model", model, *program.device, "-n", 400, "--prompt", "\U0001f600", "--json"]
    ended = json.loads(program.must(*long))
    without = json.loads(program.must(*long, "--no-end"))
    if 0 in without["ids"]:
        same("the end of text", ended["ids"], without["ids"][:without["ids"].index(0) + 1])
    elif ended != {**without, **{key: ended[key] for key in ended if key.endswith("second")}}:
        raise AssertionError("an end of text that does not come changes the text")
    print(f"  the end of text {'came' if 0 in without['ids'] else 'did not come'}; new text: {text[:60]!r}")
    program.refused(2, "one of --prompt", "generate", "--model", model, "-n", 1)
    program.refused(2, "one of --prompt", "generate", "--model", model, "-n", 1, "--prompt", "a", "--ids", "1")
    program.refused(2, "need a tokenizer", "generate", "--model", model, "-n", 1, "--ids", "1", "--stop", "a")
    program.refused(1, "tokenizer.json", "generate", "--model", work, "-n", 1, "--prompt", "a")


def main():
    with tempfile.TemporaryDirectory() as work:
        try:
            program, work = Text(*sys.argv[1:]), pathlib.Path(work)
            sample, other = invert(program, work)
            learn_bytes(program, work, sample)
            generate(program, work, learn(program, work, sample, other))
        except AssertionError as wrong:
            print(f"text: {wrong}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
