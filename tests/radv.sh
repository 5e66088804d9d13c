#!/usr/bin/env bash
# The table of tools/radv-table.sh as a test: tests/radv.sh BUILD_DIR. Skipped (77) without Mesa's RADV.
# No kernel may spill. At least four waves of a kernel must fit a SIMD: on RDNA of every one, on GCN, which has half the
# registers, of those that are named here: the products that devices without matrices spend their time in.
set -u

gcn='linear\.(few_wide16|wide_tiles)|ssd_memory\.wide|ssd_state\.(p64_)?subgroup16|ssd_output\.wide|sma\.wide|sma_step\.subgroup16|attention\.wide'
gcn+='|attention_step\.16bit_low_registers|conv\.four|mixer_(project|output)\.(one16|subgroup16)|mixer_attend\.subgroup_low_registers'
gcn+='|window_output\.wide16'
tools=$(cd "$(dirname "$0")/../tools" && pwd)
reason=$("$tools/with-vulkan.sh" radv:navi31 -- true 2>&1)
case $reason in
*"is not installed"*)
    echo "NOT RUN: $reason"
    exit 77 ;;
esac
exec "$tools/radv-table.sh" --hot "^navi|^vega10 ($gcn)" "$1"
