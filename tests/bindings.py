#!/usr/bin/env python3
"""Shaders get their bindings from the table: bindings.py REPOSITORY GLSLANG SPIRV_VAL SPIRV_OPT.

A copy of a shader builds as it is and fails to build once it disagrees with the table.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

TABLE = """KERNEL(fill, FillArgs)
BIND(fill, y, WRITE)
SPIRV_ROW(fill, base, "dense/fill.comp", 0, 0, 256, 1, 0, 64, "")
KERNEL(rows, NormArgs)
BIND(rows, x, READ)
"""
# What is replaced in fill.comp, by what, and a word of what the build then says.
WRONG = [
    ("WRITES(y)", "WRITES(z)", "WRITABLE_z"),                # no such binding
    ("WRITES(y)", "READS_WRITES(y)", "READABLE_y"),          # reads what the table says is only written
    ("WRITES(y)", "WRITES(0, y)", "fill.comp"),              # a number
    ("WRITES(y)", "WRITES(y)\nlayout(std430, binding = 1) buffer B { uint b[]; };", "declares a binding itself"),
    ("table/fill.glsl", "table/rows.glsl", "fill.comp"),     # another kernel's arguments
    ("FIRST_TILE", "gl_WorkGroupID.x", "numbers its work"),
    ("void main()", '#include "table/rows.glsl"\nvoid main()', "fill.comp"),
]


def build(folder, repository, tools):
    done = subprocess.run([sys.executable, repository / "tools/build/embed_shaders.py", "--table", folder / "dense.def",
                           "--shaders", folder / "shaders", "--out", folder / "out/vk_spirv.c", "--glslang", tools[0],
                           "--spirv-val", tools[1], "--spirv-opt", tools[2]],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def main():
    repository, *tools = sys.argv[1:]
    repository = pathlib.Path(repository)
    failures = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copytree(repository / "shaders", folder / "shaders")
        shader = folder / "shaders/dense/fill.comp"
        right = shader.read_text(encoding="utf-8")
        (folder / "dense.def").write_text(TABLE, encoding="utf-8")
        status, text = build(folder, repository, tools)
        if status != 0:
            sys.exit(f"fill.comp does not build as it is:\n{text}")
        for old, new, word in WRONG:
            assert old in right
            shader.write_text(right.replace(old, new, 1), encoding="utf-8")
            status, text = build(folder, repository, tools)
            if status == 0 or word not in text:
                failures += 1
                print(f"FAILED: {new!r} for {old!r} " + ("builds" if status == 0 else f"does not say {word}:\n{text}"))
        # The table counts, too: a binding that becomes READ cannot be written any more.
        shader.write_text(right, encoding="utf-8")
        (folder / "dense.def").write_text(TABLE.replace("y, WRITE", "y, READ"), encoding="utf-8")
        status, text = build(folder, repository, tools)
        if status == 0 or "WRITABLE_y" not in text:
            failures += 1
            print("FAILED: a shader may write what its table says is only read")
    print(f"{len(WRONG) + 2} builds, {failures} failures")
    sys.exit(failures != 0)


main()
