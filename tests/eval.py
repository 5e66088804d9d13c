#!/usr/bin/env python3
"""Evaluation: eval.py DARTLM DATA_DIR DEVICE_SPEC.

Needles: prompts of a fixed seed equal tests/data/niah/golden.jsonl, and RULER's templates put together here; answers that repeat the needle are all
right and answers without it none; a model's answers are those that `generate` gives to the same prompts, whatever the batch. Last words and
perplexities by place equal what the logits of `dartlm logits` give in double precision.
"""
import json
import math
import pathlib
import random
import re
import struct
import sys
import tempfile

from program import Program

HAY = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
GOLDEN = ((1, 1024, 3), (1, 4096, 1), (2, 3072, 2), (3, 3072, 2)) # task, length, samples
TEXT = ("The old sailor sees the quiet harbour near the tower. A young baker finds the silver key behind the door! \"Who is there?\" asks the owl. "
        "Nobody answers the owl.\n\nThe rain   covers the garden, and the fox (a clever one) hides beside the wall.) ") * 60


class Evaluation(Program):
    def __init__(self, path, data, device):
        super().__init__(path, device)
        self.data = pathlib.Path(data)

    def lines(self, path):
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def same(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: {got!r}, not {wanted!r}")


def near(what, got, wanted, share):
    if not abs(got - wanted) <= share * max(1.0, abs(wanted)):
        raise AssertionError(f"{what}: {got}, not {wanted} to {share}")


def check_template(task, prompt):
    """The prompt, put together from RULER's templates around its own key, value and place."""
    value = prompt["outputs"][0]
    kind = "uuid" if task == 3 else "number"
    shape = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}" if task == 3 else r"[1-9][0-9]{6}"
    if not re.fullmatch(shape, value):
        raise AssertionError(f"{value} is no {kind}")
    key = re.fullmatch(rf"The special magic {kind} for ([a-z]+-[a-z]+) mentioned in the provided text is", prompt["gen_prefix"])[1]
    needle = f"One of the special magic {kind}s for {key} is: {value}."
    head = (f"A special magic {kind} is hidden within the following text. Make sure to memorize it. I will quiz you about the {kind} afterwards.\n")
    tail = f"\nWhat is the special magic {kind} for {key} mentioned in the provided text?"
    text = prompt["input"]
    if not (text.startswith(head) and text.endswith(tail)):
        raise AssertionError(f"not RULER's template: {text[:200]!r} ... {text[-200:]!r}")
    context = text[len(head):-len(tail)]
    same("needles", context.count(needle), 1)
    if task == 1:
        lines = context.split("\n")
        place = lines.index(needle)
        same("the haystack", lines, [HAY] * place + [needle] + [HAY] * (len(lines) - 1 - place))
        same("lines in steps", (len(lines) - 1) % (5 if prompt["max_length"] < 4096 else 25), 0)
        same("the needle is before the last line", place < len(lines) - 1, True)
        return place / (len(lines) - 1)
    before, after = context.split(needle)
    if not (before.endswith(" ") and after.startswith(" ")):
        raise AssertionError(f"no blanks around the needle: {before[-20:]!r}, {after[:20]!r}")
    words = (before + after).split()
    same("words in steps", len(words) % 500, 0)
    if before.strip() and after.strip() and not re.search(r"[.!?][\"')\]]*$", before.strip()):
        raise AssertionError(f"the needle is not behind a sentence: {before[-40:]!r}")
    same("one blank between words", (before.strip() + " " + after.strip()).strip(), " ".join(words))
    return len(before.split()) / len(words)


def needles(program, work, tokenizer):
    """The golden file, other seeds, other haystacks, and the judge."""
    golden = program.data / "niah" / "golden.jsonl"
    made = []
    for task, length, samples in GOLDEN:
        program.must("eval", "niah", "--tokenizer", tokenizer, "--task", task, "--length", length, "--samples", samples, "--prompts", work / "p")
        made += [(task, prompt) for prompt in program.lines(work / "p")]
    if sys.argv[4:] == ["--golden"]:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text("".join(json.dumps(prompt, separators=(",", ":")) + "\n" for _, prompt in made), encoding="utf-8")
    same("the golden file", [prompt for _, prompt in made], program.lines(golden))
    for task, prompt in made:
        check_template(task, prompt)
    (work / "hay.txt").write_text(TEXT, encoding="utf-8")
    seed = random.randrange(1 << 32)
    print(f"  seed {seed}")
    for task, options in ((1, []), (2, []), (3, ["--haystack", work / "hay.txt"])):
        base = ["eval", "niah", "--tokenizer", tokenizer, "--task", task, "--length", 4096 if task > 1 else 1024, "--samples", 40, "--seed", seed,
                *options]
        program.must(*base, "--prompts", work / "p")
        prompts = program.lines(work / "p")
        places = [check_template(task, prompt) for prompt in prompts]
        same("different values", len({prompt["outputs"][0] for prompt in prompts}), 40)
        if not (min(places) < 0.25 and max(places) > 0.75):
            raise AssertionError(f"all needles lie from {min(places)} to {max(places)} of the text")
        if options:
            text = " ".join(TEXT.split())
            for prompt in prompts:
                context = prompt["input"].split("\n")[1]
                needle = re.search(r" ?One of the special magic uuids for \S+ is: \S+\. ?", context)[0]
                same("the words of the file", text.startswith(context.replace(needle, " ").strip()), True)
        for prompt in prompts:
            ids = program.must("tokenize", "--tokenizer", tokenizer, source=prompt["input"].encode()).split()
            same("length", len(ids) + 128, prompt["length"])
            if prompt["length"] > prompt["max_length"]:
                raise AssertionError(f"{prompt['length']} tokens of {prompt['max_length']}")
        judge(program, work, base, prompts)
    program.refused(1, "too few for 65536 tokens", "eval", "niah", "--tokenizer", tokenizer, "--task", 2, "--length", 65536, "--haystack",
                    work / "hay.txt", "--prompts", work / "p")
    program.refused(1, "have no room for", "eval", "niah", "--tokenizer", tokenizer, "--task", 2, "--length", 256, "--prompts", work / "p")
    program.refused(2, "task 1 has a text of its own", "eval", "niah", "--tokenizer", tokenizer, "--haystack", work / "hay.txt",
                    "--prompts", work / "p")
    program.refused(2, "--model is missing", "eval", "niah", "--tokenizer", tokenizer)


def judge(program, work, base, prompts):
    """A reader that finds the needle is always right, one that guesses never; capitals do not matter."""
    def percent(answers):
        (work / "answers").write_text("".join(json.dumps({"answer": answer}) + "\n" for answer in answers), encoding="utf-8")
        return json.loads(program.must(*base, "--answers", work / "answers", "--json"))["percent"]

    found = [re.search(r"One of the special magic \w+ for \S+ is: (\S+)\.", prompt["input"])[1] for prompt in prompts]
    same("the oracle", percent(f" it is {value.upper()}, I think.\n" for value in found), 100)
    same("the blind one", percent(f" {random.randrange(10 ** 6)}" for _ in found), 0)
    same("every second", percent(value if i % 2 == 0 else value[:-1] for i, value in enumerate(found)), 50)
    same("values of others", percent(found[1:] + found[:1]), 0)
    program.refused(1, "39 answers to 40", *base, "--answers", "-", source=b'{"answer":""}\n' * 39)
    program.refused(1, "more answers", *base, "--answers", "-", source=b'{"answer":""}\n' * 41)
    program.refused(1, "line 2 has no text", *base, "--answers", "-", source=b'{"answer":"a"}\n{"text":"a"}\n')
    program.refused(1, "line 1", *base, "--answers", "-", source=b'{"answer":"a}\n')


def train(program, work, tokenizer):
    (work / "train.txt").write_text(TEXT, encoding="utf-8")
    program.must("train", "lm", "--tokenizer", tokenizer, "--data", work / "train.txt", "--length", 32, "--batch-tokens", 256, "--epochs", 2,
                 "--width", 32, "--head-dim", 32, "--state", 8, "--chunk-size", 8, "--lr", "0.01", "--warm-up", 4, *program.device, work / "model")
    return work / "model"


def answers(program, work, model):
    """The answers of a model: those of `generate`, for any batch; the switches of ablations reach the state."""
    base = ["eval", "niah", "--model", model, "--length", 700, "--samples", 3, "-n", 12, *program.device]
    written = []
    for batch in (1, 2):
        found = json.loads(program.must(*base, "--batch", batch, "--write", work / f"w{batch}", "--json"))
        written.append(program.lines(work / f"w{batch}"))
        same("right", found["right"], sum(line["right"] for line in written[-1]))
    same("batches", written[1], written[0])
    for line in written[0]:
        prompt = line["input"] + " " + line["gen_prefix"]
        ids = program.must("tokenize", "--model", model, source=prompt.encode()).decode().strip().replace(" ", ",")
        new = program.must("generate", "--model", model, *program.device, "-n", 12, "--ids", ids, "--tokenizer", model).decode()
        same("the answer", line["answer"], new[:-1])
    for options in (["--no-sma"], ["--chunk-size", 64]):
        program.must(*base, *options)


def logits(program, work, model, tokens, *options):
    """Of every token, by `dartlm logits`."""
    data = struct.pack(f"<{len(tokens)}i", *tokens)
    header = json.dumps({"input_ids": {"dtype": "I32", "shape": [len(tokens)], "data_offsets": [0, len(data)]}}).encode()
    (work / "in").write_bytes(struct.pack("<Q", len(header)) + header + data)
    program.must("logits", "--model", model, *program.device, *options, work / "in", work / "out")
    raw = (work / "out").read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    rows, width = json.loads(raw[8:8 + length])["logits"]["shape"]
    values = struct.unpack(f"<{rows * width}f", raw[8 + length:])
    return [values[i * width:(i + 1) * width] for i in range(rows)]


def log_softmax(row, token):
    top = max(row)
    return row[token] - top - math.log(math.fsum(math.exp(value - top) for value in row))


def last_words(program, work, model):
    words = TEXT.split()
    texts = [" ".join(words[i:i + random.randrange(3, 30)]) for i in range(0, 200, 13)] + ["word"]
    objects = [{"text": text} for text in texts] + [{"context": "The owl ", "target": "sees the garden"}, {"context": "", "target": "The"}]
    (work / "texts").write_text("\n".join(json.dumps(each) for each in objects) + "\n\n", encoding="utf-8")

    def ids(text):
        return [int(word) for word in program.must("tokenize", "--model", model, source=text.encode()).split()]

    for options in ([], ["--no-sma"], ["--chunk-size", 4]):
        total, right = 0.0, 0
        for each in objects:
            text = each.get("text", each.get("context", "") + each.get("target", ""))
            context = each["context"] if "context" in each else text[:text.rfind(" ") + 1]
            context = context.rstrip(" ")
            begin = [] if context else [0] # the end of text begins a text without context
            tokens, first = begin + ids(text), len(begin + ids(context)) if context else 1
            rows = logits(program, work, model, tokens, *options)
            total += sum(log_softmax(rows[t - 1], tokens[t]) for t in range(first, len(tokens)))
            right += all(max(range(len(rows[0])), key=rows[t - 1].__getitem__) == tokens[t] for t in range(first, len(tokens)))
        for batch in (1, 5):
            found = json.loads(program.must("eval", "lambada", "--model", model, "--data", work / "texts", "--batch", batch, "--json",
                                            *program.device, *options))
            near("loss", found["loss"], -total / len(objects), 1e-5)
            near("perplexity", found["perplexity"], math.exp(-total / len(objects)), 1e-4)
            same("right", (found["right"], found["texts"]), (right, len(objects)))
    print(f"  last words: loss {found['loss']:.5f}, {right} of {len(objects)} right")
    for text, word in ((b"", "no examples"), (b"{}\n", 'line 1 has no "text"'), (b'{"text":"a b"}\n[1]\n', "line 2 is no JSON object"),
                       (b'{"text":""}\n', "line 1 has no target"), (b'{"text":"a b\n', "line 1")):
        program.refused(1, word, "eval", "lambada", "--model", model, "--data", "-", *program.device, source=text)


def by_place(program, work, model):
    """Sums by place in the sequence, against the logits of each sequence."""
    (work / "short.txt").write_text(TEXT[:1200], encoding="utf-8")
    tokens = [int(word) for word in program.must("tokenize", "--model", model, work / "short.txt").split()] + [0]
    L, parts = 37, 5
    losses = [[] for _ in range(parts)]
    for first in range(0, len(tokens) - L, L):
        rows = logits(program, work, model, tokens[first:first + L])
        for t in range(L):
            losses[t * parts // L].append(-log_softmax(rows[t], tokens[first + t + 1]))
    for batch in (1, 3):
        found = json.loads(program.must("eval", "ppl", "--model", model, "--tokenizer", model, "--data", work / "short.txt", "--length", L,
                                        "--places", parts, "--batch", batch, "--json", *program.device))
        near("loss", found["loss"], math.fsum(map(sum, losses)) / sum(map(len, losses)), 1e-5)
        same("parts", [part["tokens"] for part in found["places"]], [len(part) for part in losses])
        same("borders", [found["places"][0]["from"], found["places"][-1]["to"]], [0, L - 1])
        for part, wanted in zip(found["places"], losses):
            near("loss of a part", part["loss"], math.fsum(wanted) / len(wanted), 1e-5)
            places = range(part["from"], part["to"] + 1)
            same("places", sum(t * parts // L == found["places"].index(part) for t in places), len(places))
    program.refused(2, "more parts than", "eval", "ppl", "--model", model, "--tokenizer", model, "--data", work / "short.txt", "--length", 4,
                    "--places", 5)


def test(program, work):
    tokenizer = program.data / "tokenizer"
    needles(program, work, tokenizer)
    model = train(program, work, tokenizer)
    answers(program, work, model)
    last_words(program, work, model)
    by_place(program, work, model)


def main():
    with tempfile.TemporaryDirectory() as work:
        try:
            test(Evaluation(*sys.argv[1:4]), pathlib.Path(work))
        except AssertionError as wrong:
            print(f"eval: {wrong}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
