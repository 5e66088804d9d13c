#!/usr/bin/env python3
"""Every command of the README, as written: readme.py BUILD [VULKAN-RUNNER]. BUILD has dartlm and the examples; the commands run in the README's
order in one folder, some with smaller sizes (SMALLER), on the CPU, with no Vulkan driver in sight; those that ask for Vulkan run through
VULKAN-RUNNER, a program and its first arguments, or are reported as not run.

What the README shows of a result must be there, except for lines that tell of a machine or a time (MACHINE)."""
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Commands that are not run, by a part of them.
NOT_RUN = {
    "--preset dart-130m --dtype bf16 --profile": "it takes minutes without a GPU",
}
# Lines shown that are of one machine, by the command that printed them.
MACHINE = {
    "dartlm devices": r".*",
    "dartlm eval mqar": r"speed .*",
    "dartlm bench": r".*",
    "dartlm conform": r"(dartlm|cpu|device) .*",
}
# Sizes that are made smaller, to save time.
SMALLER = {"--examples 65536": "--examples 1024", "--epochs 20": "--epochs 2", "L=2048..16384": "L=256..512", "linear T=2048": "linear T=64",
           "dart-130m --dtype bf16 --prefill 512 --decode 128": "dart-130m --dtype bf16 --prefill 64 --decode 16"}
# Exit status other than 0: a time may have grown by more than the tolerance.
STATUS = {"--compare before.json": (0, 3)}


def commands(text):
    """(command, lines shown of its output), in order."""
    found = []
    for line in text.splitlines():
        if not line.startswith("    "):
            if line.strip():
                found.append(None)
            continue
        line = line[4:]
        if line.startswith("$ "):
            found.append([line[2:], []])
        elif found and found[-1] is not None:
            command, shown = found[-1]
            if command.endswith("\\"):
                found[-1][0] = command[:-1] + line.strip()
            else:
                shown.append(line)
    return [(re.sub(r"\s+# .*", "", pair[0]), pair[1]) for pair in found if pair is not None]


class Servers:
    """Commands that end with &: each is waited for until it has printed what the README shows, and ended in the end. They listen at a free port."""

    def __init__(self):
        self.running = []
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]

    def at_port(self, text):
        return text.replace(":8080", f":{self.port}")

    def start(self, line, shown, folder, environment):
        """What was not printed."""
        output = folder / f"server-{len(self.running)}"
        with output.open("w") as file:
            command = f"exec {line[:-1].strip()} --port {self.port}"
            self.running.append(subprocess.Popen(["bash", "-c", command], cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT))
        wanted = [self.at_port(text) for text in shown if text.strip()]
        for _ in range(300):
            said = output.read_text().splitlines()
            if all(text in said for text in wanted) or self.running[-1].poll() is not None:
                break
            time.sleep(0.1)
        return [text for text in wanted if text not in output.read_text().splitlines()]

    def end(self):
        """Those that did not end well after SIGTERM."""
        for server in self.running:
            server.terminate()
        return [server.args for server in self.running if server.wait(timeout=60) != 0]


def lookup(table, command):
    return next((value for part, value in table.items() if part in command), None)


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    vulkan = [str(pathlib.Path(word).resolve()) if "/" in word else word for word in sys.argv[2:]]
    ran, failures, servers = 0, [], Servers()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for path in ("README.md", "CHANGELOG.md", "tests/data", "tools"):
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).symlink_to(ROOT / path)
        (folder / "build").symlink_to(build)
        environment = dict(os.environ, PATH=f"{build}:{os.environ['PATH']}", VK_DRIVER_FILES=str(folder / "none"), HOME=name,
                           XDG_CACHE_HOME=name)
        # Mesa keeps compiled shaders below the user's cache, where the other tests leave theirs: it stays there.
        environment.setdefault("MESA_SHADER_CACHE_DIR", os.environ.get("XDG_CACHE_HOME") or str(pathlib.Path.home() / ".cache"))
        for command, shown in commands((ROOT / "README.md").read_text()):
            reason = lookup(NOT_RUN, command)
            if command.startswith("curl ") and not shutil.which("curl"):
                print(f"NOT RUN: curl is not installed: {command}")
                continue
            on_vulkan = re.search(r"(--device|--check) vulkan", command)
            if reason is None and on_vulkan and not vulkan:
                reason = "no Vulkan driver was given"
            if reason is not None:
                print(f"not run, {reason}: {command}")
                continue
            line, env = command, environment
            for part, smaller in SMALLER.items():
                line = line.replace(part, smaller)
            if on_vulkan:
                line, env = shlex.join(vulkan) + " " + line.replace("dartlm", str(build / "dartlm"), 1), {**environment, "VK_DRIVER_FILES": ""}
                del env["VK_DRIVER_FILES"]
            started = time.monotonic()
            if line.endswith("&"):
                missing = servers.start(line, shown, folder, env)
                print(f"{time.monotonic() - started:6.2f} s  {command}", flush=True)
                ran += 1
                if missing:
                    failures.append(f"{command}\n  not printed: {missing}")
                continue
            line = servers.at_port(line)
            done = subprocess.run(["bash", "-o", "pipefail", "-c", line], cwd=folder, env=env, capture_output=True, text=True)
            print(f"{time.monotonic() - started:6.2f} s  {command}", flush=True)
            ran += 1
            if on_vulkan and done.returncode == 125:
                print(f"NOT RUN: {done.stderr.strip()}: {command}")
                continue
            said = [text.rstrip() for text in done.stdout.splitlines()]
            machine = lookup(MACHINE, command)
            missing = [text for text in shown if text.strip() and not (machine and re.fullmatch(machine, text.strip())) and text.rstrip() not in said]
            if done.returncode not in (lookup(STATUS, command) or (0,)) or missing:
                failures.append(f"{command}\n  exit status {done.returncode}\n  not printed: {missing}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        left = servers.end()
        if left:
            failures.append(f"did not end well: {left}")
    assert ran > 25, ran
    for failure in failures:
        print("FAILED:", failure)
    sys.exit(1 if failures else 0)


main()
