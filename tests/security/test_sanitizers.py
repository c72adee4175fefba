"""The ops' C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.nightly  # `bazel test //custom_ops/...` runs the same calls without sanitizers.
@pytest.mark.timeout(3600)
def test_no_call_reads_or_writes_outside_of_its_tensors():
    targets = ["//custom_ops/interface/...", "//custom_ops/kernels/..."]
    command = [ROOT / "tools/bazel", "test", "--config=sanitize", *targets]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
