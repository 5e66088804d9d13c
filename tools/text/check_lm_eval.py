#!/usr/bin/env python3
"""Compares lm-eval over `dartlm serve` with itself and with `dartlm eval`: check_lm_eval.py DARTLM MODEL_DIR TEXT_FILE [SERVE_OPTIONS ...].

For the Python of an environment that has lm-eval; PyTorch is not needed:
    pip install --no-deps lm-eval==0.4.13 transformers
    pip install tokenizers regex aiohttp requests tenacity tqdm numpy jinja2 more_itertools dill sqlitedict pytablewriter safetensors \\
        datasets sacrebleu word2number typer
Three tasks are made of the text: the last word of lines (loglikelihood), all of a text (loglikelihood_rolling), and its continuation
(generate_until). lm-eval runs them, unmodified, with requests one by one and in batches, one after another and at once, as ids and as text,
with the server's tokenizer and with Hugging Face's. Every log-probability must be the same to 1e-5, relative to its size or 1, every generated
text the same, and the rolling one what `dartlm eval ppl` says of the same tokens. All runs are calls of lm-eval's
simple_evaluate, which its command calls, too; the command reads 14,000 files of tasks at each start.
"""
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

LENGTH = 62 # tokens of a window that lm-eval predicts with max_length 64
SETTINGS = [(arguments, batch) for arguments in ("", "num_concurrent=8", "tokenized_requests=False", "tokenized_requests=False,num_concurrent=8",
                                                 "tokenizer_backend=huggingface,tokenizer={model}") for batch in (1, 8)]
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: {kind}
test_split: test
"""


def write_tasks(folder, text, whole):
    lines = [line.strip() for line in text.splitlines() if 4 < len(line.split()) < 30][:12]
    tasks = {
        "words": ("loglikelihood", lines, 'doc_to_text: "{{text.split(\' \')[:-1]|join(\' \')}}"\ndoc_to_target: "{{\' \'+text.split(\' \')[-1]}}"\n'
                  "metric_list: [{metric: perplexity, aggregation: perplexity, higher_is_better: false}]\n"),
        "whole": ("loglikelihood_rolling", [whole], 'doc_to_text: ""\ndoc_to_target: "{{text}}"\n'
                  "metric_list: [{metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}]\n"),
        "more": ("generate_until", lines[:6], 'doc_to_text: "{{text}}"\ndoc_to_target: ""\n'
                 'generation_kwargs: {until: ["\\n", "."], max_gen_toks: 24}\n'
                 "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\n")}
    for name, (kind, docs, rest) in tasks.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": doc}) + "\n" for doc in docs), encoding="utf-8")
        (folder / f"{name}.yaml").write_text(TASK.format(name=f"dartlm_{name}", data=folder / f"{name}.jsonl", kind=kind) + rest, encoding="utf-8")
    return [f"dartlm_{name}" for name in tasks]


def ask(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())


def cut(url, text):
    """The longest beginning of the text that is a multiple of LENGTH tokens, and stays so when it is read again."""
    ids = ask(url + "/tokenize", {"prompt": text})["tokens"]
    for count in range(min(len(ids), 20 * LENGTH) // LENGTH * LENGTH, 0, -LENGTH):
        part = ask(url + "/detokenize", {"tokens": ids[:count]})["prompt"]
        if ask(url + "/tokenize", {"prompt": part})["tokens"] == ids[:count]:
            return part, count
    raise SystemExit(f"the text has no beginning of a multiple of {LENGTH} tokens")


def run(url, manager, model, tasks, arguments, batch):
    """What lm-eval has sent to its metrics, document by document."""
    from lm_eval import simple_evaluate
    given = f"model=m,base_url={url}/v1/completions,max_length={LENGTH + 2}" + (f",{arguments.format(model=model)}" if arguments else "")
    with contextlib.redirect_stderr(io.StringIO()): # bars of progress
        results = simple_evaluate(model="local-completions", model_args=given, batch_size=batch, tasks=tasks, task_manager=manager, log_samples=True,
                                  bootstrap_iters=0)
    return {task: [sample["resps"] for sample in sorted(results["samples"][task], key=lambda sample: sample["doc_id"])] for task in tasks}


def numbers_of(value):
    """Numbers and texts of nested lists and tuples, in order."""
    return [leaf for part in value for leaf in numbers_of(part)] if isinstance(value, (list, tuple)) else [value]


def differ(one, other):
    """The largest distance of numbers, relative to their size or 1; infinite where anything else differs."""
    worst = 0.0
    one, other = numbers_of(one), numbers_of(other)
    if len(one) != len(other):
        return float("inf")
    for x, y in zip(one, other):
        try:
            a, b = float(x), float(y)
            worst = max(worst, abs(a - b) / max(1.0, abs(a)))
        except ValueError:
            worst = worst if x == y else float("inf")
    return worst


def perplexity(program, model, work, whole, tokens):
    """What `dartlm eval ppl` says of the end-of-text token and the text behind it: the sum of log-probabilities."""
    (work / "whole.txt").write_text("<|endoftext|>" + whole, encoding="utf-8")
    done = subprocess.run([program, "eval", "ppl", "--model", model, "--tokenizer", model, "--data", work / "whole.txt", "--length", str(LENGTH),
                           "--device", "cpu", "--json"], check=True, stdout=subprocess.PIPE)
    found = json.loads(done.stdout)
    if found["tokens"] != tokens:
        raise SystemExit(f"dartlm eval ppl measures {found['tokens']} tokens, not {tokens}")
    return -found["loss"] * tokens


def main():
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1") # read when lm-eval is imported
    program, model, text_file, *options = sys.argv[1:]
    program, model = pathlib.Path(program).resolve(), pathlib.Path(model).resolve()
    text = pathlib.Path(text_file).read_text(encoding="utf-8")
    server = subprocess.Popen([program, "serve", "--model", model, "--name", "m", "--port", "0", *options], stdout=subprocess.PIPE, text=True)
    worst = 0.0
    try:
        url = server.stdout.readline().split()[-1]
        with tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            whole, tokens = cut(url, text)
            tasks = write_tasks(work, text, whole)
            from lm_eval.tasks import TaskManager
            manager, first = TaskManager(include_path=str(work), include_defaults=False), None
            for arguments, batch in SETTINGS:
                found = run(url, manager, model, tasks, arguments, batch)
                first = first or found
                if not all(numbers_of(found[task]) for task in tasks):
                    raise SystemExit(f"lm-eval has asked nothing of one of {tasks}")
                for task in tasks:
                    distance = differ(found[task], first[task])
                    print(f"{arguments or 'defaults'}, batch_size {batch}, {task}: distance {distance:.1e}", flush=True)
                    worst = max(worst, distance)
            rolling, wanted = float(numbers_of(first[tasks[1]])[0]), perplexity(program, model, work, whole, tokens)
            print(f"rolling {rolling:.6f}, dartlm eval ppl {wanted:.6f}, {tokens} tokens: distance {differ([rolling], [wanted]):.1e}")
            worst = max(worst, differ([rolling], [wanted]))
    finally:
        server.terminate()
        server.wait()
    print(f"{'equal' if worst <= 1e-5 else 'DIFFERENT'}: the largest distance is {worst:.1e}")
    return 0 if worst <= 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
