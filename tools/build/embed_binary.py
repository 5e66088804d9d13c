#!/usr/bin/env python3
"""Writes a file as a C source: `const uint64_t SYMBOL[]`, little-endian words, zeros at the end.

Words rather than bytes give the alignment that loaders ask for, and compile several times faster.
usage: embed_binary.py INPUT OUTPUT SYMBOL
"""
import os
import struct
import sys


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__.strip())
    source, target, symbol = sys.argv[1:]
    with open(source, "rb") as file:
        data = file.read()
    data += bytes(-len(data) % 8) or bytes(0 if data else 8)
    words = struct.unpack("<%dQ" % (len(data) // 8), data)
    lines = [f"/* {os.path.basename(source)}, made by {os.path.basename(__file__)} */", "#include <stdint.h>", "",
             f"extern const uint64_t {symbol}[];", f"const uint64_t {symbol}[] = {{"]
    for i in range(0, len(words), 6):
        lines.append(" ".join(f"{word:#x}u," for word in words[i:i + 6]))
    lines.append("};")
    partial = target + ".part"
    with open(partial, "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")
    os.replace(partial, target)


if __name__ == "__main__":
    main()
