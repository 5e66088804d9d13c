#!/usr/bin/env bash
# Makes the Debian packages as the README says, without GPU backends and optimisation, and looks at them; lintian, where it is installed, has
# nothing to say.
#
#   tests/packages.sh
set -eu

source=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
die() { printf 'packages: %s\n' "$*" >&2; exit 1; }
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log"; die "failed: $*"; }; }

quietly cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_INSTALL_PREFIX=/usr "-DDARTLM_PACKAGER=A Tester <tester@example.org>" \
    -DDARTLM_VULKAN=OFF -DDARTLM_CUDA=OFF -DDARTLM_BLAS=OFF -DDARTLM_AVX2_LEVEL=-O0 -DCMAKE_C_FLAGS_RELEASE=-O0
quietly cmake --build "$work/build" -j 2
cd "$work"
quietly cpack --config build/CPackConfig.cmake -G DEB
version=$(sed -n 's/^set(CPACK_PACKAGE_VERSION "\(.*\)")/\1/p' build/CPackConfig.cmake)
library=libdartlm${version%.*}
for name in "$library" libdartlm-dev dartlm; do
    file=$(echo "${name}"_*.deb)
    [ -e "$file" ] || die "no package $name: $(ls)"
    dpkg-deb --contents "$file" | awk '{ print $6 }' >"$name.files"
    grep -q "/usr/share/doc/$name/copyright" "$name.files" || die "$name has no copyright"
done
grep -q "libdartlm.so.${version%.*}\$" "$library.files" || die "$library has no library of its soname"
grep -q "include/dartlm/model.h" libdartlm-dev.files || die "libdartlm-dev has no headers"
for part in bin/dartlm man/man1/dartlm.1.gz bash-completion/completions/dartlm zsh/vendor-completions/_dartlm \
    fish/vendor_completions.d/dartlm.fish; do
    grep -q "$part\$" dartlm.files || die "the program's package has no $part"
done
dpkg-deb --ctrl-tarfile "$library"_*.deb | tar -xOf - ./shlibs | grep -q "^libdartlm ${version%.*} $library (>= $version)\$" || die "no shlibs"
dpkg-deb --field libdartlm-dev_*.deb Depends | grep -q "$library (= $version" || die "libdartlm-dev does not ask for $library"
if ! command -v lintian >/dev/null; then
    echo "NOT RUN: lintian is not installed"
    exit 0
fi
# No bug of Debian's asks for a package of one's own.
said=$(lintian --allow-root --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs ./*.deb 2>&1) ||
    die "lintian: $said"
printf '%s\n' "$said"
echo "packages: 3, lintian $(lintian --print-version)"
