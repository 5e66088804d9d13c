#!/usr/bin/env python3
"""EleutherAI's lm-eval over `dartlm serve`: lm_eval_server.py DARTLM DATA_DIR TEXT_FILE.

A small model is trained on the text, and tools/text/check_lm_eval.py asks it in ten ways. Where lm-eval is not installed nothing is tested (status
77); `tools/setup.sh --lm-eval` installs it.
"""
import importlib.util
import pathlib
import subprocess
import sys
import tempfile


def main():
    program, data, text = sys.argv[1:]
    if importlib.util.find_spec("lm_eval") is None:
        print("lm_eval_server: NOT RUN: lm-eval is not installed; tools/setup.sh --lm-eval does it")
        return 77
    with tempfile.TemporaryDirectory() as work:
        model = pathlib.Path(work) / "model"
        subprocess.run([program, "train", "lm", "--tokenizer", pathlib.Path(data) / "tokenizer", "--data", text, "--length", "32", "--batch-tokens",
                        "256", "--epochs", "1", "--width", "32", "--head-dim", "32", "--state", "8", "--chunk-size", "8", "--lr", "0.01", "--warm-up",
                        "4", "--device", "cpu", "--cache", "off", model], check=True, stdout=subprocess.DEVNULL)
        check = pathlib.Path(__file__).resolve().parent.parent / "tools" / "text" / "check_lm_eval.py"
        return subprocess.run([sys.executable, check, program, model, text, "--device", "cpu", "--cache", "off"], check=False).returncode


sys.exit(main())
