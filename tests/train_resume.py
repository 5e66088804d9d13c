#!/usr/bin/env python3
"""Runs that are stopped at any moment and go on: train_resume.py DARTLM DEVICE_SPEC.

A run of some dozen steps gives the reference. The same run is killed at twenty random moments, and once told to end, and goes on until it is
done: model and run must have the reference's bytes. What cannot be gone on with is refused and stays as it is.
"""
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

KILLS = 20
STEPS = 48
TASK = ["--width", "32", "--head-dim", "32", "--state", "8", "--chunk-size", "8", "--length", "32", "--vocabulary", "64", "--pairs", "4",
        "--batch-tokens", "1024", "--examples", "512", "--epochs", str(STEPS // 16), "--sequences", "32", "--validate", "1000", "--save", "2"]
FILES = ["config.json", "model.safetensors", "training.safetensors"]


class Runs:
    def __init__(self, dartlm, device):
        self.command = [dartlm, "train", "mqar", *TASK, "--device", device, "--cache", "off"]

    def start(self, folder, *options):
        return subprocess.Popen([*self.command, *options, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def finish(self, folder, *options):
        run = self.start(folder, *options)
        text = run.communicate()[0]
        return run.returncode, text

    def must(self, folder, *options):
        status, text = self.finish(folder, *options)
        if status != 0:
            raise AssertionError(f"{' '.join(options)} ends with {status}: {text}")

    def refused(self, folder, word, *options):
        before = contents(folder)
        status, text = self.finish(folder, *options)
        if status != 1 or word not in text:
            raise AssertionError(f"{' '.join(options)} ends with {status}, not 1 and '{word}': {text}")
        if contents(folder) != before:
            raise AssertionError(f"{' '.join(options)} was refused, but changed the folder")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def same(folder, reference):
    for name in FILES:
        if (folder / name).read_bytes() != (reference / name).read_bytes():
            raise AssertionError(f"{name} differs from that of a run that was not stopped")


def killed(runs, work, reference, seconds):
    """Ends a run without warning after random times, until KILLS of them have hit."""
    folder, kills, goes_on = work / "killed", 0, []
    while kills < KILLS:
        run = runs.start(folder, *goes_on)
        time.sleep(random.uniform(0, 0.5 * seconds))
        if run.poll() is None:
            run.kill()
            kills += 1
        run.communicate()
        goes_on = ["--resume"] if (folder / "training.safetensors").exists() else []
        if run.returncode == 0:
            same(folder, reference)
            shutil.rmtree(folder)
            goes_on = []
    runs.must(folder, *goes_on)
    same(folder, reference)
    left = set(contents(folder)) - set(FILES)
    print(f"  {kills} kills: the same bytes" + (f", and {', '.join(sorted(left))}" if left else ""))


def told(runs, work, reference, seconds):
    folder = work / "told"
    for number in (signal.SIGTERM, signal.SIGINT):
        run = runs.start(folder, *(["--resume"] if folder.exists() else []))
        time.sleep(0.3 * seconds)
        run.send_signal(number)
        text = run.communicate()[0]
        if run.returncode == 0:
            print(f"NOT RUN: {number.name} came too late")
        elif run.returncode != -number or "--resume goes on" not in text:
            raise AssertionError(f"{number.name}: ends with {run.returncode}: {text}")
    runs.must(folder, "--resume")
    same(folder, reference)
    runs.must(folder, "--resume")  # nothing is left to do
    same(folder, reference)


def refusals(runs, work, reference):
    runs.refused(reference, "holds a run already")
    runs.refused(work / "none", "no run", "--resume")
    for options, word in ((["--lr", "0.5"], "lr is 0.5"), (["--seed", "7"], "seed is 7"), (["--mamba2"], "sma is false"),
                          (["--rows", "16"], "rows is 16"), (["--dtype", "bf16"], "dtype is 3")):
        runs.refused(reference, word, "--resume", *options)
    whole = (reference / "training.safetensors").read_bytes()
    folder = work / "damaged"
    shutil.copytree(reference, folder)
    unread = whole.index(b'"format":"pt"')  # what other programs want to find in the header
    for _ in range(20):
        at = random.choice([*range(unread), *range(unread + 13, len(whole))])
        (folder / "training.safetensors").write_bytes(whole[:at] + bytes([whole[at] ^ 1 << random.randrange(8)]) + whole[at + 1:])
        runs.refused(folder, "training.safetensors", "--resume")
    for _ in range(5):
        (folder / "training.safetensors").write_bytes(whole[:random.randrange(len(whole))])
        runs.refused(folder, "training.safetensors", "--resume")
    print("  25 damaged runs and 7 wrong calls refused")


def main():
    runs = Runs(*sys.argv[1:])
    seed = random.randrange(1 << 32)
    random.seed(seed)
    print(f"  seed {seed}")
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        reference = work / "reference"
        begin = time.monotonic()
        try:
            runs.must(reference)
            seconds = time.monotonic() - begin
            killed(runs, work, reference, seconds)
            told(runs, work, reference, seconds)
            refusals(runs, work, reference)
        except AssertionError as wrong:
            print(f"train_resume: {wrong}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
