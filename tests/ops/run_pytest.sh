#!/usr/bin/env bash
# Runs one test file with the environment's Python: run_pytest.sh PYTHON FILE.
set -euo pipefail

export PYTHONPATH="$PWD" PYTHONDONTWRITEBYTECODE=1 HOME="${HOME:-/tmp}"
exec "$1" -m pytest -q -p no:cacheprovider --rootdir="$PWD" -c pyproject.toml -o pythonpath="$PWD" "$2"
