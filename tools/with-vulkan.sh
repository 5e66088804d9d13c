#!/usr/bin/env bash
# Runs a program built on this machine against one Vulkan driver.
#
#   tools/with-vulkan.sh DRIVER [--validation | --gpu-av | --statistics] [--] PROGRAM [ARGUMENT...]
#
#   DRIVER        swiftshader    the weakest device: subgroups of 4, no fp16, no 64-bit integers
#                 lavapipe       Mesa on the CPU, with cooperative matrices
#                 fake:CHIP      a vendor's compiler without its chip, e.g. fake:dg2: pipelines compile, nothing runs.
#                                tools/compilers/chips.txt lists the chips
#                 system         whatever drivers the machine has
#   --validation  with the Khronos layer: core and synchronisation checks
#   --gpu-av      with the Khronos layer: checks inside shaders (bounds, shared-memory races) instead
#   --statistics  a line of JSON to stderr for each compute pipeline (tools/compilers/pipeline_statistics.c)
#
# Khronos' layer writes its messages to stdout; they contain "Validation Error" or "Validation Warning".
# Ends with the program's status, or with 125 if the driver, the layer or the program is not there
# (tools/setup.sh --test installs the former).
#
# Where setup.sh made a private folder of newer packages, the program runs on that folder's C library, through
# its loader, because the drivers and layers there need it. Libraries that the folder lacks come from the
# system. Seen from inside, /proc/self/exe is then the loader (argv[0] is as usual). Sanitizers look there for the
# program's symbols and take the loader's memory for leaked, so programs built with one are run as a copy, under
# .deps/run, that names the newer loader as its own.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
deps=$root/.deps
sources=$root/tools/compilers
preload=

die() { printf 'with-vulkan: %s\n' "$*" >&2; exit 125; }

usage() { sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "$0"; exit "$1"; }

# Prints the first path that exists.
first_of() {
    local path
    for path; do
        if [ -e "$path" ]; then printf '%s\n' "$path"; return 0; fi
    done
    return 1
}

driver_json() {
    case $1 in
    swiftshader) first_of "$deps/swiftshader/vk_swiftshader_icd.json" ;;
    lavapipe) first_of {"$deps/newer",}/usr/share/vulkan/icd.d/lvp_icd*.json ;;
    radv) first_of {"$deps/radv",}/usr/share/vulkan/icd.d/radeon_icd*.json ;;
    *) first_of {"$deps/newer","$deps/radv",}/usr/share/vulkan/icd.d/"$1"_icd*.json ;;
    esac || die "driver $1 is not installed; tools/setup.sh --test does it"
}

# Prints the path of a library made of tools/compilers/$1.c, or of the files of the folder $1 there. Its own folder is named after the sources'
# content, so that checkouts that share .deps do not use each other's.
library() {
    local folder file from=("$sources/$1.c") headers=()
    if [ -d "$sources/$1" ]; then from=("$sources/$1"/*.c) headers=("$sources/$1"/*.h); fi
    folder=$deps/run/$(cat "${from[@]}" "${headers[@]}" | sha256sum | cut -c 1-16)
    file=$folder/$1.so
    if [ ! -e "$file" ]; then
        mkdir -p "$folder"
        "${CC:-cc}" -std=gnu11 -O1 -shared -fPIC -fvisibility=hidden -I"$deps/include" -o "$file.$$" "${from[@]}" >&2 ||
            die "tools/compilers/$1 could not be compiled"
        mv "$file.$$" "$file"
    fi
    printf '%s\n' "$file"
}

# Sets driver to Mesa's for chip $1, and what makes that driver see the chip.
select_chip() {
    local chip module
    read -r chip driver module <<<"$(awk -v chip="$1" '$1 == chip { print $1, $2, $3, $4, $5, $6, $7, $8 }' "$sources/chips.txt")"
    [ -n "$chip" ] || die "unknown chip '$1'; tools/compilers/chips.txt lists those that are known"
    # Compiled anew each time: what is asked is what the compiler does.
    export MESA_SHADER_CACHE_DISABLE=true
    if [ "$driver" = radv ]; then
        export RADV_FORCE_FAMILY=${module%% *}
    else
        preload=$(library fake_gpu)
        export DART_FAKE_GPU=$module
    fi
}

# AMD's processors without AVX-512: tools/compilers/gathers.c.
has_slow_gathers() {
    grep -q AuthenticAMD /proc/cpuinfo && grep -qw avx2 /proc/cpuinfo && ! grep -qw avx512f /proc/cpuinfo
}

select_driver() {
    local driver=$1 egl gathers
    case $1 in
    system) return 0 ;;
    swiftshader | lavapipe) ;;
    fake:?*) select_chip "${1#fake:}" ;;
    *) die "unknown driver '$1'; see --help" ;;
    esac
    VK_DRIVER_FILES=$(driver_json "$driver")
    # The older name, for loaders before 1.3.207.
    VK_ICD_FILENAMES=$VK_DRIVER_FILES
    export VK_DRIVER_FILES VK_ICD_FILENAMES
    # OpenGL of the same Mesa as Vulkan's, where it is there.
    if [ "$driver" = lavapipe ] && egl=$(first_of "$deps"/newer/usr/share/glvnd/egl_vendor.d/*mesa.json); then
        export __EGL_VENDOR_LIBRARY_FILENAMES=$egl
    fi
    # Without a C compiler it goes without them, and compiles for longer.
    if [ "$driver" = lavapipe ]; then
        preload=$(library codegen 2>/dev/null) || preload=
        if has_slow_gathers 2>/dev/null && gathers=$(library gathers 2>/dev/null); then preload=${preload:+$preload:}$gathers; fi
    fi
    # It orders devices by asking a window system that may not be there; with one driver nothing is to be ordered.
    export NODEVICE_SELECT=1
}

setting() { export "VK_KHRONOS_VALIDATION_$1=$2"; }

select_layer() {
    local json
    if [ "$1" = statistics ]; then
        json=$(library pipeline_statistics)
        export VK_LAYER_PATH=${json%/*}
        cp "$sources/pipeline_statistics.json" "$VK_LAYER_PATH/json.$$"
        mv "$VK_LAYER_PATH/json.$$" "$VK_LAYER_PATH/pipeline_statistics.json"
        export VK_INSTANCE_LAYERS=VK_LAYER_DARTLM_pipeline_statistics
        return
    fi
    json=$(first_of {"$deps/newer",}/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json) ||
        die "the validation layer is not installed; tools/setup.sh --test does it"
    export VK_LAYER_PATH=${json%/*}
    export VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation
    setting DEBUG_ACTION VK_DBG_LAYER_ACTION_LOG_MSG
    setting LOG_FILENAME stdout
    setting REPORT_FLAGS error,warn
    case $1 in
    validation)
        setting VALIDATE_SYNC true
        # Without it the layer knows of copies and barriers only, not of what dispatches do to storage buffers.
        setting SYNCVAL_SHADER_ACCESSES_HEURISTIC true ;;
    gpu-av)
        # Instrumented shaders make the other checks slow, and --validation has those.
        setting VALIDATE_CORE false
        setting GPUAV_ENABLE true
        setting GPUAV_SHARED_MEMORY_DATA_RACE true ;;
    esac
}

# The C library comes first and must be the loader's own; the system's folders come last and fill the gaps.
library_path() {
    local path=$1 dir triplet=${1##*/}
    for dir in "$deps/radv/usr/lib/$triplet" "/usr/local/lib" "/lib/$triplet" "/usr/lib/$triplet" \
        "/usr/lib/$triplet"/openblas-*; do
        if [ -d "$dir" ]; then path=$path:$dir; fi
    done
    printf '%s\n' "$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}

is_elf() { [ "$(head -c 4 "$1" | tr -d '\0')" = $'\177ELF' ]; }

has_sanitizer() { LC_ALL=C grep -qaE '__(a|t|ub|l|m)san_' "$1"; }

# Prints the path of a copy of program $1 that starts under loader $2 and finds its libraries in path $3. It is
# kept until the program changes. A library path in the environment would not do: it would reach the
# symboliser, which runs on the system's C library.
adapted_copy() {
    local program=$1 loader=$2 path=$3 copy old
    copy=$deps/run/$(printf '%s ' "$@" | sha256sum | cut -c 1-16)/${program##*/}
    if [ ! "$copy" -nt "$program" ]; then
        command -v patchelf >/dev/null || die "patchelf is missing; tools/setup.sh --test installs it"
        mkdir -p "${copy%/*}"
        cp "$program" "$copy.$$"
        old=$(patchelf --print-rpath "$program")
        old=${old//\$ORIGIN/${program%/*}}
        patchelf --set-interpreter "$loader" --force-rpath --set-rpath "${old:+$old:}$path" "$copy.$$"
        mv "$copy.$$" "$copy"
    fi
    printf '%s\n' "$copy"
}

# $1: non-empty to run it as it is; then the program and its arguments.
run() {
    local native=$1 program lib loader path
    shift
    program=$(type -P -- "$1") || die "no such program: $1"
    program=$(cd "$(dirname "$program")" && pwd)/${program##*/}
    shift
    lib=$(first_of "$deps"/newer/usr/lib/*-linux-gnu || true)
    # A folder made by setup.sh --build holds the tools only.
    if [ -n "$native" ] || [ -z "$lib" ] || [ ! -e "$lib/libvulkan.so.1" ]; then exec ${preload:+env "LD_PRELOAD=$preload"} "$program" "$@"; fi
    is_elf "$program" || die "$program is a script; name the program it runs"
    loader=$(first_of "$lib"/ld-linux-*.so.*)
    path=$(library_path "$lib")
    if has_sanitizer "$program"; then
        [ -z "${DART_FAKE_GPU:-}" ] || die "$program is built with a sanitizer, which must come before the library that shows the chip"
        exec -a "$program" "$(adapted_copy "$program" "$loader" "$path")" "$@"
    fi
    exec "$loader" --library-path "$path" ${preload:+--preload "$preload"} "$program" "$@"
}

main() {
    local driver layer= native=
    case ${1:-} in
    -h | --help) usage 0 ;;
    "" | -*) usage 125 >&2 ;;
    esac
    driver=$1
    shift
    while [ $# -gt 0 ]; do
        case $1 in
        --validation) layer=validation ;;
        --gpu-av) layer=gpu-av ;;
        --statistics) layer=statistics ;;
        --) shift; break ;;
        -*) die "unknown option '$1'; see --help" ;;
        *) break ;;
        esac
        shift
    done
    [ $# -gt 0 ] || usage 125 >&2
    select_driver "$driver"
    if [ -n "$layer" ]; then select_layer "$layer"; fi
    if [ "$driver" = system ] && [ -z "$layer" ]; then native=yes; fi
    run "$native" "$@"
}

main "$@"
