#!/usr/bin/env bash
# Builds libtftrain_ffi.so with the compilers alone, for a machine that has no Bazel and no TensorFlow:
#
#   tools/build_ffi.sh cuda|cpu OUTPUT_DIR XLA_INCLUDE_DIR
#
# XLA's FFI headers come with JAX (jax.ffi.include_dir()) and with TensorFlow. `cuda` adds kernels and handlers for GPUs to
# those for the CPU: code for A100, H100 and H200, and PTX for later GPUs. NVCC overrides the first nvcc on the path.
# The flags are those of tools/bazel_rules.
set -euo pipefail

if [[ $# != 3 || ! "$1" =~ ^(cuda|cpu)$ ]]; then
  sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
platform="$1"
mkdir -p "$2"
to="$(cd "$2" && pwd)"
xla="$3"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

: "${CXX:=g++}" "${NVCC:=nvcc}"
export CXX NVCC to xla

compile() {
  local source="$1" object
  object="$to/$(basename "$1").o"
  case "$source" in
    *.cu)
      "$NVCC" -std=c++17 -O3 -fmad=false -I. -Xcompiler -fPIC,-fvisibility=hidden,-w \
        -gencode arch=compute_80,code=sm_80 -gencode 'arch=compute_90,code=[sm_90,compute_90]' -c "$source" -o "$object"
      ;;
    *)
      "$CXX" -std=c++17 -O2 -fPIC -fvisibility=hidden -ffp-contract=off -w -I. -isystem "$xla" -c "$source" -o "$object"
      ;;
  esac
  echo "compiled $source"
}
export -f compile

sources=(custom_ops/ffi/host_handlers.cc)
for source in custom_ops/kernels/*/*.cc; do
  [[ "$source" == *_test.cc ]] || sources+=("$source")
done
libraries=(-pthread)
if [[ "$platform" == cuda ]]; then
  sources+=(custom_ops/ffi/cuda_handlers.cc custom_ops/kernels/*/*.cu)
fi
printf '%s\n' "${sources[@]}" | xargs -P "${JOBS:-$(nproc)}" -I{} bash -euc 'compile "$1"' _ {}

objects=()
for source in "${sources[@]}"; do objects+=("$to/$(basename "$source").o"); done
if [[ "$platform" == cuda ]]; then
  "$NVCC" -shared -cudart static -o "$to/libtftrain_ffi.so" "${objects[@]}"
else
  "$CXX" -shared -o "$to/libtftrain_ffi.so" "${objects[@]}" "${libraries[@]}"
fi
echo "built $to/libtftrain_ffi.so"
