#!/usr/bin/env python3
"""Writes unicode_classes.c, unicode_marks.c and unicode_compositions.c: make_unicode.py [--check] src/text.

Asks pip `tokenizers`, the reference of the tokenizer, about every code point: its classes \\p{L}, \\p{N} and \\s, its canonical decomposition, the
place of marks in canonical order, and its compositions. The reference mixes Unicode versions, so that no table of one version would agree with it.
With --check nothing is written, and the files have to hold what would be; 77 where they are of another version of `tokenizers` than the installed
one, or none is. Takes ten seconds.
"""
import argparse
import pathlib
import sys
import unicodedata

try:
    import tokenizers
    from tokenizers import Regex, normalizers, pre_tokenizers
except ImportError:
    print("NOT RUN: pip tokenizers is not installed")
    sys.exit(77)

POINTS = [i for i in range(0x110000) if not 0xD800 <= i < 0xE000]
HANGUL = range(0xAC00, 0xAC00 + 11172)
NFC, NFD = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
WIDTH = 148
# A code point that a version added: letters, and marks that are not in order of their own.
LETTERS = {"13": 0x10E80, "14": 0x10570, "15": 0x11F02, "15.1": 0x2EBF0, "16": 0x105C0, "17": 0x323B0}
MARKS = {"8": 0xA69E, "9": 0x08D4, "10": 0x1DF6, "11": 0x07FD, "12": 0x0EBA, "13": 0x1ABF, "14": 0x0898, "15": 0x10EFD, "16": 0x0897}


def members(pattern):
    """Code points that the pattern matches."""
    split = pre_tokenizers.Split(Regex(pattern + "+"), "removed")
    found = set()
    for start in range(0, len(POINTS), 4096):
        part = POINTS[start:start + 4096]
        rest = {ord(c) for piece, _ in split.pre_tokenize_str("".join(map(chr, part))) for c in piece}
        found |= set(part) - rest
    return found


def newest(versions, known):
    return [version for version, point in versions.items() if known(point)][-1]


def runs(points):
    """Sorted [first, last] of a set."""
    found = []
    for i in sorted(points):
        if found and found[-1][1] == i - 1:
            found[-1][1] = i
        else:
            found.append([i, i])
    return found


def classes_of_marks(decomposed):
    """Canonical combining classes: their numbers are those of Python's tables, their order is that of the reference."""
    marks = [i for i in POINTS if i not in decomposed and i not in HANGUL and
             (NFD("\u0301" + chr(i)) != "\u0301" + chr(i) or NFD(chr(i) + "\u0334") != chr(i) + "\u0334" or i == 0x0334)]
    samples = {}
    for i in marks:
        samples.setdefault(unicodedata.combining(chr(i)), chr(i))
    classes = {}
    for i in marks:
        c = chr(i)
        equal = [v for v, r in samples.items() if v != 0 and NFD(r + c) == r + c and NFD(c + r) == c + r]
        if len(equal) != 1:
            sys.exit(f"U+{i:04X} is in order with the classes {equal}")
        classes[i] = equal[0]
    return classes


def compositions(decomposed):
    """Pairs that compose, of code points that are no Hangul."""
    found = {}
    for i, text in decomposed.items():
        if NFC(chr(i)) != chr(i):
            continue
        head = NFC(text[:-1])
        if len(head) != 1 or NFC(head + text[-1]) != chr(i):
            sys.exit(f"U+{i:04X} is composed of no pair")
        found[ord(head), ord(text[-1])] = i
    return found


def rows(items):
    """Items with commas in lines."""
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > WIDTH:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join([*lines, line])


def table(declaration, items):
    return f"const {declaration}[] = {{\n{rows(items)}\n}};\n"


def count(name, array):
    return f"const size_t {name} = COUNT_OF({array});\n"


def class_file(head):
    letters, numbers, spaces = members(r"\p{L}"), members(r"\p{N}"), members(r"\s")
    if letters & numbers or letters & spaces or numbers & spaces:
        sys.exit("classes overlap")
    version = newest(LETTERS, lambda i: i in letters)
    ranges = sorted([*([*r, "L"] for r in runs(letters)), *([*r, "N"] for r in runs(numbers)), *([*r, "S"] for r in runs(spaces))])
    text = head.format(what=f"Classes of code points: letters \\p{{L}}, numbers \\p{{N}} and white space \\s of Unicode {version}")
    text += "#define L TEXT_LETTER\n#define N TEXT_NUMBER\n#define S TEXT_SPACE\n\n"
    text += table("text_range text_class_ranges", [f"{{0x{a:X}, 0x{b:X}, {c}}}" for a, b, c in ranges])
    return text + "\n" + count("text_class_ranges_count", "text_class_ranges")


def form_files(head):
    decomposed = {i: NFD(chr(i)) for i in POINTS if i not in HANGUL and NFD(chr(i)) != chr(i)}
    marks = classes_of_marks(decomposed)
    version = f"about those of Unicode {newest(MARKS, lambda i: i in marks)}"
    text = head.format(what=f"Canonical decompositions without Hangul's, and combining classes, {version}")
    text += table("text_decomposition text_decompositions",
                  [f"{{0x{i:X}, {{{', '.join(f'0x{ord(c):X}' for c in d)}}}}}" for i, d in decomposed.items()])
    by_class = sorted([*r, value] for value in set(marks.values()) for r in runs(i for i in marks if marks[i] == value))
    text += "\n" + table("text_range text_mark_ranges", [f"{{0x{a:X}, 0x{b:X}, {c}}}" for a, b, c in by_class])
    text += "\n" + count("text_decompositions_count", "text_decompositions") + count("text_mark_ranges_count", "text_mark_ranges")
    pairs = sorted(compositions(decomposed).items())
    composed = head.format(what=f"Canonical compositions without Hangul's, {version}")
    composed += table("text_composition text_compositions", [f"{{0x{a:X}, 0x{b:X}, 0x{c:X}}}" for (a, b), c in pairs])
    composed += "\n" + count("text_compositions_count", "text_compositions")
    return text, composed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    version = f"tokenizers {tokenizers.__version__} "
    if options.check and version not in (options.folder / "unicode_classes.c").read_text(encoding="utf-8"):
        print(f"NOT RUN: {version}is installed, the tables are of another version")
        return 77
    head = f"/* {{what}},\n * as pip {version}has them. Made by tools/text/make_unicode.py. */\n#include \"unicode.h\"\n\n"
    wrong = []
    marks, composed = form_files(head)
    for name, text in (("unicode_classes.c", class_file(head)), ("unicode_marks.c", marks), ("unicode_compositions.c", composed)):
        path = options.folder / name
        if not options.check:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            wrong.append(name)
    for name in wrong:
        print(f"make_unicode: {name} is not what tokenizers {tokenizers.__version__} says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
