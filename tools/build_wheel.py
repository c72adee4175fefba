"""Builds what a host without the repository needs: `make wheel` fills `dist/`.

    tftrain-*.whl       the package with the compiled ops
    horovod-*.whl       as `tools/build_horovod.py` has built it; no package index has one
    requirements.txt    installs both, and what they need in the versions of the lock file, all by their SHA-256:
                        pip install -r dist/requirements.txt

The wheels are for the version of Python, the TensorFlow and the platform that built them. If Horovod was built with
MPI, the host needs the same MPI.
"""

import argparse
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Container, Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

sys.path.insert(0, str(Path(__file__).parent))
import build_horovod
from horovod_features import of_machine

from setup import Choices

ROOT = Path(__file__).resolve().parent.parent
OPS = ROOT / "build" / "custom_ops" / "libtftrain_ops.so"
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
# Without --only-binary, pip would try to build the Horovod of the package index where a wheel does not fit the host.
REQUIREMENTS = """\
# pip install -r requirements.txt
--find-links .
--require-hashes
--only-binary tftrain,horovod
"""


def build_tftrain(ops: Path | None, to: Path) -> Path:
    """Builds the wheel of tftrain.

    Args:
        ops: the library of fused ops; None for a wheel without it, which fits every platform.
        to: the folder for the wheel.

    Returns:
        The wheel.

    Raises:
        subprocess.CalledProcessError: pip can't build it.
    """
    with tempfile.TemporaryDirectory(prefix="tftrain-wheel-") as scratch:
        # A copy: setuptools leaves files in the folder that it builds, and takes old ones from there.
        source, built = Path(scratch) / "source", Path(scratch) / "built"
        shutil.copytree(ROOT / "tftrain", source / "tftrain", ignore=shutil.ignore_patterns("__pycache__"))
        for name in FILES:
            shutil.copy(ROOT / name, source)
        shutil.copytree(ROOT / "docs", source / "docs", ignore=shutil.ignore_patterns("results", "*.png"))
        # The ops fit one TensorFlow.
        project = source / "pyproject.toml"
        project.write_text(re.sub(r'"(tensorflow|tensorflow-text|tf-keras)>=[^"]*"', pinned, project.read_text()))
        if ops:
            shutil.copy(ops, source / "tftrain" / "ops")
        pip = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-input", "--quiet"]
        options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", built]
        subprocess.run([*pip, *options, source], check=True)
        return _replace(next(built.glob("*.whl")), to)


def pinned(requirement: re.Match) -> str:
    """Returns a requirement of pyproject.toml with the version that is installed."""
    return f'"{requirement[1]}=={importlib.metadata.version(requirement[1])}"'


def needed(roots: Iterable[str]) -> set[str]:
    """Returns the names of all installed packages that these requirements need, in the form of lock files."""
    names, waiting = set(), [Requirement(root) for root in roots]
    done = set()
    while waiting:
        each = waiting.pop()
        name = canonicalize_name(each.name)
        for extra in {"", *each.extras}:
            if (name, extra) not in done:
                done.add((name, extra))
                requires = map(Requirement, importlib.metadata.requires(name) or ())
                waiting += [other for other in requires if not other.marker or other.marker.evaluate({"extra": extra})]
        names.add(name)
    return names


def locked(lock: str, names: Container[str]) -> str:
    """Returns the entries of a lock file with these names: versions and hashes."""
    entries = re.findall(r"^([\w.-]+)(==.*\n(?:    --hash=.*\n)*)", lock, re.MULTILINE)
    return "".join(f"{name}{rest}" for name, rest in entries if canonicalize_name(name) in names)


def main() -> int:
    """Fills the folder and returns the exit status."""
    parser = argparse.ArgumentParser(description="Build wheels of tftrain and Horovod for other hosts.")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="the folder for them")
    parser.add_argument("--without-ops", action="store_true", help="leave out the fused ops")
    arguments = parser.parse_args()
    if not arguments.without_ops and not OPS.exists():
        print(f"build_wheel: no {OPS}; `make setup` builds it, OPS=0 leaves the fused ops out", file=sys.stderr)
        return 1
    choices = Choices.of_stamps()
    horovod = build_horovod.find_wheel(build_horovod.wheel_folder(of_machine(choices.nccl)))
    if horovod is None:
        print("build_wheel: the cache has no wheel of Horovod; `make setup` builds it", file=sys.stderr)
        return 1
    arguments.to.mkdir(parents=True, exist_ok=True)
    try:
        wheels = [build_tftrain(None if arguments.without_ops else OPS, arguments.to), _replace(horovod, arguments.to)]
    except subprocess.CalledProcessError as error:
        print(f"build_wheel: exit status {error.returncode} from pip", file=sys.stderr)
        return 1
    names = needed([f"tftrain{'[gpu]' if choices.gpu else ''}", "horovod"]) - {"tftrain", "horovod"}
    own = "".join("{}=={} --hash=sha256:{}\n".format(*w.name.split("-")[:2], build_horovod.sha256(w)) for w in wheels)
    (arguments.to / "requirements.txt").write_text(REQUIREMENTS + own + locked(choices.lock.read_text(), names))
    for wheel in wheels:
        print(f"{wheel}  {wheel.stat().st_size / 1e6:.1f} MB")
    print(f"on another host: pip install -r {arguments.to / 'requirements.txt'}")
    return 0


def _replace(wheel: Path, to: Path) -> Path:
    """Copies a wheel into a folder in the place of other versions of it."""
    for old in to.glob(f"{wheel.name.split('-')[0]}-*.whl"):
        old.unlink()
    return Path(shutil.copy(wheel, to))


if __name__ == "__main__":
    sys.exit(main())
