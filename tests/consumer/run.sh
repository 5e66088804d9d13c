#!/usr/bin/env bash
# Builds small projects against an installation of a build, and looks at what was installed.
#
#   tests/consumer/run.sh BUILD_DIR
#
# Installs into a temporary prefix: find_package (shared, static), pkg-config with make and cc (shared, static),
# add_subdirectory, C++17; the headers alone as C11 and C++17; exported symbols and soname; a program with names of its own.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

say() { printf '%s\n' "$*"; }
die() { printf 'consumer: %s\n' "$*" >&2; exit 1; }
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log"; die "failed: $*"; }; }

configure() {
    local project=$1
    shift
    quietly cmake -S "$here/$project" -B "$work/$project" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release "$@"
    quietly cmake --build "$work/$project" -j 2
}

quietly cmake --install "$build" --prefix "$prefix"
libdir=$(dirname "$(find "$prefix" -name 'libdartlm.so' | head -n 1)")
[ -e "$libdir/libdartlm.so" ] || die "no libdartlm.so was installed"
export PKG_CONFIG_PATH=$libdir/pkgconfig

say "pkg-config asks programs for the shared library alone"
[ "$(pkg-config --libs-only-l dartlm | xargs)" = -ldartlm ] || die "pkg-config --libs says $(pkg-config --libs dartlm)"
[ -z "$(pkg-config --print-requires dartlm)" ] || die "pkg-config requires $(pkg-config --print-requires dartlm)"

say "headers alone"
for header in "$prefix"/include/dartlm/*.h; do
    name=dartlm/$(basename "$header")
    include=$prefix/include
    if [ "$name" = dartlm/vulkan.h ]; then
        # The only header that needs another project's.
        include=$(sed -n 's/^VOLK_INCLUDE:[A-Z]*=//p' "$build/CMakeCache.txt")
        [ -e "$include/vulkan/vulkan_core.h" ] || { say "NOT RUN: $name alone: no Vulkan headers"; continue; }
    fi
    printf '#include <%s>\n#include <%s>\nint nothing;\n' "$name" "$name" >"$work/alone.c"
    cp "$work/alone.c" "$work/alone.cpp"
    for compiler in cc clang; do
        command -v $compiler >/dev/null || { say "NOT RUN: headers with $compiler: it is not installed"; continue; }
        quietly $compiler -std=c11 -Wall -Wextra -pedantic -Werror -I"$prefix/include" -isystem "$include" -fsyntax-only "$work/alone.c"
    done
    quietly c++ -std=c++17 -Wall -Wextra -pedantic -Werror -I"$prefix/include" -isystem "$include" -fsyntax-only "$work/alone.cpp"
done

say "exported symbols and soname"
version=$(pkg-config --modversion dartlm)
objdump -p "$libdir/libdartlm.so" | awk '$1 == "SONAME" { print $2 }' >"$work/soname"
[ "$(cat "$work/soname")" = "libdartlm.so.${version%.*}" ] || die "the soname is $(cat "$work/soname")"
nm -D --defined-only "$libdir/libdartlm.so" | awk '{ print $3 }' | sort >"$work/exported"
if grep -v '^dart_' "$work/exported"; then die "these symbols are exported and should not be"; fi
# Every function of the headers is there, and nothing else.
sed -n 's/^DART_API .*[ *]\(dart_[a-z0-9_]*\)(.*/\1/p' "$prefix"/include/dartlm/*.h | sort -u >"$work/declared"
diff "$work/declared" "$work/exported" || die "declared (<) and exported (>) functions differ"
objdump -p "$libdir/libdartlm.so" | awk '$1 == "NEEDED" { print $2 }' >"$work/needed"
if grep -E 'libvulkan|libcuda|libcudart' "$work/needed"; then die "drivers have to be loaded at run time"; fi

say "names of the static library"
nm --defined-only --extern-only "$libdir/libdartlm.a" | awk 'NF == 3 { print $3 }' | sort >"$work/static"
diff "$work/declared" "$work/static" || die "declared (<) and visible (>) names of libdartlm.a differ"
quietly cc -std=c11 -Wall -Wextra -Werror -fPIC -shared -DLOADER "$here/names.c" -o "$work/libloader.so"
read -ra cflags <<<"$(pkg-config --cflags dartlm)"
read -ra libs <<<"$(pkg-config --static --libs dartlm | sed 's/-ldartlm//')"
quietly cc -std=c11 -Wall -Wextra -Werror -DDARTLM_STATIC "${cflags[@]}" "$here/names.c" -o "$work/names" \
    "$libdir/libdartlm.a" "$work/libloader.so" "-Wl,-rpath,$work" "${libs[@]}"
quietly "$work/names"

say "configuring says what is in, and what is missing"
cmake -S "$source" -B "$work/summary" -DDARTLM_CUDA=OFF -DDARTLM_VULKAN=OFF >"$work/log" 2>&1 || { cat "$work/log"; die "configuring failed"; }
grep -q 'CUDA *no: DARTLM_CUDA is OFF' "$work/log" && grep -q 'CPU *yes' "$work/log" || { cat "$work/log"; die "no word of the backends"; }
if cmake -S "$source" -B "$work/missing" -DDARTLM_DEPS=/nonexistent \
    -DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF -DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF \
    -DPython3_EXECUTABLE="$(command -v python3)" -DPKG_CONFIG_EXECUTABLE="$(command -v pkg-config)" \
    -DCMAKE_C_COMPILER="$(command -v cc)" -DCMAKE_MAKE_PROGRAM="$(command -v make)" >"$work/log" 2>&1; then
    die "a build without shader compilers was configured"
fi
grep -q 'tools/setup.sh' "$work/log" || { cat "$work/log"; die "the error does not name tools/setup.sh"; }

say "find_package"
configure find_package -DDARTLM_WANTED="${version%.*}"
"$work/find_package/program_shared"
"$work/find_package/program_static"
if cmake -S "$here/find_package" -B "$work/too-new" -DCMAKE_PREFIX_PATH="$prefix" -DDARTLM_WANTED=99 >/dev/null 2>&1; then
    die "version 99 was found"
fi

say "C++17"
configure cxx
"$work/cxx/program"

say "pkg-config, make, cc"
mkdir "$work/make"
cp "$here/pkg-config/Makefile" "$work/make"
quietly make -C "$work/make" SOURCE="$here/program.c" LIBRARY_PATH_FLAGS="-Wl,-rpath,$libdir"
"$work/make/program_shared"
"$work/make/program_static"

say "add_subdirectory"
configure subdirectory -DDARTLM_SOURCE="$source" -DDARTLM_VULKAN=OFF -DDARTLM_CUDA=OFF -DCMAKE_C_FLAGS_RELEASE=-O0 -DDARTLM_AVX2_LEVEL=-O0
"$work/subdirectory/program"

say "installed programs"
"$prefix/bin/dartlm" params --preset dart-130m | grep -q 132699072 || die "dartlm params"
