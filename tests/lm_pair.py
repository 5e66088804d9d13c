#!/usr/bin/env python3
"""tools/lm-pair on two tiny models: lm_pair.py DARTLM. A pair that is stopped at times of chance leaves the files of one that never was."""
import csv
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

PAIR = pathlib.Path(__file__).resolve().parent.parent / "tools/lm-pair"


def pair(program, out, data, *options):
    done = subprocess.run([PAIR, program, out, "--devices", "cpu,cpu", *options, "--", "--bytes", "--data", data, "--length", "32", "--width", "32",
                           "--layers", "1", "--batch-tokens", "256", "--validate", "8", "--sequences", "4", "--threads", "1"],
                          capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout


def main():
    program = sys.argv[1]
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        data = folder / "text"
        data.write_bytes(bytes(rng.choice(b"abc d") for _ in range(64000)))  # 225 steps
        whole, parts = folder / "whole", folder / "parts"
        said = pair(program, whole, data, "--equal", "20")
        assert said == "dart: 225 steps\nmamba2: 225 steps\n", said
        pieces = 0
        while not all((parts / model / "model.safetensors").exists() for model in ("dart", "mamba2")) or pieces == 0 or \
                pair(program, parts, data, "--export").count("225 steps") < 2:
            pair(program, parts, data, "--equal", "20", "--minutes", str(rng.uniform(0.1, 0.7) / 60))
            pieces += 1
            assert pieces < 200
        for model in ("dart", "mamba2", "dart-equal", "mamba2-equal"):
            assert (whole / model / "model.safetensors").read_bytes() == (parts / model / "model.safetensors").read_bytes(), model
        assert (whole / "dart-equal/model.safetensors").read_bytes() != (whole / "dart/model.safetensors").read_bytes()
        curves = [list(csv.DictReader((out / "curves.csv").open())) for out in (whole, parts)]
        for a, b in zip(*curves):
            assert all(a[key] == b[key] for key in ("model", "step", "tokens", "loss", "lr", "norm")), (a, b)
        assert len(curves[0]) == len(curves[1]) == 450 and curves[1][224]["tokens"] == str(225 * 256) and curves[0][7]["validation_loss"]
        assert any(int(row["resident_kib"] or 0) > 1000 for row in curves[0]), curves[0][-1]
        for rows in curves:
            seconds = [float(row["seconds"]) for row in rows[:225]]
            assert seconds == sorted(seconds), seconds
        if shutil.which("gnuplot"):
            subprocess.run([PAIR, "--draw", whole / "curves.csv"], check=True)
            assert (whole / "curves.png").read_bytes()[:4] == b"\x89PNG"
        else:
            print("NOT RUN: --draw: gnuplot is not installed")
    print(f"{pieces} pieces")


if __name__ == "__main__":
    main()
