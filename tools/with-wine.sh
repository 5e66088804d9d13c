#!/usr/bin/env bash
# Runs a program for Windows by Wine.
#
#   tools/with-wine.sh [--lavapipe] PROGRAM.exe [ARGUMENT...]
#
#   --lavapipe  on a display of its own (Xvfb) and with Mesa's Vulkan driver for the CPU out of .deps: Wine shows Vulkan only to programs
#               that have a display
#
# Ends with the program's status, or with 125 if Wine or what --lavapipe needs is not there (tools/setup.sh --test installs it). What Wine takes
# for the user's disk lies in .deps/run/wine, unless WINEPREFIX names another folder. Its messages are off, unless WINEDEBUG is set.
set -eu

deps=$(cd "$(dirname "$0")/.." && pwd)/.deps

die() { printf 'with-wine: %s\n' "$*" >&2; exit 125; }
usage() { sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "$0"; exit "$1"; }

# Prints the first path that exists.
first_of() {
    local path
    for path; do
        if [ -e "$path" ]; then printf '%s\n' "$path"; return 0; fi
    done
    return 1
}

# Prints the path of a copy of Wine's loader $1 that runs on the C library of .deps/newer, which the drivers there need. Wine looks for the
# rest of itself beside the loader, where links lead to it.
newer_wine() {
    local lib copy system
    lib=$(first_of "$deps"/newer/usr/lib/*-linux-gnu || true)
    [ -e "$lib/libvulkan.so.1" ] || die "there is no newer Mesa in .deps; tools/setup.sh --test brings it"
    command -v patchelf >/dev/null || die "patchelf is missing; tools/setup.sh --test installs it"
    copy=$deps/run/wine-$(printf '%s ' "$lib" "$1" "$(cksum <"$1")" | sha256sum | cut -c 1-16)
    if [ ! -e "$copy/lib/wine/wine64" ]; then
        system=/usr/lib/${lib##*/}
        mkdir -p "$copy/lib/wine"
        ln -sfn "$system" "$copy/lib/${lib##*/}"
        ln -sfn /usr/share "$copy/share"
        ln -sfn "${1%/*}"/wineserver* "$copy/lib/wine/"
        cp "$1" "$copy/lib/wine/wine64.$$"
        patchelf --set-interpreter "$(first_of "$lib"/ld-linux-*.so.*)" --force-rpath --set-rpath "$lib:/lib/${lib##*/}:$system" \
            "$copy/lib/wine/wine64.$$"
        mv "$copy/lib/wine/wine64.$$" "$copy/lib/wine/wine64"
    fi
    printf '%s\n' "$copy/lib/wine/wine64"
}

main() {
    local wine lavapipe='' display=()
    case ${1:-} in
    -h | --help) usage 0 ;;
    --lavapipe) lavapipe=yes; shift ;;
    esac
    [ $# -gt 0 ] || usage 125 >&2
    wine=$(first_of /usr/lib/wine/wine64 || command -v wine64 || command -v wine) || die "Wine is not installed; tools/setup.sh --test does it"
    # Names of files and arguments reach Windows through the locale.
    export LC_ALL=C.UTF-8 WINEPREFIX=${WINEPREFIX:-$deps/run/wine} WINEDEBUG=${WINEDEBUG:--all} WINEDLLOVERRIDES='mscoree=;mshtml='
    mkdir -p "$WINEPREFIX"
    # One at a time makes the disk.
    if [ ! -e "$WINEPREFIX/dartlm" ]; then
        (flock 9; [ -e "$WINEPREFIX/dartlm" ] || { "$wine" wineboot --init && "$wine" wineboot --end-session && : >"$WINEPREFIX/dartlm"; }) \
            9>"$WINEPREFIX/.lock" >/dev/null 2>&1 || die "Wine does not start"
    fi
    if [ -n "$lavapipe" ]; then
        command -v xvfb-run >/dev/null || die "Xvfb is not installed; tools/setup.sh --test does it"
        wine=$(newer_wine "$wine")
        VK_DRIVER_FILES=$(first_of "$deps"/newer/usr/share/vulkan/icd.d/lvp_icd*.json) ||
            die "lavapipe is not installed; tools/setup.sh --test does it"
        export VK_DRIVER_FILES VK_ICD_FILENAMES=$VK_DRIVER_FILES NODEVICE_SELECT=1
        display=(xvfb-run -a)
    fi
    exec "${display[@]}" "$wine" "$@"
}

main "$@"
