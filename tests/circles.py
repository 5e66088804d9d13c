#!/usr/bin/env python3
"""The files of a room of src/ stand above one another, and so do the rooms: circles.py NM SOURCES OBJECTS.

A file uses another one if its object needs a symbol that the other's object defines. OBJECTS are those of the library, separated by semicolons;
those of files that do not lie below SOURCES (generated ones) do not count. The test fails for each group of files of a room, or of rooms, that use
one another in a circle once the uses in ALLOWED are left out, and for each use in ALLOWED that is part of no circle.
"""
import collections
import pathlib
import subprocess
import sys

# (file, used file): why this use may lead upwards.
ALLOWED = {
    ("runtime/context.c", "cpu/cpu_device.c"): "the list of backends names cpu_backend, which reads kernel_table",
    ("runtime/context.c", "cuda/cu_backend.c"): "the list of backends names cuda_backend, which reads kernel_table",
    ("runtime/context.c", "vulkan/vk_backend.c"): "the list of backends names vulkan_backend, which reads kernel_table, and hands a device "
                                                  "that it adopts to the runtime",
}


def room(name):
    return name.rpartition("/")[0]


def uses_of(nm, names):
    """{(file, used file): symbols}; names: {object: file}."""
    done = subprocess.run([nm, "-A", "-P", "-g", *names], stdout=subprocess.PIPE, text=True, check=True)
    homes, needs = {}, []
    for line in done.stdout.splitlines():
        path, _, symbol = line.partition(": ")  # "OBJECT: NAME TYPE ..."
        name, kind = symbol.split()[:2]
        if kind == "U":
            needs.append((names[path], name))
        else:
            homes[name] = names[path]
    uses = collections.defaultdict(set)
    for file, name in needs:
        if homes.get(name, file) != file:
            uses[file, homes[name]].add(name)
    return uses


def groups_of(edges):
    """The largest sets of two and more nodes that all reach one another."""
    after = collections.defaultdict(set)
    for a, b in edges:
        after[a].add(b)
    reached = {}
    for node in list(after):
        seen, todo = set(), [node]
        while todo:
            new = after[todo.pop()] - seen
            seen |= new
            todo += new
        reached[node] = seen
    return {frozenset(b for b in seen if a in reached.get(b, ())) for a, seen in reached.items() if a in seen}


def circles(uses):
    """Groups of files of a room, and groups of rooms."""
    files = groups_of((a, b) for a, b in uses if room(a) == room(b))
    return files, groups_of((room(a), room(b)) for a, b in uses if room(a) != room(b))


def show(group, uses, of):
    print(f"FAILED: these use one another in a circle: {', '.join(sorted(group))}")
    for (a, b), symbols in sorted(uses.items()):
        if of(a) != of(b) and {of(a), of(b)} <= group:
            print(f"  {a} uses {b}: {', '.join(sorted(symbols))}")


def main():
    nm, sources, objects = sys.argv[1:]
    files = {path.relative_to(sources).as_posix() for path in pathlib.Path(sources).rglob("*.c")}
    names = {}
    for path in objects.split(";"):
        name = path.rpartition("/src/")[2].rpartition(".")[0]
        if name in files:
            names[path] = name
    uses = uses_of(nm, names)
    of_files, of_rooms = circles({use: symbols for use, symbols in uses.items() if use not in ALLOWED})
    for group in of_files:
        show(group, uses, lambda name: name)
    for group in of_rooms:
        show(group, uses, room)
    failures = len(of_files) + len(of_rooms)
    files_without, rooms_without = circles(uses)
    for a, b in ALLOWED:
        if not {a, b} <= set(names.values()):
            continue  # not in this build
        in_circle = any({a, b} <= group for group in files_without) or any({room(a), room(b)} <= group for group in rooms_without)
        if (a, b) not in uses or not in_circle:
            failures += 1
            print(f"FAILED: {a} uses {b} in no circle: ALLOWED need not name it")
    print(f"{len(names)} files, {len(uses)} uses, {failures} failures")
    sys.exit(failures != 0 or not uses)


main()
