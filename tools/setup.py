"""Brings `.venv` to the state that the lock files describe; `make setup` runs it after the system packages.

Five steps: the environment, the locked packages, Horovod, the project itself, the fused ops. A step leaves a stamp in
`.venv` with a key made of everything that its result depends on, and is skipped while the key is the same; a second run
therefore costs a fraction of a second. Each step writes its output to `build/setup/STEP.log`, shown only where the step
fails.

Uses the standard library alone: it runs before anything is installed.
"""

import argparse
import fcntl
import hashlib
import os
import platform
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import cuda_toolkit
import horovod_features

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UV = VENV / "bin" / "uv"
STAMPS = VENV / "setup"
LOGS = ROOT / "build" / "setup"
BUILD_HOROVOD = ROOT / "tools" / "build_horovod.py"
UV_PIN = ROOT / "tools" / "uv.txt"
OPS_LIBRARY = ROOT / "build" / "custom_ops" / "libtftrain_ops.so"
OPS_SOURCES = ("custom_ops", "tools/bazel", "tools/bazel_rules", "WORKSPACE", ".bazelrc")
TAIL_LINES = 30
# The first one by default. Each has lock files; only the first one's include CUDA packages.
TENSORFLOWS = ("2.20", "2.21")

# A library with GPU kernels has the code of CUDA's runtime in it.
CUDA_MARK = b"__cudaRegisterFatBinary"


class SetupError(Exception):
    """The set-up cannot go on; the message says why and what to do."""


@dataclass(frozen=True)
class Step:
    """One piece of work.

    Attributes:
        name: names the stamp and the log.
        title: what is printed while it runs.
        key: all that the result depends on; the step is skipped while its stamp says the same.
        commands: run one after the other.
    """

    name: str
    title: Callable[[], str]
    key: str
    commands: tuple[tuple, ...]


@dataclass(frozen=True)
class Choices:
    """What the environment is for. A choice that is not given is that of the last set-up.

    Attributes:
        gpu: TensorFlow with its CUDA packages, and the GPU kernels of the fused ops.
        nccl: Horovod with NCCL; only for GPUs.
        ops: the fused ops.
        tf: TensorFlow's version, one of TENSORFLOWS.
    """

    gpu: bool = False
    nccl: bool = False
    ops: bool = True
    tf: str = TENSORFLOWS[0]

    @property
    def lock(self) -> Path:
        """The lock file of the packages."""
        return ROOT / f"requirements{'-gpu' * self.gpu}{f'-tf{self.tf}' * (self.tf != TENSORFLOWS[0])}.lock"

    @property
    def kind(self) -> str:
        """The kind of environment, in words: those after the first one are not the defaults."""
        return " ".join(["gpu" if self.gpu else "cpu"] + [self.tf] * (self.tf != TENSORFLOWS[0]))

    @classmethod
    def of_stamps(
        cls, gpu: str | None = None, nccl: str | None = None, ops: str | None = None, tf: str | None = None
    ) -> "Choices":
        """Returns the choices; "1", "0" or a version, or None for one that is not given."""
        kind, without = (
            (STAMPS / name).read_text() if (STAMPS / name).exists() else "" for name in ("kind", "without")
        )
        was_gpu, tf_before = kind.startswith("gpu"), [*kind.split()[1:], TENSORFLOWS[0]][0]
        is_gpu = was_gpu if gpu is None else gpu == "1"
        # Another kind of environment has made no choice yet.
        before = without.split() if is_gpu and was_gpu else []
        is_with = {
            name: name not in before if choice is None else choice == "1"
            for name, choice in (("nccl", nccl), ("ops", ops))
        }
        return cls(is_gpu, is_gpu and is_with["nccl"], is_with["ops"], tf or tf_before)

    def write(self) -> None:
        """Stores the choices for the next set-up."""
        STAMPS.mkdir(parents=True, exist_ok=True)
        (STAMPS / "kind").write_text(self.kind)
        (STAMPS / "without").write_text(" ".join(["nccl"] * (not self.nccl) + ["ops"] * (not self.ops)))


def say(message: str, end: str = "\n") -> None:
    """Prints one line, or its beginning, at once."""
    print(f"[setup] {message}", end=end, flush=True)


def digest(*parts: object) -> str:
    """Hashes files by content and anything else by its text."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part.read_bytes() if isinstance(part, Path) else str(part).encode())
        sha.update(b"\0")
    return sha.hexdigest()


def duration(seconds: float) -> str:
    """Writes a duration as people do: 8.1 s, 1m52s."""
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds) // 60}m{int(seconds) % 60:02d}s"


def environment() -> dict[str, str]:
    """Returns the environment of the steps' commands: pip's settings for index and certificates hold for uv too."""
    result = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", PYTHONUNBUFFERED="1")
    for pip_name, uv_name in (("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), ("PIP_CERT", "SSL_CERT_FILE")):
        if pip_name in result:
            result.setdefault(uv_name, result[pip_name])
    # uv brings certificates of its own; those of the machine also know a company's proxy, but a bare machine has none.
    paths = ssl.get_default_verify_paths()
    if paths.cafile or (paths.capath and any(Path(paths.capath).iterdir())):
        result.setdefault("UV_SYSTEM_CERTS", "1")
    # An active environment of the caller's must not be mistaken for ours.
    # NVIDIA's containers constrain pip to the versions of their own packages.
    for name in ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "PIP_CONSTRAINT"):
        result.pop(name, None)
    return result


def run_logged(command: tuple, log: Path, on_wait: Callable[[], None]) -> int:
    """Runs one command with its output appended to `log`; calls `on_wait` twice a second; returns the exit status."""
    with log.open("a") as output:
        output.write("$ " + " ".join(map(str, command)) + "\n")
        output.flush()
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(),
            cwd=ROOT,
        )
        try:
            while True:
                try:
                    return process.wait(timeout=0.5)
                except subprocess.TimeoutExpired:
                    on_wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()


def run_step(step: Step) -> None:
    """Does one step unless its stamp says that it is done."""
    stamp = STAMPS / step.name
    if stamp.exists() and stamp.read_text() == step.key:
        return
    stamp.unlink(missing_ok=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{step.name}.log"
    log.write_text("")
    title = step.title()
    started = time.monotonic()

    def show_elapsed() -> None:
        if sys.stdout.isatty():
            print(f"\r[setup] {title} ... {duration(time.monotonic() - started)} ", end="", flush=True)

    say(f"{title} ...", end="")
    for command in step.commands:
        status = run_logged(command, log, show_elapsed)
        if status:
            print(" failed", flush=True)
            tail = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
            raise SetupError("\n".join([f"{title}: exit status {status}. The whole log: {log}", *tail]))
    # On a terminal, overwrite the elapsed time, and blank the rest of the old line.
    before, after = (f"\r[setup] {title} ...", "   ") if sys.stdout.isatty() else ("", "")
    print(f"{before} done in {duration(time.monotonic() - started)}{after}", flush=True)
    STAMPS.mkdir(parents=True, exist_ok=True)
    stamp.write_text(step.key)


def venv_python() -> str | None:
    """Returns "VERSION BASE_PREFIX" of the Python in `.venv`, or None where it does not start."""
    if sys.prefix == str(VENV):
        return describe_python()
    probe = "import sys; print('%d.%d.%d' % sys.version_info[:3], sys.base_prefix)"
    try:
        result = subprocess.run([PYTHON, "-c", probe], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError:
        return None
    return result.stdout.strip() or None


def describe_python() -> str:
    """Returns "VERSION BASE_PREFIX" of the Python that runs this."""
    return f"{platform.python_version()} {sys.base_prefix}"


def prepare_venv(recreate_for_other_python: bool, choices: Choices) -> None:
    """Makes `.venv`; makes it again if it does not start, or is of another kind or another Python than requested.

    A change of kind starts afresh, because packages of the other kind would stay behind.
    """
    present = venv_python()
    kind = STAMPS / "kind"
    # The stamp is missing where an earlier run was stopped half-way.
    unusable = present is None or not (STAMPS / "venv").exists()
    other_python = recreate_for_other_python and present != describe_python()
    other_kind = kind.exists() and kind.read_text() != choices.kind
    if unusable or other_python or other_kind:
        if sys.prefix == str(VENV):
            # This Python is about to be deleted: go on with the one that it was made from.
            base = Path(sys._base_executable)
            os.execv(base, [str(base), *sys.argv])
        shutil.rmtree(VENV, ignore_errors=True)
        title = f"creating .venv with Python {platform.python_version()} ({sys.executable})"
        run_step(Step("venv", lambda: title, describe_python(), ((sys.executable, "-m", "venv", VENV),)))
    choices.write()


def horovod_title(nccl: bool) -> str:
    """Says whether Horovod's step will take seconds or minutes."""
    command = [PYTHON, BUILD_HOROVOD, "--find", *(["--gpu"] if nccl else [])]
    find = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    kind = "Horovod with NCCL" if nccl else "Horovod"
    if find.stdout.strip():
        return f"installing {kind} from the cached wheel"
    once = "once per Python version, MPI, CUDA and NCCL" if nccl else "once per Python version and MPI"
    return f"building {kind} (some minutes, {once})"


def ops_step(packages_key: str, gpu: bool) -> Step | None:
    """Builds the fused ops with Bazel; again when a source changed, or when `make clean` took the library away.

    Returns None if that would replace a library with GPU kernels, which was built by hand, by one without them.
    """
    if not OPS_LIBRARY.exists():
        (STAMPS / "ops").unlink(missing_ok=True)
    places = [ROOT / source for source in OPS_SOURCES]
    sources = sorted(path for place in places for path in [place, *place.rglob("*")] if path.is_file())
    kernels, options = "", ()
    if gpu:
        toolkit = cuda_toolkit.toolkit(os.environ, cuda_toolkit.driver(os.environ))
        kernels = f" with GPU kernels by nvcc {cuda_toolkit.words(toolkit.version)}"
        options = ("--config=cuda", f"--action_env=NVCC={toolkit.home}/bin/nvcc")
    title = f"building the fused ops{kernels} (some minutes the first time)"
    key = digest(packages_key, kernels, *(part for path in sources for part in (path.relative_to(ROOT), path)))
    stamp = STAMPS / "ops"
    if not gpu and OPS_LIBRARY.exists() and (not stamp.exists() or stamp.read_text() != key) and has_cuda(OPS_LIBRARY):
        say(
            f"{OPS_LIBRARY.relative_to(ROOT)} stays: it has GPU kernels, and this set-up would build none; delete it "
            "to build it again, or run `make setup GPU=1`"
        )
        return None
    return Step("ops", lambda: title, key, ((ROOT / "tools" / "bazel", "run", *options, "//custom_ops:install"),))


def has_cuda(library: Path) -> bool:
    """Whether a library of fused ops has GPU kernels."""
    return CUDA_MARK in library.read_bytes()


def plan_steps(choices: Choices) -> list[Step]:
    """Lists the steps that fill an existing environment, in order."""
    packages_key = digest(choices.lock, UV_PIN, venv_python())
    horovod_key = digest(BUILD_HOROVOD, packages_key, horovod_features.of_machine(choices.nccl).key)
    project = ROOT / "pyproject.toml"
    pip_install = (PYTHON, "-m", "pip", "install", "--require-hashes", "--no-deps", "--only-binary=:all:")
    # Containers often forbid Python to write bytecode; without any, every start would compile all of TensorFlow again.
    uv_install = (UV, "pip", "install", "--compile-bytecode", "--python", PYTHON)
    return [
        Step(
            "packages",
            lambda: f"installing the packages of {choices.lock.name}",
            packages_key,
            (
                (*pip_install, "--requirement", UV_PIN),
                (*uv_install, "--require-hashes", "--no-deps", "--requirement", choices.lock),
            ),
        ),
        Step(
            "horovod",
            lambda: horovod_title(choices.nccl),
            horovod_key,
            ((PYTHON, BUILD_HOROVOD, *(["--gpu"] if choices.nccl else [])),),
        ),
        Step(
            "project",
            lambda: "installing tftrain in editable form",
            digest(project, packages_key, str(ROOT)),
            ((*uv_install, "--no-deps", "--no-build-isolation", "--editable", ROOT),),
        ),
        *([ops] if choices.ops and (ops := ops_step(packages_key, choices.gpu)) else []),
    ]


def parse_arguments() -> argparse.Namespace:
    """Parses what tools/setup.sh hands over."""
    parser = argparse.ArgumentParser(description="Bring .venv to the state that the lock files describe.")
    parser.add_argument(
        "--gpu",
        choices=("0", "1"),
        help="1: TensorFlow with its CUDA packages, Horovod with NCCL, fused ops with GPU kernels; 0: none of them. "
        "Without it, whatever .venv is already, and 0 for a new one.",
    )
    parser.add_argument("--nccl", choices=("0", "1"), help="0: Horovod without NCCL, on GPUs too")
    parser.add_argument("--tf", choices=TENSORFLOWS, help="TensorFlow's version; 2.21 on CPUs alone")
    parser.add_argument("--ops", choices=("0", "1"), help="0: leave out the fused ops and Bazel")
    parser.add_argument(
        "--recreate-for-other-python",
        action="store_true",
        help="make .venv again where it belongs to another Python than the one that runs this",
    )
    return parser.parse_args()


def main() -> int:
    """Runs the steps that are due and returns the exit status."""
    started = time.monotonic()
    arguments = parse_arguments()
    if platform.system() != "Linux":
        raise SetupError(f"Linux is needed: TensorFlow Text publishes no wheels for {platform.system()}")
    # One set-up at a time in one checkout. The lock is on this file, so there is none to clean up.
    with Path(__file__).open("r+") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this checkout to end")
            fcntl.flock(held, fcntl.LOCK_EX)
        choices = Choices.of_stamps(arguments.gpu, arguments.nccl, arguments.ops, arguments.tf)
        if not choices.lock.exists():
            raise SetupError(f"TF={choices.tf} has no lock file for GPUs; GPU=1 takes TF={TENSORFLOWS[0]}")
        if choices.gpu and (refusal := cuda_toolkit.refusal(os.environ, choices.nccl, choices.ops)):
            raise SetupError(refusal)
        prepare_venv(arguments.recreate_for_other_python, choices)
        for step in plan_steps(choices):
            run_step(step)
    say(f"ready: .venv, Python {venv_python().split()[0]} ({duration(time.monotonic() - started)})")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (SetupError, OSError) as error:
        print(f"[setup] error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("\n[setup] interrupted; run it again to go on", file=sys.stderr)
        sys.exit(130)
