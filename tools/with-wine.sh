#!/usr/bin/env bash
# Runs a program for Windows by Wine.
#
#   tools/with-wine.sh [--lavapipe] PROGRAM.exe [ARGUMENT...]
#
#   --lavapipe  on a display of its own (Xvfb) and with Mesa's Vulkan driver for the CPU out of .deps: Wine shows Vulkan only to programs
#               that have a display
#
# Ends with the program's status, or with 125 if Wine or what --lavapipe needs is not there (tools/setup.sh --test installs it). What Wine
# takes for the user's disk lies in .deps/run/wine, unless WINEPREFIX names another folder. Programs of a disk share a desktop, which has a
# display from its first program on or never: with --lavapipe the disk is another one, and one program runs at a time. Wine's messages are
# off, unless WINEDEBUG is set.
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

# Ends all programs of the disk, with loader $1.
end_all() {
    local server
    server=$(first_of "${1%/*}"/wineserver* || command -v wineserver) || return 0
    "$server" -k || true # ends with 1 where nothing runs
    "$server" -w
}

# Makes the disk where it is not there yet, with loader $1. One does so, the others wait.
make_disk() {
    [ ! -e "$WINEPREFIX/dartlm" ] || return 0
    "$1" wineboot --init
    end_all "$1"
    : >"$WINEPREFIX/dartlm"
}

main() {
    local wine lavapipe=''
    case ${1:-} in
    -h | --help) usage 0 ;;
    --lavapipe) lavapipe=yes; shift ;;
    esac
    [ $# -gt 0 ] || usage 125 >&2
    wine=$(first_of /usr/lib/wine/wine64 || command -v wine64 || command -v wine) || die "Wine is not installed; tools/setup.sh --test does it"
    [ -z "$lavapipe" ] || WINEPREFIX=${WINEPREFIX:-$deps/run/wine}-lavapipe
    # Names of files and arguments reach Windows through the locale.
    export LC_ALL=C.UTF-8 WINEPREFIX=${WINEPREFIX:-$deps/run/wine} WINEDEBUG=${WINEDEBUG:--all} WINEDLLOVERRIDES='mscoree=;mshtml='
    mkdir -p "$WINEPREFIX"
    (flock 9 && make_disk "$wine" 9>&-) 9>"$WINEPREFIX/.lock" >/dev/null 2>&1 || die "Wine does not start"
    if [ -n "$lavapipe" ]; then
        command -v xvfb-run >/dev/null || die "Xvfb is not installed; tools/setup.sh --test does it"
        wine=$(newer_wine "$wine")
        VK_DRIVER_FILES=$(first_of "$deps"/newer/usr/share/vulkan/icd.d/lvp_icd*.json) ||
            die "lavapipe is not installed; tools/setup.sh --test does it"
        export VK_DRIVER_FILES VK_ICD_FILENAMES=$VK_DRIVER_FILES NODEVICE_SELECT=1
        exec 8>"$WINEPREFIX/.running"
        flock 8
        local status=0
        xvfb-run -a "$wine" "$@" 8>&- || status=$?
        end_all "$wine" 8>&- >/dev/null 2>&1
        exit $status
    fi
    exec "$wine" "$@"
}

main "$@"
