"""What a training step is on a GPU, kernel by kernel, as XLA compiles it: the budget of its time. It needs no GPU.

    .venv/bin/python tools/gpu_budget.py                                          # all programs, some minutes each
    .venv/bin/python tools/gpu_budget.py --programs='bert large' --card=h200 --largest=20
    .venv/bin/python tools/gpu_budget.py --programs='bert large' --flags='--micro_batch_size=128'
    .venv/bin/python tools/gpu_budget.py --programs='bert large' --autotune_results=build/autotune_results.txt

A kernel's time at the limit is the longer one of its operations at the peak of products and its bytes at the bandwidth
of the data sheet. `--autotune_results` has XLA's choices on a GPU (`--xla_gpu_dump_autotune_results_to`); else products
are those of cuBLAS and cuBLASLt. It needs CUDA's ptxas.

In the last table, a loop of "9?" is one of 9 runs that the host counts: it waits for the device in each. XLA records a
CUDA graph again if an address in it has changed, as those of a program's arguments and results may, and each call of a
fused op costs some microseconds then.
"""

import argparse
import collections
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
from gpu_compiler import CARDS, CUBLAS, UNTIMED, Cluster, CompilerError, clusters, compiled
from gpu_forms import Form

from tftrain.config.fields import ConfigError
from tftrain.ops.library import MissingLibraryError

LT = "xla_gpu_enable_cublaslt: true"  # as tftrain.run has it on GPUs
RUN = f"{CUBLAS} {LT}"
IMPLEMENTATIONS = ("ln_impl", "attn_softmax_impl", "gelu_impl", "dropout_add_impl")
PLAIN, FUSED = (" ".join(f"--{name}={value}" for name in IMPLEMENTATIONS) for value in ("reference", "fused"))
PLAIN, FUSED = f"{PLAIN} --optimizer=reference_lamb", f"{FUSED} --optimizer=fused_lamb --attn_impl=flash"
STEP = "--synthetic_data --precision=bf16 --jit_compile=true --grad_accum_steps=1 --max_steps=1 --output_dir=unused"
BASE = "--num_hidden_layers=12 --hidden_size=768 --num_attention_heads=12"
LARGE = "--num_hidden_layers=24 --hidden_size=1024 --num_attention_heads=16"
BERT = "--model_family=bert --vocab_size=30522 --max_seq_length=512 --micro_batch_size=32"
LONG = "--max_position_embeddings=1024 --max_seq_length=1024 --micro_batch_size=16"
GPT = f"--model_family=gpt --vocab_size=50257 {LONG}"
LLAMA = f"--model_family=llama --vocab_size=128256 {LONG}"
MODERN = "--model_family=modernbert --vocab_size=50368 --intermediate_size=1152"
GATED = FUSED.replace("--dropout_add_impl=fused", "")  # a residual add without bias has no fused op
# Flags of tftrain.run, and ranks.
PROGRAMS = {
    "bert large": (f"{BERT} {LARGE} {FUSED}", 1),
    "bert large, plain": (f"{BERT} {LARGE} {PLAIN}", 1),
    "bert large, 8 ranks": (f"{BERT} {LARGE} {FUSED}", 8),
    "bert base": (f"{BERT} {BASE} {FUSED}", 1),
    "gpt large": (f"{GPT} {LARGE} {FUSED}", 1),
    "gpt base": (f"{GPT} {BASE} {FUSED}", 1),
    "llama large": (f"{LLAMA} {LARGE} {GATED}", 1),
    "llama base": (f"{LLAMA} {BASE} {GATED}", 1),
    "modernbert base": (f"{MODERN} {LONG} {BASE} --num_hidden_layers=22 {GATED}", 1),
}
SUMS = ("kernels", "TFLOP", "GB", "ms at the limit")
MOVED = 1_000_000  # bytes of a copy or transpose from which on it is listed
CALLS = {
    "cublas": "products",
    "fmha": "attention",
    "Attention": "attention",
    "Norm": "norms",
    "elu": "activations",
    "glu": "activations",
    "BiasDropoutAdd": "bias, dropout, add",
}
MOVES = {"copy", "transpose", "slice", "concatenate", "reshape", "pad", "reverse"}
INDEXED = {"scatter", "gather", "dynamic-slice", "dynamic-update-slice"}
HOST = {"send", "recv", "send-done", "recv-done", "infeed", "outfeed", "copy-start", "copy-done"}


class Row(NamedTuple):
    """An instruction of a compiled program, as tools/gpu_compiler.cc writes it."""

    times: str  # how often a step runs it
    graph: str  # the CUDA graph that has it, or ""
    loop: str  # the loop that has it, or ""
    opcode: str
    name: str
    kind: (
        str  # target of a call; kind and instructions of a fusion; runs of a loop, and "?" if the host asks the device
    )
    flops: str
    bytes: str
    shape: str
    operands: str  # the kind of a parameter of the program comes before its shape
    result: str  # "result" if it is one of the program's
    source: str
    config: str

    @property
    def parts(self) -> dict[str, int]:
        """Bytes of the results of a fusion's instructions, by opcode the largest one."""
        sizes = collections.Counter()
        for opcode, size in re.findall(r"([\w-]+):(\d+)", self.kind if self.opcode == "fusion" else ""):
            sizes[opcode] = max(sizes[opcode], int(size))
        return sizes

    @property
    def category(self) -> str:
        """The class of the table."""
        if self.opcode in HOST or "S(5)" in self.shape:
            return "host transfers"
        if self.opcode == "custom-call":
            return next((value for key, value in CALLS.items() if key in self.kind), "other calls")
        parts = set(self.parts or [self.opcode])
        if "dot" in parts or "gemm" in self.kind:
            return "products"
        if parts <= {*MOVES, "bitcast", "tuple"}:
            return "copies"
        if parts & INDEXED:
            return "look-ups"
        if parts <= {"convert", "bitcast", "tuple", "broadcast"}:
            return "casts, fills"
        return "reductions" if "reduce" in parts else "elementwise"

    @property
    def moved_bytes(self) -> int:
        """Bytes of a copy or transpose, alone or in a fusion."""
        if self.category == "copies":
            return sum(map(bytes_of, SHAPE.findall(self.shape)))
        return max(self.parts.get("transpose", 0), self.parts.get("copy", 0))

    @property
    def cost(self) -> tuple[float, float]:
        """Operations of one run, and the least bytes: XLA counts a tensor again for each pass of a kernel over it."""
        shapes = [each for each in SHAPE.findall(f"{self.operands} {self.shape}") if each[0] not in WORKSPACE]
        once = float(sum(map(bytes_of, shapes)))
        if self.opcode == "custom-call":  # XLA does not know the others
            return max(float(self.flops), attention_flops(self)), once
        return float(self.flops), min(float(self.bytes), once)


WORKSPACE = ("u8", "s8")
SHAPE = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")


def bytes_of(shape: tuple[str, str]) -> int:
    """Returns the bytes of a shape of HLO, its type and its dimensions."""
    bits = int((re.findall(r"\d+", shape[0]) or ["8"])[0])
    return math.prod(map(int, filter(None, shape[1].split(",")))) * bits // 8


def attention_flops(row: Row) -> float:
    """Returns the operations of flash attention, or of cuDNN's; 0 for other calls."""
    if "FlashAttention" not in row.kind and "fmha" not in row.kind:
        return 0.0
    batch, length, heads, size = map(int, SHAPE.search(row.operands)[2].split(","))
    causal = bool(re.search(r"causal = true|CAUSAL", row.config))
    window = int((re.findall(r"window = (-?\d+)", row.config) or [-1])[0])
    backward = "Grad" in row.kind or "Backward" in row.kind
    return Form(batch, length, heads, size, causal, window=window).operations("backward" if backward else "forward")


class Budget:
    """The instructions of a step and their sums."""

    def __init__(self, programs: Sequence[str], card: str):
        """Reads the rows of the step's compiled clusters."""
        numbered = [(i, line.split("\t")) for i, rows in enumerate(programs) for line in rows.splitlines()]
        self.rows = [Row(times, graph and f"{i} {graph}", *others) for i, (times, graph, *others) in numbered]
        self.loops = [row for row in self.rows if row.opcode == "while"]
        self.kernels = [row for row in self.rows if row.opcode not in ("while", "conditional")]
        self.graphs = len({row.graph for row in self.rows} - {""})
        self._card = CARDS[card]

    def seconds(self, row: Row) -> float:
        """Returns the time at the limit of all runs of an instruction."""
        flops, size = row.cost
        return int(row.times) * max(flops / self._card.flops, size / self._card.bandwidth)

    def sums(self, rows: Sequence[Row]) -> dict[str, float]:
        """Returns the sums over rows: runs, TFLOP, GB, ms at the limit."""
        times = [int(row.times) for row in rows]
        flops, size = (sum(n * row.cost[i] for n, row in zip(times, rows, strict=True)) for i in (0, 1))
        seconds = sum(map(self.seconds, rows))
        return {"kernels": sum(times), "tflop": flops / 1e12, "gb": size / 1e9, "ms": 1000 * seconds}

    def by_class(self) -> dict[str, dict[str, float]]:
        """Returns the sums by class, that with the longest time first."""
        groups = collections.defaultdict(list)
        for row in self.kernels:
            groups[f"{row.category} in loops" if row.loop else row.category].append(row)
        found = {name: self.sums(rows) for name, rows in groups.items()}
        return dict(sorted(found.items(), key=lambda item: -item[1]["ms"]))

    @property
    def copied_gb(self) -> float:
        """GB of the copies and transposes of at least MOVED bytes."""
        return sum(int(row.times) * row.moved_bytes for row in self.kernels if row.moved_bytes >= MOVED) / 1e9

    @property
    def fused_calls(self) -> list[Row]:
        """Calls of fused ops and of cuDNN, which a CUDA graph records anew if an address has changed."""
        calls = (row for row in self.kernels if row.opcode == "custom-call")
        return [row for row in calls if row.kind.startswith("Tftrain") or "fmha" in row.kind]

    @property
    def calls_with_arguments(self) -> list[Row]:
        """Calls of fused ops that read an argument of their program that is no variable, such as the batch."""
        return [row for row in self.fused_calls if "tensor " in row.operands]

    def facts(self) -> dict[str, str]:
        """Returns what the classes do not show, in words, by the names of the columns of `summary`."""
        runs = sorted(collections.Counter(row.kind for row in self.loops).items())
        outside = sum(int(row.times) for row in self.kernels if not row.graph)
        return {
            "loops": ", ".join(f"{count} of {trips}" for trips, count in runs) or "none",
            "GB of copies": f"{self.copied_gb:.1f}",
            "host transfers": str(sum(row.category == "host transfers" for row in self.rows)),
            "graphs": str(self.graphs),
            "kernels outside": str(outside),
            "calls": str(len(self.fused_calls)),
            "with arguments": str(len(self.calls_with_arguments)),
            "with results": str(sum(bool(row.result) for row in self.fused_calls)),
        }


def budget(name: str, card: str, xla_flags: str = RUN, more: Sequence[str] = ()) -> Budget:
    """Compiles a program of PROGRAMS with more flags of tftrain.run; for `xla_flags`, see `compiled`."""
    flags, ranks = PROGRAMS[name]
    found: list[Cluster] = clusters([*STEP.split(), *flags.split(), *more], ranks)
    return Budget([compiled(each, xla_flags, card).rows for each in found], card)


def table(found: Budget) -> str:
    """Returns the table of a budget."""
    rows = {**found.by_class(), "sum": found.sums(found.kernels)}
    return _lines(["class", *SUMS], [[name, *_numbers(sums)] for name, sums in rows.items()])


def summary(budgets: dict[str, Budget]) -> str:
    """Returns a table with a row for each program: its sums, and its facts."""
    rows = [[name, *_numbers(each.sums(each.kernels)), *each.facts().values()] for name, each in budgets.items()]
    return _lines(["program", *SUMS, *next(iter(budgets.values())).facts()], rows)


def _numbers(sums: dict[str, float]) -> list[str]:
    return [f"{sums['kernels']}", f"{sums['tflop']:.2f}", f"{sums['gb']:.1f}", f"{sums['ms']:.1f}"]


def _lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(argv: Sequence[str]) -> int:
    """Prints a table for each program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=";".join(PROGRAMS), help='names, separated by ";"; by default all')
    parser.add_argument("--card", default="h200", help=f"one of {', '.join(CARDS)}")
    parser.add_argument("--flags", default="", help="more flags of tftrain.run, separated by blanks")
    parser.add_argument("--xla_flags", default="", help="more of XLA's DebugOptions, as text")
    parser.add_argument("--autotune_results", help="XLA's file of a GPU run")
    parser.add_argument("--largest", type=int, default=0, help="also print as many kernels, the longest ones first")
    arguments = parser.parse_args(argv)
    names = [each.strip() for each in arguments.programs.split(";")]
    if unknown := set(names) - set(PROGRAMS):
        parser.error(f"--programs: expected some of {'; '.join(PROGRAMS)}, given {'; '.join(sorted(unknown))}")
    if arguments.card not in CARDS:
        parser.error(f"--card: expected one of {', '.join(CARDS)}, given {arguments.card}")
    if arguments.largest < 0:
        parser.error(f"--largest={arguments.largest}: expected a number of at least 0")
    xla_flags = f"{RUN} {arguments.xla_flags}"
    if arguments.autotune_results:
        if not Path(arguments.autotune_results).is_file():
            parser.error(f"--autotune_results={arguments.autotune_results}: no such file")
        xla_flags = (
            f'{UNTIMED} {LT} xla_gpu_load_autotune_results_from: "{arguments.autotune_results}" {arguments.xla_flags}'
        )
    budgets = {}
    for name in names:
        try:
            budgets[name] = found = budget(name, arguments.card, xla_flags, arguments.flags.split())
        except (CompilerError, ConfigError, MissingLibraryError) as error:
            given = {flag: getattr(arguments, flag) for flag in ("xla_flags", "autotune_results")}
            hints = [f"; given --{flag}={value}" for flag, value in given.items() if value]
            print(f"{name}: {error}{''.join(hints)}", file=sys.stderr)
            return 1
        print(f"\n{name}, {arguments.card}\n\n{table(found)}", flush=True)
        for row in sorted(found.kernels, key=found.seconds, reverse=True)[: arguments.largest]:
            what = f"{row.times:>4} x {row.name} {row.category} {row.kind[:80]} {row.source}"
            print(f"{1000 * found.seconds(row):8.3f} ms {what}")
    print(f"\n{summary(budgets)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
