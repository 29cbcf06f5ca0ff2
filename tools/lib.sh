# Shared by the tools: where things are, and how to build without noise. It is sourced, never run.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*" >&2; }

# fail MESSAGE [STATUS]
fail() { say "$1"; exit "${2:-1}"; }

# The help of a tool is the comment at its top.
show_help() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }

# duration SECONDS: 42 s, or 1 min 42 s.
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

# Whether this machine has an NVIDIA GPU and its driver, in Linux or in Windows' Linux.
have_gpu() { [[ -e /dev/nvidiactl || -e /dev/dxg ]]; }

# python_with MODULE: the Python that has it; a person's own may not see the system's packages.
python_with() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -c "import $1" 2>/dev/null; then echo "$python"; return; fi
  done
  echo python3
}

# configure [--small] DIR [-Doption=value...]: installs what is missing (tools/setup) and prepares the build directory.
# Without a GPU to run them, the kernels for one would only be minutes of compiling. Those for other processors would be
# half a minute; continuous integration compiles them.
configure() {
  local setup=() dir unless=()
  if [[ $1 == --small ]]; then setup=(--small); shift; fi
  dir=$root/$1
  shift
  "$root/tools/setup" "${setup[@]}" || return
  mkdir -p "$dir"
  if [[ ! -f $dir/build.ninja ]]; then
    if ! have_gpu; then unless+=(-Dcuda=disabled); fi
    if [[ -z ${CI-} ]]; then unless+=(-Dsimd_targets=native); fi
    quietly "$dir/setup.log" meson setup "${unless[@]}" "$@" "$dir" "$root"
    return
  fi
  # A directory that is older than an option does not know it yet.
  if (($#)) && ! meson configure "$@" "$dir" >/dev/null 2>&1; then
    quietly "$dir/setup.log" meson setup --reconfigure "$@" "$dir" "$root" || return
  fi
  # Packages have been installed since: what was missing may be there now.
  if [[ $root/build/packages.log -nt $dir/build.ninja ]]; then
    quietly "$dir/setup.log" meson setup --reconfigure "$dir" "$root"
  fi
}

# compile DIR [TARGET...]: builds the targets, or everything.
compile() {
  local dir=$root/$1
  shift
  if [[ $(ninja -C "$dir" -n "$@" 2>&1) != *'no work to do'* ]]; then
    say "Compiling into ${dir##*/}/ (its log is ${dir##*/}/build.log) ..."
    NINJA_STATUS='%p %f/%t ' quietly "$dir/build.log" ninja -C "$dir" "$@"
  fi
}

# steps: the names of all steps, lowest first.
steps() { (cd "$root/steps" && printf '%s\n' [0-9][0-9]-*/ | sed 's|/$||'); }

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
  [[ $number =~ ^[0-9]{1,2}$ ]] && number=$(printf '%02d' "$((10#$number))")
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
    *) say "'$1' matches several steps; name one of them:"; printf '  %s\n' "${found[@]}" >&2 ;;
  esac
  return 2
}

# turn NAME N: a number from 0 to N - 1, a different one for each commit: of N parts, CI tries the one whose turn it is.
turn() {
  local commit
  commit=$(git -C "$root" rev-parse HEAD 2>/dev/null) || commit=none
  echo $((0x$(md5sum <<<"$commit $1" | head -c 4) % $2))
}

# chosen NAME N: whether this commit tries it, one name in N.
chosen() { (($(turn "$1" "$2") == 0)); }
