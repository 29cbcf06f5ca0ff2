# Shared by the tools: where things are, and how to build without noise. It is sourced, never run.
#
# The tools run with the bash 3.2 and the BSD commands of a Mac; tests/tools/test_portable.py names what these lack. For
# that bash an empty array is an unset variable, which ends a script: ${array[@]+"${array[@]}"} is its elements or
# nothing.
# shellcheck shell=bash

# With CDPATH, cd may go elsewhere and prints where. In POSIX mode, bash lacks process substitution.
unset CDPATH
set +o posix

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

say() { printf '%s\n' "$*" >&2; }

# fail MESSAGE [STATUS]
fail() { say "$1"; exit "${2:-1}"; }

# The help of a tool is the comment at its top.
show_help() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }

# duration SECONDS: prints 42 s, or 1 min 42 s.
duration() { if (($1 < 60)); then echo "$1 s"; else echo "$(($1 / 60)) min $(($1 % 60)) s"; fi; }

# The width of the terminal.
columns() {
  local size
  size=$(stty size <&2 2>/dev/null) || size='24 80'
  ((${size#* } > 0)) && echo "${size#* }" || echo 80
}

# watched LOG COMMAND...: the output goes to LOG; a terminal shows its newest line meanwhile.
watched() {
  local log=$1 status=0 line room
  shift
  if [[ -t 2 ]]; then
    room=$(($(columns) - 1))
    "$@" </dev/null 2>&1 | tee "$log" | while IFS= read -r line; do
      printf '\r\033[K%.*s' "$room" "$line" >&2
    done || status=$?
    printf '\r\033[K' >&2
  else
    "$@" </dev/null >"$log" 2>&1 || status=$?
  fi
  return "$status"
}

# quietly LOG COMMAND...: the same, and a failure shows the last lines of LOG.
quietly() {
  local status=0
  watched "$@" || status=$?
  ((status == 0)) && return
  tail -n 40 "$1" >&2
  say "'${*:2}' failed with status $status; its output is in $1."
  return "$status"
}

# read_lines NAME: the lines of standard input become the array of that name, without empty ones.
read_lines() { IFS=$'\n' read -r -d '' -a "$1" || true; }

# The number of processors.
processors() { nproc 2>/dev/null || getconf _NPROCESSORS_ONLN; }

# Whether this machine has an NVIDIA GPU and its driver, in Linux or in Windows' Linux.
have_gpu() { [[ -e /dev/nvidiactl || -e /dev/dxg ]]; }

# as_root COMMAND...: with sudo, unless root calls.
as_root() { ((EUID == 0)) || set -- sudo "$@"; "$@"; }

# python_with MODULE: the Python that has it; a person's own may not see the system's packages.
python_with() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -c "import $1" 2>/dev/null; then echo "$python"; return; fi
  done
  echo python3
}

# writable DIR: makes the folder; a sentence if nothing can be written there.
writable() {
  local reason
  if reason=$({ mkdir -p "$1" && : >>"$1/lock"; } 2>&1); then return; fi
  say "Nothing can be written to $1 (${reason##*: }): if sudo made it, 'sudo rm -rf $1' removes it; otherwise work in a copy of the project that is yours."
  return 1
}

# lock [-n]: locks file descriptor 9, or fails with -n if another process has it.
lock() {
  if command -v flock >/dev/null; then flock "$@" 9; return; fi
  python3 -c 'import fcntl, sys; fcntl.flock(9, fcntl.LOCK_EX | (fcntl.LOCK_NB if sys.argv[1:] else 0))' "$@" 2>/dev/null
}

# alone FILE COMMAND...: no other process holds that lock meanwhile, nor does what the command leaves running.
alone() {
  writable "${1%/*}" || return
  (
    lock -n || { say "Another command is at work in ${1%/*}; waiting for it ..."; lock || true; }
    "${@:2}" 9>&-
  ) 9>>"$1"
}

# configure [--small] DIR [MESON OPTION...]: installs what is missing (tools/setup) and prepares the build folder.
configure() {
  local setup=(--once)
  if [[ $1 == --small ]]; then setup+=(--small); shift; fi
  "$root/tools/setup" "${setup[@]}" || return
  prepare "$@"
}

# prepare DIR [MESON OPTION...]: the same, with what is installed. A folder that is ready only gets the options -D.
prepare() { alone "$root/$1/lock" prepare_alone "$@"; }

prepare_alone() {
  local dir=$root/$1 options=() option again=false
  renew "$1"
  if [[ ! -f $dir/build.ninja ]]; then
    # Without a GPU to run them, the kernels for one would only be minutes of compiling. Those for other processors
    # would be half a minute; continuous integration compiles them.
    if ! have_gpu; then options+=(-Dcuda=disabled); fi
    if [[ -z ${CI-} ]]; then options+=(-Dsimd_targets=native); fi
    if [[ -f $dir/kept ]]; then
      while IFS= read -r option; do
        case $option in
          CXX=*) option=${option#CXX=}; if command -v "${option%% *}" >/dev/null; then export CXX="${CXX:-$option}"; fi ;;
          *) options+=("$option") ;;
        esac
      done <"$dir/kept"
    fi
    set_up "$dir" ${options[@]+"${options[@]}"} "${@:2}" || return
    rm -f "$dir/kept"
    return
  fi
  for option in "${@:2}"; do [[ $option != -D* ]] || options+=("$option"); done
  # A folder that is older than an option does not know it yet.
  if ((${#options[@]})) && ! meson configure ${options[@]+"${options[@]}"} "$dir" >/dev/null 2>&1; then again=true; fi
  # Packages, a GPU or its compiler have been installed since: what was missing may be there now.
  if [[ $root/build/packages.log -nt $dir/build.ninja ]]; then again=true; fi
  if [[ -f $dir/stamp && $(gpu) != none && $(stamped "$dir" gpu) != "$(gpu)" ]]; then
    again=true
    if [[ $(stamped "$dir" gpu) == none ]]; then options=(-Dcuda=auto ${options[@]+"${options[@]}"}); fi
  fi
  if $again; then set_up "$dir" --reconfigure ${options[@]+"${options[@]}"}; fi
}

# set_up DIR MESON OPTION...: Meson itself. One that is interrupted leaves a folder that it takes for ready; so a file
# "unfinished" is there until it has ended.
set_up() {
  : >"$1/unfinished"
  if command -v brew >/dev/null; then # its libedit is beside the system's, where pkg-config looks only if told to
    PKG_CONFIG_PATH=$(brew --prefix)/opt/libedit/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    export PKG_CONFIG_PATH
  fi
  quietly "$1/setup.log" meson setup "${@:2}" "$1" "$root" || return
  stamp "$1" >"$1/stamp"
  rm "$1/unfinished"
  if have_gpu; then sed -n 's/^ *CUDA *: no: \(.*\)/This machine has a GPU, but programs will not use it: \1/p' "$1/setup.log" >&2; fi
}

# The rules of a build folder hold for one place and one compiler, whose precompiled headers no other one reads.
stamp() {
  local compiler
  # shellcheck disable=SC2016  # $ARGS is the rule's
  compiler=$(sed -n '/^rule cpp_COMPILER$/{n;s/^ *command = \(.*\) \$ARGS.*/\1/p;}' "$1/build.ninja" 2>/dev/null)
  printf '%s\n' "folder $1" "compiler $compiler" "version $(version "$compiler")" "CXX ${CXX-}" "gpu $(gpu)"
}

# stamped DIR KEY: what the folder's stamp says about it.
stamped() { sed -n "s/^$2 //p" "$1/stamp" 2>/dev/null || true; }

# version COMPILER: several words if a cache comes first. Some distributions rebuild a compiler under the same version.
version() {
  local words
  [[ $1 ]] || return 0
  read -ra words <<<"$1"
  set -- ${words[@]+"${words[@]}"}
  echo "$("$@" --version 2>&1 | head -n 1)" "$(wc -c 2>/dev/null <"$("$@" -print-prog-name=cc1plus 2>/dev/null)")"
}

# The compiler of this machine's GPU.
gpu() {
  if ! have_gpu; then echo none; else PATH=$PATH:/usr/local/cuda/bin command -v nvcc || echo 'no nvcc'; fi
}

# renew DIR: if its rules no longer hold, they and what was compiled are removed. The next setup gets its options.
renew() {
  local dir=$root/$1 reason='' option
  [[ -d $dir/meson-private ]] || return 0
  if [[ ! -f $dir/build.ninja || -f $dir/unfinished ]]; then
    reason='its setup was interrupted'
  elif [[ ! -f $dir/stamp ]]; then # a person has set it up
    if grep -qF "\"build\": \"$dir\"" "$dir/meson-info/meson-info.json" 2>/dev/null; then stamp "$dir" >"$dir/stamp"; return; fi
    reason='it was set up elsewhere, or not to the end'
  elif [[ $(stamped "$dir" folder) != "$dir" ]]; then
    reason="it was set up as $(stamped "$dir" folder)"
  elif [[ $(stamped "$dir" version) != "$(version "$(stamped "$dir" compiler)")" ]]; then
    reason='the compiler has changed'
  elif [[ ${CXX-} && $(stamped "$dir" CXX) != "$CXX" ]]; then
    reason="CXX is now $CXX"
  else
    return 0
  fi
  say "Setting up ${dir##*/}/ again: $reason."
  if [[ -f $dir/meson-private/cmd_line.txt ]]; then
    {
      stamped "$dir" CXX | sed -n 's/^./CXX=&/p'
      sed -n '/^\[options\]/,/^$/s/^\([^ =]*\) = /-D\1=/p' "$dir/meson-private/cmd_line.txt" | while IFS= read -r option; do
        [[ $option == -Dcuda=disabled && $(stamped "$dir" gpu) == none ]] || printf '%s\n' "$option"
      done
    } >"$dir/kept"
  fi
  # Logs, models and the inputs that fuzzers have found stay.
  (cd "$dir" && rm -rf meson-* build.ninja .ninja_* compile_commands.json bench common kernels steps tests practice prepared stamp unfinished)
}

# compile DIR [TARGET...]: builds the targets, or everything.
compile() { alone "$root/$1/lock" compile_alone "$@"; }

compile_alone() {
  local dir=$root/$1 limit
  shift
  limit=$(fitting_jobs /)
  if [[ $(ninja -C "$dir" -n "$@" 2>&1) != *'no work to do'* ]]; then
    say "Compiling into ${dir##*/}/ (its log is ${dir##*/}/build.log) ..."
    NINJA_STATUS='%p %f/%t ' quietly "$dir/build.log" ninja ${limit:+"$limit"} -C "$dir" "$@"
  fi
}

# fitting_jobs ROOT: -jN for ninja if the memory is too small for as many compilers as it starts, two more than
# processors. A large file takes 700 MB. MemAvailable is the machine's; a container may have less. Below ROOT are proc
# and sys. A Mac tells how much memory it has, and not how much of it is free.
fitting_jobs() {
  local kilobytes limit file
  kilobytes=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB$/\1/p' "$1proc/meminfo" 2>/dev/null) ||
    { kilobytes=$(sysctl -n hw.memsize 2>/dev/null) && kilobytes=$((kilobytes / 1024)); } || return 0
  for file in memory.max memory/memory.limit_in_bytes; do
    limit=$(cat "$1sys/fs/cgroup/$file" 2>/dev/null) || continue
    if [[ $limit =~ ^[0-9]+$ ]] && ((limit / 1024 < kilobytes)); then kilobytes=$((limit / 1024)); fi
  done
  if ((kilobytes / 700000 < $(processors) + 2)); then echo "-j$((kilobytes < 1400000 ? 1 : kilobytes / 700000))"; fi
}

# steps: the names of all steps, lowest first.
steps() { (cd "$root/steps" && printf '%s\n' [0-9][0-9]*-*/ | sed 's|/$||' | sort -n); }

# headline NAME: the step's headline, the sentence below the title of its README.
headline() { sed -n '/^## /q; s/^\*\(.*\)\*$/\1/p' "$root/steps/$1/README.md" 2>/dev/null | head -n 1; }

# lesson_commands NAME: the commands that show its idea, the block of code below the headline.
lesson_commands() { sed -n '/^## /q; s/^    \(tools\/run .*\)$/\1/p' "$root/steps/$1/README.md"; }

# list_steps: each step with its headline.
list_steps() {
  local name
  for name in $(steps); do printf '  %-26s %s\n' "$name" "$(headline "$name")"; done
}

# step_name 3 | 03 | 03-context-window | context: prints the full name; an unknown step lists the known ones, status 2.
step_name() {
  local number=${1%%-*} name found=()
  [[ $number =~ ^[0-9]{1,3}$ ]] && number=$(printf '%02d' "$((10#$number))")
  for name in $(steps); do
    if [[ $name == "$1" || ($1 != *-* && ${name%%-*} == "$number") ]]; then
      echo "$name"
      return
    fi
    if ((${#1} > 2)) && [[ ${name#*-} == *"$1"* ]]; then found+=("$name"); fi
  done
  case ${#found[@]} in
    1) echo "${found[0]}"; return ;;
    0) say "There is no step '$1'; these are the steps:"; list_steps >&2 ;;
    *) say "'$1' matches several steps; name one of them:"; printf '  %s\n' ${found[@]+"${found[@]}"} >&2 ;;
  esac
  return 2
}

# turn NAME N: a number from 0 to N - 1, a different one for each commit: of N parts, CI tries the one whose turn it is.
turn() {
  local commit
  commit=$(git -C "$root" rev-parse HEAD 2>/dev/null) || commit=none
  echo $((0x$({ md5sum 2>/dev/null || md5; } <<<"$commit $1" | head -c 4) % $2))
}

# chosen NAME N: whether this commit tries it, one name in N.
chosen() { (($(turn "$1" "$2") == 0)); }

# touched PATTERN: whether the last commit, or work that is not committed yet, changes a file whose path matches. With
# STAIRCASE_SINCE=COMMIT: all commits since that one.
touched() {
  if [[ -z ${changed+known} ]]; then
    changed=$(cd "$root" && git diff --name-only "${STAIRCASE_SINCE:-HEAD~1}" 2>/dev/null; git -C "$root" ls-files --others --exclude-standard 2>/dev/null) || true
  fi
  grep -qE "$1" <<<"$changed"
}
