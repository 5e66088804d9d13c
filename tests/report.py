#!/usr/bin/env python3
"""Options and reports of `dartlm conform`: report.py DARTLM."""
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time


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


def compare(folder, file, report):
    """A report with itself, and with one that was changed."""
    count = len(report["results"])
    status, out, err = call("--compare", file, "--compare", file)
    expect(f"status of a report with itself ({err})", status, 0)
    expect("the report with itself", out.strip(), f"{count} results with the same bits, 0 with others, 0 that cannot be compared; 0 gone, 0 new; "
           "0 no longer pass, 0 pass now")
    other = json.loads(file.read_text())
    other["results"][0]["status"] = "failed"
    other["results"][1]["tensors"][0]["digest"] = "0" * 16
    other["results"][2]["inputs"] = "0" * 16
    dropped = other["results"].pop()
    other["results"].append({**dropped, "seed": 77})
    changed = folder / "changed.json"
    changed.write_text(json.dumps(other))
    status, out, _ = call("--compare", file, "--compare", changed)
    expect("status where a result is worse", status, 3)
    lines = out.splitlines()
    expect("lines of changes", lines[0].startswith("passed -> failed") and report["results"][0]["case"] in lines[0], True)
    expect("counts", lines[1], f"{count - 4} results with the same bits, 1 with others, 2 that cannot be compared; 1 gone, 1 new; "
           "1 no longer pass, 0 pass now")
    status, out, _ = call("--compare", changed, "--compare", file, "--json")
    expect("status where a result is better", status, 0)
    expect("better", json.loads(out.splitlines()[-1])["better"], 1)
    refused(2, "given twice", "--compare", file)
    refused(1, "no whole report", "--compare", file, "--compare", __file__)
    (folder / "list").write_text("{}")
    refused(1, "no report of dartlm conform", "--compare", folder / "list", "--compare", file)


def draws(file):
    """--draw: each seed has cases of its own, which together launch what all launch."""
    status, _, err = call("--device", "cpu", "--filter", "conv B", "--report", file)
    expect(f"status of all cases ({err})", status, 0)
    results = json.loads(file.read_text())["results"]
    apart = {result["variant"] for result in results for tensor in result["tensors"] if tensor["against_first"] > 0}
    expect("variants whose sums differ from the first one's, within rounding", len(apart) > 0 and "default" not in apart, True)
    rows = {row for result in results for row in result["kernels"].split()}
    status, out, err = call("--device", "cpu", "--filter", "conv B", "--draw", "--seed", 40, "--seeds", 6, "--report", file)
    expect(f"status of drawn cases ({err})", status, 0)
    report = json.loads(file.read_text())
    drawn = {}
    for result in report["results"]:
        drawn.setdefault(result["seed"], []).append((result["case"], result["variant"]))
    expect("seeds", sorted(drawn), [*range(40, 46)])
    expect("seeds draw different cases", len({str(cases) for cases in drawn.values()}) > 1, True)
    expect("runs", (report["runs"], report["rows"]), (len(report["results"]), len(rows)))
    expect("few of many", report["runs"] < report["runs_of"], True)
    expect("the summary tells of the draw", f"drawn: {report['runs']} of {report['runs_of']} runs" in out, True)
    for seed in drawn:
        expect("rows of a draw", {row for result in report["results"] if result["seed"] == seed for row in result["kernels"].split()}, rows)
    refused(2, "--list goes with none", "--list", "--draw")


def seeds_in_a_row(file):
    """Seeds that are taken together have the inputs that each has by itself."""
    inputs = []
    for arguments in (("--seed", 40, "--seeds", 2), ("--seed", 41)):
        status, _, err = call("--device", "cpu", "--filter", "conv B", *arguments, "--report", file)
        expect(f"status of seeds ({err})", status, 0)
        results = [result for result in json.loads(file.read_text())["results"] if result["seed"] == 41]
        inputs.append({(result["case"], result["variant"]): result["inputs"] for result in results})
    expect("inputs of the second seed", inputs[0], inputs[1])
    expect("there are some", len(inputs[1]) > 0, True)


def stops(file):
    """Ctrl-C, twice at once, as timeout(1) sends it: what ran is summed up, and the report is whole."""
    program = subprocess.Popen([sys.argv[1], "conform", "--device", "cpu", "--filter", "ssd", "--seeds", "1000", "--report", str(file)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        time.sleep(0.1)
        if file.read_text().count('"status"') > 5:
            break
    program.send_signal(signal.SIGINT)
    time.sleep(0.02)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=60)
    report = json.loads(file.read_text())
    expect(f"status after Ctrl-C ({err})", program.returncode, 1)
    expect("end of a report that was stopped", (report["stopped"], report["passed"] > 5, len(report["results"])), (True, True, report["passed"]))
    if f"{report['passed']} passed, 0 failed, 0 not run; stopped" not in out:
        raise AssertionError(f"the summary of a run that was stopped: {out}")


def main():
    status, listed, _ = call("--list", "--filter", "swiglu B")
    names = listed.splitlines()
    expect("status of --list", status, 0)
    if len(names) < 3 or not all(name.startswith("swiglu B") for name in names):
        raise AssertionError(f"--list: {names}")
    refused(1, "no case has 'nonsense'", "--list", "--filter", "nonsense")
    refused(2, "--list goes with none", "--list", "--json")
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
        compare(pathlib.Path(work), file, report)
        variants = sorted({result["variant"] for result in report["results"]} - {"default"})
        if not variants:
            raise AssertionError(f"no variant but the default: {report['results'][0]}")
        expect("status with --variant", call("--device", "cpu", "--filter", "swiglu B", "--variant", variants[0], "--report", file)[0], 0)
        got = {result["variant"] for result in json.loads(file.read_text())["results"]}
        expect("variants with --variant", got, {"default", variants[0]})
        device = report["devices"][0]
        expect("numbers of limits", sorted(device["limits"]),
               ["max_binding_bytes", "max_bindings", "memory_bytes", "multiprocessors", "shared_bytes", "subgroup", "workgroup"])
        expect("float controls", [name for name in device["float_controls"] if name.split()[1] not in ("f16", "f32")], [])
        if not report["system"] or f", {report['system']}" not in out.splitlines()[0]:
            raise AssertionError(f"the system: {report['system']!r}, {out.splitlines()[0]}")
        if report["commit"] and f", commit {report['commit']}" not in out.splitlines()[0]:
            raise AssertionError(f"the commit: {report['commit']!r}, {out.splitlines()[0]}")
        untimed = [result["case"] for result in report["results"] if result["status"] == "passed" and not result["seconds"] > 0]
        expect("results without a time", untimed, [])
        draws(file)
        seeds_in_a_row(file)
        stops(file)
        refused(1, "has a variant called nonsense", "--device", "cpu", "--filter", "swiglu B", "--variant", "nonsense")
        refused(1, ": 0 passed, 1 failed, 0 not run", "--device", "cpu", "--filter", "swiglu B", "--variant", "nonsense")
    print(f"report: {len(names)} cases, variants {', '.join(variants)}")


main()
