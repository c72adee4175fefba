#!/usr/bin/env bash
# Copies the built libraries to build/custom_ops in the checkout, each in one step, so that a process that has the old one
# open keeps it whole.
set -euo pipefail

to="$BUILD_WORKSPACE_DIRECTORY/build/custom_ops"
mkdir -p "$to"
for library in custom_ops/ffi/libtftrain_ffi.so custom_ops/tensorflow/libtftrain_ops.so; do
  name="$(basename "$library")"
  cp -f "$library" "$to/.$name.new"
  chmod 644 "$to/.$name.new"
  mv -f "$to/.$name.new" "$to/$name"
done
echo "installed the ops in build/custom_ops"
