"""The flags of number formats, compilation and communication: `ComputeConfig`."""

from dataclasses import dataclass

from tftrain.config.fields import flag

_MEMORY_OPTIMIZERS = ("none", "default", "heuristics", "recomputation", "scheduling", "swapping")


@dataclass(frozen=True)
class ComputeConfig:
    """Number formats, compilation and communication."""

    precision: str = flag("fp32", choices=("fp32", "fp16", "bf16"), on_resume="logged", common=True)
    """Format of forward and backward, over fp32 master weights; fp16 scales the loss."""
    jit_compile: str = flag("auto", choices=("auto", "true", "false"), on_resume="free")
    """Compile the step with XLA; with tensor parallelism, the operations between sums over ranks. auto: on a GPU."""
    cuda_graphs: bool = flag(True, on_resume="free")
    """Let XLA launch the kernels of a step on a GPU as CUDA graphs. false: one by one; slower."""
    deterministic: bool = flag(False, on_resume="free")
    """Repeat a run bit for bit on GPUs too, on equal devices and in the same layout; slower."""
    tensor_float_32: bool = flag(True, on_resume="logged")
    """With --precision=fp32 on GPUs from A100 on, round the operands of matrix products to TF32 (10 bits of mantissa),
    the default of TensorFlow. false and --deterministic keep fp32, several times as slow."""
    activation_checkpointing: str = flag("none", choices=("none", "selective", "full"), on_resume="free", common=True)
    """Recompute activations in backward instead of storing them. selective: the activations of the attention core.
    full: all activations of a block except its input."""
    memory_optimization: str = flag("default", choices=_MEMORY_OPTIMIZERS, on_resume="free")
    """Grappler's memory optimizer in graph mode. none: off. default: TensorFlow's choice. The others: one heuristic."""
    suppress_grappler: bool = flag(False, "Switch off all graph optimizers of Grappler.", on_resume="free")
    enable_resource_variables: bool = flag(True, on_resume="free")
    """Use resource variables. It must be true: tf.function of TensorFlow 2 supports no others."""
    hvd_fp16_compression: bool = flag(False, on_resume="logged")
    """Send gradients in fp16, with a dynamic loss scale. NCCL adds them in fp16, other transports in fp32."""
    gradient_transport: str = flag("horovod", choices=("horovod", "xla"), on_resume="logged")
    """What sums gradients over data parallel ranks. horovod: in fp32. xla: the compiled program itself, with NCCL and
    beside the rest of backward; bf16 gradients stay bf16. It is for GPUs, has not run on several, and opens the ports
    of --group_transport=tensorflow."""
    sums_without_nccl: bool = flag(False, on_resume="local")
    """Let several GPUs train with a Horovod without NCCL: it adds gradients in host memory, many times as slow."""
    sparse_as_dense: bool = flag(True, on_resume="free")
    """Sum the token embedding's gradient over ranks as one dense tensor instead of gathering its rows."""
    cpu_threads: int = flag(0, minimum=0, maximum=1024, on_resume="host")
    """TensorFlow threads on each rank; 0: the host's cores divided by its ranks."""
    huge_pages: bool = flag(True, on_resume="host")
    """On a CPU, allocate tensors in pages of 2 MiB if kernel and C library support them."""
    device_peak_tflops: float | None = flag(None, above=0, on_resume="local")
    """Peak rate of the device in TFLOP/s, for the metric mfu; known GPUs need none."""

    @property
    def wire(self) -> str:
        """Format of gradients between ranks; own: bf16 if they are, else fp32."""
        return "own" if self.gradient_transport == "xla" else "fp16" if self.hvd_fp16_compression else "fp32"

    def compiles(self, gpu: bool, has_deferred_collectives: bool) -> bool:
        """Returns whether XLA compiles what a step computes. auto: on a GPU, and no `ParallelConfig` defers sums."""
        if self.jit_compile == "auto":
            return gpu and not has_deferred_collectives
        return self.jit_compile == "true"
