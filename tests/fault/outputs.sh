#!/usr/bin/env bash
# Outputs of the program: tests/fault/outputs.sh DARTLM DATA. Standard output instead of a file, a device, a full file.
set -eu -o pipefail

dartlm=$1
data=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
die() { printf 'outputs: %s\n' "$*" >&2; exit 1; }
logits() { "$dartlm" logits --device cpu --model "$data/hf-mamba2" --tensor ids "$data/hf-mamba2/expected.safetensors" "$@"; }

logits "$work/file"
logits - >"$work/standard"
cmp "$work/file" "$work/standard" || die "standard output is not what the file holds"
logits /dev/stdout | cmp "$work/file" - || die "/dev/stdout into a pipe is not what the file holds"
logits /dev/null
[ -c /dev/null ] || die "/dev/null was replaced"
status=0
logits --json - >"$work/both" 2>&1 || status=$?
[ $status = 2 ] || die "--json and - together end with $status"

before=$(cksum <"$work/file")
status=0
(ulimit -f 1; logits "$work/file") >"$work/log" 2>&1 || status=$?
[ $status = 1 ] || die "a file that grows too large ends with $status: $(cat "$work/log")"
[ "$(cksum <"$work/file")" = "$before" ] || die "a failed write changed the file"
[ "$(find "$work" -name '*.tmp' | wc -l)" = 0 ] || die "a temporary file is left"
