#!/usr/bin/env bash
# Shows what state memories are for: a small DART recalls values from a sequence, with its memories and without, and
# so does a Mamba-2 that was trained alike.
#
#   tools/demo.sh [--device SPEC] [--no-setup]
#
#   --device SPEC  what to run on, as for `dartlm --device`; by default the best Vulkan device of the machine,
#                  which is a driver on the CPU where there is no GPU
#   --no-setup     install nothing
#
# Installs what is needed to build (tools/setup.sh), builds into build/demo/, evaluates the models of tests/data and prints
# one table. Fails if the number of right answers is not what the models are known to give.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
device=vulkan
setup=yes

say() { printf 'demo: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
usage() { sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "$0"; }

while [ $# -gt 0 ]; do
    case $1 in
    --device) [ $# -gt 1 ] || die "--device needs a value"; device=$2; shift ;;
    --device=*) device=${1#*=} ;;
    --no-setup) setup= ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown argument '$1'; see --help" ;;
    esac
    shift
done

cd "$root"
if [ -n "$setup" ]; then tools/setup.sh --build --demo >&2; fi

build() {
    say "building into build/demo/"
    cmake -S . -B build/demo -G Ninja -DCMAKE_BUILD_TYPE=Release -DDARTLM_TESTS=OFF -DDARTLM_CUDA=OFF &&
        cmake --build build/demo --target dartlm_cli
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
build >"$log" 2>&1 || { cat "$log" >&2; die "the build failed"; }

# A driver of the machine's own, be there a GPU or not, else the one that the set-up brought.
driver=system
for json in .deps/newer/usr/share/vulkan/icd.d/lvp_icd*.json; do
    if [ -e "$json" ] && ! build/demo/dartlm devices | grep -q '^vulkan:'; then driver=lavapipe; fi
done

failed=
row() { printf '%-12s  %-8s  %-13s %6s %1s  %8s  %8s  %9s\n' "$@"; }

# $1 model, $2 "with" or "without" memories, $3 the answers that must be right, then options.
evaluate() {
    local model=$1 memories=$2 expected=$3 output right total percent speed state kv
    shift 3
    output=$(tools/with-vulkan.sh $driver build/demo/dartlm eval mqar --model "tests/data/$model" \
        --data "tests/data/$model/test.safetensors" --device "$device" --csv "$@") ||
        die "the evaluation of $model failed"
    IFS=, read -r right total percent speed _ state kv name <<<"$(tail -n 1 <<<"$output")"
    if [ -z "${heading:-}" ]; then
        heading=${name//\"/}
        printf 'Recall of 64 values in each of 128 sequences of 256 tokens, on %s\n\n' "$heading"
        row model memories recall "" "" tokens/s state 'KV cache'
    fi
    row "$model" "$memories" "$right of $total" "$percent" % "$speed" "$state B" "$kv B"
    if [ "$right" != "$expected" ]; then
        say "$model $memories memories: $right right, $expected expected"
        failed=yes
    fi
}

evaluate mqar-dart with 8134
evaluate mqar-dart without 935 --no-sma
evaluate mqar-mamba2 without 4055
printf '\nstate: what is kept of one sequence. KV cache: what attention over the same heads and tokens would keep.\n'
[ -z "$failed" ]
