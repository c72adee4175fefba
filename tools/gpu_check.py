"""Checks on a GPU: what is right, what is fast, and a BERT-large step, in parts of 8 minutes with a table each.

    python tools/gpu_check.py                             # all parts, one after the other
    python tools/gpu_check.py --part=right                # one part
    python tools/gpu_check.py --platform=cpu --part=right # the same checks of the kernels of the CPU

| part | shows | needs |
| --- | --- | --- |
| build | the library compiles | nvcc, JAX for XLA's headers |
| right | every op beside fp64 NumPy, and a program with every op, called again and again | JAX |
| step | a training step of BERT large: log, CUDA graphs, cuDNN, 128 samples | TensorFlow, of `make setup GPU=1` |
| levers | the same step with cuBLASLt, without fused ops, without XLA | TensorFlow |
| models | a step of GPT medium, and of ModernBERT large with 1,024 and 8,192 tokens | TensorFlow |
| fast | every op's time, beside that of a copy and of PyTorch | JAX; PyTorch for its columns |
| attention | flash attention beside cuDNN's and PyTorch's, with windows and shared keys | JAX, PyTorch |

The parts are in the order in which they inform. A part writes its table after every row, leaves out the rows for which
its time is too short, and says so; if it hangs, the system ends it. `--library` names a library that was built
elsewhere. No network is needed. The tool exits with 1 if a part failed or a result is wrong.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import gpu_step
from gpu_page import Page, PartError

ROOT = Path(__file__).resolve().parent.parent

PARTS = ("build", "right", *gpu_step.PARTS, "fast", "attention")
MINUTES = 8.0
DTYPES = ("bfloat16", "float16", "float32")
BUILT = ROOT / "build" / "gpu_check" / "libtftrain_ffi.so"


def run_part(part: str, arguments: argparse.Namespace) -> bool:
    """Runs one part in this process, whose end the system enforces; returns whether all is right."""
    signal.alarm(max(1, round(60 * arguments.minutes)))

    def page(columns: Sequence[str]) -> Page:
        return Page(arguments.output / f"gpu_{part}.csv", columns, 60 * arguments.minutes)

    if part in gpu_step.PARTS:
        rows = gpu_step.PARTS[part]
        names = arguments.rows.split(";") if arguments.rows else list(rows)
        if unknown := set(names) - set(rows):
            raise PartError(f"--rows: expected some of {'; '.join(rows)}, given {'; '.join(sorted(unknown))}")
        return not gpu_step.measure(page, {name: rows[name] for name in names}, arguments.logs).failed
    try:
        import gpu_handlers
    except ImportError as error:
        raise PartError(f"{part}: {error}; it needs JAX with CUDA, beside this Python") from error
    gpu_handlers.configure(arguments.platform)
    if part == "build":
        gpu_handlers.build(arguments.platform, BUILT.parent)
        return True
    library = arguments.library or BUILT
    if not library.exists():
        raise PartError(f"{library} does not exist; build it with --part=build, or name one with --library")
    gpu_handlers.register(library.resolve(), arguments.platform)
    if part == "right":
        import gpu_right

        return not gpu_right.check(page, arguments.seed).failed
    import gpu_fast
    import gpu_flash

    measure = {"fast": gpu_fast.measure, "attention": gpu_flash.measure}[part]
    return not measure(page, arguments.dtypes.split(","), not arguments.without_torch).failed


def run_all(parts: Sequence[str], given: Sequence[str], tensorflow_python: Path) -> list[str]:
    """Runs parts, each in a process of its own, whether one fails or not; returns those that failed."""
    failed = []
    for part in parts:
        python = tensorflow_python if part in gpu_step.PARTS and tensorflow_python.exists() else Path(sys.executable)
        print(f"{part} ...", flush=True)
        begin = time.monotonic()
        status = subprocess.run([python, __file__, f"--part={part}", *given]).returncode
        print(f"{part}: {'done' if status == 0 else f'exit status {status}'} in {time.monotonic() - begin:.0f} s")
        failed += [part] if status else []
    return failed


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, help="run this part alone; by default all, in order")
    parser.add_argument("--platform", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--library", type=Path, help="an existing libtftrain_ffi.so; then none is built")
    parser.add_argument("--output", type=Path, help="folder of the tables; by default docs/results/data")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="time of each part")
    parser.add_argument("--dtypes", default="bfloat16,float32", help="dtypes to time; the checks use all dtypes")
    parser.add_argument("--without_torch", action="store_true", help="leave PyTorch out")
    parser.add_argument(
        "--tensorflow_python", type=Path, default=ROOT / ".venv/bin/python", help="Python of training steps"
    )
    parser.add_argument("--rows", help="rows of a part of training steps, separated by ';', in order; by default all")
    parser.add_argument(
        "--logs", type=Path, default=BUILT.parent / "logs", help="folder of what each training step prints"
    )
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32, help="seed of the checks' inputs")
    arguments = parser.parse_args(argv)
    if arguments.minutes <= 0:
        parser.error(f"--minutes={arguments.minutes}: expected minutes above 0")
    if unknown := set(arguments.dtypes.split(",")) - set(DTYPES):
        parser.error(f"--dtypes: expected some of {', '.join(DTYPES)}, given {', '.join(sorted(unknown))}")
    if arguments.rows and arguments.part not in gpu_step.PARTS:
        parser.error(f"--rows: expected --part={'|'.join(gpu_step.PARTS)}, given --part={arguments.part or 'all'}")
    if arguments.library and not arguments.library.exists():
        parser.error(f"--library={arguments.library}: no such file")
    if arguments.platform == "cpu" and arguments.part not in ("build", "right"):
        parser.error(f"--platform=cpu: expected --part=build or --part=right, given --part={arguments.part}")
    folder = ROOT / "docs/results/data" if arguments.platform == "gpu" else BUILT.parent
    arguments.output = arguments.output or folder
    return arguments


def main(argv: Sequence[str]) -> int:
    """Runs the program with its flags; returns the exit status."""
    arguments = parse(argv)
    if arguments.part is None:
        parts = [part for part in PARTS if part != "build" or arguments.library is None]
        return 1 if run_all(parts, argv, arguments.tensorflow_python) else 0
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs memory too
    try:
        return 0 if run_part(arguments.part, arguments) else 1
    except PartError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
