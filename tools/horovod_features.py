"""What Horovod is built with on this machine: Gloo always, MPI and NCCL where the machine has them.

`build_horovod.py` builds with these features. `setup.py` compares them with those of the last build, so that Horovod is
built again, or installed from the cache, after MPI or a CUDA toolkit was installed, replaced or removed. A Horovod that
was built with an MPI that is gone can't be imported.
"""

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
import cuda_toolkit


class Features(NamedTuple):
    """The features of a build.

    Attributes:
        mpi: the compiler command of MPI's wrapper, which names the MPI; empty for a build without MPI.
        cuda: the root of the CUDA toolkit for NCCL; empty for a build without NCCL.
        versions: of nvcc and NCCL.
    """

    mpi: str = ""
    cuda: str = ""
    versions: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The features' names, such as ("gloo", "mpi")."""
        return ("gloo", *(["mpi"] if self.mpi else []), *(["nccl"] if self.cuda else []))

    @property
    def key(self) -> str:
        """The names, with a hash of each foreign library that the binary is linked with: `gloo+mpi-1a2b3c4d`."""
        parts = {"gloo": "", "mpi": self.mpi, "nccl": f"{self.cuda} {self.versions}"}
        return "+".join(f"{name}-{_short_hash(parts[name])}" if parts[name] else name for name in self.names)


def choose(mpi: str, cuda: str, gpu: bool, environ: Mapping[str, str], versions: str = "") -> Features:
    """Returns the features of a build.

    Args:
        mpi, cuda, versions: what the machine has, as in `Features`.
        gpu: whether NCCL is wanted: the environment is one for GPUs, and was not set up with NCCL=0.
        environ: `HOROVOD_WITHOUT_MPI=1`, Horovod's own switch, leaves MPI out.
    """
    mpi = mpi if environ.get("HOROVOD_WITHOUT_MPI") != "1" else ""
    return Features(mpi, cuda, versions) if gpu else Features(mpi)


def of_machine(gpu: bool, environ: Mapping[str, str] = os.environ) -> Features:
    """Returns the features of a build on this machine; see `choose`."""
    toolkit = cuda_toolkit.toolkit(environ, cuda_toolkit.driver(environ)) if gpu else None
    if toolkit is None:
        return choose(_mpi(), "", gpu, environ)
    try:
        nccl = importlib.metadata.version("nvidia-nccl-cu12")
    except importlib.metadata.PackageNotFoundError:
        nccl = "of the system"
    return choose(_mpi(), str(toolkit.home), gpu, environ, f"nvcc {cuda_toolkit.words(toolkit.version)}, NCCL {nccl}")


def _mpi() -> str:
    """Returns the command that MPI's compiler wrapper runs; empty where there is no wrapper that works."""
    wrapper = shutil.which("mpicxx")
    if wrapper is None:
        return ""
    # Open MPI, MPICH and Intel MPI have this option.
    shown = subprocess.run([wrapper, "-show"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return shown.stdout.strip() if shown.returncode == 0 else ""


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
