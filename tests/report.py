#!/usr/bin/env python3
"""Options and reports of `dartlm conform`: report.py DARTLM."""
import json
import pathlib
import subprocess
import sys
import tempfile


def call(*arguments):
    done = subprocess.run([sys.argv[1], "conform", *map(str, arguments)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def expect(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: {got!r}, not {wanted!r}")


def refused(status, word, *arguments):
    got, out, err = call(*arguments)
    if got != status or word not in out + err:
        raise AssertionError(f"{arguments}: {got}, not {status} and '{word}': {out}{err}")


def main():
    status, listed, _ = call("--list", "--filter", "swiglu B")
    names = listed.splitlines()
    expect("status of --list", status, 0)
    if len(names) < 3 or not all(name.startswith("swiglu B") for name in names):
        raise AssertionError(f"--list: {names}")
    refused(1, "no case has 'nonsense'", "--list", "--filter", "nonsense")
    refused(2, "--list goes with neither", "--list", "--json")
    refused(2, "give one", "--json", "--report", "x")
    with tempfile.TemporaryDirectory() as work:
        file = pathlib.Path(work) / "report.json"
        refused(1, "report.json", "--device", "cpu", "--filter", names[0], "--report", file / "report.json")
        status, out, err = call("--device", "cpu", "--filter", "swiglu B", "--report", file)
        expect(f"status with --report ({out}{err})", status, 0)
        if not out.startswith("dartlm ") or "cpu  " not in out or " passed, 0 failed" not in out:
            raise AssertionError(f"what is printed beside a report: {out}")
        report = json.loads(file.read_text())
        expect("devices", [device["device"] for device in report["devices"]], ["cpu"])
        expect("cases", sorted({result["case"] for result in report["results"]}), sorted(names))
        expect("failed", report["failed"], 0)
        expect("passed", report["passed"], len(report["results"]))
        variants = sorted({result["variant"] for result in report["results"]} - {"default"})
        if not variants:
            raise AssertionError(f"no variant but the default: {report['results'][0]}")
        expect("status with --variant", call("--device", "cpu", "--filter", "swiglu B", "--variant", variants[0], "--report", file)[0], 0)
        got = {result["variant"] for result in json.loads(file.read_text())["results"]}
        expect("variants with --variant", got, {"default", variants[0]})
        refused(1, "has a variant called nonsense", "--device", "cpu", "--filter", "swiglu B", "--variant", "nonsense")
    print(f"report: {len(names)} cases, variants {', '.join(variants)}")


main()
