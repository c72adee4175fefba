"""What this process runs on, asked before TensorFlow is loaded."""

import subprocess
import sys


def test_a_driver_and_free_memory_are_asked_without_tensorflow():
    program = (
        "import sys; from tftrain import devices; devices.has_driver(); "
        "devices.gpu_memory_gb('free'); devices.host_memory_gb(); "
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
