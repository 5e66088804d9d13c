#!/usr/bin/env python3
"""Writes what the objects of the CUDA backend are compiled from, out of the kernel table.

usage: cuda_objects.py --table src/kernels.def --cuda cuda --out FOLDER NAME=OP/FILE.cu,OP/FILE.cu... NAME=...

An object is a translation unit of one or more files of cuda/. Into FOLDER go
  NAME/rows.def      per object: its kernels, their bindings and what its functions need to know of their rows
  NAME/object.cu     per object: its files, then a check that each of those rows has its function
  cuda_bindings.h    CUDA_BINDINGS, the most bindings of a kernel with CUDA rows
  cu_images.c        the objects' code as the backend finds it (src/cuda/cu.h), and the object of each row
Files are replaced only where they change, so that an edit of a row compiles no other object anew, and an edit of a Vulkan or CPU
row none.
"""
import argparse
import os
import pathlib
import re
import sys

LINE = re.compile(r"(KERNEL|BIND|CUDA_\w+)\((.*)\)\s*$")
INCLUDE = re.compile(r'#include "([^"]+\.def)"')

ROWS = """/* The rows of object {name}, made from src/kernels.def by cuda_objects.py.
 *   KERNEL(id, Args), BIND(id, name, access)   as in src/kernels.def
 *   ROW(id, variant, T0, T1, threads, shared_bytes, maps)   maps: does the function take a CudaMap?
 *   PART, as ROW                               a row of another object that a CUDA_MERGED of this one names */
#ifndef KERNEL
#define KERNEL(id, Args)
#endif
#ifndef BIND
#define BIND(id, name, access)
#endif
#ifndef ROW
#define ROW(id, variant, T0, T1, threads, shared_bytes, maps)
#endif
#ifndef PART
#define PART(id, variant, T0, T1, threads, shared_bytes, maps)
#endif
{rows}
#undef KERNEL
#undef BIND
#undef ROW
#undef PART
"""


class Failure(Exception):
    pass


class Kernel:
    def __init__(self, declaration):
        self.lines = [declaration]
        self.bindings = 0


class Row:
    def __init__(self, kernel, variant, source=None, text=None):
        self.kernel = kernel
        self.variant = variant
        self.source = source  # None: of cuBLASLt
        self.text = text


class Merged:
    def __init__(self, place, parts, source):
        self.place = place
        self.parts = parts  # kernel, variant
        self.source = source


def read_lines(path, folder):
    """(place, macro, arguments) of the lines of the table, whose includes are relative to its folder."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        include, match = INCLUDE.match(line), LINE.match(line)
        if include:
            yield from read_lines(folder / include[1], folder)
        elif match:
            yield f"{path}:{number}", match[1], [part.strip() for part in match[2].split(",")]
        elif line.startswith(("KERNEL(", "BIND(", "CUDA_")):
            raise Failure(f"{path}:{number}: not a row of one line: {line.strip()}")


def read_table(path):
    """Kernels by id, and the rows in the order of the table, which is that of kernel_row.slot."""
    kernels, rows, merged = {}, [], []
    lines = list(read_lines(path, path.parent))
    maps = {(of[0], of[1]) for _, macro, of in lines if macro == "CUDA_MAP"}
    for place, macro, of in lines:
        if macro == "KERNEL":
            kernels[of[0]] = Kernel(f"KERNEL({of[0]}, {of[1]})")
        elif macro == "BIND":
            kernels[of[0]].lines.append(f"BIND({', '.join(of)})")
            kernels[of[0]].bindings += 1
        elif macro in ("CUDA_ROW", "CUDA_SHAPED_ROW"):
            if len(of) != (8 if macro == "CUDA_ROW" else 11):
                raise Failure(f"{place}: {len(of)} arguments")
            kernel, variant, source, T0, T1 = of[0], of[1], of[2].strip('"'), of[5], of[6]
            threads, shared_bytes = ("CUDA_BLOCK", "0") if macro == "CUDA_ROW" else (of[8], of[9])
            has_map = int((kernel, variant) in maps)
            rows.append(Row(kernel, variant, source, f"ROW({kernel}, {variant}, {T0}, {T1}, {threads}, {shared_bytes}, {has_map})"))
        elif macro == "CUDA_BLAS_ROW":
            rows.append(Row(of[0], of[1]))
        elif macro == "CUDA_MERGED":
            merged.append(Merged(place, [(of[0], of[1]), (of[2], of[3])], of[4].strip('"')))
        elif macro not in ("CUDA_MAP", "CUDA_OVERLAP", "CUDA_EARLY", "CUDA_SLOWER"):
            raise Failure(f"{place}: no row of CUDA's is called {macro}")
    known = {(row.kernel, row.variant) for row in rows if row.source is not None}
    for one in merged:
        for kernel, variant in one.parts:
            if (kernel, variant) not in known:
                raise Failure(f"{one.place}: no function {kernel}[{variant}] to merge")
    return kernels, rows, merged


def write(path, text):
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def write_object(folder, name, sources, kernels, rows, merged):
    own = [row for row in rows if row.source in sources]
    parts = {part for one in merged if one.source in sources for part in one.parts}
    others = [row for row in rows if row.source not in sources and (row.kernel, row.variant) in parts]
    lines = []
    for kernel in dict.fromkeys(row.kernel for row in own + others):
        lines += kernels[kernel].lines + [row.text for row in own if row.kernel == kernel]
        lines += [row.text.replace("ROW(", "PART(", 1) for row in others if row.kernel == kernel]
    write(folder / name / "rows.def", ROWS.format(name=name, rows="\n".join(lines)))
    includes = "".join(f'#include "{source}"\n' for source in sources)
    write(folder / name / "object.cu", f'// Object {name}, made by cuda_objects.py.\n{includes}#include "lib/check_rows.cuh"\n')


def write_images(path, objects, rows, merged):
    names = list(objects)
    place = {source: i for i, name in enumerate(names) for source in objects[name]}
    declared = "".join(f"extern const uint64_t cu_image_{name}[];\n" for name in names)
    images = "".join(f"    cu_image_{name},\n" for name in names)
    of_rows = ", ".join(str(place.get(row.source, 0)) for row in rows)
    of_merged = ", ".join(str(place[one.source]) for one in merged) or "0"
    write(path, f"""/* Made from src/kernels.def by cuda_objects.py. */
#include "src/cuda/cu.h"

{declared}
const uint64_t *const cu_images[] = {{
{images}}};
const uint32_t cu_images_count = {len(names)};
const uint8_t cu_row_images[] = {{{of_rows}}};
const uint8_t cu_merged_images[] = {{{of_merged}}};
""")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", type=pathlib.Path, required=True)
    parser.add_argument("--cuda", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("objects", nargs="+", metavar="NAME=FILE,FILE...")
    options = parser.parse_args()
    objects = {name: files.split(",") for name, files in (text.split("=") for text in options.objects)}
    try:
        kernels, rows, merged = read_table(options.table)
        files = [file for sources in objects.values() for file in sources]
        named = {row.source for row in rows if row.source is not None} | {one.source for one in merged}
        for source in sorted(named - set(files)):
            raise Failure(f"{options.table}: rows name {source}, which is not in {options.cuda}")
        for source in sorted(set(files) - named):
            raise Failure(f"{options.cuda / source}: no row of {options.table} names it")
        for name, sources in objects.items():
            write_object(options.out, name, sources, kernels, rows, merged)
        most = max(kernels[row.kernel].bindings for row in rows)
        write(options.out / "cuda_bindings.h", "/* Made from src/kernels.def by cuda_objects.py: the most bindings of a kernel with CUDA "
              f"rows. */\n#define CUDA_BINDINGS {most}\n")
        write_images(options.out / "cu_images.c", objects, rows, merged)
    except Failure as failure:
        sys.exit(f"cuda_objects.py: {failure}")


if __name__ == "__main__":
    main()
