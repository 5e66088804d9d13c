#!/usr/bin/env python3
"""tools/mqar-grid on tiny runs: mqar_grid.py DARTLM. A run that is stopped goes on; one that is in the results is not repeated; tables show it."""
import csv
import pathlib
import subprocess
import sys
import tempfile

GRID = pathlib.Path(__file__).resolve().parent.parent / "tools/mqar-grid"
TINY = ["--", "--length", "32", "--vocabulary", "64", "--examples", "2048", "--batch-tokens", "512", "--sequences", "16",
        "--validate", "32", "--save", "8"]


def grid(folder, *arguments, tiny=TINY):
    done = subprocess.run([GRID, "--device", "cpu", "--dtype", "f32", "--commit", "c0ffee", "--runs", folder / "runs",
                           "--results", folder / "mqar.csv", *arguments, *tiny], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        assert len(grid(folder, "--list", tiny=[]).splitlines()) == 108
        run = "dart-L256-N16-W32-lr1e-3"
        stopped = 0
        for _ in range(40):  # however slow the machine is
            said = grid(folder, "--seconds", "5.5", program, run)
            if "goes on next time" not in said:
                break
            stopped += 1
        rows = list(csv.DictReader((folder / "mqar.csv").open()))
        assert [row["run"] for row in rows] == [run], rows
        assert rows[0]["steps"] == "512" and rows[0]["total"] == "8192" and rows[0]["commit"] == "c0ffee", rows
        assert 0 <= int(rows[0]["right_without"]) <= 8192 and float(rows[0]["seconds"]) >= 0
        assert grid(folder, program, run) == "", "a run that is there was repeated"
        grid(folder, program, "mamba2-L256-N16-W32-lr3e-4")
        rows = list(csv.DictReader((folder / "mqar.csv").open()))
        assert rows[1]["model"] == "mamba2" and rows[1]["right_without"] == "", rows
        assert subprocess.run([GRID, program, "no-such-run"], capture_output=True).returncode == 1
    print(f"stopped and resumed {stopped} times")


if __name__ == "__main__":
    main()
