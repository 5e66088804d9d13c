#!/usr/bin/env python3
"""Shaders get their bindings and arguments from the table: bindings.py REPOSITORY GLSLANG SPIRV_VAL SPIRV_OPT.

A copy of a shader builds as it is and fails to build once it disagrees with the table. Arguments are push constants up to 128 bytes, with where a
range begins behind them below that, and lie in a buffer above.
"""
import array
import pathlib
import re
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
    ("args.y_at + ", "", "never reads args.y_at"),           # where y begins
]


# Members of the struct of arguments, and the bindings that the code then has: y alone, or a buffer of arguments behind it.
ARGUMENTS = [(31, {0}), (32, {0}), (33, {0, 1})]
# SPIR-V, by number.
OP_DECORATE, OP_MEMBER_DECORATE, BINDING, OFFSET = 71, 72, 33, 35


def build(folder, repository, tools):
    done = subprocess.run([sys.executable, repository / "tools/build/embed_shaders.py", "--table", folder / "dense.def",
                           "--shaders", folder / "shaders", "--out", folder / "out/vk_spirv.c", "--glslang", tools[0],
                           "--spirv-val", tools[1], "--spirv-opt", tools[2]],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def layout(path):
    """The bindings of a module, and the largest offset of a member of any of its structs."""
    words = array.array("I", path.read_bytes())
    bindings, offsets, at = set(), set(), 5
    while at < len(words):
        opcode = words[at] & 0xFFFF
        if opcode == OP_DECORATE and words[at + 2] == BINDING:
            bindings.add(words[at + 3])
        if opcode == OP_MEMBER_DECORATE and words[at + 3] == OFFSET:
            offsets.add(words[at + 4])
        at += words[at] >> 16
    return bindings, max(offsets)


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
        # Long and short arguments. Where a range begins is the member behind them, at 4 bytes each: none where they fill 128 bytes.
        (folder / "dense.def").write_text(TABLE, encoding="utf-8")
        args = folder / "shaders/dense/args.h"
        contract = args.read_text(encoding="utf-8")
        struct = re.search(r"struct FillArgs \{[^}]*", contract)[0]
        had = struct.count(",") + struct.count(";")
        for count, wanted in ARGUMENTS:
            more = "".join(f"U32 more{i}; /* one; more */ " for i in range(count - had))
            args.write_text(contract.replace(struct, struct + more), encoding="utf-8")
            status, text = build(folder, repository, tools)
            got = layout(folder / "out/fill.base.spv") if status == 0 else text
            if got != (wanted, 4 * (count - (count == 32))):
                failures += 1
                print(f"FAILED: {count} arguments: {got}")
            shader.write_text(right.replace("args.y_at + ", "", 1), encoding="utf-8")
            status, text = build(folder, repository, tools)
            shader.write_text(right, encoding="utf-8")
            if status == 0 or "never reads args.y_at" not in text:
                failures += 1
                print(f"FAILED: with {count} arguments a shader need not say where y begins")
        args.write_text(contract.replace(struct, struct + "uvec2 pair; "), encoding="utf-8")
        status, text = build(folder, repository, tools)
        if status == 0 or "uvec2 pair" not in text:
            failures += 1
            print("FAILED: arguments that are no words of four bytes")
    print(f"{len(WRONG) + 2 * len(ARGUMENTS) + 3} builds, {failures} failures")
    sys.exit(failures != 0)


main()
