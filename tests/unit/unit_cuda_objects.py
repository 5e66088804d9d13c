#!/usr/bin/env python3
"""What an edit of the kernel table compiles again of CUDA: the files that tools/build/cuda_objects.py replaces.

usage: unit_cuda_objects.py tools/build/cuda_objects.py
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TABLE = """KERNEL(one, OneArgs)
BIND(one, x, READ)
BIND(one, y, WRITE)
CPU_ROW(one, plain, 0, 0, 64, 1, 0)
CUDA_SHAPED_ROW(one, tensor, "op/one_tensor.cu", 0, FITS_F16, 128, 1, 0, 512, 4096, 1)
CUDA_MAP(one, tensor, x, 128)
CUDA_ROW(one, simt, "op/one_simt.cu", 0, 0, 8, 4, 0)
SPIRV_ROW(one, base, "op/one.comp", 0, 0, 16, 1, 0, 64, "")

KERNEL(two, TwoArgs)
BIND(two, a, READ)
BIND(two, b, READ)
BIND(two, c, WRITE)
CUDA_BLAS_ROW(two, blas, simt, 0, 0, 2, 1, 0)
CUDA_ROW(two, simt, "op/two.cu", 0, 0, 2, 1, 0)

KERNEL(three, ThreeArgs)
BIND(three, a, READ)
BIND(three, b, READ)
BIND(three, c, READ)
BIND(three, d, WRITE)
SPIRV_ROW(three, base, "op/three.comp", 0, 0, 16, 1, 0, 64, "")
"""
OBJECTS = {"op": ["op/one_simt.cu", "op/two.cu"], "op_one_tensor": ["op/one_tensor.cu"]}


class Objects(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out = self.folder / "out"

    def make(self, table=TABLE, objects=None):
        """Runs the script on the table; the files that it replaced."""
        (self.folder / "op.def").write_text(table)
        (self.folder / "kernels.def").write_text('#include "op.def"\n')
        before = self.files()
        self.done = subprocess.run(
            [sys.executable, SCRIPT, "--table", self.folder / "kernels.def", "--cuda", "cuda", "--out", self.out] +
            [f"{name}={','.join(files)}" for name, files in (objects or OBJECTS).items()],
            capture_output=True, text=True, check=False)
        after = self.files()
        return {name for name in after if after[name] != before.get(name)}

    def files(self):
        return {str(path.relative_to(self.out)): path.stat().st_ino for path in self.out.rglob("*") if path.is_file()}

    def read(self, name):
        return (self.out / name).read_text()

    def edit(self, old, new):
        self.assertIn(old, TABLE)
        replaced = self.make(TABLE.replace(old, new))
        self.assertEqual(self.done.returncode, 0, self.done.stderr)
        return replaced

    def fails(self, *words):
        self.assertNotEqual(self.done.returncode, 0)
        for word in words:
            self.assertIn(word, self.done.stderr)

    def test_content(self):
        self.assertEqual(self.make(), {"cuda_bindings.h", "cu_images.c", "op/rows.def", "op/object.cu",
                                       "op_one_tensor/rows.def", "op_one_tensor/object.cu"})
        self.assertIn("ROW(one, tensor, 128, 1, 512, 4096, 1)\n", self.read("op_one_tensor/rows.def"))
        self.assertIn("ROW(one, simt, 8, 4, CUDA_BLOCK, 0, 0)\n", self.read("op/rows.def"))
        self.assertNotIn("tensor", self.read("op/rows.def").split("*/")[1])
        self.assertNotIn("KERNEL(two", self.read("op_one_tensor/rows.def"))
        # Kernels without CUDA rows do not count.
        self.assertIn("#define CUDA_BINDINGS 3\n", self.read("cuda_bindings.h"))
        # In the order of the table; the row of cuBLASLt has no image.
        self.assertIn("cu_row_images[] = {1, 0, 0, 0};", self.read("cu_images.c"))

    def test_other_backends(self):
        self.make()
        self.assertEqual(self.edit('"op/one.comp", 0, 0, 16', '"op/one.comp", 0, FITS_F16, 32'), set())
        self.assertEqual(self.edit("plain, 0, 0, 64", "plain, 0, 0, 128"), set())
        self.assertEqual(self.edit("BIND(three, d, WRITE)", "BIND(three, e, WRITE)"), set())

    def test_what_functions_do_not_know(self):
        self.make()
        self.assertEqual(self.edit("FITS_F16, 128, 1, 0, 512, 4096, 1)", "FITS_BF16, 128, 1, 9, 512, 4096, 2)"), set())

    def test_one_object(self):
        self.make()
        self.assertEqual(self.edit("0, 0, 8, 4, 0)", "0, 0, 16, 4, 0)"), {"op/rows.def"})
        self.make()
        self.assertEqual(self.edit("512, 4096, 1)", "256, 4096, 1)"), {"op_one_tensor/rows.def"})

    def test_bindings_follow_the_table(self):
        self.make()
        more = "".join(f"BIND(two, more{i}, READ)\n" for i in range(12))
        self.assertEqual(self.edit("BIND(two, c, WRITE)\n", more + "BIND(two, c, WRITE)\n"), {"op/rows.def", "cuda_bindings.h"})
        self.assertIn("#define CUDA_BINDINGS 15\n", self.read("cuda_bindings.h"))

    def test_merged(self):
        table = TABLE + 'CUDA_MERGED(one, tensor, two, simt, "op/both.cu", 0)\n'
        objects = {**OBJECTS, "op_both": ["op/both.cu"]}
        self.make(table, objects)
        self.assertEqual(self.done.returncode, 0, self.done.stderr)
        rows = self.read("op_both/rows.def")
        for line in ("KERNEL(one, OneArgs)", "BIND(two, c, WRITE)", "PART(one, tensor, 128, 1, 512, 4096, 1)",
                     "PART(two, simt, 2, 1, CUDA_BLOCK, 0, 0)"):
            self.assertIn(line + "\n", rows)
        self.assertNotIn("\nROW(", rows)
        self.assertIn("cu_merged_images[] = {2};", self.read("cu_images.c"))
        self.assertNotIn("PART(", self.read("op/rows.def").split("*/")[1].replace("#define PART(", ""))
        # A row that is merged is compiled again with the others.
        self.assertEqual(self.make(table.replace(
            '"op/two.cu", 0, 0, 2, 1', '"op/two.cu", 0, 0, 4, 1'), objects), {"op/rows.def", "op_both/rows.def"})
        self.make(table.replace("two, simt, \"op/both", "two, other, \"op/both"), objects)
        self.fails("op.def:23", "two[other]")

    def test_errors(self):
        self.make(objects={"op": OBJECTS["op"]})
        self.fails("op/one_tensor.cu", "not in")
        self.make(objects={**OBJECTS, "more": ["more/three.cu"]})
        self.fails("more/three.cu", "no row")
        self.make(TABLE.replace('CUDA_ROW(two, simt, "op/two.cu",', 'CUDA_ROW(two, simt, "op/two.cu",\n   '))
        self.fails("op.def:15", "one line")
        self.make(TABLE.replace("0, 0, 8, 4, 0)", "0, 0, 8, 4)"))
        self.fails("op.def:7")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    SCRIPT = sys.argv.pop()
    unittest.main()
