#!/usr/bin/env python3
"""`dartlm train mqar --resume` and `dartlm train lm`: train_resume.py DARTLM DEVICE_SPEC [SEED].

A run that is stopped, or killed at any moment, goes on to the bytes that a run has which never stopped; what is no such run is refused, and
nothing is lost by that. Moments and damages are random; a failure prints the seed that repeats them.
"""
import json
import math
import pathlib
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

# 128 steps of 4 sequences, four stages of 4 epochs of 8 steps. Saving takes longer than a step, so that many kills hit it.
TASK = ("mqar --width 32 --head-dim 32 --state 8 --chunk-size 8 --length 32 --vocabulary 64 --batch-tokens 128 --examples 32 --epochs 4 "
        "--warm-up 8 --sequences 16").split()
STEPS = 128
KILLS = 20
RUN, MODEL = "training.safetensors", "model.safetensors"


def whole(path):
    """The note of a saved run, or None for a file that is not complete."""
    data = path.read_bytes()
    if len(data) < 8:
        return None
    length, = struct.unpack("<Q", data[:8])
    if len(data) < 8 + length:
        return None
    header = json.loads(data[8:8 + length])
    note = json.loads(header.pop("__metadata__")["note"])
    return note if len(data) == 8 + length + max(entry["data_offsets"][1] for entry in header.values()) else None


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Runs:
    def __init__(self, dartlm, device, work):
        self.dartlm, self.device, self.work = dartlm, device, work
        self.count = 0

    def folder(self):
        self.count += 1
        return self.work / str(self.count)

    def start(self, folder, *options, task=TASK):
        return subprocess.Popen([self.dartlm, "train", *task, "--device", self.device, "--json", *options, str(folder)],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self, folder, *options, task=TASK):
        """The steps that were reported."""
        process = self.start(folder, *options, task=task)
        out, errors = process.communicate()
        if process.returncode != 0:
            raise AssertionError(f"{' '.join(options)} ends with {process.returncode}: {errors}")
        lines = [json.loads(line) for line in out.splitlines()]
        self.resumed = lines.pop(0) if lines and "resumed" in lines[0] else None
        if ("--resume" in options) != (self.resumed is not None) or any("resumed" in line for line in lines):
            raise AssertionError(f"{' '.join(options)}: the line of a resumed run is {self.resumed}, then {lines}")
        self.lines = [line for line in lines if "loss" in line]
        return [line["step"] for line in self.lines]

    def same(self, folder, what, reference=None):
        for name in (RUN, MODEL):
            if (folder / name).read_bytes() != ((reference or self.reference) / name).read_bytes():
                raise AssertionError(f"{what}: {name} is not that of a run which never stopped")

    # ---- Runs that go on ----

    def never_stopped(self):
        self.reference = self.folder()
        begin = time.monotonic()
        steps = self.finish(self.reference, "--save", "1")
        self.seconds = time.monotonic() - begin
        note = whole(self.reference / RUN)
        if steps != list(range(STEPS)) or note["task"] != "mqar" or note["step"] != STEPS or note["settings"]["width"] != "32":
            raise AssertionError(f"steps {steps}, note {note}")
        seldom = self.folder()
        self.finish(seldom, "--save", "1000", "--validate", "7")
        self.same(seldom, "--save 1000 --validate 7")
        print(f"  a run of {STEPS} steps: {self.seconds:.2f} s")

    def in_two_parts(self):
        folder = self.folder()
        first, rest = self.finish(folder, "--steps", "50"), self.finish(folder, "--resume", "--keep", "3", "--threads", "1")
        if first + rest != list(range(STEPS)) or self.resumed != {"resumed": 50, "steps": STEPS, "updates": 50}:
            raise AssertionError(f"steps {first}, then {rest}, resumed with {self.resumed}")
        if any("scale" in line for line in self.lines):
            raise AssertionError("a run in f32 has a loss scale")
        self.same(folder, "--steps 50, then all")
        if self.finish(folder, "--resume") != []:
            raise AssertionError("a run with all steps done takes more")
        self.same(folder, "resumed with all steps done")
        # With bf16 the passes multiply rounded copies of what is saved.
        for options in (("--dtype", "bf16"), ("--schedule", "cosine", "--min-lr", "0.1", "--rows", "2", "--seed", str(2**64 - 1))):
            at_once, parts = self.folder(), self.folder()
            self.finish(at_once, *options)
            self.finish(parts, "--steps", "50", *options)
            self.finish(parts, "--resume", *options)
            self.same(parts, f"{' '.join(options)} in two parts", at_once)
        print("  in two parts: the same bytes")

    def shorter_schedule(self):
        """Up to where the schedule ends, the rates of a run of so many steps; from there the least. The setting stays with the run."""
        shape = ("--schedule", "cosine", "--min-lr", "0.25", "--lr", "0.001")
        folder = self.folder()
        self.finish(folder, *shape, "--schedule-steps", "40", "--steps", "30")
        rates = [line["lr"] for line in self.lines]
        self.refuse(folder, "the run has --schedule-steps 40, which was not given", "--resume", *shape)
        self.refuse(folder, "--schedule-steps 40, not 41", "--resume", *shape, "--schedule-steps", "41")
        self.finish(folder, "--resume", *shape, "--schedule-steps", "40", "--steps", "60")
        rates += [line["lr"] for line in self.lines]
        warm_up = 8
        for step, rate in enumerate(rates):
            done = min(max(step - warm_up, 0) / (40 - warm_up), 1)
            wanted = 0.001 * ((step + 1) / warm_up if step < warm_up else 0.25 + 0.75 * (1 + math.cos(math.pi * done)) / 2)
            if abs(rate - wanted) > 1e-6 * wanted:  # the options are f32
                raise AssertionError(f"--schedule-steps 40: rate {rate} in step {step}, not {wanted}")
        seconds = [line["seconds"] for line in self.lines]
        if len(rates) != 60 or seconds != sorted(seconds):
            raise AssertionError(f"{len(rates)} steps, not 60, after {seconds} seconds")
        self.refuse(self.reference, "--schedule-steps", "--resume", "--schedule-steps", "40")

    def in_f16(self):
        """From a loss scale that overflows: steps are skipped until it does not, then it doubles after every 7 good ones."""
        at_once, parts = self.folder(), self.folder()
        options = ("--dtype", "f16", "--loss-scale", str(2**32), "--scale-steps", "7")
        self.finish(at_once, *options)
        scale, good, skipped = 2**32, 0, 0
        for line in self.lines:
            if line["scale"] != scale:
                raise AssertionError(f"loss scale {line['scale']}, not {scale}, in {line}")
            skipped += line["skipped"]
            good = 0 if line["skipped"] else good + 1
            scale = scale // 2 if line["skipped"] else scale * 2 if good == 7 else scale
            good %= 7
        if not 1 < skipped < STEPS / 2:
            raise AssertionError(f"{skipped} of {STEPS} steps were skipped")
        self.finish(parts, "--steps", "50", *options)
        early = sum(line["skipped"] for line in self.lines)
        self.finish(parts, "--resume", *options)
        if self.resumed != {"resumed": 50, "steps": STEPS, "updates": 50 - early}:
            raise AssertionError(f"resumed with {self.resumed} after {early} skipped steps")
        self.same(parts, "f16 in two parts", at_once)
        self.refuse(parts, "--scale-steps 7, not 8", "--resume", *options[:-1], "8")
        print(f"  f16: {skipped} of {STEPS} steps skipped, the last loss scale {scale}")

    def momentum_of_zero(self):
        """--beta1 0 is 0: other bytes than with the default, and those of a very small one but for its trace."""
        none, usual = self.folder(), self.folder()
        self.finish(none, "--beta1", "0", "--steps", "3")
        losses = [line["loss"] for line in self.lines]
        self.finish(usual, "--steps", "3")
        if losses[2] == self.lines[2]["loss"]:
            raise AssertionError("--beta1 0 gives the steps of the default")
        self.finish(self.folder(), "--beta1", "1e-30", "--steps", "3")
        if losses != [line["loss"] for line in self.lines]:
            raise AssertionError(f"--beta1 0 gives the losses {losses}, 1e-30 {self.lines}")
        if whole(none / RUN)["settings"]["beta1"] != "0":
            raise AssertionError("the run does not say --beta1 0")

    # ---- One program at a time ----

    def locked(self):
        folder = self.folder()
        first = self.start(folder, "--validate", "1000", "--save", "1000")
        try:
            first.stdout.readline()  # of a step: the run is there
            first.send_signal(signal.SIGSTOP)
            before = contents(folder)
            for options in (("--resume",), ("--resume", "--steps", "1")):
                second = self.start(folder, *options)
                _, errors = second.communicate()
                if second.returncode != 1 or "training.lock" not in errors or f"process {first.pid} has it" not in errors:
                    raise AssertionError(f"a second program ends with {second.returncode}: {errors}")
                if "\n" in errors.strip() or contents(folder) != before:
                    raise AssertionError(f"a second program changed the folder, or said more than one line: {errors}")
        finally:
            first.kill()
            first.communicate()
        self.finish(folder, "--resume")
        self.same(folder, "resumed after the program that had the lock was killed")
        print("  a second program in the folder: refused while the first one lives")

    def stopped(self, number):
        """A folder with a run that a signal stopped, and the step that it is after."""
        process = None
        for _ in range(10):  # where this program is kept waiting, the run may come to its end before the signal
            folder = self.folder()
            process = self.start(folder, "--save", "1000")
            for _ in range(random.randrange(3, STEPS // 4)):  # more than one step is done: refusals asks for fewer
                process.stdout.readline()
            process.send_signal(number)
            _, errors = process.communicate()
            if process.returncode != 0:
                break
        if process.returncode != -number:
            raise AssertionError(f"after {number.name} the status is {process.returncode}: {errors}")
        note = whole(folder / RUN)
        if f"stopped after step {note['step']} of {STEPS}" not in errors or f"--resume --steps {note['step']} " not in errors or note["step"] == 0:
            raise AssertionError(f"after {number.name} at step {note['step']}, stderr has: {errors}")
        if (folder / MODEL).exists():
            raise AssertionError("a stopped run leaves a model")
        return folder, note["step"]

    def by_signals(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            folder, step = self.stopped(number)
            before = contents(folder)[RUN]
            with open(folder / RUN, "rb") as opened:
                steps = self.finish(folder, "--resume", "--save", "5")
                # A file is replaced, not written over: who has it open reads on in what it was.
                if opened.read() != before:
                    raise AssertionError("the file of the run was written over in its place")
            if steps != list(range(step, STEPS)):
                raise AssertionError(f"stopped after step {step}, resumed with {steps}")
            self.same(folder, f"resumed after {number.name}")
            print(f"  {number.name} after step {step}: the same bytes")
        folder, step = self.stopped(signal.SIGINT)
        if self.finish(folder, "--resume", "--steps", str(step)) or not (folder / MODEL).exists():
            raise AssertionError("--resume with the steps that were taken writes no model")
        if self.finish(folder, "--resume") != list(range(step, STEPS)):
            raise AssertionError("a run whose model was written does not go on")
        self.same(folder, "a model on the way, then all")

    def full_disk(self):
        """A save that finds no room ends the run with a message, and leaves the file as it was: the run goes on when there is some."""
        folder = self.folder()
        process = self.start(folder, "--save", "1", "--validate", "1000")
        try:
            for _ in range(random.randrange(2, STEPS // 4)):
                process.stdout.readline()
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (5000, 5000))
            _, errors = process.communicate()
        finally:
            process.kill()
        note = whole(folder / RUN)
        if process.returncode != 1 or RUN not in errors or note is None or not 0 < note["step"] < STEPS:
            raise AssertionError(f"without room the run ends with {process.returncode} at {note}: {errors}")
        left = sorted(path.name for path in folder.iterdir() if path.name not in (RUN, "config.json", "training.lock"))
        if left:
            raise AssertionError(f"without room {left} are left")
        self.finish(folder, "--resume")
        self.same(folder, "resumed after a save without room")
        print(f"  no room after step {note['step']}: the same bytes")

    def watch(self, process, path, seconds):
        """Until the process ends or the time is over. A file that was there once is there, and complete, at any moment."""
        end, there = time.monotonic() + seconds, path.exists()
        while process.poll() is None and time.monotonic() < end:
            if not there and not path.exists():
                continue
            there = True
            try:
                note = whole(path)
            except FileNotFoundError as missing:
                raise AssertionError(f"while a run is saved there is none: {missing}") from missing
            if note is None:
                raise AssertionError("while a run is saved its file is incomplete")

    def killed(self):
        kills, folders, resumed = 0, 0, []
        while kills < KILLS:
            folder = self.folder()
            folders += 1
            done = False
            while not done:
                options = ["--save", random.choice("12"), "--validate", random.choice(("3", "64")), "--keep", random.choice("0123")]
                if (folder / RUN).exists():
                    options.append("--resume")
                    resumed.append(whole(folder / RUN)["step"])
                process = self.start(folder, *options)
                try:
                    if kills < KILLS:
                        self.watch(process, folder / RUN, random.uniform(0, self.seconds / 3))
                        process.send_signal(random.choice((signal.SIGKILL, signal.SIGTERM)))
                    _, errors = process.communicate()
                finally:
                    process.kill()
                if process.returncode not in (0, -signal.SIGKILL, -signal.SIGTERM):
                    raise AssertionError(f"{' '.join(options)} after {kills} kills ends with {process.returncode}: {errors}")
                done = process.returncode == 0
                kills += not done
            self.same(folder, f"after {kills} kills")
        if not any(0 < step < STEPS for step in resumed):
            raise AssertionError(f"no run was killed between its first and its last step: {resumed}")
        print(f"  {kills} kills of {folders} runs: the same bytes, resumed after steps {resumed}")

    # ---- Language models ----

    def language_model(self):
        """Of two documents that say the alphabet over and over: every letter has one successor, and the model must have learnt which."""
        alphabet = bytes(range(ord("a"), ord("z") + 1))
        documents = [self.work / name for name in ("first", "second")]
        for document in documents:
            document.write_bytes(alphabet * 60)
        task = ("lm --bytes --width 32 --head-dim 32 --state 8 --chunk-size 8 --length 32 --batch-tokens 128 --epochs 8 --warm-up 8 --lr 0.01 "
                f"--data {documents[0]} --data {documents[1]}").split()
        reference, folder = self.folder(), self.folder()
        steps = self.finish(reference, task=task)
        first, rest = self.finish(folder, "--steps", "33", task=task), self.finish(folder, "--resume", task=task)
        if first + rest != steps:
            raise AssertionError(f"steps {first}, then {rest}, not {steps}")
        self.same(folder, "lm --steps 33, then all", reference)
        tokens = sum(document.stat().st_size + 1 for document in documents)
        if not whole(folder / RUN)["settings"]["data"].startswith(f"({tokens} tokens"):
            raise AssertionError(f"the data has {tokens} tokens, the run {whole(folder / RUN)['settings']['data']}")
        asked, told = alphabet[:8], alphabet[8:24]
        done = subprocess.run([self.dartlm, "generate", "--device", self.device, "--model", str(folder), "--ids", ",".join(map(str, asked)),
                               "-n", str(len(told))], stdout=subprocess.PIPE, text=True, check=False)
        if done.stdout.split() != [str(token) for token in told]:
            raise AssertionError(f"after {asked} the model says {done.stdout}")
        self.refuse(self.reference, "a run of dartlm train mqar, not of lm", "--resume", task=task)
        self.refuse(folder, "a run of dartlm train lm, not of mqar", "--resume")
        documents[1].write_bytes(alphabet * 59 + alphabet[::-1])
        self.refuse(folder, "the run has --data", "--resume", task=task)
        documents[1].unlink()
        self.refuse(folder, str(documents[1]), "--resume", task=task)
        print(f"  a language model of {len(steps)} steps: the same bytes, and what it was told")

    # ---- What is refused ----

    def refuse(self, folder, word, *options, task=TASK):
        before = contents(folder)
        process = self.start(folder, *options, task=task)
        _, errors = process.communicate()
        if process.returncode != 1 or word not in errors:
            raise AssertionError(f"{' '.join(options)}: ends with {process.returncode}, not 1 and '{word}': {errors}")
        if contents(folder) != before:
            raise AssertionError(f"{' '.join(options)}: refused, but the folder has changed")

    def refusals(self):
        good, step = self.stopped(signal.SIGTERM)
        empty = self.folder()
        empty.mkdir()
        self.refuse(empty, "no run to go on with", "--resume")
        self.refuse(good, "--resume goes on with it")
        self.refuse(good, "beyond --steps 1", "--resume", "--steps", "1")
        for name, before, now in (("lr", "0.001", "0.002"), ("seed", "1", "2"), ("schedule", "linear", "cosine"), ("rows", "4", "2"),
                                  ("min-lr", "0", "0.5"), ("clip", "1", "0"), ("activations", "f32", "bf16")):
            self.refuse(good, f"--{name} {before}, not {now}", "--resume", f"--{name}", now)
        self.refuse(good, "--width 32, not 64", "--resume", "--width", "64")
        self.refuse(good, "--mamba2 false, not true", "--resume", "--mamba2")
        self.refuse(good, "--length 32, not 64", "--resume", "--length", "64", "--lr", "1")
        only_model = self.folder()
        only_model.mkdir()
        shutil.copy(self.reference / MODEL, only_model)
        self.refuse(only_model, "a model already")

        data = (good / RUN).read_bytes()
        start = 8 + struct.unpack("<Q", data[:8])[0]
        damaged = self.folder()
        shutil.copytree(good, damaged)
        for _ in range(5):
            at = random.randrange(start, len(data))
            (damaged / RUN).write_bytes(data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1:])
            self.refuse(damaged, "damaged", "--resume")
        for at in (0, random.randrange(1, start), random.randrange(start, len(data)), len(data) - 1):
            (damaged / RUN).write_bytes(data[:at])
            self.refuse(damaged, RUN, "--resume")
        (damaged / RUN).write_bytes(data.replace(rb"\"step\":%d" % step, rb"\"step\":%d" % (step ^ 1)))
        self.refuse(damaged, "damaged", "--resume")
        shutil.copy(good / RUN, damaged)
        config = (good / "config.json").read_text()
        (damaged / "config.json").write_text(config.replace('"chunk_size":8', '"chunk_size":4').replace('"chunk_size": 8', '"chunk_size": 4'))
        self.refuse(damaged, "damaged", "--resume")
        (damaged / "config.json").unlink()
        self.refuse(damaged, "config.json", "--resume")
        print("  what is no such run is refused")


def main():
    dartlm, device, *rest = sys.argv[1:]
    seed = int(rest[0]) if rest else random.SystemRandom().randrange(1 << 32)
    random.seed(seed)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
    print(f"train_resume: seed {seed}")
    with tempfile.TemporaryDirectory() as work:
        runs = Runs(dartlm, device, pathlib.Path(work))
        try:
            runs.never_stopped()
            runs.in_two_parts()
            runs.shorter_schedule()
            runs.in_f16()
            runs.momentum_of_zero()
            runs.locked()
            runs.by_signals()
            runs.full_disk()
            runs.killed()
            runs.language_model()
            runs.refusals()
        except AssertionError as wrong:
            print(f"train_resume: {wrong}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
