#!/usr/bin/env python3
"""Long training of a tiny model: long_run.py DARTLM [STEPS [SEED]]. By default 600 steps, as a test; 20,000 by hand.

Three runs on the CPU, each with one thread. Two go through: every loss has the same bits, memory does not grow from a twentieth of the steps to the
end, and steps do not become slower. The third is stopped by signals at moments of chance and goes on each time: the same losses, the same files.
"""
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
STOPS = 12
TASK = ["lm", "--bytes", "--length", "32", "--width", "32", "--head-dim", "32", "--state", "8", "--chunk-size", "8", "--layers", "1",
        "--batch-tokens", "64", "--save", "1000000", "--validate", "1000000", "--sequences", "4", "--device", "cpu",
        "--threads", "1", "--json"]


def resident(pid):
    """KiB of the program's own; pages of the data, which it maps, come with the reading. None of a program that has ended."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("RssAnon:")), None)


class Run:
    """losses: by step, as printed; memory: KiB, at about a hundred steps; seconds: when each step was done."""

    def __init__(self, program, data, folder, steps):
        self.command = [program, "train", *TASK, "--data", data, "--steps", str(steps), folder]
        self.steps, self.folder = steps, folder
        self.losses, self.memory, self.seconds = {}, {}, {}

    def start(self, *more):
        return subprocess.Popen([*map(str, self.command), *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def read(self, process, until=None):
        """Until the end, or until a step is done."""
        for line in process.stdout:
            line = json.loads(line)
            if "loss" not in line:
                continue
            step = line["step"]
            if self.losses.setdefault(step, line["loss"]) != line["loss"]:
                raise AssertionError(f"step {step}: loss {line['loss']}, before {self.losses[step]}")
            self.seconds[step] = line["seconds"]
            if step % max(1, self.steps // 100) == 0:
                kib = resident(process.pid)
                if kib is not None:
                    self.memory[step] = kib
            if step == until:
                return

    def through(self):
        process = self.start()
        self.read(process)
        if process.wait() != 0:
            raise AssertionError(process.stderr.read())

    def in_parts(self, rng):
        begun = False
        for stop in sorted(rng.sample(range(self.steps - 1), min(STOPS, self.steps // 20))) + [None]:
            process = self.start(*(["--resume"] if begun else []))
            begun = True
            if stop is not None and stop not in self.losses:
                self.read(process, stop)
                time.sleep(rng.random() / 100)
                process.send_signal(signal.SIGTERM)
            elif stop is not None:  # a step too many was done before the last signal came
                process.send_signal(signal.SIGTERM)
            self.read(process)
            status = process.wait()
            if status not in ((0,) if stop is None else (0, -signal.SIGTERM)):
                raise AssertionError(f"after a signal the status is {status}: {process.stderr.read()}")


def main():
    program, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 600
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(1 << 32)
    print(f"long_run: seed {seed}, {steps} steps", flush=True)
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work)
        data = folder / "data"
        text = (ROOT / "README.md").read_bytes()
        data.write_bytes(text * (1 + steps * 75 // len(text)))  # 64 bytes a step, and a tenth of the data is for validation
        runs = [Run(program, data, folder / name, steps) for name in ("a", "b", "c")]
        failed = []

        def guarded(what, *arguments):
            try:
                what(*arguments)
            except (AssertionError, OSError) as error:
                failed.append(error)

        threads = [threading.Thread(target=guarded, args=(runs[0].through,)), threading.Thread(target=guarded, args=(runs[1].through,)),
                   threading.Thread(target=guarded, args=(runs[2].in_parts, rng))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in failed:
            print(f"long_run: {error}")
        if failed:
            return 1
        for run in runs[1:]:
            for one in (runs[0], run):
                assert sorted(one.losses) == list(range(steps)), f"{one.folder.name}: {len(one.losses)} steps were reported, not {steps}"
            differ = [step for step in range(steps) if run.losses[step] != runs[0].losses[step]]
            assert not differ, f"{run.folder.name}: {len(differ)} losses differ from those of a, the first in step {differ[0]}"
            for name in ("model.safetensors", "training.safetensors"):
                assert (run.folder / name).read_bytes() == (runs[0].folder / name).read_bytes(), f"{name} of two runs differs"
        for run in runs[:2]:
            part = steps // 10
            # The program may be past the step by then, and at its end it validates and writes, which takes memory of its own: of the last
            # tenth the least. What leaks with the steps stays in it.
            early = max(kib for step, kib in run.memory.items() if part // 2 <= step <= part)
            late = min(kib for step, kib in run.memory.items() if step >= steps - part)
            first = (run.seconds[2 * part] - run.seconds[part]) / part
            last = (run.seconds[steps - 1] - run.seconds[steps - 1 - part]) / part
            print(f"  {run.folder.name}: loss {run.losses[0]:.4f} to {run.losses[steps - 1]:.4f}, resident {early} KiB in the first tenth "
                  f"and {late} in the last, {1e3 * first:.3f} ms a step in the second tenth and {1e3 * last:.3f} in the last")
            assert late <= early + 256, f"resident memory grew from {early} KiB to {late}"
            if steps >= 10000:  # of a short run, other programs of the machine decide
                assert last <= 1.5 * first, f"steps took {1e3 * first:.3f} ms, then {1e3 * last:.3f}"
        print(f"  stopped {min(STOPS, steps // 20)} times: the same losses and files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
