"""XLA's compiler for GPUs on a machine without one: the clusters of a training step, each as the GPU would run it.

TensorFlow's wheel has the compiler; tools/gpu_compiler.cc calls it with the sizes of a GPU. Products are not timed
(`xla_gpu_autotune_level` 0), unless results of a GPU run are given: the choice between Triton and cuBLAS is that of
the flags. Fused ops are calls whose content XLA never sees, so their library needs no CUDA kernels here.
"""

import contextlib
import ctypes
import functools
import hashlib
import itertools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tensorflow as tf
from tensorflow.python.ops import handle_data_util
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

from tftrain.bench.config import run_config
from tftrain.data import pipeline
from tftrain.host import devices
from tftrain.inputs.inputs import Inputs
from tftrain.ops import library
from tftrain.optim import state
from tftrain.parallel import collectives
from tftrain.parallel.graph_collectives import operations
from tftrain.parallel.mesh import Mesh
from tftrain.parallel.pending_collectives import PendingCollectives
from tftrain.state.new_run import new_run
from tftrain.tasks import sources
from tftrain.train.step import Requests, TrainStep

HOPPER = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth} l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: {memory}
  cuda_compute_capability {{ major: 9 }}
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} runtime_version {{ major: 12 minor: 5 }}
device_description_str: "{name}"
"""


class Card(NamedTuple):
    """A GPU: XLA's description of it as text, and the bytes and operations a second of NVIDIA's data sheet."""

    target: str
    bandwidth: float
    flops: float  # dense products in bf16


def _hopper(name: str, bandwidth: int, memory: int) -> Card:
    return Card(HOPPER.format(name=name, bandwidth=bandwidth, memory=memory), bandwidth, 989e12)


CARDS = {
    "h100": _hopper("NVIDIA H100 80GB HBM3", 3_350_000_000_000, 85_899_345_920),
    "h200": _hopper("NVIDIA H200", 4_800_000_000_000, 150_000_000_000),
}
UNTIMED = "xla_gpu_autotune_level: 0"
CUBLAS = f"{UNTIMED} xla_gpu_enable_triton_gemm: false"


class CompilerError(Exception):
    """A program can't be compiled; the message says why and what to do."""


class Cluster(NamedTuple):
    """A function that XLA compiles: its graph, serialized, and its arguments, as tools/gpu_compiler.cc reads them."""

    name: str
    graph: bytes
    arguments: str
    calls: int = 1  # in a step


class Compiled(NamedTuple):
    """The programs of a cluster before and after XLA's passes; a line of fields for each instruction, see `Row`."""

    unoptimized: str
    optimized: str
    rows: str


@functools.cache
def _library() -> ctypes.CDLL:
    tensorflow, source = Path(tf.__file__).parent, Path(__file__).with_suffix(".cc")
    libraries = [tensorflow / f"libtensorflow_{name}.so.2" for name in ("cc", "framework")]
    options = ["-std=c++17", "-w", "-fPIC", "-shared", f"-I{tf.sysconfig.get_include()}"]
    key = hashlib.sha256(source.read_bytes() + tf.__version__.encode()).hexdigest()[:16]
    built = source.parents[1] / "build" / "gpu_compiler" / f"{key}.so"
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as folder:
            if not shutil.which("g++"):
                raise CompilerError(f"no g++ on PATH, which builds {source.name}; install it")
            if subprocess.run(["g++", *options, "-o", f"{folder}/new.so", source, *libraries]).returncode:
                raise CompilerError(f"g++ can't build {source.name} with TensorFlow {tf.__version__}: see above")
            Path(folder, "new.so").replace(built)
    found = ctypes.CDLL(str(built))
    found.compile.restype = ctypes.c_char_p
    if not library.unavailable_reason(gpu=False) and library.unavailable_reason(gpu=True):
        ops = library.counters()
        ops.tftrain_ops.restype = ctypes.POINTER(ctypes.c_char_p)
        for name in itertools.islice(itertools.takewhile(bool, ops.tftrain_ops()), 0, None, 2):
            found.register_call(name)
    return found


def compiled(cluster: Cluster, flags: str, card: str = "h100", to_the_end: bool = True) -> Compiled:
    """Compiles a cluster.

    Args:
        cluster: of a step, see `clusters`.
        flags: XLA's DebugOptions, as text.
        card: one of CARDS.
        to_the_end: whether to machine code, which needs CUDA's ptxas; else `rows` are empty.
    """
    if card not in CARDS:
        raise CompilerError(f"{card}: expected a card whose sizes tools/gpu_compiler.py has: {', '.join(CARDS)}")
    if to_the_end and not shutil.which("ptxas"):
        raise CompilerError("no ptxas on PATH, which makes machine code; install CUDA, or pip install nvidia-cuda-nvcc")
    texts = [ctypes.c_char_p() for _ in range(3)]
    given = (cluster.name.encode(), cluster.arguments.encode(), CARDS[card].target.encode(), flags.encode())
    size = ctypes.c_int64(len(cluster.graph))
    error = _library().compile(cluster.graph, size, *given, to_the_end, *map(ctypes.byref, texts))
    if error:
        raise CompilerError(error.decode(errors="replace"))
    return Compiled(*(text.value.decode() for text in texts))


@contextlib.contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Makes the choices of a run on a GPU; a collective outside of graphs returns the first rank's values."""
    together = collectives._together

    def in_graphs(group, kind, name, tensors, operation):
        return tensors[0] if tf.executing_eagerly() else together(group, kind, name, tensors, operation)

    with (
        mock.patch.object(devices, "has_gpu", return_value=True),
        mock.patch.object(collectives, "_together", in_graphs),
        mock.patch.object(library, "unavailable_reason", return_value=None),
        mock.patch.object(state, "own_copy", lambda tensor: tensor),
    ):
        yield


def clusters(flags: Sequence[str], ranks: int = 1) -> list[Cluster]:
    """Returns the clusters of a training step with flags of tftrain.run, in the order of its graph."""
    pending = PendingCollectives() if ranks > 1 else None
    graph = tf.__internal__.FuncGraph("run")  # in which initial values are not computed
    with as_on_a_gpu(), tf.variable_creator_scope(_without_memory):
        config = run_config(flags)
        with graph.as_default():
            step = TrainStep(new_run(config, Mesh(size=ranks, local_size=ranks, pending=pending)))
        source = sources.open_source(step._run.task, Inputs.open(config).data[0], "train", 0)
        size = config.batch.micro_batch_size * config.batch.grad_accum_steps
        batch = next(iter(pipeline.train_batches(source, config.data, 0, 0, size, 0, size)))
        with graph.as_default():
            specs = {name: tf.TensorSpec(each.shape, each.dtype) for name, each in batch.items()}
            return list(clusters_of(step.traced(specs, Requests()).graph))


def _without_memory(_, initial_value, name=None, trainable=True, dtype=None, **_others) -> tf.Variable:
    value = tf.convert_to_tensor(initial_value() if callable(initial_value) else initial_value, dtype)
    return UninitializedVariable(trainable=trainable, shape=value.shape, dtype=value.dtype, name=name)


def cluster_of(function: Callable, *specs: tf.TensorSpec) -> Cluster:
    """Returns the cluster of a function of tensors."""
    inner = tf.function(function, jit_compile=True, autograph=False)
    (cluster,) = clusters_of(tf.function(lambda *given: inner(*given)).get_concrete_function(*specs).graph)
    return cluster


def clusters_of(graph: tf.Graph) -> Iterator[Cluster]:
    """Yields the functions of a traced graph that XLA must compile."""
    bytes_of_graph = graph.as_graph_def().SerializeToString()
    for op in operations(graph):
        if op.type in ("PartitionedCall", "StatefulPartitionedCall") and _must_compile(op):
            yield Cluster(op.get_attr("f").name, bytes_of_graph, "\n".join(map(_argument, op.inputs)))


def _must_compile(op: tf.Operation) -> bool:
    with contextlib.suppress(ValueError):
        return op.get_attr("_XlaMustCompile")
    return False


def _argument(tensor: tf.Tensor) -> str:
    kind, dtype, shape = "tensor", tensor.dtype.as_datatype_enum, tensor.shape
    if tensor.dtype == tf.resource:
        (data,) = handle_data_util.get_resource_handle_data(tensor).shape_and_type
        kind, dtype, shape = "variable", data.dtype, tf.TensorShape(data.shape)
    return " ".join(map(str, [kind, dtype, *shape]))
