"""Builds Horovod from its source archive into a cached wheel and installs it into the running Python's environment.

Horovod publishes no wheels, and its last release (0.28.1) predates TensorFlow 2.14. docs/cluster.md says what the
script changes in the archive, and why; the rest builds as published.

A build takes minutes, so the wheel is stored in a cache outside the checkout. The name of its folder contains all that
the build depends on: Python, TensorFlow, MPI, CUDA, platform. `TFTRAIN_WHEEL_CACHE` names another cache.

Run it with the Python that will use Horovod; TensorFlow must be installed for that Python:

    .venv/bin/python tools/build_horovod.py
"""

import argparse
import hashlib
import importlib.metadata
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import horovod_patch
from horovod_features import Features, of_machine

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"

# Part of the cache key: raise it when this file or horovod_patch.py changes what is built.
RECIPE = 2

# A translation unit that includes TensorFlow's headers takes up to 2 GB to compile.
GB_PER_COMPILER = 2


class BuildError(Exception):
    """Horovod cannot be built or does not work; the message says why and what to do."""


def say(message: str) -> None:
    """Prints at once, so that lines keep their order among those of the child processes."""
    print(message, flush=True)


def cache_root() -> Path:
    """Returns the folder that finished wheels are kept in."""
    if override := os.environ.get("TFTRAIN_WHEEL_CACHE"):
        return Path(override).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "tftrain" / "wheels"


def wheel_folder(features: Features) -> Path:
    """Names the cache folder after all that the binary depends on."""
    tensorflow = importlib.metadata.version("tensorflow")
    libc = "".join(platform.libc_ver()) or "libc"
    key = [f"horovod-{VERSION}", sys.implementation.cache_tag, f"tf-{tensorflow}", features.key]
    key += [f"{sysconfig.get_platform()}-{libc}", f"recipe{RECIPE}"]
    return cache_root() / "_".join(key)


def find_wheel(folder: Path) -> Path | None:
    """Returns the finished wheel in `folder`, or None.

    Raises:
        BuildError: another user could have put it there, or it is not the file that was built.
    """
    wheel = next(folder.glob("horovod-*.whl"), None)
    for path in (folder, wheel) if wheel else ():
        status = path.stat()
        if status.st_uid not in (0, os.getuid()) or status.st_mode & 0o022:
            raise BuildError(f"{path}: others own it or may write there; remove it, or `chmod go-w` after a check")
    digest = wheel and wheel.with_suffix(".sha256")
    if wheel and not (digest.is_file() and digest.read_text() == sha256(wheel)):
        raise BuildError(f"{wheel}: {digest.name} beside it has another digest or is missing; remove the folder")
    return wheel


def sha256(path: Path) -> str:
    """Returns the digest of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(command: list, **options) -> None:
    """Runs a command with its output passed through; raises BuildError where it fails."""
    command = [str(part) for part in command]
    say(f"$ {shlex.join(command)}")
    status = subprocess.run(command, stdin=subprocess.DEVNULL, **options).returncode
    if status:
        raise BuildError(f"exit status {status} from: {shlex.join(command)}")


def unpack_source(work: Path) -> Path:
    """Downloads the source archive with its hash checked, unpacks it and changes what `horovod_patch` names.

    It always unpacks the archive again: Horovod's CMake copies Gloo inside the source tree and fails if a copy exists.
    """
    pin = work / "horovod.txt"
    pin.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--require-hashes"]
    run([*pip, "--no-deps", "--no-binary=:all:", "--no-build-isolation", "--dest", work, "--requirement", pin])
    with tarfile.open(work / f"horovod-{VERSION}.tar.gz") as archive:
        archive.extractall(work)
    source = work / f"horovod-{VERSION}"
    try:
        horovod_patch.apply(source)
    except ValueError as error:
        raise BuildError(f"Horovod {VERSION}: {error}") from error
    return source


def compiler_jobs() -> int:
    """Returns how many compilers fit the processors and the memory that this process may use."""
    gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / 1e9
    return max(1, min(len(os.sched_getaffinity(0)), int(gb / GB_PER_COMPILER)))


def nccl_environment(cuda: str, work: Path) -> dict[str, str]:
    """Points the build at CUDA, and at the NCCL that came with TensorFlow's GPU packages where it did.

    That package has no `libnccl.so` for a linker, only the versioned library, so a folder of links stands in for it.
    The run path leads from horovod/tensorflow/ to the package, so that the same NCCL is found at run time.
    """
    environment = {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_CUDA_HOME": cuda}
    package = Path(sysconfig.get_path("platlib")) / "nvidia" / "nccl"
    library = package / "lib" / "libnccl.so.2"
    if library.exists():
        links = work / "nccl"
        (links / "lib").mkdir(parents=True)
        (links / "lib" / "libnccl.so").symlink_to(library)
        (links / "include").symlink_to(package / "include")
        environment["HOROVOD_NCCL_HOME"] = str(links)
        environment["HOROVOD_NCCL_LINK"] = "SHARED"
        environment["LDFLAGS"] = r"-Wl,-rpath,\$ORIGIN/../../nvidia/nccl/lib"
    return environment


def build_environment(features: Features, work: Path) -> dict[str, str]:
    """Returns the process environment that tells Horovod's setup.py what to build."""
    # A make that runs this script hands its own flags down; Horovod's make must not take them for its own.
    inherited = {name: value for name, value in os.environ.items() if name not in ("MAKELEVEL", "MFLAGS", "MAKEFILES")}
    scripts = sysconfig.get_path("scripts")  # has cmake, below version 4, from the lock
    chosen = {
        "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "MAKEFLAGS": f"-j{compiler_jobs()}",
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI" if features.mpi else "HOROVOD_WITHOUT_MPI": "1",
        # TensorFlow's import in the build only reads compiler flags.
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    if features.cuda:
        chosen |= nccl_environment(features.cuda, work)
    return inherited | chosen


def build(features: Features, folder: Path) -> Path:
    """Builds the wheel, moves it into the cache in one step, and returns its path."""
    started = time.monotonic()
    say(f"Building Horovod {VERSION} with {', '.join(features.names)} for Python {platform.python_version()}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tftrain-horovod-") as scratch:
        work = Path(scratch)
        source = unpack_source(work)
        wheels = work / "wheels"
        pip = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-input", "--verbose"]
        run(
            [*pip, "--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir", wheels, source],
            env=build_environment(features, work),
        )
        built = next(wheels.glob("horovod-*.whl"), None)
        if built is None:
            raise BuildError("the build ended without an error and without a wheel")
        # Copied beside its place, then renamed: another process never sees half a wheel.
        folder.mkdir(exist_ok=True, mode=0o755)
        folder.chmod(0o755)
        partial = folder / f"{built.name}.{os.getpid()}.partial"
        shutil.copyfile(built, partial)
        partial.chmod(0o644)
        (folder / built.name).with_suffix(".sha256").write_text(sha256(built))
        wheel = partial.rename(folder / built.name)
    say(f"Built {wheel} in {time.monotonic() - started:.0f} s")
    return wheel


def install(wheel: Path) -> None:
    """Installs the wheel into the running Python's environment and shows that it starts."""
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet"]
    run([*pip, "--no-deps", "--no-index", "--force-reinstall", wheel])
    check()


def check() -> None:
    """Raises BuildError unless Horovod starts in this environment."""
    code = "import horovod.tensorflow as hvd; hvd.init(); assert hvd.gloo_built() and hvd.size() == 1"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "OMPI_"))}
    # Nothing is imported from the working folder (-I), and others can't write there.
    with tempfile.TemporaryDirectory() as own:
        run([sys.executable, "-I", "-c", code], env=environment | {"TF_CPP_MIN_LOG_LEVEL": "2"}, cwd=own)


def main() -> int:
    """Finds or builds the wheel, installs it, and returns the exit status."""
    parser = argparse.ArgumentParser(description="Build Horovod into a cached wheel and install it.")
    parser.add_argument("--gpu", action="store_true", help="with NCCL, where a CUDA toolkit is found")
    parser.add_argument("--find", action="store_true", help="only print the path of the cached wheel, if there is one")
    parser.add_argument("--rebuild", action="store_true", help="build even where the cache has the wheel")
    arguments = parser.parse_args()
    try:
        features = of_machine(arguments.gpu)
        folder = wheel_folder(features)
        wheel = None if arguments.rebuild else find_wheel(folder)
        if arguments.find:
            say(str(wheel or ""))
            return 0
        if wheel:
            say(f"Using {wheel}")
        else:
            wheel = build(features, folder)
        install(wheel)
    except (BuildError, OSError) as error:
        print(f"build_horovod: {error}", file=sys.stderr)
        return 1
    except importlib.metadata.PackageNotFoundError:
        print(f"build_horovod: TensorFlow is not installed in {sys.prefix}; install it first", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
