#!/usr/bin/env bash
# Builds everything and runs all tests.
#
#   tools/test.sh [--all] [--seed N] [--quick] [--no-setup]
#
#   --all       all of it; otherwise a part of what drivers compile for minutes is drawn, anew each time
#   --seed N    draws what seed N draws
#   --quick     the tests that need neither sanitizers nor Vulkan drivers
#   --no-setup  install nothing: what is missing stops the build, or its tests are skipped
#
# What is drawn: of the tests with the label `drawn`, one in ten, so that any ten seeds in a row have all of them, and of those that have it under
# AddressSanitizer one in five, under ThreadSanitizer one in two; the program for Windows or that for arm64; of the cases of conformance
# on SwiftShader, so many that each row of the kernel table that they reach runs, and on lavapipe every tenth of those rows; of the C files that the
# last 20 commits did not touch, one in ten for clang-tidy; the CUDA kernels compile for one of two targets; fault_driver fails some of the calls
# that can fail, and fault_memory, under AddressSanitizer, a fifth of the allocations. The summary says how much that was. What is fuzzed with is
# drawn as well, by the same seed, or with --all and --quick by the time.
#
# First tools/setup.sh --test installs what is missing. Then: build/ (Release) with all tests on the CPU, SwiftShader
# and lavapipe under the Khronos validation layer, and every kernel through the compilers of Intel, Adreno, NVIDIA (NVK)
# and AMD; tools/lint.sh, which counts as one test; build/asan and build/tsan with those that sanitizers are for;
# build/clang, the library compiled by clang; build/mingw and build/arm64, the program for Windows and for arm64, run by
# Wine and qemu. Logs lie in the builds' Testing folders. Quiet but for failures; the last line is "N passed, N failed,
# N skipped". Ends with 1 if anything failed.
set -u

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 1
jobs=$(nproc 2>/dev/null || echo 2)
passed=0
failed=0
skipped=0
seed=$(($(date +%s) % 1000000))
around=()
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$work/failed"
: >"$work/skipped"

usage() { sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0"; }
say() { printf 'test: %s\n' "$*"; }

# One thing that either works or fails: $1 its name, then the command. Output only when it fails.
step() {
    local name=$1 start=$SECONDS
    shift
    if "$@" >"$work/log" 2>&1; then
        say "$name: done in $((SECONDS - start)) s"
        return 0
    fi
    cat "$work/log"
    say "$name: FAILED"
    echo "$name" >>"$work/failed"
    failed=$((failed + 1))
    return 1
}

# Configures, with the remaining arguments, and builds preset $1. A build that fails counts as one failed test.
build() {
    step "configure $1" cmake --preset "$@" && step "build $1" cmake --build --preset "$1" -j "$jobs"
}

# Runs CTest in folder $2 with the remaining arguments and counts what it says; $1 names the run.
run_tests() {
    local name=$1 folder=$2 start=$SECONDS log=$work/ctest.log
    shift 2
    "${around[@]}" ctest --test-dir "$folder" -j "$jobs" --output-on-failure --no-tests=error "$@" >"$log" 2>&1
    awk -v run="$name" -v failed="$work/failed" -v skipped="$work/skipped" '
        match($0, /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: /) {
            line = substr($0, RLENGTH + 1)
            split(line, word, " ")
            if (line ~ / Passed +[0-9.]+ sec/) ok++
            else if (line ~ /\*\*\*Skipped/) { none++; print run ": " word[1] >>skipped }
            else { bad++; print run ": " word[1] >>failed }
        }
        END { print ok + 0, bad + 0, none + 0 }' "$log" >"$work/counts"
    read -r ok bad none <"$work/counts"
    if [ $((ok + bad + none)) = 0 ]; then
        cat "$log"
        echo "$name: no test ran" >>"$work/failed"
        bad=1
    elif [ "$bad" != 0 ]; then
        # What failed, without the lines of what passed.
        grep -vE '^ *Start |\.\.\. +Passed ' "$log"
    fi
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + none))
    # Parts of tests that say so themselves.
    awk -v run="$name" '
        /^[0-9]+\/[0-9]+ Testing: / { test = $3 }
        /NOT RUN: / { sub(/.*NOT RUN: /, ""); print run ": " test ": " $0 }' \
        "$folder/Testing/Temporary/LastTest.log" 2>/dev/null | sort -u >>"$work/reasons"
    say "$name: $ok passed, $bad failed, $none skipped in $((SECONDS - start)) s"
}

# Chooses by $seed one in $2 among the tests with the label `drawn` of folder $1, those of about the same length against one another. Leaves the
# names of the others in $work/left.
draw_tests() {
    ctest --test-dir "$1" --show-only=json-v1 -L '^drawn$' >"$work/labelled" && python3 - "$work/labelled" "$seed" "$2" >"$work/left" <<'PYTHON'
import json
import sys


def cost(test):
    return next((value["value"] for value in test["properties"] if value["name"] == "COST"), 0)


with open(sys.argv[1], encoding="utf-8") as listed:
    tests = sorted(json.load(listed)["tests"], key=lambda test: (-cost(test), test["name"]))
seed, turns = int(sys.argv[2]), int(sys.argv[3])
for number, test in enumerate(tests):
    if (number // turns + number + seed) % turns:
        print(test["name"])
PYTHON
}

# Runs the tests of folder $2, of those with the label `drawn` one in $3, as run $1 with the remaining arguments.
run_drawn() {
    local name=$1 folder=$2 turns=$3
    shift 3
    if ! draw_tests "$folder" "$turns"; then
        echo "$name: no draw" >>"$work/failed"
        failed=$((failed + 1))
        return
    fi
    run_tests "$name" "$folder" -E "^($(paste -sd '|' "$work/left"))\$" "$@"
    echo "$name: drawn with seed $seed, all of it with --all: without $(xargs <"$work/left")" >>"$work/reasons"
}

# What was left out, into $work/reasons: a target of the CUDA kernels, and what the tests of conformance in folder $1 say of the cases that they
# drew.
note_drawn() {
    {
        if [[ $kernels = sm_* ]] && grep -q '^DARTLM_NVCC:FILEPATH=.*/nvcc' "$1/CMakeCache.txt"; then
            echo "drawn with seed $seed: CUDA kernels compiled for $kernels alone, of sm_80 and sm_90a"
        fi
        awk -v seed="$seed" '/^DRAWN: / { runs += $2; of += $4; tests++ }
            END { if (tests) printf "drawn with seed %s: %d of %d runs of a case in a variant, in %d tests\n", seed, runs, of, tests }' \
            "$1/Testing/Temporary/LastTest.log"
    } >>"$work/reasons"
}

# Counts as one test. 77: nothing was found, but not everything was looked for.
run_lint() {
    local start=$SECONDS status
    tools/lint.sh "$@" build >"$work/log" 2>&1
    status=$?
    sed -n "s/^DRAWN: /drawn with seed $seed: /p" "$work/log" >>"$work/reasons"
    case $status in
    0)
        say "lint: done in $((SECONDS - start)) s"
        passed=$((passed + 1)) ;;
    77)
        grep -v '^DRAWN: ' "$work/log" >>"$work/reasons"
        skipped=$((skipped + 1)) ;;
    *)
        cat "$work/log"
        say "lint: FAILED"
        echo "lint" >>"$work/failed"
        failed=$((failed + 1)) ;;
    esac
}

# ThreadSanitizer of older compilers cannot live with as much randomness of addresses as newer kernels use.
run_tsan() {
    if setarch "$(uname -m)" -R true 2>/dev/null; then around=(setarch "$(uname -m)" -R); fi
    if [ -n "$all" ]; then run_tests "ThreadSanitizer" build/tsan "$@"; else run_drawn "ThreadSanitizer" build/tsan 2 "$@"; fi
    around=()
}

# $1 a preset for another system, $2 how its run is called, $3 its compiler.
run_elsewhere() {
    local reason=
    command -v "$3" >/dev/null || reason="$3 is not installed"
    [ -d .deps/jansson ] || reason="there are no sources of jansson in .deps"
    if [ -z "$reason" ]; then
        build "$1" && run_tests "$2" "build/$1"
    else
        echo "$2: $reason" >>"$work/reasons"
        skipped=$((skipped + 1))
    fi
}

leave_out() { echo "$1: not built, drawn with seed $seed" >>"$work/reasons"; }

summary() {
    if [ -s "$work/reasons" ]; then
        say "not run:"
        sed 's/^/  /' "$work/reasons"
    fi
    if [ -s "$work/failed" ]; then
        say "failed:"
        sed 's/^/  /' "$work/failed"
    fi
    say "took $SECONDS s"
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    [ "$failed" = 0 ]
}

main() {
    local quick= setup=yes all= kernels=ON
    : >"$work/reasons"
    while [ $# -gt 0 ]; do
        case $1 in
        --all) all=yes ;;
        --seed) seed=${2:-}; shift ;;
        --quick) quick=yes ;;
        --no-setup) setup= ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
        esac
        shift
    done
    case $seed in '' | *[!0-9]*) usage >&2; exit 2 ;; esac
    if [ -n "$setup" ]; then
        tools/setup.sh --build --test || exit 1
    fi
    export CTEST_OUTPUT_ON_FAILURE=1
    # Conformance on Vulkan's drivers, fault_driver, fault_memory and fuzzing draw by it.
    if [ -z "$all$quick" ]; then export DARTLM_DRAW=$seed; fi
    # Without a GPU nothing here runs the kernels of CUDA: that they compile is all that is asked.
    if [ -e /dev/nvidiactl ]; then
        kernels=OFF
    elif [ -z "$all$quick" ]; then
        local targets=(sm_80 sm_90a)
        kernels=${targets[seed % 2]}
    fi
    if build release "-DDARTLM_CUDA_QUICK=$kernels"; then
        if [ -n "$quick" ]; then
            run_tests "tests" build -LE 'swiftshader|lavapipe|compilers|consumer'
        elif [ -n "$all" ]; then
            run_tests "tests" build
        else
            run_drawn "tests" build 10
            note_drawn build
        fi
    fi
    # Without compile commands the build has failed, and says so.
    if [ -e build/compile_commands.json ]; then
        if [ -n "$all" ]; then run_lint; else run_lint --draw "$seed"; fi
    fi
    if [ -z "$quick" ]; then
        if build asan; then
            local kinds=(-L 'unit|property|model|fault|fuzz|thread' -LE 'swiftshader|lavapipe')
            if [ -n "$all" ]; then
                run_tests "AddressSanitizer" build/asan "${kinds[@]}"
            else
                run_drawn "AddressSanitizer" build/asan 5 "${kinds[@]}"
            fi
        fi
        build tsan && run_tsan -L 'thread|property'
        if command -v clang >/dev/null; then
            build clang && passed=$((passed + 1))
        else
            echo "clang: it is not installed" >>"$work/reasons"
            skipped=$((skipped + 1))
        fi
        if [ -n "$all" ] || [ $((seed % 2)) = 0 ]; then run_elsewhere mingw "Windows" x86_64-w64-mingw32-gcc-posix; else leave_out "Windows"; fi
        if [ -n "$all" ] || [ $((seed % 2)) = 1 ]; then run_elsewhere arm64 "arm64" aarch64-linux-gnu-gcc; else leave_out "arm64"; fi
    fi
    summary
}

main "$@"
