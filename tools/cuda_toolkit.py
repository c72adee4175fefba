"""The CUDA toolkit and the driver of this machine, and what can't work with them: said before anything is downloaded.

Uses the standard library alone: `setup.py` runs it before anything is installed.

What the numbers come from: a driver runs the runtimes of its own major version and older ones (NVIDIA, "CUDA
compatibility": 12.x needs 525, 13.x needs 580). `optimizer/lamb.cu` passes a table of 30 kB as kernel arguments, which
nvcc takes from 12.1 on. TensorFlow 2.20's wheel has code for compute capabilities up to 8.9, and PTX 8.5 for later
ones, which is of CUDA 12.5 and needs driver 555.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

Version = tuple[int, ...]

OLDEST_NVCC: Version = (12, 1)
DRIVER_OF_TOOLKIT = {12: 525, 13: 580}
LAST_COMPILED: Version = (8, 9)
DRIVER_OF_PTX = 555
INSTALL = "install CUDA 12.8: apt-get install cuda-toolkit-12-8 from NVIDIA's repository, see docs/cluster.md"


class Toolkit(NamedTuple):
    """A CUDA toolkit: the folder that has bin/nvcc, and nvcc's version; () if nvcc does not start."""

    home: Path
    version: Version

    def __str__(self) -> str:
        return f"CUDA toolkit {words(self.version)} in {self.home}"


class Driver(NamedTuple):
    """NVIDIA's driver: its version, and name and compute capability of the newest GPU; () where it is not loaded."""

    version: Version = ()
    gpu: str = ""
    capability: Version = ()


def toolkit(environ: Mapping[str, str], driver: Driver, root: Path = Path("/usr/local")) -> Toolkit | None:
    """Returns the CUDA toolkit to build with, or None if there is none.

    It is the one that HOROVOD_CUDA_HOME, CUDA_HOME or CUDA_PATH names; else, of that of nvcc on PATH and those in
    /usr/local, the first one that the driver takes.
    """
    named = [environ.get(name) for name in ("HOROVOD_CUDA_HOME", "CUDA_HOME", "CUDA_PATH")]
    if named_homes := _existing(filter(None, named)):
        return named_homes[0]
    on_path = [_home_of(nvcc)] if (nvcc := shutil.which("nvcc", path=environ.get("PATH"))) else []
    others = sorted(root.glob("cuda-*"), key=lambda path: _version(path.name), reverse=True)
    toolkits = _existing([*on_path, root / "cuda", *others])
    return next((each for each in toolkits if not mismatch(each, driver)), toolkits[0] if toolkits else None)


def driver(environ: Mapping[str, str]) -> Driver:
    """Returns the driver as nvidia-smi reports it."""
    tool = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if tool is None:
        return Driver()
    command = [tool, "--query-gpu=driver_version,compute_cap,name", "--format=csv,noheader"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return Driver()
    lines = [line.split(",", 2) for line in shown.stdout.splitlines() if line.count(",") >= 2]
    if shown.returncode or not lines:
        return Driver()
    version, capability, name = max(lines, key=lambda line: _version(line[1]))
    return Driver(_version(version), name.strip(), _version(capability))


def refusal(environ: Mapping[str, str], nccl: bool, ops: bool, root: Path = Path("/usr/local")) -> str:
    """Returns in a line why this machine can't have a GPU environment, and what to do; "" if it can.

    Args:
        environ: of the set-up.
        nccl: whether Horovod is to be built with NCCL (`NCCL=0` leaves it out).
        ops: whether the fused ops are to be built with their GPU kernels (`OPS=0` leaves them out).
        root: the folder of toolkits.
    """
    its = driver(environ)
    if its.capability > LAST_COMPILED and its.version < (DRIVER_OF_PTX,):
        return (
            f"driver {words(its.version)} can't run TensorFlow on {its.gpu} (compute capability "
            f"{words(its.capability)}): its kernels for that are PTX of CUDA 12.5, which needs driver {DRIVER_OF_PTX} "
            "or later; install a newer driver"
        )
    if not nccl and not ops:
        return ""
    chosen, without = toolkit(environ, its, root), " ".join(["NCCL=0"] * nccl + ["OPS=0"] * ops)
    needs = " and ".join(["NCCL in Horovod"] * nccl + ["the GPU kernels of the fused ops"] * ops)
    if chosen is None:
        reason = "no CUDA toolkit (no nvcc in CUDA_HOME, on PATH, or in /usr/local/cuda*)"
    elif ops and chosen.version < OLDEST_NVCC:
        reason, without = f"{chosen}: expected {words(OLDEST_NVCC)} or later", "OPS=0"
        needs = "the GPU kernels of the fused ops"
    elif not (reason := mismatch(chosen, its)):
        return ""
    return f"{reason}, for {needs}; {INSTALL}; or go on without: make setup GPU=1 {without}"


def mismatch(toolkit: Toolkit, its: Driver) -> str:
    """Returns why programs of a toolkit do not run with a driver; "" if they do, or if there is no driver here."""
    needed = DRIVER_OF_TOOLKIT.get(toolkit.version[0] if toolkit.version else 0, 0)
    if not its.version or its.version >= (needed,):
        return ""
    return f"{toolkit} needs driver {needed} or later, this host has {words(its.version)}"


def words(version: Version) -> str:
    """Returns a version as it is written, such as 12.8."""
    return ".".join(map(str, version)) or "of an unknown version"


def _existing(homes: Sequence[str | Path]) -> list[Toolkit]:
    real = dict.fromkeys(Path(home).resolve() for home in homes if (Path(home) / "bin" / "nvcc").exists())
    return [Toolkit(home, _nvcc_version(home / "bin" / "nvcc")) for home in real]


def _home_of(nvcc: str) -> Path:
    """Returns the toolkit of an nvcc, which may be a wrapper script: the real one tells where its toolkit is."""
    plan = _output([nvcc, "--dryrun", "-x", "cu", os.devnull])
    top = next((line.split("=", 1)[1] for line in plan.splitlines() if line.startswith("#$ TOP=")), None)
    return Path(top) if top else Path(nvcc).resolve().parents[1]


def _nvcc_version(nvcc: Path) -> Version:
    match = re.search(r"release ([\d.]+)", _output([nvcc, "--version"]))
    return _version(match[1]) if match else ()


def _output(command: list) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _version(text: str) -> Version:
    return tuple(int(number) for number in re.findall(r"\d+", text))
