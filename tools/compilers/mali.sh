#!/usr/bin/env bash
# What Mesa's compiler for Mali (PanVK) makes of pipelines, without the chip. Debian has that driver for arm64 only, so that
# driver and program run under qemu, about 30 times slower: for a few pipelines by hand, not for each change.
#
#   tools/compilers/mali.sh [--chip CHIP] [--seconds N] [--list | --doc] [--without BITS] [NAME...]
#
#   CHIP      g610 (default), g310, g720, g725
#   N         seconds that a pipeline may take, by default 300
#   --list    names the pipelines that calls can take on the chip, compiles none
#   --doc     compiles none: puts the table of all that were asked into docs/compilers.md
#   --without the device counts as lacking those capabilities (bits of dart_capability)
#   NAME      KERNEL, KERNEL.VARIANT or KERNEL.VARIANT.TYPES; by default all, which takes hours
#
# Prints the table of tools/compilers/table.py; .deps/mali/CHIP.log is what it is made of, and .deps/mali/CHIP has a file for each pipeline
# that was asked, until that is deleted. The first run has tools/setup.sh --mali fetch 70 MB of packages into .deps/mali; every run builds
# tests/compile_all for arm64 there as far as sources have changed.
# Pipelines are made in a process each, two at a time where there are two cores: set JOBS for another number.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$root/.deps/mali
sources=$root/tools/compilers
lib=$folder/newer/usr/lib/aarch64-linux-gnu
system=$folder/system/usr/lib/aarch64-linux-gnu
compiler=aarch64-linux-gnu-gcc

die() { printf 'mali: %s\n' "$*" >&2; exit 125; }

usage() { sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "$0"; exit "$1"; }

# The id of the chip, and the numbers that fake_gpu wants: cores, then what tells chips of one id apart.
gpu_of() {
    case $1 in
    g310) echo "panthor ac740000 1 4 0 0" ;;
    g610) echo "panthor a8670000 4 0 0 0" ;;
    g720) echo "panthor c8700000 7 4 0 0" ;;
    g725) echo "panthor d8300000 10 4 0 0" ;;
    *) die "unknown chip '$1'; see --help" ;;
    esac
}

build() {
    [ -e "$lib/libvulkan_panfrost.so" ] && [ -e "$system/libcmocka.so" ] &&
        command -v qemu-aarch64 "$compiler" >/dev/null && [ -e /usr/aarch64-linux-gnu/include/stdio.h ] ||
        "$root/tools/setup.sh" --mali >&2
    export PKG_CONFIG_LIBDIR=$system/pkgconfig PKG_CONFIG_SYSROOT_DIR=$folder/system
    if [ ! -e "$folder/build/build.ninja" ]; then
        cmake -G Ninja -S "$root" -B "$folder/build" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=$compiler \
            -DCMAKE_BUILD_TYPE=Release -DDARTLM_TESTS=ON -DDARTLM_CUDA=OFF -DDARTLM_BLAS=OFF >&2
    fi
    cmake --build "$folder/build" --target compile_all >&2
    "$compiler" -std=gnu11 -O1 -shared -fPIC -fvisibility=hidden -o "$folder/fake_gpu.so" "$sources"/fake_gpu/*.c
    "$compiler" -std=gnu11 -O1 -shared -fPIC -fvisibility=hidden -I"$root/.deps/include" -o "$folder/pipeline_statistics.so" \
        "$sources/pipeline_statistics.c"
    cp "$sources/pipeline_statistics.json" "$folder"
}

# compile_all on the chip, with arguments.
compile() {
    qemu-aarch64 "$lib/ld-linux-aarch64.so.1" --library-path "$lib:$system" --preload "$folder/fake_gpu.so" "$folder/build/tests/compile_all" "$@"
}

# One pipeline of the list, by name, into a file of its own.
one() {
    local status=0
    timeout "$seconds" "$0" --one "${without[@]}" vulkan "$1" >"$parts/$1.new" 2>&1 || status=$?
    if [ $status = 124 ]; then printf 'mali: stopped after %s s\n' "$seconds" >>"$parts/$1.new"; fi
    printf '%s: %s\n' "$1" "$([ $status = 0 ] && echo made || tail -n 1 "$parts/$1.new")" >&2
    mv "$parts/$1.new" "$parts/$1"
}

main() {
    local chip=g610 list='' doc='' asked=()
    without=()
    seconds=300
    while [ $# -gt 0 ]; do
        case $1 in
        -h | --help) usage 0 ;;
        --chip) chip=${2:?}; shift ;;
        --seconds) seconds=${2:?}; shift ;;
        --without) without=(--without "${2:?}"); shift ;;
        --list) list=yes ;;
        --doc) doc=yes ;;
        -*) die "unknown option '$1'; see --help" ;;
        *) break ;;
        esac
        shift
    done
    DART_FAKE_GPU=$(gpu_of "$chip")
    parts=$folder/$chip
    if [ -n "$doc" ]; then
        cat "$parts"/* >"$folder/$chip.log"
        "$sources/table.py" --log "$folder/$chip.log" --doc "$root/docs/compilers.md"
        return
    fi
    export DART_FAKE_GPU NODEVICE_SELECT=1 MESA_SHADER_CACHE_DISABLE=true
    export VK_DRIVER_FILES=$folder/newer/usr/share/vulkan/icd.d/panfrost_icd.json
    build
    [ -e "$VK_DRIVER_FILES" ] || VK_DRIVER_FILES=$(echo "${VK_DRIVER_FILES%.json}"*.json)
    compile --list "${without[@]}" vulkan "$@" >"$folder/$chip.list" 2>&1 || die "$(tail -n 1 "$folder/$chip.list")"
    if [ -n "$list" ]; then
        awk '$1 == "device" || $1 == "pipeline" { print }' "$folder/$chip.list"
        return
    fi
    export VK_LAYER_PATH=$folder VK_INSTANCE_LAYERS=VK_LAYER_DARTLM_pipeline_statistics
    mkdir -p "$parts"
    while read -r word name _; do
        [ "$word" = pipeline ] || continue
        while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-$(nproc)}" ]; do wait -n; done
        one "$name" &
        asked+=("$parts/$name")
    done <"$folder/$chip.list"
    wait
    cat "${asked[@]}" >"$folder/$chip.log"
    "$sources/table.py" --log "$folder/$chip.log"
}

if [ "${1:-}" = --one ]; then
    shift
    compile "$@"
else
    main "$@"
fi
