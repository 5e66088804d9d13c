#!/bin/sh
# dartlm generate goes on from a state file as if it had not stopped: generate_states.sh DARTLM DATA_DIR
set -u
program=$1 data=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "generate_states: $*" >&2; exit 1; }
generate() { "$program" generate --device cpu --model "$data/mqar-dart" "$@"; }
sampled() { generate --temperature 1 --seed 3 "$@"; }

# In one go, and stopped on the way: greedy and sampled, 41 tokens over several chunks of 16.
for how in generate sampled; do
  whole=$($how --ids 17,4301,25,4999,17 -n 41) || fail "$how: no tokens"
  a=$($how --ids 17,4301,25,4999,17 -n 20 --save-state "$work/a") || fail "$how: not saved"
  b=$($how --load-state "$work/a" -n 15 --save-state "$work/a") || fail "$how: not loaded"
  c=$($how --load-state "$work/a" -n 6) || fail "$how: not loaded again"
  [ "$a $b $c" = "$whole" ] || fail "$how: '$a $b $c' instead of '$whole'"
done
# A prompt behind the state is a longer prompt.
generate --ids 17,4301,25 -n 1 --save-state "$work/b" >"$work/first" || fail "not saved"
whole=$(generate --ids "17,4301,25,$(cat "$work/first"),4999,17" -n 6) || fail "no tokens"
[ "$(generate --load-state "$work/b" --ids 4999,17 -n 6)" = "$whole" ] || fail "a prompt behind a state"

head -c 1000 "$work/b" >"$work/cut"
for wrong in "--load-state $work/cut" "--load-state $work/none" "--load-state $work/b --chunk-size 8" "--load-state $work/b --no-sma"; do
  # shellcheck disable=SC2086
  generate $wrong -n 2 >/dev/null 2>"$work/log"
  [ $? = 1 ] || fail "$wrong is accepted"
  [ -s "$work/log" ] || fail "$wrong: no message"
done
"$program" generate --device cpu --model "$data/mqar-mamba2" --load-state "$work/b" -n 2 >/dev/null 2>"$work/log"
[ $? = 1 ] && grep -q "another model" "$work/log" || fail "another model: $(cat "$work/log")"
generate -n 2 >/dev/null 2>&1
[ $? = 2 ] || fail "no prompt and no state is accepted"
# The bench prints size and times.
"$program" bench --device cpu --model "$data/mqar-dart" --prefill 40 --decode 2 --repeat 1 --save-state "$work/c" >"$work/log" || fail "bench"
grep -q '^state file .*saved in .*loaded in' "$work/log" || fail "bench says nothing of the file: $(cat "$work/log")"
exit 0
