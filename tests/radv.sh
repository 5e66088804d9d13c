#!/usr/bin/env bash
# The table of tools/radv-table.sh as a test: tests/radv.sh BUILD_DIR. Skipped (77) without Mesa's RADV.
set -u

tools=$(cd "$(dirname "$0")/../tools" && pwd)
reason=$("$tools/with-vulkan.sh" radv:navi31 -- true 2>&1)
case $reason in
*"is not installed"*)
    echo "NOT RUN: $reason"
    exit 77 ;;
esac
exec "$tools/radv-table.sh" "$1"
