#!/usr/bin/env bash
# Installs what is needed to build, test or try dartlm.
#
#   tools/setup.sh [--build] [--test] [--demo] [--mali] [--lm-eval]      (default: --build)
#
#   --build  compiler, CMake, the C libraries, Vulkan headers, volk, glslang, spirv-tools
#   --test   the above, cmocka, clang, clang-tidy, shellcheck, git, and in .deps the Vulkan drivers and layers that tests run on
#            and pip's `tokenizers`, which tokenizers are compared with; on x86-64 compilers for Windows and arm64, Wine, qemu, and
#            in .deps the sources of jansson, which there are no packages of for them
#   --demo   --build, gnuplot, and a Vulkan driver if this machine has none
#   --mali   what tools/compilers/mali.sh needs beside --test, on Debian: qemu, a compiler for arm64, and arm64 packages in .deps
#   --lm-eval  --test and EleutherAI's lm-eval in .deps (250 MB from pip's index, 700 MB unpacked), with which the server is compared
#
# Debian >= 12 and Ubuntu >= 24.04 are set up with apt-get, through the mirror the machine is configured with.
# The Vulkan packages of Debian 12 and 13 are too old (12: no cooperative matrix at all; 13: no bfloat16, none on
# the CPU, and its validation layer was seen to miss plain hazards), so newer ones are unpacked into .deps, next
# to the sources; the system itself gets packages of its own release only. Nothing is compiled here.
#
# What the rest of the project relies on afterwards:
#   .deps/bin      glslang, spirv-val, spirv-opt, spirv-dis, spirv-as
#   .deps/include  vulkan/, vk_video/, volk.h, volk.c
#   .deps/python   what tests import beyond Python's standard library
#   .deps/lm-eval  lm-eval and what it imports
#   .deps/jansson  sources, for systems without a package of it (cmake/jansson.cmake)
# and tools/with-vulkan.sh, which finds the drivers. Running it again is cheap, and moving the checkout harmless.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
deps=$root/.deps

# Raise this when what a private folder holds changes without its package list changing.
layout=3

tools_wanted="glslang spirv-val spirv-opt spirv-dis spirv-as"

build_packages="build-essential cmake ninja-build pkg-config python3 libopenblas-dev libjansson-dev libmicrohttpd-dev"
test_packages="libcmocka-dev clang clang-tidy shellcheck git patchelf"
# Installed where the release has them; tests that need one say so when it is missing.
optional_test_packages="libclang-rt-dev librandom123-dev libglfw3-dev xvfb lintian mpich"
demo_packages="libvulkan1 gnuplot-nox"
demo_driver="mesa-vulkan-drivers"
# The same on machines that can run the result: 212 MB to fetch on Debian 12.
optional_cross_packages="gcc-mingw-w64-x86-64-posix wine64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
mali_packages="qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross"

# Used from the release itself where that is new enough, from the private folder otherwise.
shader_tools="glslang-tools spirv-tools"
headers="libvulkan-dev libvulkan-volk-dev"
drivers="libvulkan1 mesa-vulkan-drivers vulkan-validationlayers"
# OpenGL of the same Mesa, which shares memory with its Vulkan.
opengl="libegl1 libegl-mesa0"

# The suite the newer packages come from, and the one whose Mesa (25.0) can compile for AMD chips that are
# not there (RADV_FORCE_FAMILY), which later Mesa cannot.
newer_suite=forky
radv_suite=trixie

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

usage() { sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "$0"; }

# --- which system -----------------------------------------------------------------------------------------

print_requirements() {
    cat >&2 <<EOF
setup: $1

What has to be installed, by its upstream name:
  to build  a C11 and C++17 compiler, CMake >= 3.22, Ninja, pkg-config, Python >= 3.10,
            OpenBLAS with cblas.h, jansson,
            Vulkan-Headers >= 1.3.275, volk of the same version, glslang >= 14, SPIRV-Tools of the same age
            (for bfloat16 shaders: newer than Vulkan-Headers 1.4.309 and glslang 15.1)
  to test   cmocka >= 1.1.5, clang with its sanitizer runtimes, clang-tidy >= 14, shellcheck, git, Random123, GLFW, Xvfb and an mpirun (optional),
            Vulkan-Loader, Vulkan-ValidationLayers (1.4.363 is used, 1.4.309 missed hazards), SwiftShader,
            Mesa's lavapipe (26.1 has cooperative matrices, 25.0 has not),
            Mesa's RADV 25.0 (the last that compiles without the chip) and its drivers for Intel, Adreno and NVIDIA
  to try    Vulkan-Loader and any Vulkan driver
LunarG's Vulkan SDK contains the headers, volk, glslang, SPIRV-Tools and the validation layers.
EOF
    exit 1
}

# Sets distribution, and tools_from: "newer" when headers and compilers have to come from the private folder,
# else "system". Drivers to test on come from private folders on every Debian: RADV has to, and one way is enough.
detect_system() {
    local ID="" VERSION_ID=""
    [ -r /etc/os-release ] && . /etc/os-release
    command -v apt-get >/dev/null && command -v dpkg-query >/dev/null ||
        print_requirements "this system has no apt-get; install the following by its own means."
    case $ID in
    debian)
        # Debian's testing and unstable have no VERSION_ID.
        case ${VERSION_ID:-999} in
        [1-9] | 1[01]) print_requirements "Debian $VERSION_ID is too old; 12 or newer is supported." ;;
        12 | 13) tools_from=newer ;;
        *) tools_from=system ;;
        esac ;;
    ubuntu)
        [ "${VERSION_ID%%.*}" -ge 24 ] ||
            print_requirements "Ubuntu $VERSION_ID is too old; 24.04 or newer is supported."
        tools_from=system ;;
    *) print_requirements "the system '${ID:-unknown}' is not known to this script." ;;
    esac
    distribution=$ID
}

# The name of this release of Debian. Its testing and unstable have one, too.
release() { (. /etc/os-release && printf '%s\n' "${VERSION_CODENAME:-sid}"); }

# --- system packages --------------------------------------------------------------------------------------

# Prints those of the packages that are not installed. A virtual package counts when something provides it.
missing() {
    local installed
    installed=$(dpkg-query -W -f='${db:Status-Status} ${Package} ${Provides}\n' 2>/dev/null |
        sed -n 's/([^)]*)//g; s/,//g; s/^installed / /p'; echo)
    for package; do
        case " ${installed//$'\n'/ } " in *" $package "*) ;; *) printf '%s ' "$package" ;; esac
    done
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Quiet unless it fails.
logged() {
    local log status=0
    log=$(mktemp)
    "$@" >"$log" 2>&1 || status=$?
    [ $status = 0 ] || cat "$log" >&2
    rm -f "$log"
    return $status
}

refresh_lists() {
    [ -z "${refreshed:-}" ] || return 0
    say "reading the package lists"
    logged as_root apt-get update -q || die "apt-get update failed"
    refreshed=yes
}

# $1: packages that must be there; $2: packages to take if the release has them.
install_packages() {
    local want optional package
    want=$(missing $1)
    optional=$(missing $2)
    [ -n "$want$optional" ] || return 0
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
        [ -n "$want" ] || return 0
        print_requirements "not root, no sudo, and these packages are missing: $want"
    fi
    # Without package lists, apt-cache knows no candidates and apt-get cannot install.
    [ -z "$want" ] && apt-cache show gcc >/dev/null 2>&1 || refresh_lists
    for package in $optional; do
        if apt-cache show "$package" >/dev/null 2>&1; then want="$want$package "; fi
    done
    [ -n "$want" ] || return 0
    say "installing $want"
    logged as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $want ||
        die "apt-get could not install: $want"
}

have_vulkan_driver() {
    local json
    [ -z "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}" ] || return 0
    for json in /usr/share/vulkan/icd.d/*.json /etc/vulkan/icd.d/*.json /usr/local/share/vulkan/icd.d/*.json; do
        [ ! -e "$json" ] || return 0
    done
    return 1
}

# --- packages of other releases, unpacked into a private folder -------------------------------------------

# The archive of Debian that this machine already uses. apt reads its sources itself, whatever their form, and
# knows their origin once it has their lists.
mirror() {
    apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(RELEASE)|$(REPO_URI)' 'Created-By: Packages' |
        awk -F '|' '$1 == "Debian" && $2 == "Debian" && $3 !~ /-/ && $4 !~ /^cdrom:/ { print $4; exit }'
}

# Makes an apt configuration of its own for suite $1 and architecture $3, under $2: own lists, own cache, nothing installed. $4: deb, or deb-src for
# sources.
# Debian's archive is signed with the keys of several releases at a time, one of which Debian 12's keyring
# has: no trust has to be added.
private_apt() {
    local suite=$1 dir=$2 architecture=$3 type=${4:-deb} uri keyring signed_by=""
    [ -n "$(mirror)" ] || refresh_lists
    uri=$(mirror)
    [ -n "$uri" ] || die "apt's sources name no archive of Debian, at least none that could be read"
    for keyring in /usr/share/keyrings/debian-archive-keyring.pgp /usr/share/keyrings/debian-archive-keyring.gpg; do
        [ ! -e "$keyring" ] || { signed_by="Signed-By: $keyring"; break; }
    done
    mkdir -p "$dir/sources" "$dir/lists/partial" "$dir/cache/archives/partial" "$dir/debs"
    : >"$dir/status"
    printf 'Types: %s\nURIs: %s\nSuites: %s\nComponents: main\n%s\n' "$type" "$uri" "$suite" "$signed_by" \
        >"$dir/sources/$suite.sources"
    # Root may download as itself: the folder need not be readable for apt's own user, and what arrives is
    # checked against the signed lists.
    cat >"$dir/apt.conf" <<EOF
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$dir/sources";
Dir::Etc::preferencesparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::State::lists "$dir/lists";
Dir::State::status "$dir/status";
Dir::Cache "$dir/cache";
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
EOF
    APT_CONFIG=$dir/apt.conf logged apt-get update -q || die "cannot read the package lists of $suite"
}

# Prints the packages that installing the given ones on an empty system of that suite would bring.
closure() {
    local dir=$1; shift
    APT_CONFIG=$dir/apt.conf apt-get -s -q install --no-install-recommends "$@" | awk '$1 == "Inst" { print $2 }'
}

# A driver's or layer's JSON names its library without a folder, for the system's loader to search. Name it
# relative to the JSON instead, which stays right when the checkout moves.
anchor_libraries() {
    local tree=$1 json library path
    for json in "$tree"/usr/share/vulkan/*.d/*.json; do
        [ -e "$json" ] || continue
        library=$(sed -n 's/.*"library_path": *"\([^"/]*\)".*/\1/p' "$json" | head -n 1)
        [ -n "$library" ] || continue
        path=$(cd "$tree/usr" && echo lib/*-linux-gnu/"$library")
        [ -e "$tree/usr/$path" ] || continue
        sed -i "s|\(\"library_path\": *\"\)$library\"|\1../../../$path\"|" "$json"
    done
}

# LLVM's library looks for what it needs in $ORIGIN/../lib and, having said so, nowhere else in the folder.
complete_llvm() {
    local lib
    for lib in "$1"/usr/lib/*-linux-gnu; do ln -sfn "${lib##*/}" "$1/usr/lib/lib"; done
}

# Puts packages of another suite into .deps/$1: $2 suite, $3 packages with their dependencies, $4 packages
# without, $5 architecture, by default this machine's. The folder appears whole or not at all.
private_folder() {
    local name=$1 suite=$2 with_dependencies=$3 alone=$4 architecture=${5:-$(dpkg --print-architecture)}
    local stamp="layout $layout: $suite: $with_dependencies $alone"
    local apt=$deps/apt-$suite-$architecture tree=$deps/$name.new deb packages
    if [ "$(cat "$deps/$name/.stamp" 2>/dev/null)" = "$stamp" ]; then return 0; fi
    say "fetching packages of $suite into .deps/$name"
    rm -rf "$tree" "$apt/debs"
    private_apt "$suite" "$apt" "$architecture"
    packages=$(closure "$apt" $with_dependencies)
    [ -n "$packages" ] || [ -z "$with_dependencies" ] || die "$suite does not have: $with_dependencies"
    (cd "$apt/debs" && APT_CONFIG=$apt/apt.conf logged apt-get download -q $packages $alone) ||
        die "cannot download the packages of $suite"
    mkdir -p "$tree"
    for deb in "$apt"/debs/*.deb; do dpkg-deb -x "$deb" "$tree"; done
    rm -rf "$tree/usr/share/doc" "$tree/usr/share/man" "$tree/usr/share/locale"
    anchor_libraries "$tree"
    complete_llvm "$tree"
    (cd "$apt/debs" && for deb in *.deb; do echo "$deb"; done) >"$tree/.packages"
    rm -rf "$apt"
    printf '%s\n' "$stamp" >"$tree/.stamp"
    rm -rf "${deps:?}/$name"
    mv "$tree" "$deps/$name"
}

newer_folder() {
    local full="$shader_tools $drivers $opengl"
    # Whoever has the test set has the build set too.
    if [ "$1" = build ] && grep -q "^layout $layout: .* $drivers " "$deps/newer/.stamp" 2>/dev/null; then return 0; fi
    if [ "$1" = build ]; then full=$shader_tools; fi
    private_folder newer "$newer_suite" "$full" "$headers"
}

# SwiftShader is packaged only as a part of Chromium, which we do not want: its library needs nothing but libc.
swiftshader_folder() {
    local dir=$deps/swiftshader work=$deps/swiftshader.new deb files="libvk_swiftshader.so vk_swiftshader_icd.json"
    [ ! -e "$dir/vk_swiftshader_icd.json" ] || return 0
    if ! apt-cache show chromium-common >/dev/null 2>&1; then refresh_lists; fi
    if ! apt-cache show chromium-common >/dev/null 2>&1; then
        say "no package of this system has SwiftShader: tests on it will be skipped"
        return 0
    fi
    say "taking SwiftShader out of Chromium's package"
    rm -rf "$work"
    mkdir -p "$work/debs"
    (cd "$work/debs" && logged apt-get download -q -o APT::Sandbox::User=root chromium-common) ||
        die "cannot download chromium-common"
    for deb in "$work"/debs/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work" --strip-components=4 --wildcards \
            './usr/lib/chromium/libvk_swiftshader.so' './usr/lib/chromium/vk_swiftshader_icd.json'
        basename "$deb" >"$work/.packages"
    done
    rm -rf "$work/debs"
    for deb in $files; do [ -e "$work/$deb" ] || die "chromium-common has no $deb any more"; done
    rm -rf "$dir"
    mv "$work" "$dir"
}

# The sources of jansson of this release, for systems that are built for without a package of it. On Debian alone: others' archives are not
# what private_apt knows.
jansson_folder() {
    local dir=$deps/jansson work=$deps/jansson.new apt=$deps/apt-sources stamp
    stamp="layout $layout: $(release)"
    [ "$(cat "$dir/.stamp" 2>/dev/null)" != "$stamp" ] || return 0
    say "fetching the sources of jansson into .deps/jansson"
    rm -rf "$work" "$apt"
    private_apt "$(release)" "$apt" "$(dpkg --print-architecture)" deb-src
    (cd "$apt/debs" && APT_CONFIG=$apt/apt.conf logged apt-get source -q --download-only jansson) || die "cannot download the sources of jansson"
    mkdir -p "$work"
    tar -xf "$apt"/debs/jansson_*.orig.tar.*[!c] -C "$work" --strip-components=1 || die "the sources of jansson cannot be unpacked"
    rm -rf "$apt"
    printf '%s\n' "$stamp" >"$work/.stamp"
    rm -rf "$dir"
    mv "$work" "$dir"
}

# Puts pip's packages into .deps/$1, whole or not at all; $2: all of it in words; then sets of pip's arguments, each ended by a semicolon. Without
# pip or its index the tests that import it are skipped, and say so.
pip_folder() {
    local dir=$deps/$1 work=$deps/$1.new stamp=$2 argument arguments=()
    [ "$(cat "$dir/.stamp" 2>/dev/null)" != "$stamp" ] || return 0
    if ! python3 -m pip --version >/dev/null 2>&1; then install_packages "" python3-pip; fi
    say "fetching pip's $stamp into .deps/$1"
    rm -rf "$work"
    for argument in "${@:3}"; do
        if [ "$argument" != ";" ]; then arguments+=("$argument"); continue; fi
        if ! PIP_ROOT_USER_ACTION=ignore logged python3 -m pip install -q --only-binary :all: --disable-pip-version-check --target "$work" \
            "${arguments[@]}"; then
            say "$stamp could not be installed: tests against it will be skipped"
            rm -rf "$work"
            return 0
        fi
        arguments=()
    done
    printf '%s\n' "$stamp" >"$work/.stamp"
    rm -rf "$dir"
    mv "$work" "$dir"
}

# The reference of tokenizers, in the version that the tables in src/text were made with. It needs no other package.
python_folder() {
    local version
    version=$(sed -n 's/.*pip tokenizers \([0-9.]*[0-9]\) .*/\1/p' "$root/src/text/unicode_classes.c")
    [ -n "$version" ] || die "src/text/unicode_classes.c names no version of tokenizers"
    pip_folder python "tokenizers $version" --no-deps "tokenizers==$version" ";"
}

# Without what lm-eval and transformers name but do not need to ask a server: PyTorch, scikit-learn, evaluate, rouge-score.
lm_eval_folder() {
    pip_folder lm-eval "lm-eval 0.4.13, transformers 5.24.0" --no-deps lm-eval==0.4.13 transformers==5.24.0 ";" \
        "tokenizers>=0.22,<0.24" regex aiohttp requests tenacity tqdm numpy jinja2 more_itertools dill pytablewriter datasets sacrebleu \
        safetensors ";"
}

# --- one view of both: .deps/bin and .deps/include --------------------------------------------------------

# $1: path, content on stdin. Leaves the file alone when it is right already, so that nothing gets rebuilt.
write_script() {
    local new
    new=$(cat)
    if [ -x "$1" ] && [ ! -L "$1" ] && [ "$(cat "$1")" = "$new" ]; then return 0; fi
    rm -f "$1"
    printf '%s\n' "$new" >"$1"
    chmod +x "$1"
}

link() { [ "$(readlink "$2" 2>/dev/null)" = "$1" ] || ln -sfn "$1" "$2"; }

# The newer programs need the newer libc, hence its loader.
wrap_tools() {
    local tool
    for tool in $tools_wanted; do
        write_script "$deps/bin/$tool" <<EOF
#!/bin/sh
newer=\${0%/*}/../newer/usr
for lib in "\$newer"/lib/*-linux-gnu; do :; done
for loader in "\$lib"/ld-linux-*.so.*; do :; done
exec "\$loader" --library-path "\$lib" "\$newer/bin/$tool" "\$@"
EOF
    done
}

link_tools() {
    local tool path
    for tool in $tools_wanted; do
        path=$(command -v "$tool" || { [ "$tool" = glslang ] && command -v glslangValidator; }) ||
            die "$tool is not installed although its package is"
        link "$path" "$deps/bin/$tool"
    done
}

unify() {
    local include=/usr/include name
    mkdir -p "$deps/bin" "$deps/include"
    if [ $tools_from = newer ]; then
        wrap_tools
        include=../newer/usr/include
    else
        link_tools
    fi
    for name in vulkan vk_video volk.h volk.c; do link "$include/$name" "$deps/include/$name"; done
}

# --- what was asked for -----------------------------------------------------------------------------------

parse_arguments() {
    level=build
    demo=
    mali=
    lm_eval=
    for argument; do
        case $argument in
        --build) ;;
        --test) level=test ;;
        --demo) demo=yes ;;
        --mali) level=test mali=yes ;;
        --lm-eval) level=test lm_eval=yes ;;
        -h | --help) usage; exit 0 ;;
        *) die "unknown argument '$argument'; see --help" ;;
        esac
    done
}

main() {
    local packages folder optional=""
    parse_arguments "$@"
    detect_system
    packages=$build_packages
    if [ $level = test ]; then
        packages="$packages $test_packages"
        optional=$optional_test_packages
        if [ "$(dpkg --print-architecture)" = amd64 ]; then optional="$optional $optional_cross_packages"; fi
    fi
    if [ -n "$mali" ]; then
        [ "$distribution" = debian ] || die "--mali is for Debian"
        packages="$packages $mali_packages"
    fi
    folder=$level
    if [ -n "$demo" ]; then
        packages="$packages $demo_packages"
        # Where newer packages are unpacked anyway, their lavapipe is ten times as fast as Debian 12's.
        if have_vulkan_driver; then :
        elif [ $tools_from = newer ]; then folder=test
        else packages="$packages $demo_driver"; fi
    fi
    if [ $tools_from = system ]; then
        packages="$packages $shader_tools $headers"
        if [ $distribution$level = ubuntutest ]; then packages="$packages $drivers $opengl"; fi
    fi
    install_packages "$packages" "$optional"

    mkdir -p "$deps"
    # Two set-ups at a time would pull the folders from under each other.
    exec 9>"$deps/.lock"
    flock 9
    if [ $tools_from = newer ] || [ $distribution$level = debiantest ]; then newer_folder $folder; fi
    unify
    if [ $distribution$level = debiantest ]; then private_folder radv "$radv_suite" "mesa-vulkan-drivers" ""; fi
    if [ $level = test ]; then
        swiftshader_folder
        python_folder
        if [ -n "$lm_eval" ]; then lm_eval_folder; fi
        if [ "$distribution" = debian ]; then jansson_folder; fi
    fi
    if [ -n "$mali" ]; then
        private_folder mali/newer "$newer_suite" "mesa-vulkan-drivers libvulkan1" "" arm64
        # To link with: of this system's release, as its compiler's C library is.
        private_folder mali/system "$(release)" "" "libjansson4 libjansson-dev libcmocka0 libcmocka-dev" arm64
    fi
    say "ready ($level${demo:+, demo}${mali:+, mali}${lm_eval:+, lm-eval})"
}

main "$@"
