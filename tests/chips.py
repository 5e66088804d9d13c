#!/usr/bin/env python3
"""What the facts of chips that are not there make of them: chips.py TOOLS DARTLM. `dartlm devices` runs with Mesa's driver for each chip below
(tools/compilers/chips.txt). What is listed chooses the rows that a chip runs, so that a change of it needs docs/compilers.md made anew."""
import json
import pathlib
import subprocess
import sys

CHOOSING = {"subgroup", "float16", "registers", "registers160", "registers96", "matrix_f16", "matrix_bf16", "cumulative"}
INTEL = {"subgroup", "float16", "registers", "registers96", "cumulative"}  # subgroups of 8 to 32 lanes: 128 registers at 8
MATRIX = INTEL | {"matrix_f16", "matrix_bf16"}
ADRENO = {"subgroup", "float16", "registers96"}  # of 64 lanes at least: few have room with 128 registers a lane
NVIDIA = {"subgroup", "registers", "registers160", "registers96"}
RDNA = NVIDIA | {"float16"}
CHIPS = {
    "skl": INTEL, "tgl": INTEL, "dg2": INTEL, "arl": INTEL, "bdw": INTEL, "bmg": MATRIX, "lnl": MATRIX, "ptl": MATRIX,
    "a630": ADRENO - {"float16"}, "a650": ADRENO, "a750": ADRENO, "a830": ADRENO,
    "gtx1080": NVIDIA, "rtx3080": NVIDIA | {"float16", "matrix_f16"},
    "vega10": ADRENO - {"float16"}, "navi10": RDNA, "navi21": RDNA, "navi31": RDNA | {"matrix_f16"},
    "a702": "its driver offers Vulkan 1.0, 1.2 is needed",
}


def device_of(tools, program, chip):
    done = subprocess.run([tools / "with-vulkan.sh", "fake:" + chip, "--", program, "devices", "--json"], capture_output=True, text=True, check=False)
    if done.returncode == 125:
        print(f"NOT RUN: {done.stderr.strip()}")
        sys.exit(77)
    if done.returncode != 0:
        raise AssertionError(f"{chip}: devices ends with {done.returncode}: {done.stderr}")
    found = [device for device in json.loads(done.stdout) if device["backend"] == "vulkan"]
    if len(found) != 1:
        raise AssertionError(f"{chip}: {len(found)} Vulkan devices")
    return found[0]


def main():
    tools, program = map(pathlib.Path, sys.argv[1:])
    for chip, wanted in CHIPS.items():
        device = device_of(tools, program, chip)
        if isinstance(wanted, str):
            if device["usable"] or wanted not in json.dumps(device):
                raise AssertionError(f"{chip}: not refused with '{wanted}': {device}")
            continue
        has = CHOOSING & set(device["capabilities"])
        if not device["usable"] or has != wanted:
            raise AssertionError(f"{chip}: {sorted(wanted - has)} missing, {sorted(has - wanted)} not expected: {device}")
    print(f"chips: {len(CHIPS)}")


main()
