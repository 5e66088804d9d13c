#!/usr/bin/env python3
"""dartlm op --example: op_example.py DARTLM DEVICE. Each op takes its own example, forward and backward; equal seeds give equal files."""
import pathlib
import re
import subprocess
import sys
import tempfile


def run(program, *arguments):
    return subprocess.run([program, "op", *map(str, arguments)], capture_output=True, text=True)


def main():
    program, device = sys.argv[1], sys.argv[2]
    words = " ".join(run(program, "--help").stdout.split())
    forward = re.search(r"Ops: ([a-z_, ]+)\.", words)[1].split(", ")
    backward = re.search(r"With --backward: ([a-z_, ]+)\.", words)[1].split(", ")
    assert "ssd" in forward and "sma" in backward, words
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for op, more in [(op, []) for op in forward] + [(op, ["--backward"]) for op in backward]:
            one, two, other, out = (folder / f"{op}.{file}" for file in ("one", "two", "other", "out"))
            for path, seed in ((one, 0), (two, 0), (other, 7)):
                done = run(program, op, *more, "--example", path, "--seed", seed)
                assert done.returncode == 0 and done.stdout == "", (op, more, done.stderr)
            assert one.read_bytes() == two.read_bytes() != other.read_bytes(), (op, more)
            done = run(program, op, *more, other, out, "--device", device)
            assert done.returncode == 0 and done.stderr == "", (op, more, done.stderr)
            assert out.stat().st_size > 100, (op, more)
        for wrong in (["ssd", "--example", folder / "x", folder / "y"], ["ssd"], ["ssd", folder / "x"], ["nothing", "--example", folder / "x"]):
            assert run(program, *wrong).returncode == 2, wrong
        failed = run(program, "ssd", "--example", folder / "no/such/folder")
        assert failed.returncode == 1 and "no/such/folder" in failed.stderr, failed.stderr
    print(f"{len(forward)} ops, {len(backward)} backward")


if __name__ == "__main__":
    main()
