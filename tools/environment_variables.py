"""The environment variables that tftrain sets or reads, for docs/flags.md."""

from typing import NamedTuple

from tftrain import run
from tftrain.host import determinism, huge_pages
from tftrain.parallel.horovod_settings import speed_settings, stall_limits
from tftrain.parallel.launcher import Launch

HOST = Launch(size=2, local_size=2)
PLACES = {
    "on CPUs": speed_settings({}, HOST, cores=2),
    "on CPUs with a sharded state": speed_settings({}, HOST, cores=2, splits_state=True),
    "on GPUs": speed_settings({}, HOST, cores=2, gpu=True),
}
LIMITS = stall_limits({})


class Variable(NamedTuple):
    """A line of the table."""

    name: str
    default: str
    set_by: str
    meaning: str


def horovod(name: str, meaning: str) -> Variable:
    """Returns the line of a variable that each rank sets before Horovod starts, unless you set it."""
    places = {}
    for place, settings in PLACES.items():
        if name in settings:
            places.setdefault(settings[name], place)
    default = ", ".join(f"{value} {place}" for value, place in places.items())
    if len(places) == 1 and all(name in settings for settings in PLACES.values()):
        default = next(iter(places))
    return Variable(name, default, "the rank, unless you do", meaning)


def limit(name: str, meaning: str) -> Variable:
    """Returns the line of a time limit of Horovod."""
    return Variable(name, LIMITS[name], "the rank, unless you do", meaning)


VARIABLES = (
    horovod(
        "HOROVOD_CYCLE_TIME",
        "Milliseconds between two rounds in which the ranks agree on the next sums. Longer if ranks share cores. "
        "See [parallelism.md](parallelism.md).",
    ),
    horovod(
        "HOROVOD_ENABLE_ASYNC_COMPLETION",
        "1: the host does not wait until the GPU has finished a collective.",
    ),
    horovod(
        "HOROVOD_FUSION_THRESHOLD",
        "Most bytes that Horovod sums at once. tftrain sets it on CPUs with a sharded state "
        "(`--split_opt_state` and above). `--deterministic` sets 0.",
    ),
    horovod("HOROVOD_CACHE_CAPACITY", "Tensors of a process set that need no new agreement in each step."),
    limit("HOROVOD_STALL_CHECK_TIME_SECONDS", "Seconds after which Horovod warns that a rank is missing."),
    limit(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        "Seconds after which Horovod ends a run in which a rank is missing. 0 is an error.",
    ),
    Variable("HOROVOD_STALL_CHECK_DISABLE", "0", "nobody", "Any other value is an error: no run waits for ever."),
    Variable(
        "HOROVOD_AUTOTUNE",
        "Horovod's (0)",
        "you; the rank with `--deterministic`",
        "1: Horovod tries values of its settings while training. `--deterministic` sets 0.",
    ),
    Variable(
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        "Horovod's (30)",
        "you",
        "Seconds until a rank gives up a connection to another rank. `tftrain.launch` adds 20 seconds to it before it "
        "stops the other ranks of a failed run.",
    ),
    Variable(
        "HOROVOD_GLOO_IFACE",
        "the interface by which a host reaches the first host",
        "the launcher; you under Slurm",
        "Network interface of the ranks. With `tftrain.launch` use `--network_interfaces`.",
    ),
    Variable(
        "HOROVOD_GLOO_RENDEZVOUS_ADDR, HOROVOD_GLOO_RENDEZVOUS_PORT",
        "",
        "the launcher; you (port) under Slurm",
        "Where the ranks find each other.",
    ),
    Variable(
        "HOROVOD_JOB_TOKEN",
        "random",
        "the launcher; you under Slurm without a shared home, and under Ray",
        "Secret of a job. See [security.md](security.md).",
    ),
    Variable(
        "HOROVOD_CONTROLLER",
        "gloo",
        "you, under Slurm",
        "mpi: the ranks connect through MPI, with which Horovod must be built.",
    ),
    Variable(
        "HOROVOD_RANK, HOROVOD_SIZE, HOROVOD_LOCAL_RANK, HOROVOD_LOCAL_SIZE, HOROVOD_HOSTNAME",
        "",
        "the launcher",
        "Which rank this process is. The variables of Slurm, Open MPI and Intel MPI are read as well.",
    ),
    Variable("HOROVOD_ELASTIC", "", "horovodrun", "1: hosts can come and go. See [elastic.md](elastic.md)."),
    Variable(
        "HOROVOD_ELASTIC_TIMEOUT",
        "600",
        "you, or horovodrun",
        "Seconds that an elastic run waits for enough hosts.",
    ),
    Variable(
        "NCCL_SOCKET_IFNAME",
        "the interface of the ranks",
        "the launcher, unless you do",
        "Network interface of NCCL.",
    ),
    Variable(
        "NCCL_ALGO",
        "NCCL's choice",
        "you; the rank with `--deterministic`",
        f"Algorithm of NCCL's sums. `--deterministic` sets {determinism.ENVIRONMENT['NCCL_ALGO']}.",
    ),
    Variable(
        "XLA_FLAGS",
        "",
        "you; the rank adds to it",
        f"Flags of XLA; yours win. `--deterministic` adds `{determinism.XLA_FLAG}`; `--cuda_graphs=false` adds "
        "`--xla_gpu_enable_command_buffer=`; `--activation_checkpointing` adds "
        "`--xla_cpu_enable_concurrency_optimized_scheduler=false`; a run on a GPU `--xla_gpu_enable_cublaslt=true`; "
        "`--gradient_transport=xla` " + ", ".join(f"`{each}`" for each in run.SUMS_OF_XLA) + ".",
    ),
    Variable(
        "TF_CPP_MIN_LOG_LEVEL",
        "3; 2 for a run on GPUs",
        "each program, unless you do",
        "Least important messages of TensorFlow's C++ code: 0 shows all, 3 only fatal ones.",
    ),
    Variable("TF_USE_LEGACY_KERAS", "1", "each program, always", "TensorFlow uses the package tf-keras."),
    Variable(
        "TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS",
        "1 in workers",
        "`tftrain.prepare`, in its workers",
        "Threads of TensorFlow. For a run, use `--cpu_threads`.",
    ),
    Variable(
        "ARROW_DEFAULT_MEMORY_POOL",
        "system",
        "`tftrain.prepare`, unless you do",
        "Memory of Parquet and Arrow files. `system` returns memory at once.",
    ),
    Variable(
        "OMP_NUM_THREADS",
        "1 in workers",
        "`tftrain.prepare` in its workers, `--fork_ranks` in the process that forks",
        "Threads of numerical libraries.",
    ),
    Variable(
        "CUDA_VISIBLE_DEVICES",
        "all GPUs; -1 (none) for `prepare`, `convert` and `export`",
        "you; these programs",
        "GPUs of a process. `-1` trains on CPUs. It does not travel to other hosts.",
    ),
    Variable(
        huge_pages.VARIABLE,
        f"{huge_pages.TUNABLE}=1 added, on CPUs",
        "the rank, with `--huge_pages`",
        "Settings of the C library. Tensors get pages of 2 MiB. The process starts again for it.",
    ),
    Variable("XDG_CACHE_HOME", "~/.cache", "you", "Its folder `tftrain` has the cache, unless `--cache_dir` is given."),
    Variable("WANDB_PROJECT", "tftrain", "you", "Project of `--report_to=wandb`."),
    Variable("MLFLOW_EXPERIMENT_NAME", "tftrain", "you", "Experiment of `--report_to=mlflow`."),
    Variable(
        "no_grpc_proxy",
        "",
        "the rank, with `--group_transport=tensorflow` or `--gradient_transport=xla`",
        "The addresses of all ranks, so that gRPC uses no proxy between them.",
    ),
    Variable("TFTRAIN_FORKED", "", "`--fork_ranks`", "Marks a rank that was forked. Do not set it."),
    Variable("TFTRAIN_SUPERVISOR", "", "an elastic run", "Process that has started this one. Do not set it."),
)
