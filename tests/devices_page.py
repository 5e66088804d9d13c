#!/usr/bin/env python3
"""docs/devices.md is what tools/reports makes, and summaries count what reports hold: devices_page.py TOOL DOCS."""
import json
import pathlib
import subprocess
import sys
import tempfile

tool, docs = sys.argv[1], pathlib.Path(sys.argv[2])
MOST_BYTES = 200_000


def run(*arguments):
    return subprocess.run([sys.executable, tool, *map(str, arguments)], capture_output=True, text=True, check=False)


def expect(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: {got!r}, not {wanted!r}")


def result(variant, status, share, case="norm B1 f32"):
    got = {"device": "a GPU", "backend": "vulkan", "variant": variant, "case": case, "seed": 3, "status": status,
           "tensors": [{"name": "y", "share": share}]}
    return {**got, "repeat": "dartlm conform ..."} if status == "failed" else got


def summaries(folder):
    """A report, whole and cut short."""
    results = [result("default", "passed", 0.5), result("default", "passed", 0.25), result("base", "failed", 7), result("base", "not run", 0)]
    device = {"device": "vulkan:0", "name": "a GPU", "driver": "1.2"}
    head = '{"dartlm": "1", "commit": "abc", "system": "Linux 6", "seed": 3, "devices": [\n  ' + json.dumps(device) + '\n], "results": [\n  '
    whole = head + ",\n  ".join(map(json.dumps, results)) + '\n], "passed": 2, "failed": 1, "not_run": 1}\n'
    (folder / "whole").write_text(whole)
    (folder / "cut").write_text(whole[:whole.index('"variant": "base"')])
    done = run("summary", folder / "whole", "--note", "a note")
    expect("errors", done.stderr, "")
    summary = json.loads(done.stdout)
    expect("note", (summary["note"], "stopped" in summary), ("a note", False))
    expect("rows", [(row["variant"], row["passed"], row["failed"], row["not run"], row["share"]) for row in summary["rows"]],
           [("default", 2, 0, 0, 0.5), ("base", 0, 1, 1, 7)])
    expect("failures", [failure["repeat"] for failure in summary["failures"]], ["dartlm conform ..."])
    (folder / "a.json").write_text(done.stdout)
    page = run("page", folder).stdout
    for words in ("| vulkan | a GPU | 1.2 | Linux 6 | 1, abc | 1 | 2 | 2 | 1 | 1 | 700 % | y of norm B1 f32 |", "a note",
                  "seed 3; `dartlm conform ...`"):
        if words not in page:
            raise AssertionError(f"no '{words}' in {page}")
    cut = json.loads(run("summary", folder / "cut").stdout)
    expect("a run that was stopped", (cut["stopped"], cut["passed"], cut["failed"]), (True, 2, 0))
    (folder / "none").write_text("{}")
    for bad in ("none", "missing"):
        expect(f"status of {bad}", run("summary", folder / bad).returncode, 1)


def main():
    with tempfile.TemporaryDirectory() as work:
        summaries(pathlib.Path(work))
    reports = sorted((docs / "reports").glob("*.json"))
    expect("reports", len(reports) > 0, True)
    for report in reports:
        expect(f"{report.name} is small", report.stat().st_size < MOST_BYTES, True)
    made = run("page", docs / "reports")
    expect("docs/devices.md; to make it: tools/reports page > docs/devices.md", (docs / "devices.md").read_text(), made.stdout)
    print(f"devices_page: {len(reports)} reports")


main()
