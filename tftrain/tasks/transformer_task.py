"""What the pre-training tasks share: a transformer, or a part of it, on this rank."""

import abc

import tensorflow as tf

from tftrain.architecture import flops
from tftrain.architecture.describe import describe, pretrained
from tftrain.checkpoint.piece import Piece
from tftrain.config.train import DataConfig, TrainConfig
from tftrain.formats.weights import Weights
from tftrain.host import devices
from tftrain.host.units import DTYPES
from tftrain.input.manifest import read_manifest
from tftrain.model import implementations
from tftrain.model.checkpointing import Checkpointing
from tftrain.model.part import ModelPart, whole
from tftrain.model.registry import model_class
from tftrain.model.transformer import Transformer
from tftrain.ops.dropout import DropoutKey
from tftrain.parallel.mesh import Mesh
from tftrain.parallel.tensor import TensorRanks
from tftrain.tasks.task import Batch, Task


class TransformerTask(Task):
    """A task whose model is a `Transformer`.

    Attributes:
        model: this rank's part of it.
    """

    model: Transformer

    def __init__(self, config: TrainConfig, mesh: Mesh, part: ModelPart | None = None, initial: Weights | None = None):
        """Builds the model with its initial weights.

        Args:
            config: resolved, with the sizes that the data gives.
            mesh: the ranks.
            part: the layers of this rank; by default all.
            initial: weights to begin with; a variable that they lack is drawn.
        """
        self._config, gpu = config, devices.has_gpu()
        dtype = DTYPES[config.compute.precision]
        self.model = model_class(config.model)(
            implementations.resolve_implementations(config.model, dtype, gpu),
            config.model.vocab_size,
            dtype,
            config.run.seed,
            Checkpointing(config.compute.activation_checkpointing, config.compiles(gpu)),
            TensorRanks(mesh.tensor, config.parallel.sequence_parallel, config.compiles(gpu)),
            part,
            initial,
        )

    def named_variables(self) -> dict[str, tf.Variable]:
        """Returns global name -> variable of this rank, from the embedding to the heads."""
        return self.model.named_variables()

    def copies(self) -> dict[str, tf.Variable]:
        """Returns global name -> variable of this rank that another stage owns, see `Task.copies`."""
        return self.model.copies()

    def kernels(self, part: ModelPart) -> list[tf.Variable]:
        """Returns the kernels of all dense layers of a part."""
        return self.model.kernels(part)

    @property
    def shared_variable(self) -> tf.Variable | None:
        """The word table, if it is on two stages and one of them is this rank's."""
        return self.model.word if self.model.architecture.tied and self.model.part.shares_table else None

    @property
    def dtype(self) -> str:
        """Name of the dtype of variables and activations."""
        return self.model.dtype

    def activation_shape(self, batch: Batch) -> tuple[int, ...]:
        """Returns what one sample has between two blocks, [S, H], or this rank's tokens of it."""
        return self._activations(batch["input_ids"].shape[1])

    def _activations(self, length: int) -> tuple[int, int]:
        first, end = self.model.ranks.own_tokens(length)
        return end - first, self._config.model.hidden_size

    @property
    def summed(self) -> set[str]:
        """Names of variables that the tensor parallel ranks use for different tokens."""
        return self.model.summed

    def initial_value(self, name: str) -> tf.Tensor:
        """Returns the initial value of this rank's part of a variable, fp32, before it was rounded."""
        return self.model.initial_value(name)

    @property
    def pieces(self) -> dict[str, Piece]:
        """Global name -> the piece of the whole tensor that this rank's variable holds."""
        return self.model.pieces

    @property
    def lookup_variable(self) -> tf.Variable | None:
        """The word embedding, on a rank that looks words up."""
        return self.model.word if self.model.part.embedding else None

    def has_held_out(self, data: DataConfig) -> bool:
        """Whether the data has a held-out split."""
        if data.data_dir:
            return read_manifest(data.data_dir).examples("eval") > 0
        return data.synthetic_data or data.eval_files is not None

    def compute(
        self, batch: Batch, dropout: DropoutKey | None = None, lookup_table: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Runs the model on a micro-batch, see `Task.compute`."""
        return self.run_part(whole(self._config.model.num_hidden_layers), None, batch, dropout, lookup_table)

    def run_part(
        self,
        part: ModelPart,
        x: tf.Tensor | None,
        batch: Batch,
        dropout: DropoutKey | None = None,
        lookup_table: tf.Tensor | None = None,
    ) -> tf.Tensor | dict[str, tf.Tensor]:
        """Runs some of the layers of this rank on a micro-batch, see `Task.run_part`."""
        if part.embedding:
            x = self.model.embed(batch, dropout, lookup_table)
        x = self.model.run_blocks(x, batch, dropout, part.blocks)
        return self.loss_sums(x, batch, dropout) if part.heads else x

    def encode(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns the hidden states and the pooled first token, see `Task.encode`."""
        return self.model.encode(batch)

    @abc.abstractmethod
    def loss_sums(self, x: tf.Tensor, batch: Batch, dropout: DropoutKey | None) -> dict[str, tf.Tensor]:
        """Returns the task's sums, given the residual stream behind the last block, [b, S, H]; see `Task.compute`."""

    @property
    def vocab_size(self) -> int:
        """Rows of the word embedding."""
        return self._config.model.vocab_size

    def step_flops(self, samples: int) -> int:
        """Returns the floating point operations of forward and backward over so many samples."""
        data = self._config.data
        model = pretrained(self._config.model)
        return flops.step(model, data.max_seq_length, data.max_predictions_per_seq or 0, samples)

    def description(self) -> tuple[str, ...]:
        """Returns the sizes of the model, in words for the log."""
        model = self._config.model
        return (
            f"{model.num_hidden_layers} layers x {model.hidden_size}",
            f"{model.num_attention_heads} heads",
            f"vocabulary of {self.vocab_size}",
            f"{describe(model).parameters / 1e6:.1f}M parameters",
        )

    def implementations(self) -> str:
        """Returns one line for the log: which ops of the model are fused."""
        return implementations.describe(self._config.model, self.model.dtype, devices.has_gpu())
