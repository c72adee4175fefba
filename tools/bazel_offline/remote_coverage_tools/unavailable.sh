#!/bin/sh
echo "coverage needs a Bazel with network access" >&2
exit 1
