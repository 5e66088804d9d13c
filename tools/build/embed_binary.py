#!/usr/bin/env python3
"""Makes a file a constant of C: `extern const uint64_t SYMBOL[]`, little-endian words.

usage: embed_binary.py [--arrays] INPUT OUTPUT SYMBOL

OUTPUT names INPUT, which the assembler reads (src/base/embed.h). With --arrays, for compilers that cannot do so, it has the words itself, and zeros
at the end. Words rather than bytes compile several times faster.
"""
import hashlib
import os
import pathlib
import struct
import sys


def named(source, data, symbol):
    return [f"/* Made by {os.path.basename(__file__)} from {hashlib.sha256(data).hexdigest()}. */", '#include "base/embed.h"', "",
            f'BASE_EMBED({symbol}, "{pathlib.Path(source).resolve().as_posix()}", 0, {len(data)})']


def array(source, data, symbol):
    data += bytes(-len(data) % 8) or bytes(0 if data else 8)
    words = struct.unpack("<%dQ" % (len(data) // 8), data)
    lines = [f"/* {os.path.basename(source)}, made by {os.path.basename(__file__)} */", "#include <stdint.h>", "",
             f"extern const uint64_t {symbol}[];", f"const uint64_t {symbol}[] = {{"]
    lines += [" ".join(f"{word:#x}u," for word in words[i:i + 6]) for i in range(0, len(words), 6)]
    return lines + ["};"]


def main():
    options, names = sys.argv[1:-3], sys.argv[-3:]
    if len(names) != 3 or options not in ([], ["--arrays"]):
        sys.exit(__doc__.strip())
    source, target, symbol = names
    with open(source, "rb") as file:
        data = file.read()
    lines = (array if options else named)(source, data, symbol)
    partial = target + ".part"
    with open(partial, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    os.replace(partial, target)


if __name__ == "__main__":
    main()
