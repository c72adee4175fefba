"""What Horovod is built with on this machine: Gloo always, MPI and NCCL where the machine has them.

`build_horovod.py` builds with these features. `setup.py` compares them with those of the last build, so that Horovod is
built again, or installed from the cache, after MPI or a CUDA toolkit was installed, replaced or removed. A Horovod that
was built with an MPI that is gone can't be imported.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Features(NamedTuple):
    """The features of a build.

    Attributes:
        mpi: the compiler command of MPI's wrapper, which names the MPI; empty for a build without MPI.
        cuda: the root of the CUDA toolkit for NCCL; empty for a build without NCCL.
    """

    mpi: str = ""
    cuda: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The features' names, such as ("gloo", "mpi")."""
        return ("gloo", *(["mpi"] if self.mpi else []), *(["nccl"] if self.cuda else []))

    @property
    def key(self) -> str:
        """The names, with a hash of each foreign library that the binary is linked with: `gloo+mpi-1a2b3c4d`."""
        found = {"gloo": "", "mpi": self.mpi, "nccl": self.cuda}
        return "+".join(f"{name}-{_short_hash(found[name])}" if found[name] else name for name in self.names)


def choose(mpi: str, cuda: str, gpu: bool, environ: Mapping[str, str]) -> Features:
    """Returns the features of a build.

    Args:
        mpi, cuda: what the machine has, as in `Features`.
        gpu: whether the environment is one for GPUs; NCCL needs it.
        environ: `HOROVOD_WITHOUT_MPI=1`, Horovod's own switch, leaves MPI out.
    """
    return Features(mpi if environ.get("HOROVOD_WITHOUT_MPI") != "1" else "", cuda if gpu else "")


def of_machine(gpu: bool, environ: Mapping[str, str] = os.environ) -> Features:
    """Returns the features of a build on this machine; see `choose`."""
    return choose(_mpi(), str(cuda_home(environ) or "") if gpu else "", gpu, environ)


def cuda_home(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Returns the root of the CUDA toolkit (the folder that has bin/nvcc), or None where there is none."""
    candidates = [environ.get(name) for name in ("HOROVOD_CUDA_HOME", "CUDA_HOME", "CUDA_PATH")]
    if nvcc := shutil.which("nvcc"):
        # nvcc on PATH may be a wrapper script; the real one tells where its toolkit is.
        plan = subprocess.run([nvcc, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True).stderr
        candidates += [line.split("=", 1)[1] for line in plan.splitlines() if line.startswith("#$ TOP=")]
    for candidate in [*filter(None, candidates), "/usr/local/cuda"]:
        if (Path(candidate) / "bin" / "nvcc").exists():
            return Path(candidate).resolve()
    return None


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
