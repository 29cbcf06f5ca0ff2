# Compiles {fmt}, PCRE2, utf8proc and Highway from their sources, for a system that is not this machine's. tools/wasm
# and tools/compilers source it. They set `prepared`, the folder for the results; `for_c` and `for_cxx`, the compilers
# with their options; and `archiver`.
# shellcheck shell=bash disable=SC2154

sources=$root/build-sources
fmt="fmtlib-9.1.0+ds1"
fmt_sha256=84ce1c2d0be3a9863935137969dcec6970125caac032f82474640bfc81463583
fmt_addresses=(
  "https://deb.debian.org/debian/pool/main/f/fmtlib/fmtlib_9.1.0+ds1.orig.tar.gz"
  "https://snapshot.debian.org/archive/debian/20230601T000000Z/pool/main/f/fmtlib/fmtlib_9.1.0+ds1.orig.tar.gz"
)
pcre2="pcre2-10.42"
pcre2_sha256=c33b418e3b936ee3153de2c61cc638e7e4fe3156022a5c77d0711bcbb9d64f1f
pcre2_addresses=(
  "https://deb.debian.org/debian/pool/main/p/pcre2/pcre2_10.42.orig.tar.gz"
  "https://github.com/PCRE2Project/pcre2/releases/download/$pcre2/$pcre2.tar.gz"
)
utf8proc="utf8proc-2.8.0"
utf8proc_sha256=a0a60a79fe6f6d54e7d411facbfcc867a6e198608f2cd992490e46f04b1bcecc
utf8proc_addresses=(
  "https://deb.debian.org/debian/pool/main/u/utf8proc/utf8proc_2.8.0.orig.tar.gz"
  "https://github.com/JuliaStrings/utf8proc/archive/refs/tags/v2.8.0.tar.gz"
)
highway="highway-1.0.3"
highway_sha256=566fc77315878473d9a6bd815f7de78c73734acdcb745c3dde8579560ac5440e
highway_addresses=(
  "https://deb.debian.org/debian/pool/main/h/highway/highway_1.0.3.orig.tar.gz"
  "https://github.com/google/highway/archive/refs/tags/1.0.3.tar.gz"
)

# older FILE OTHERS...: whether one of these is newer, or FILE does not exist.
older() {
  local other
  for other in "${@:2}"; do [[ $1 -nt $other ]] || return 0; done
  return 1
}

# fetch_sources NAME SHA256 ADDRESS...: the folder NAME in $sources, whole or not at all.
fetch_sources() {
  local archive=$sources/$1.tar.gz address
  [[ -d $sources/$1 ]] && return
  mkdir -p "$sources"
  for address in "${@:3}"; do
    say "Downloading $address"
    curl -fsSL --retry 2 -o "$archive" "$address" || continue
    [[ $({ sha256sum "$archive" 2>/dev/null || shasum -a 256 "$archive"; }) == "$2 "* ]] || continue
    rm -rf "$sources/unpacked"
    mkdir "$sources/unpacked" && tar -xzf "$archive" -C "$sources/unpacked" && mv "$sources/unpacked/$1" "$sources/" || return
    rmdir "$sources/unpacked"
    return
  done
  fail "The sources of ${1%-*} cannot be downloaded; put $1.tar.gz of $2 into $sources/ and unpack it there."
}

fetch_fmt() { fetch_sources "$fmt" "$fmt_sha256" "${fmt_addresses[@]}"; }
fetch_pcre2() { fetch_sources "$pcre2" "$pcre2_sha256" "${pcre2_addresses[@]}"; }
fetch_utf8proc() { fetch_sources "$utf8proc" "$utf8proc_sha256" "${utf8proc_addresses[@]}"; }
fetch_highway() { fetch_sources "$highway" "$highway_sha256" "${highway_addresses[@]}"; }

# compile_library NAME COMMAND...: lib/libNAME.a in $prepared, from the files on standard input, two at a time.
compile_library() {
  local objects=$prepared/objects/$1
  rm -rf "$objects" "$prepared/lib/lib$1.a"
  mkdir -p "$objects" "$prepared/lib"
  # shellcheck disable=SC2016  # the shell that xargs starts is to see these
  xargs -P 2 -I '{}' sh -c 'file=$1 object=$2/${1##*/}.o; shift 2; exec "$@" -c "$file" -o "$object"' _ '{}' "$objects" "${@:2}" || return
  "${archiver[@]}" rcs "$prepared/lib/lib$1.a" "$objects"/*.o
}

# Compiled once: as headers alone it would double the time of every file that formats.
compile_fmt() {
  compile_library fmt "${for_cxx[@]}" -std=c++20 -I"$sources/$fmt/include" <<<"$sources/$fmt/src/format.cc"
}

# Without its just-in-time compiler, which would write machine code.
compile_pcre2() {
  local folder=$sources/$pcre2/src file
  cp "$folder/config.h.generic" "$folder/config.h"
  cp "$folder/pcre2.h.generic" "$folder/pcre2.h"
  cp "$folder/pcre2_chartables.c.dist" "$folder/pcre2_chartables.c"
  for file in "$folder"/pcre2_*.c; do
    case ${file##*/pcre2_} in
      fuzzsupport.c | jit_*test.c | jit_match.c | jit_misc.c | printint.c | dftables.c | ucptables.c) ;;
      *) echo "$file" ;;
    esac
  done | compile_library pcre2-8 "${for_c[@]}" -DHAVE_CONFIG_H -DPCRE2_CODE_UNIT_WIDTH=8 -DSUPPORT_UNICODE -I"$folder"
}

# Its tables are in the one file, which includes the other.
compile_utf8proc() {
  compile_library utf8proc "${for_c[@]}" -DUTF8PROC_STATIC <<<"$sources/$utf8proc/utf8proc.c"
}

# What its headers call; without vectors of 512 bits, for which newer clangs need a target feature that it does not
# name.
compile_highway() {
  printf '%s\n' "$sources/$highway"/hwy/{aligned_allocator,per_target,targets}.cc |
    compile_library hwy "${for_cxx[@]}" -std=c++20 "-DHWY_DISABLED_TARGETS=(HWY_AVX3|HWY_AVX3_DL)" -I"$sources/$highway"
}

# package NAME VERSION LIBRARIES: what pkg-config is to find.
package() {
  printf 'Name: %s\nDescription: %s for another system\nVersion: %s\nCflags: -I%s\nLibs: %s\n' \
    "$1" "$1" "$2" "$prepared/include" "$3" >"$prepared/pkgconfig/$1.pc"
}

# prepare_libraries HEADERS...: include/, lib/ and pkgconfig/ in $prepared, with links to these folders of this
# machine's headers. Each has a link of its own: the rest of their folder belongs to this machine.
prepare_libraries() {
  local name
  mkdir -p "$prepared"/{include,pkgconfig}
  for name; do ln -sfn "/usr/include/$name" "$prepared/include/$name"; done
  ln -sfn "$sources/$fmt/include/fmt" "$prepared/include/fmt"
  ln -sfn "$sources/$pcre2/src/pcre2.h" "$prepared/include/pcre2.h"
  ln -sfn "$sources/$utf8proc/utf8proc.h" "$prepared/include/utf8proc.h"
  compile_fmt && compile_pcre2 && compile_utf8proc || return
  for name in nlohmann_json CLI11; do package "$name" "$(pkg-config --modversion "$name")" ''; done
  package fmt "${fmt#*-}" "$prepared/lib/libfmt.a"
  package libpcre2-8 "${pcre2#*-}" "$prepared/lib/libpcre2-8.a"
  package libutf8proc "${utf8proc#*-}" "$prepared/lib/libutf8proc.a"
}
