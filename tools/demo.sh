#!/usr/bin/env bash
# Shows what state memories are for: a small DART recalls values from a sequence, with its memories and without, and
# so does a Mamba-2 that was trained alike. A DART that was trained on text writes some.
#
#   tools/demo.sh [--train] [--seed N] [--device SPEC] [--no-setup]
#
#   --train        let a DART and a Mamba-2 of the same size learn recall from nothing, and draw how
#   --seed N       of --train: initial values and examples, by default 1
#   --device SPEC  what to run on, as for `dartlm --device`; by default the best Vulkan device of the machine; where there is no GPU,
#                  that is a driver on the CPU, and with --train dartlm's own CPU backend, which is faster
#   --no-setup     install nothing
#
# Installs what is needed to build (tools/setup.sh) and builds into build/demo/. Without --train: evaluates the models of tests/data
# and prints one table; fails if the number of right answers is not what the models are known to give. Then a model of bytes continues a
# text, and its perplexity on another one is shown; fails if the memories do not improve it. With --train: trains both
# models into build/demo/learned/ and draws the share of right answers over the steps, here and in build/demo/learning.png; fails
# if DART ends below 90 % or Mamba-2 at 60 % or more. Takes up to five minutes on two cores.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
device=
train=
seed=1
setup=yes

say() { printf 'demo: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
usage() { sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "$0"; }

while [ $# -gt 0 ]; do
    case $1 in
    --device) [ $# -gt 1 ] || die "--device needs a value"; device=$2; shift ;;
    --device=*) device=${1#*=} ;;
    --train) train=yes ;;
    --seed) [ $# -gt 1 ] || die "--seed needs a value"; seed=$2; shift ;;
    --seed=*) seed=${1#*=} ;;
    --no-setup) setup= ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown argument '$1'; see --help" ;;
    esac
    shift
done

cd "$root"
if [ -n "$setup" ]; then tools/setup.sh --build --demo >&2; fi

build() {
    cmake -S . -B build/demo -G Ninja -DCMAKE_BUILD_TYPE=Release -DDARTLM_TESTS=OFF -DDARTLM_CUDA=OFF &&
        cmake --build build/demo --target dartlm_cli
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
say "building into build/demo/"
build >"$log" 2>&1 || { cat "$log" >&2; die "the build failed"; }

# A driver of the machine's own, be there a GPU or not, else the one that the set-up brought.
driver=system
for json in .deps/newer/usr/share/vulkan/icd.d/lvp_icd*.json; do
    if [ -e "$json" ] && ! build/demo/dartlm devices | grep -q '^vulkan:'; then driver=lavapipe; fi
done

# ---- Learning ----

# What both models have in common. One example has pairs of a key and a value, and then asks for each of the values: 4 pairs in the first
# quarter of the steps, then 8, 12, and 16. Validation always asks for 16.
task=(--length 64 --vocabulary 64 --width 32 --head-dim 32 --state 8 --chunk-size 8
    --examples 32768 --epochs 1 --batch-tokens 2048 --lr 1e-2 --weight-decay 0 --validate 256 --sequences 128 --every 256)
learned=build/demo/learned

learn() { # name, options
    local name=$1
    shift
    rm -rf "${learned:?}/$name"
    tools/with-vulkan.sh $driver build/demo/dartlm train mqar "${task[@]}" --seed "$seed" --device "$device" --json "$@" "$learned/$name" \
        >"$learned/$name.jsonl" || die "$name: the training failed"
}

# Steps and percent of right answers: a curve for gnuplot.
curve() {
    python3 -c 'import json, sys
for line in map(json.loads, sys.stdin):
    if "validation_accuracy" in line: print(line["step"], 100 * line["validation_accuracy"])' <"$learned/$1.jsonl" >"$learned/$1.curve"
}

draw() {
    gnuplot -e "$1" -e "set title 'Values recalled, % (chance: 3 %)'; set xlabel 'step'; set yrange [0:100]; set key left top;
        plot '$learned/dart.curve' with linespoints lw 2 pt 7 lc rgb '#0072B2' title 'DART',
             '$learned/mamba2.curve' with linespoints lw 2 pt 5 lc rgb '#009E73' title 'Mamba-2'"
}

show_learning() {
    local threads=() dart mamba2
    mkdir -p "$learned"
    if [ -z "$device" ]; then
        device=cpu
        if build/demo/dartlm devices | grep '^vulkan:' | grep -vq ' cpu '; then device=vulkan; fi
    fi
    if [ "$device" = cpu ]; then # beside one another: their matrices are too small for two cores
        say "two models learn recall on the CPU; this takes minutes"
        threads=(--threads 1)
        learn dart "${threads[@]}" &
        dart=$!
        learn mamba2 "${threads[@]}" --mamba2
        wait "$dart"
    else
        say "two models learn recall on $device, one after the other"
        learn dart
        learn mamba2 --mamba2
    fi
    curve dart
    curve mamba2
    if command -v gnuplot >/dev/null; then
        draw "set terminal dumb 79 24 nofeed"
        draw "set terminal pngcairo size 800,480; set output 'build/demo/learning.png'"
    else
        say "gnuplot is not there: no picture"
    fi
    dart=$(tail -n 1 "$learned/dart.curve" | cut -d ' ' -f 2)
    mamba2=$(tail -n 1 "$learned/mamba2.curve" | cut -d ' ' -f 2)
    printf '\nRight answers after %s steps: DART %.1f %%, Mamba-2 %.1f %%\n' "$(tail -n 1 "$learned/dart.curve" | cut -d ' ' -f 1)" "$dart" "$mamba2"
    awk -v dart="$dart" -v mamba2="$mamba2" 'BEGIN { exit !(dart >= 90 && mamba2 < 60) }' || die "DART should end at 90 % or more, Mamba-2 below 60 %"
}

if [ -n "$train" ]; then
    show_learning
    exit
fi

# ---- Trained models ----

[ -n "$device" ] || device=vulkan
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

# ---- Text ----

text=tests/data/text-dart
prompt="The memory of "
of_text() { tools/with-vulkan.sh $driver build/demo/dartlm "$@" --model $text --device "$device" --activations f32; }
perplexity() {
    local output
    output=$(of_text eval ppl --bytes --data $text/text.txt --length 640 --sequences 1 "$@") || return
    awk '$1 == "perplexity" { sub(";", "", $2); print $2 }' <<<"$output"
}

new=$(of_text generate --prompt "$prompt" -n 87 --temperature 0.5 --seed 2) || die "text-dart wrote nothing"
with=$(perplexity) || die "the evaluation of text-dart failed"
without=$(perplexity --no-sma) || die "the evaluation of text-dart without memories failed"
printf '\ntext-dart, 1.8 million parameters trained for two minutes on bytes of documentation, continues "%s":\n\n%s\n\n' "$prompt" "$prompt$new"
printf 'Its perplexity a byte on the beginning of a manual page that it has not seen: %.2f with memories, %.2f without.\n' "$with" "$without"
awk -v with="$with" -v without="$without" 'BEGIN { exit !(with < without) }' || { say "the memories do not improve text-dart"; failed=yes; }
[ -z "$failed" ]
