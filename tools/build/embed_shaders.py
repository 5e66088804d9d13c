#!/usr/bin/env python3
"""Compiles the Vulkan rows of the kernel table and writes them as one C file.

For every SPIRV_ROW line of --table and of what it includes, the shader that it names is compiled with the row's defines, checked, optimised,
checked again and written as <id>.<variant>.spv next to --out. Rows that differ only in what they ask of a device share that work. --out
holds vk_spirv_modules[] in the order of the rows (see src/vulkan/vk_spirv.h), the words of the modules lie beside it in a file for each
file of the table: vk_spirv_ssd.c for the rows of ssd.def, which names vk_spirv_ssd.bin (src/base/embed.h) or, with --arrays, holds the words as
numbers. What has not changed since the last run is not compiled again.

Bindings go by name: table/<id>.glsl, made next to --out from the KERNEL and BIND lines, tells the shader of a row their numbers
(see shaders/lib/dart.glsl). A shader that includes the table of another kernel, or numbers a binding itself, fails, and so does one that accesses a
binding without reading where its tensor begins. The table also tells how long the kernel's arguments are, from their struct in
--shaders/OP/args.h; the C file asserts that the C compiler has the same sizes.
"""
import argparse
import array
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROW = re.compile(r"\s*SPIRV_ROW\(\s*(\w+)\s*,\s*(\w+)\s*,\s*\"([\w./]+)\"\s*,\s*([\w\s|]+?)\s*,\s*[\w\s|]+?\s*,"
                 r"\s*\d+\s*,\s*\d+\s*,\s*\d+\s*,\s*\d+\s*,\s*\"([^\"]*)\"\s*\)\s*$")
KERNEL = re.compile(r"\s*KERNEL\((\w+),\s*(\w+)\)")
WHOLE = re.compile(r"\s*KERNEL_WHOLE\((\w+)\)")
BIND = re.compile(r"\s*BIND\((\w+),\s*(\w+),\s*(READ|WRITE|READ_WRITE)\)")
INCLUDE = re.compile(r'#include "([^"]+\.def)"')
# Where bindings are declared, and what a declaration looks like.
LIBRARIES_OF_BINDINGS = ("lib/dart.glsl", "lib/eight.glsl", "lib/push.glsl")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
MEMBERS = re.compile(r"\s*(?:U32|F32)\s+(\w+(?:\s*,\s*\w+)*)\s*")  # of four bytes each
NUMBERED = re.compile(r"\bbinding\s*=")
# How a shader finds its work, and whatever else would tell it.
LOOP = re.compile(r"for \(uint (\w+) = FIRST_TILE; \1 < args\.tiles; \1 \+= gl_NumWorkGroups\.x\)")
TILES = re.compile(r"\b(?:FIRST_TILE|range_begin|gl_WorkGroupID|gl_NumWorkGroups|args\.tiles|gl_GlobalInvocation\w+)\b")

# SPIR-V, by number.
MAGIC = 0x07230203
OP_CAPABILITY, OP_CONSTANT, OP_VARIABLE, OP_ACCESS_CHAIN, OP_IN_BOUNDS_ACCESS_CHAIN, OP_DECORATE = 17, 43, 59, 65, 66, 71
DECORATION_ALIASED, DECORATION_BINDING = 20, 33
STORAGE_PUSH_CONSTANT = 9
ANNOTATIONS = range(71, 76)
# What a device must have for a module: the baseline, and what a row asks for.
BASELINE = {1: "Shader"}
CAPABILITIES = {
    "DART_CAP_STORE16": {4433: "StorageBuffer16BitAccess"},
    "DART_CAP_SUBGROUP": {61: "GroupNonUniform", 63: "GroupNonUniformArithmetic"},
    "DART_CAP_FLOAT16": {9: "Float16"},
    "DART_CAP_MATRIX_F16": {9: "Float16", 5345: "VulkanMemoryModel", 6022: "CooperativeMatrixKHR",
                            4433: "StorageBuffer16BitAccess", 61: "GroupNonUniform", 63: "GroupNonUniformArithmetic",
                            65: "GroupNonUniformShuffle"},
    "DART_CAP_MATRIX_BF16": {5116: "BFloat16TypeKHR", 5118: "BFloat16CooperativeMatrixKHR", 9: "Float16",
                             5345: "VulkanMemoryModel", 6022: "CooperativeMatrixKHR",
                             4433: "StorageBuffer16BitAccess", 61: "GroupNonUniform", 63: "GroupNonUniformArithmetic",
                             65: "GroupNonUniformShuffle"},
    "DART_CAP_MATRIX2": {5430: "CooperativeMatrixReductionsNV", 5431: "CooperativeMatrixConversionsNV",
                         5432: "CooperativeMatrixPerElementOperationsNV"},
    "DART_CAP_ADDRESSES": {11: "Int64", 12: "Int64Atomics", 65: "GroupNonUniformShuffle", 5345: "VulkanMemoryModel",
                           5346: "VulkanMemoryModelDeviceScope", 5347: "PhysicalStorageBufferAddresses"},
}


class Failure(Exception):
    pass


class Row:
    def __init__(self, place, group, kernel, variant, source, capabilities, defines):
        self.place = place
        self.group = group
        self.source = source
        self.kernel = kernel
        self.variant = variant
        self.capabilities = capabilities
        self.defines = shlex.split(defines)
        self.name = f"{kernel}.{variant}"
        # NV_cooperative_matrix2 comes with Vulkan 1.3, all else runs from 1.2 on.
        self.target = "vulkan1.3" if "DART_CAP_MATRIX2" in capabilities else "vulkan1.2"


def members_of(arguments, path):
    """The names of the members of a struct of arguments, by its text in the file at path."""
    text = COMMENT.sub(" ", path.read_text(encoding="utf-8"))
    struct = re.search(r"\bstruct\s+%s\s*\{([^{}]*)\}" % re.escape(arguments), text)
    if not struct:
        raise Failure(f"{path}: no struct {arguments}")
    names = []
    for line in struct[1].split(";")[:-1]:
        members = MEMBERS.fullmatch(line)
        if not members:
            raise Failure(f"{path}: {arguments}: not a list of U32 or F32: {line.strip()}")
        names += [name.strip() for name in members[1].split(",")]
    return names


class Kernel:
    def __init__(self, name, arguments, path, shaders):
        self.name = name
        self.arguments = arguments
        self.members = members_of(arguments, shaders / path.stem / "args.h")
        self.bytes = 4 * len(self.members)
        self.path = path
        self.whole = False  # its launches are not cut
        self.bindings = []  # (name, access)

    def glsl(self):
        lines = [f"// Made by tools/build/embed_shaders.py from the lines of {self.name} in {self.path.name}.",
                 f'#include "{self.path.stem}/args.h"', f"#define ARGS {self.arguments}", f"#define ARGS_BYTES {self.bytes}",
                 f"#define BINDINGS {len(self.bindings)}", '#include "lib/push.glsl"']
        for number, (name, access) in enumerate(self.bindings):
            lines.append(f"#define BINDING_{name} {number}")
            if access != "WRITE":
                lines.append(f"#define READABLE_{name} {number}")
            if access != "READ":
                lines.append(f"#define WRITABLE_{name} {number}")
        return "\n".join(lines) + "\n"


def read_rows(path, folder, shaders, tables, kernels):
    """Rows in the order of the table, whose includes are relative to its folder. Adds the files to tables, kernels to kernels."""
    rows = []
    tables.append(path)
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        include = INCLUDE.match(line)
        if include:
            rows += read_rows(folder / include[1], folder, shaders, tables, kernels)
        kernel = KERNEL.match(line)
        if kernel:
            kernels[kernel[1]] = Kernel(kernel[1], kernel[2], path, shaders)
        whole = WHOLE.match(line)
        if whole:
            kernels[whole[1]].whole = True
        bind = BIND.match(line)
        if bind:
            kernels[bind[1]].bindings.append((bind[2], bind[3]))
        if not line.lstrip().startswith("SPIRV_ROW("):
            continue
        match = ROW.match(line)
        if not match:
            raise Failure(f"{path}:{number}: not a SPIRV_ROW of one line: {line.strip()}")
        capabilities = [name.strip() for name in match[4].split("|")]
        rows.append(Row(f"{path}:{number}", path.stem, match[1], match[2], match[3], capabilities, match[5]))
    return rows


def write_tables(folder, kernels):
    """table/<id>.glsl of each kernel. Files that would not change keep their time."""
    folder.mkdir(exist_ok=True)
    for kernel in kernels.values():
        path = folder / f"{kernel.name}.glsl"
        text = kernel.glsl()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def check_bindings(row, shaders, tables, sources):
    """Does the row's shader take its bindings from its own kernel's table, and by name only?"""
    for source in sources:
        path = shaders / source
        if path.resolve().parent == tables.resolve():
            if path.stem != row.kernel:
                raise Failure(f"{row.place}: {row.name}: {row.source} includes table/{path.name}")
        elif source not in LIBRARIES_OF_BINDINGS and NUMBERED.search(path.read_text(encoding="utf-8")):
            raise Failure(f"{row.place}: {row.name}: {source} declares a binding itself; READS and the like of lib/dart.glsl do")


def check_loop(row, shaders, sources, whole):
    """Can a launch be cut? Work is numbered by tiles alone, as ranges_of in src/runtime/stream.c expects of all rows but these."""
    if any(name.startswith("DART_CAP_MATRIX") for name in row.capabilities) or whole:
        return
    loops = 0
    for source in sources:
        if source in ("lib/dart.glsl", "lib/push.glsl"):
            continue
        text = (shaders / source).read_text(encoding="utf-8")
        loops += len(LOOP.findall(text))
        if TILES.search(LOOP.sub("", text)):
            raise Failure(f"{row.place}: {row.name}: {source} numbers its work by more than the loop over tiles (lib/dart.glsl)")
    if loops != 1:
        raise Failure(f"{row.place}: {row.name}: {loops} loops over tiles")


def run(*command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise Failure(f"{' '.join(str(part) for part in command)}\n{done.stdout.strip()}")


def load(path):
    words = array.array("I")
    words.frombytes(path.read_bytes())
    if words and words[0] != MAGIC:
        words.byteswap()
    return words


def instructions(words):
    """(opcode, index, length) of each instruction."""
    at = 5
    while at < len(words):
        yield words[at] & 0xFFFF, at, words[at] >> 16
        at += words[at] >> 16


def mark_aliases(words):
    """Bindings that are declared twice, by the word and by 16 bits, are the same memory. Without this decoration
    a compiler may take them for different ones; GLSL has no word for it."""
    bindings = {}
    end = 5
    for opcode, at, _ in instructions(words):
        if opcode == OP_DECORATE and words[at + 2] == DECORATION_BINDING:
            bindings.setdefault(words[at + 3], []).append(words[at + 1])
        if opcode in ANNOTATIONS:
            end = at + (words[at] >> 16)
    marks = array.array("I")
    for variables in bindings.values():
        if len(variables) > 1:
            for variable in variables:
                marks.extend([3 << 16 | OP_DECORATE, variable, DECORATION_ALIASED])
    return words[:end] + marks + words[end:]


def check_capabilities(row, words):
    allowed = dict(BASELINE)
    for name in row.capabilities:
        allowed.update(CAPABILITIES.get(name, {}))
    for opcode, at, _ in instructions(words):
        if opcode == OP_CAPABILITY and words[at + 1] not in allowed:
            raise Failure(f"{row.name} uses SPIR-V capability {words[at + 1]}, which {' | '.join(row.capabilities)} "
                          f"does not promise (it does: {', '.join(allowed.values())})")


def check_places(row, words, kernel):
    """A tensor may begin anywhere in its binding: does the module read args.NAME_at of every binding NAME that it accesses? For optimised modules, in
    which nothing is left that is not called. That each access adds it is for the tests (unit_alignment, margins of conformance)."""
    numbers, constants, arguments, accessed, read = {}, {}, set(), set(), set()
    for opcode, at, length in instructions(words):
        if opcode == OP_DECORATE and words[at + 2] == DECORATION_BINDING:
            numbers[words[at + 1]] = words[at + 3]
        elif opcode == OP_CONSTANT:
            constants[words[at + 2]] = words[at + 3]
        elif opcode == OP_VARIABLE and (words[at + 3] == STORAGE_PUSH_CONSTANT or numbers.get(words[at + 2]) == len(kernel.bindings)):
            arguments.add(words[at + 2])
        elif opcode in (OP_ACCESS_CHAIN, OP_IN_BOUNDS_ACCESS_CHAIN):
            if words[at + 3] not in arguments:
                accessed.add(numbers.get(words[at + 3]))
            elif length > 5:  # a member of args; range_begin, beside args, has one index less
                read.add(kernel.members[constants[words[at + 5]]])
    for number, (name, _) in enumerate(kernel.bindings):
        if number in accessed and f"{name}_at" in kernel.members and f"{name}_at" not in read:
            raise Failure(f"{row.place}: {row.name}: {row.source} accesses {name} and never reads args.{name}_at, where it begins")


def read_depfile(path):
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    return shlex.split(text.partition(": ")[2])


class Builder:
    def __init__(self, options, kernels):
        self.options = options
        self.kernels = kernels
        self.folder = options.out.parent
        self.stamps_path = options.out.with_suffix(".json")
        try:
            self.stamps = json.loads(self.stamps_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self.stamps = {}
        self.salt = hashlib.sha256(pathlib.Path(__file__).read_bytes())
        for tool in (options.glslang, options.spirv_val, options.spirv_opt):
            if tool:
                self.salt.update(f"{os.path.basename(tool)} {os.stat(tool).st_size} {os.stat(tool).st_mtime_ns}".encode())

    def state(self, row, sources):
        """A hash of all that the row's code depends on; None if something of it is gone."""
        state = self.salt.copy()
        state.update(json.dumps([row.source, row.defines, row.capabilities, self.kernels[row.kernel].whole, sources]).encode())
        try:
            for source in sources:
                state.update((self.options.shaders / source).read_bytes())
        except OSError:
            return None
        return state.hexdigest()

    def build(self, row, twin):
        """The row's code, from the last run if it still holds, and its stamp. twin: the future of a row that compiles the same, or None."""
        spv = self.folder / f"{row.name}.spv"
        stamp = self.stamps.get(row.name)
        if stamp and spv.exists() and self.state(row, stamp["sources"]) == stamp["state"]:
            return load(spv), stamp
        if twin:
            words, stamp = twin.result()
            sources = stamp["sources"]
            check_capabilities(row, words)
            if self.options.spirv_opt:
                check_places(row, words, self.kernels[row.kernel])
            check_bindings(row, self.options.shaders, self.folder / "table", sources)
            check_loop(row, self.options.shaders, sources, self.kernels[row.kernel].whole)
            spv.write_bytes(words.tobytes())
            return words, {"sources": sources, "state": self.state(row, sources)}
        source = self.options.shaders / row.source
        if not source.exists():
            raise Failure(f"{row.place}: {row.name}: there is no {source}")
        made = self.folder / f"{row.name}.tmp.spv"
        depfile = self.folder / f"{row.name}.d"
        try:
            run(self.options.glslang, "--quiet", "--target-env", row.target, "-S", "comp", f"-I{self.options.shaders}", f"-I{self.folder}",
                *row.defines, "--depfile", depfile, "-o", made, source)
            made.write_bytes(mark_aliases(load(made)).tobytes())
            run(self.options.spirv_val, "--target-env", row.target, made)
            if self.options.spirv_opt:
                run(self.options.spirv_opt, f"--target-env={row.target}", "-O", "--strip-debug", made, "-o", made)
                run(self.options.spirv_val, "--target-env", row.target, made)
            words = load(made)
            check_capabilities(row, words)
            if self.options.spirv_opt:
                check_places(row, words, self.kernels[row.kernel])
            sources = sorted({os.path.relpath(source, self.options.shaders) for source in read_depfile(depfile)})
            check_bindings(row, self.options.shaders, self.folder / "table", sources)
            check_loop(row, self.options.shaders, sources, self.kernels[row.kernel].whole)
            os.replace(made, spv)
        finally:
            made.unlink(missing_ok=True)
            depfile.unlink(missing_ok=True)
        return words, {"sources": sources, "state": self.state(row, sources)}


def write_if_changed(path, head, make_rest):
    """Writes head and what make_rest() returns, unless the file begins with that head: it says what the rest is made from."""
    try:
        with path.open(encoding="utf-8") as file:
            if file.read(len(head)) == head:
                return
    except OSError:
        pass
    replace(path, (head + make_rest()).encode())


def replace(path, data):
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def arrays(names, codes):
    """C arrays of the words of one group's modules."""
    lines = []
    for name, words in zip(names, codes):
        lines.append(f"const uint32_t {name}[{len(words)}] = {{")
        for at in range(0, len(words), 8):
            lines.append("    " + " ".join(f"0x{word:08x}u," for word in words[at:at + 8]))
        lines.append("};")
    return "\n".join(lines) + "\n"


def embedded(names, codes, path):
    """The same, in a file at path that the assembler reads."""
    replace(path, b"".join(words.tobytes() for words in codes))
    lines, at = [], 0
    for name, words in zip(names, codes):
        size = len(words) * words.itemsize
        lines.append(f'BASE_EMBED({name}, "{path.resolve().as_posix()}", {at}, {size})')
        at += size
    return "\n".join(lines) + "\n"


def write_c(path, rows, codes, kernels, as_arrays):
    """The modules of each group in a file of their own, so that an edit compiles little again, and vk_spirv_modules[] in path."""
    groups = {}  # group: {code: words}
    names = []
    for row, words in zip(rows, codes):
        own = groups.setdefault(row.group, {})
        own.setdefault(words.tobytes(), words)
        number = list(own).index(words.tobytes())
        names.append(f"vk_spirv_{row.group}_{number}")
    extern = []
    for group, own in groups.items():
        made_from = hashlib.sha256(b"".join(hashlib.sha256(code).digest() for code in own)).hexdigest()
        symbols = [f"vk_spirv_{group}_{number}" for number in range(len(own))]
        declared = [f"extern const uint32_t {symbol}[{len(words)}];" for symbol, words in zip(symbols, own.values())]
        file = path.with_name(f"{path.stem}_{group}.c")
        head = f"/* Made by tools/build/embed_shaders.py from {made_from}. */\n"
        if as_arrays:
            write_if_changed(file, head + "#include <stdint.h>\n\n" + "\n".join(declared) + "\n\n", lambda: arrays(symbols, own.values()))
        else:
            write_if_changed(file, head + '#include "base/embed.h"\n\n', lambda: embedded(symbols, own.values(), file.with_suffix(".bin")))
        extern += declared
    entries = [f"    {{{name}, sizeof({name})}}, /* {row.name} */" for row, name in zip(rows, names)]
    sizes = {kernel.arguments: kernel.bytes for kernel in kernels.values()}
    asserts = [f'_Static_assert(sizeof(struct {arguments}) == {size}, "{arguments}");' for arguments, size in sizes.items()]
    lines = ["/* Made by tools/build/embed_shaders.py. */", '#include "vulkan/vk_spirv.h"', '#include "shaders/args.h"', "", *asserts, "",
             *extern, "", "const vk_spirv_module vk_spirv_modules[] = {", *entries, "};",
             f"const uint32_t vk_spirv_modules_count = {len(rows)};", ""]
    write_if_changed(path, "\n".join(lines), str)


def write_depfile(path, out, sources):
    def escape(name):
        return str(name).replace("\\", "/").replace(" ", "\\ ")
    path.write_text(f"{escape(out)}: " + " \\\n  ".join(escape(source) for source in sources) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=pathlib.Path, required=True, help="src/kernels.def")
    parser.add_argument("--shaders", type=pathlib.Path, required=True, help="folder of the .comp files")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="C file to write")
    parser.add_argument("--glslang", required=True)
    parser.add_argument("--spirv-val", required=True)
    parser.add_argument("--spirv-opt", help="without it, code is embedded as the compiler made it")
    parser.add_argument("--arrays", action="store_true", help="for compilers whose assembler reads no files")
    parser.add_argument("--depfile", type=pathlib.Path, help="dependencies in make's syntax")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()

    tables = []
    kernels = {}
    rows = read_rows(options.table, options.table.parent, options.shaders, tables, kernels)
    if not rows:
        raise Failure(f"{options.table}: no SPIRV_ROW")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_tables(options.out.parent / "table", kernels)
    builder = Builder(options, kernels)
    failures = []
    codes = []
    stamps = {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        futures = []
        first = {}  # (source, defines, target): future. The pool starts it before its twins, which wait for it.
        for row in rows:
            same = (row.source, tuple(row.defines), row.target)
            futures.append(pool.submit(builder.build, row, first.get(same)))
            first.setdefault(same, futures[-1])
        for row, future in zip(rows, futures):
            try:
                words, stamps[row.name] = future.result()
                codes.append(words)
            except (Failure, OSError) as failure:
                failures.append(str(failure))
    # Kept after a failure too: the rest need not be compiled again.
    builder.stamps_path.write_text(json.dumps(stamps, indent=1), encoding="utf-8")
    if failures:
        raise Failure("\n\n".join(dict.fromkeys(failures)))
    write_c(options.out, rows, codes, kernels, options.arrays)
    if options.depfile:
        sources = {options.shaders / source for stamp in stamps.values() for source in stamp["sources"]}
        write_depfile(options.depfile, options.out, [*tables, __file__, *sorted(sources)])


if __name__ == "__main__":
    try:
        main()
    except (Failure, OSError) as failure:
        sys.exit(f"embed_shaders: {failure}")
