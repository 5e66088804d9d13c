#!/usr/bin/env bash
# Runs a test on a Vulkan driver under the validation layer. Any message of the layer fails the test.
#
#   tests/on-driver.sh DRIVER (--validation | --gpu-av) PROGRAM [ARGUMENT...]
#
# Ends with the test's status, or with 77 (skipped) if the driver or the layer is not installed; see
# tools/with-vulkan.sh.
set -u

tools=$(cd "$(dirname "$0")/../tools" && pwd)
driver=$1
layer=$2
shift 2

log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$tools/with-vulkan.sh" "$driver" "$layer" -- "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
if [ "$status" = 125 ]; then
    echo "NOT RUN: $(grep '^with-vulkan: ' "$log" | tail -n 1)"
    exit 77
fi
# Instrumenting shaders makes the layer warn of its own slowness.
kinds='Error|Warning|Performance'
if [ "$layer" = --gpu-av ]; then kinds=Error; fi
messages=$(grep -cE "Validation ($kinds)|SYNC-HAZARD" "$log")
if [ "$messages" -gt 0 ]; then
    echo "on-driver: $messages messages of the validation layer"
    [ "$status" != 0 ] || status=1
fi
exit "$status"
