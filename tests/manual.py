#!/usr/bin/env python3
"""Manual pages and completions: manual.py DARTLM MANUAL_DIR.

Every option that a command's --help prints is in its page and in all three completions; groff reads the pages without a warning; bash completes
commands, tasks and options.
"""
import gzip
import pathlib
import re
import shutil
import subprocess
import sys


def must(condition, text):
    if not condition:
        raise AssertionError(text)


def complete(script, *words):
    """What bash offers for an empty word behind those words."""
    program = f'source {script}; COMP_WORDS=({" ".join(words)} ""); COMP_CWORD={len(words)}; _dartlm; echo "${{COMPREPLY[@]}}"'
    return subprocess.run(["bash", "-c", program], check=True, capture_output=True, text=True, cwd="/").stdout.split()


def main():
    program, manual = sys.argv[1], pathlib.Path(sys.argv[2])
    pages = sorted((manual / "man").glob("*.1.gz"))
    texts = {page.name.removesuffix(".1.gz"): gzip.decompress(page.read_bytes()).decode() for page in pages}
    shells = {name: (manual / "completions" / name).read_text() for name in ("bash", "zsh", "fish")}
    top = subprocess.run([program, "--help"], check=True, capture_output=True, text=True).stdout
    commands = re.findall(r"^  ([a-z]+) +\S", top, re.MULTILINE)
    must(len(commands) > 10, f"only {commands} in {top}")
    script = (manual / "completions/bash").resolve()
    must(set(commands) <= set(complete(script, "dartlm")), "bash does not complete all commands")
    must({"mqar", "ppl", "niah", "lambada"} <= set(complete(script, "dartlm", "eval")), "bash does not complete the tasks of eval")
    must("--no-sma" in complete(script, "dartlm", "generate"), "bash does not complete the options of generate")
    must("--length" in complete(script, "dartlm", "eval", "ppl"), "bash does not complete the options of eval ppl")
    for name in (f"dartlm-{command}" for command in commands):
        must(name in texts, f"{name} has no page")
    options = 0
    for name, text in texts.items():
        words = name.split("-")[1:]
        if not words:
            continue
        said = subprocess.run([program, *words, "--help"], check=True, capture_output=True, text=True).stdout
        for option in re.findall(r"^ {2,6}(?:-\w, )?(--[a-z0-9-]+)", said, re.MULTILINE):
            options += 1
            must(option.replace("-", "\\-") in text, f"{option} is not in the page of {name}")
            must(option in shells["bash"] and option in shells["zsh"], f"{option} of {name} is not completed")
            must(f"-l {option[2:]}" in shells["fish"], f"{option} of {name} is not completed by fish")
    if shutil.which("groff"):
        for page in pages:
            said = subprocess.run(["groff", "-man", "-ww", "-z"], input=gzip.decompress(page.read_bytes()), check=True, capture_output=True).stderr
            must(not said, f"{page.name}: {said.decode()}")
    print(f"manual: {len(texts)} pages, {options} options")


main()
