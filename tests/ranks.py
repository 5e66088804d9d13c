#!/usr/bin/env python3
"""Training in several processes: ranks.py [--mpirun] DARTLM DEVICE [RUNNER...]. RUNNER is a program with arguments that runs dartlm. Two ranks leave
the bits of one process that adds the same two parts. On the CPU: a killed rank ends the other, as one does that has stopped, a signal to one stops
both, and each run goes on to the same bits. Moments may be shared out. --mpirun: two ranks that MPI's launcher starts, and nothing else; ends with 77
where there is none."""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
mpirun = sys.argv[1] == "--mpirun"
program, device, *runner = sys.argv[2 if mpirun else 1:]


def options(folder, *more):
    return [*runner, program, "train", "lm", "--bytes", "--data", str(ROOT / "CHANGELOG.md"), "--length", "32", "--width", "32", "--layers", "3",
            "--batch-tokens", "256", "--rows", "4", "--save", "1", "--validate", "100000", "--sequences", "4", "--device", device, "--cache", "off",
            "--every", "1", *more, str(folder)]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
LAUNCHERS = [TORCHRUN, ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"), ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
             ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")]


def start(ranks, folder, *more, differ=(), names=TORCHRUN):
    place = f"127.0.0.1:{free_port()}"
    started = []
    for rank in range(ranks):
        environment = {key: value for key, value in os.environ.items() if not any(key in launcher for launcher in LAUNCHERS)}
        environment |= dict(zip(names, (str(rank), str(ranks), str(rank))))
        started.append(subprocess.Popen(options(folder, "--ranks", "--rendezvous", place, *more, *(differ if rank == 1 else ())), env=environment,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return started


def end(started, limit=100):
    results = []
    for process in started:
        out, err = process.communicate(timeout=limit)
        results.append((process.returncode, out, err))
    return results


def by_mpirun(folder, *more):
    environment = {key: value for key, value in os.environ.items() if not any(key in names for names in LAUNCHERS)}
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.run(["mpirun", "-n", "2", *options(folder, "--ranks", "--rendezvous", f"127.0.0.1:{free_port()}", *more)], env=environment,
                          capture_output=True, text=True, timeout=300)


def files(folder):
    return {name: (folder / name).read_bytes() for name in ("model.safetensors", "training.safetensors")}


def wait_for_step(folder, process):
    """Until a run is saved behind its first steps."""
    seen = None
    for _ in range(2000):
        if process.poll() is not None:
            break
        path = folder / "training.safetensors"
        if path.exists():
            stamp = path.stat().st_mtime_ns
            if seen is not None and stamp != seen:
                return
            seen = seen or stamp
        time.sleep(0.01)
    raise AssertionError((process.poll(), process.communicate()))


def main():
    if mpirun and shutil.which("mpirun") is None:
        print("NOT RUN: mpirun is not installed; tools/setup.sh --test installs MPICH's")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        steps = ("--steps", "6")
        alone = subprocess.run(options(folder / "one", *steps), capture_output=True, text=True)
        if runner and alone.returncode == 125:
            print("NOT RUN:", alone.stderr.strip())
            sys.exit(77)
        assert alone.returncode == 0, alone.stderr
        if mpirun:
            done = by_mpirun(folder / "mpirun", *steps)
            assert done.returncode == 0 and sum("loss" in line for line in done.stdout.splitlines()) == 7, done # rank 0 alone prints
            assert files(folder / "mpirun") == files(folder / "one")
            return
        both = end(start(2, folder / "two", *steps))
        assert [result[0] for result in both] == [0, 0], both
        assert both[1][1] == "", "only rank 0 prints"
        losses = [[line.split("loss")[1].split()[0] for line in text.splitlines() if "loss" in line] for text in (alone.stdout, both[0][1])]
        assert losses[0] == losses[1] and len(losses[0]) == 7, losses
        assert files(folder / "one") == files(folder / "two")
        apart = end(start(2, folder / "apart", *steps, "--save", "512"))  # no pauses, behind which steps go one by one
        assert [result[0] for result in apart] == [0, 0], apart
        assert files(folder / "apart")["model.safetensors"] == files(folder / "one")["model.safetensors"]
        if device != "cpu":
            return

        for names in LAUNCHERS[1:]:
            both = end(start(2, folder / names[0], *steps, names=names))
            assert [result[0] for result in both] == [0, 0], both
            assert files(folder / names[0]) == files(folder / "one"), names

        # More than an epoch, a step for every 256 bytes of CHANGELOG.md, and with a file a step not over before a signal comes.
        many = ("--epochs", "40", "--steps", "80")
        end(start(2, folder / "whole", *many))
        for how, victim in (("killed", 1), ("killed", 0), ("stopped", 1), ("stopped", 0)):
            path = folder / f"{how}-{victim}"
            started = start(2, path, *many)
            wait_for_step(path, started[0])
            began = time.monotonic()
            started[victim].send_signal(signal.SIGKILL if how == "killed" else signal.SIGTERM)
            results = end(started)
            assert time.monotonic() - began < 60
            assert all(result[0] != 0 for result in results), (how, victim, results)
            if how == "killed":
                assert f"lost rank {victim}: it ended" in results[1 - victim][2], results
            else:
                assert "stopped after step" in results[0][2] and not (path / "model.safetensors").exists(), results
            results = end(start(2, path, *many, "--resume"))
            assert [result[0] for result in results] == [0, 0] and "resumed" in results[0][1], results
            assert files(path) == files(folder / "whole"), (how, victim)

        # One that no longer runs, but has not ended, is given up; it ends, too, when it goes on.
        path = folder / "silent"
        started = start(2, path, *many, "--rank-timeout", "3")
        wait_for_step(path, started[0])
        started[1].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        _, err = started[0].communicate(timeout=60)
        assert started[0].returncode == 1 and "lost rank 1: it has been silent for 3 s" in err, err
        assert 2 < time.monotonic() - began < 30
        started[1].send_signal(signal.SIGCONT)
        assert "lost rank 0" in end(started[1:])[0][2]
        results = end(start(2, path, *many, "--resume", "--shard"))
        assert [result[0] for result in results] == [0, 0] and files(path) == files(folder / "whole"), results

        # The moments shared out: the same files, with which any number of ranks goes on.
        results = end(start(2, folder / "shared", *steps, "--shard"))
        assert [result[0] for result in results] == [0, 0] and files(folder / "shared") == files(folder / "one"), results
        end(start(2, folder / "fewer", "--steps", "3", "--shard"))
        done = subprocess.run(options(folder / "fewer", *steps, "--resume"), capture_output=True, text=True)
        assert done.returncode == 0 and files(folder / "fewer") == files(folder / "one"), done.stderr
        results = end(start(2, folder / "unlike", *steps, differ=("--shard",)))
        assert [result[0] for result in results] == [1, 1] and "has another model, other options" in results[0][2] + results[1][2], results

        for differ in (("--lr", "2e-3"), ("--seed", "2"), ("--weight-decay", "0.5")):
            results = end(start(2, folder / "other", *steps, differ=differ))
            assert [result[0] for result in results] == [1, 1] and "has other settings" in results[0][2] + results[1][2], results
            assert not (folder / "other/training.safetensors").exists(), "a run was begun"
        results = end(start(3, folder / "three", *steps))
        assert all(result[0] == 2 and "do not divide among 3 ranks" in result[2] for result in results), results
        for environment, text in (({}, "no launcher"), ({"RANK": "2", "WORLD_SIZE": "2"}, "no rank of so many")):
            kept = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
            done = subprocess.run(options(folder / "none", "--ranks"), env={**kept, **environment}, capture_output=True, text=True)
            assert done.returncode == 1 and text in done.stderr, done.stderr


main()
