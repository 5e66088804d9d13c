#!/bin/sh
# dartlm generate stops behind the first of its end ids: generate_ends.sh DARTLM DATA_DIR
set -u
program=$1 data=$2

fail() { echo "generate_ends: $*" >&2; exit 1; }
generate() { "$program" generate --device cpu --model "$data/mqar-dart" --ids 17,4301,25,4999,17 -n 8 "$@"; }

all=$(generate) || fail "no tokens"
first=${all%% *} rest=${all#* }
second=${rest%% *}
[ "$(echo "$all" | wc -w)" = 8 ] || fail "8 tokens, not '$all'"
[ "$first" != "$second" ] || fail "the first two tokens should differ: '$all'"
[ "$(generate --end-id "$first")" = "$first" ] || fail "--end-id $first"
[ "$(generate --end-id 0 --end-id "$second")" = "$first $second" ] || fail "--end-id 0 --end-id $second"
[ "$(generate --end-id 0)" = "$all" ] || fail "--end-id 0, which is not chosen"
[ "$(generate --json --end-id "$first" | tr -d ' \n' | sed 's/.*"ids":\[\([^]]*\)\].*/\1/')" = "$first" ] || fail "--json"
for wrong in "--end-id -1" "--end-id x" "--end-id 1 --end-id 2 --end-id 3 --end-id 4 --end-id 5"; do
  # shellcheck disable=SC2086
  generate $wrong >/dev/null 2>&1
  [ $? = 2 ] || fail "$wrong is accepted"
done
exit 0
