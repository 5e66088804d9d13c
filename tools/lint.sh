#!/usr/bin/env bash
# Checks the files that git knows: the rules of .editorconfig, clang-tidy over the C sources, shellcheck over the scripts.
#
#   tools/lint.sh [--draw N] [BUILD]      (default: build)
#
#   --draw N  clang-tidy over the C files that the last 20 commits or changes since touched, and over one in ten of the others: any ten
#             numbers in a row have all of them. Says so in a line that begins with DRAWN.
#   BUILD  a folder that CMake configured: its compile commands say how each C file is compiled, and what it does not
#          compile, such as src/cuda without CUDA, is not checked
#
# One line for each finding, else nothing without any. Ends with 1 if something was found, with 77 if nothing was but a tool is
# missing (the line says which), else with 0.
set -u

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 1
jobs=$(nproc 2>/dev/null || echo 2)
draw=
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
missing=

usage() { sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0"; }

# The rules of .editorconfig; both say the same.
check_text() {
    python3 - "$work/files" <<'PYTHON'
import os
import sys

with open(sys.argv[1], encoding="utf-8") as listed:
    names = [name for name in listed.read().split("\0") if name]
for name in names:
    if name.startswith("tests/data/") or name.endswith(".png") or not os.path.isfile(name):
        continue
    with open(name, "rb") as file:
        data = file.read()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        print(f"{name}:{data[:error.start].count(10) + 1}: not UTF-8")
        continue
    if text and not text.endswith("\n"):
        print(f"{name}:{text.count(chr(10)) + 1}: no end of line at the end of the file")
    endless = name.endswith((".def", ".md", ".csv")) or name.startswith("docs/reports/")
    for number, line in enumerate(text.split("\n"), 1):
        if line != line.rstrip():
            print(f"{name}:{number}: blanks at the end of the line")
        if "\t" in (line.lstrip("\t") if os.path.basename(name) == "Makefile" else line):
            print(f"{name}:{number}: a tab")
        if len(line) > 150 and not endless:
            print(f"{name}:{number}: {len(line)} characters, at most 150")
PYTHON
}

# The tracked C files that the build in folder $1 compiles.
compiled() {
    python3 - "$1/compile_commands.json" "$work/files" <<'PYTHON'
import json
import os
import sys

with open(sys.argv[1], encoding="utf-8") as commands:
    files = {os.path.relpath(os.path.join(entry["directory"], entry["file"])) for entry in json.load(commands)}
with open(sys.argv[2], encoding="utf-8") as listed:
    print("\n".join(name for name in listed.read().split("\0") if name in files and name.endswith(".c")))
PYTHON
}

# Of the files in $work/compiled, those of draw $draw. A header is checked with the files that include it.
draw_files() {
    {
        git log -20 --name-only --format= -- '*.c'
        git diff --name-only HEAD -- '*.c'
    } 2>/dev/null | sort -u >"$work/touched"
    grep -Fx -f "$work/touched" "$work/compiled" >"$work/drawn"
    grep -Fxv -f "$work/touched" "$work/compiled" | awk -v draw="$draw" '(NR + draw) % 10 == 0' >>"$work/drawn"
    echo "DRAWN: $(wc -l <"$work/drawn") of $(wc -l <"$work/compiled") C files for clang-tidy"
    mv "$work/drawn" "$work/compiled"
}

# A finding in a header is found once for each file that includes it.
check_c() {
    compiled "$1" >"$work/compiled" || return 1
    if [ -n "$draw" ]; then draw_files >"$work/said"; fi
    xargs -P "$jobs" -n 2 clang-tidy -p "$1" --quiet <"$work/compiled" >"$work/tidy" 2>"$work/tidy-errors"
    local status=$?
    sed -n "s|^$root/||; /^[^ ].*:[0-9]*:[0-9]*: \(warning\|error\): /p" "$work/tidy" | sort -u >"$work/found"
    cat "$work/found"
    if [ $status != 0 ] && [ ! -s "$work/found" ]; then
        grep -v 'warnings\? .*generated' "$work/tidy-errors" | head -n 5
        echo "clang-tidy: it failed with $status"
    fi
}

# What is below a warning is mostly words that are split on purpose, such as lists of packages. 1007, 2209: an empty value in
# a row of assignments, and a value that is a command's name, too, are meant.
check_scripts() {
    git grep -lzE '^#!(/usr/bin/env |/bin/)(ba)?sh$' -- . | xargs -0 shellcheck --severity=warning --exclude=SC1007,SC2209 --format=gcc
}

main() {
    if [ "${1:-}" = --draw ]; then
        draw=${2:-}
        case $draw in '' | *[!0-9]*) usage >&2; exit 2 ;; esac
        shift 2
    fi
    local build=${1:-build}
    case $build in
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    esac
    if ! git ls-files -z >"$work/files" 2>"$work/log"; then
        echo "lint: git does not list the files: $(head -n 1 "$work/log")"
        exit 77
    fi
    if [ ! -e "$build/compile_commands.json" ]; then
        echo "lint: $build has no compile_commands.json: configure first (cmake --preset release)"
        exit 1
    fi
    {
        check_text
        if command -v clang-tidy >/dev/null; then check_c "$build"; else missing="$missing clang-tidy"; fi
        if command -v shellcheck >/dev/null; then check_scripts; else missing="$missing shellcheck"; fi
    } >"$work/findings" 2>&1
    cat "$work/findings"
    if [ -e "$work/said" ]; then cat "$work/said"; fi
    if [ -s "$work/findings" ]; then exit 1; fi
    if [ -n "$missing" ]; then
        echo "lint: not installed:$missing"
        exit 77
    fi
}

main "$@"
