"""A model as a Keras model for a loop that is not tftrain's: `tftrain.load` makes one, `tftrain.save` writes it.

Variables, heads and implementations are those of a run that begins with the same weights. docs/from_transformers.md has
examples.
"""

import dataclasses
import logging
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras

from tftrain.cli import flags
from tftrain.config import combinations
from tftrain.config.compute import ComputeConfig
from tftrain.config.convert import Place, average_problems, parse_place, place_problems
from tftrain.config.data import DataConfig
from tftrain.config.fields import ConfigError, Problem, changed, field_problems
from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.config.model import WITH_CLASSES, ModelConfig
from tftrain.config.parallel import ParallelConfig
from tftrain.config.train import TrainConfig
from tftrain.files.complete_folder import complete_folder
from tftrain.formats import registry
from tftrain.formats.weights import DerivedWeights, Weights, heads_of, listed, part_of
from tftrain.inputs import initial_weights
from tftrain.model.parameters import Parameter
from tftrain.model.transformer import Transformer
from tftrain.ops.dropout import DropoutKey
from tftrain.parallel.mesh import Mesh
from tftrain.state import located
from tftrain.tasks import make_task

logger = logging.getLogger(__name__)

# What transformers calls features.
_NAMES = {"attention_mask": "input_mask", "token_type_ids": "segment_ids"}
_FEATURES = ("input_ids", "input_mask", "segment_ids", "position_ids", "sequence_ids", "masked_lm_positions")
_FLAGS = {*(field.name for field in dataclasses.fields(ModelConfig)), "init_checkpoint"}
_FLAGS |= {"precision", "activation_checkpointing", "jit_compile", "seed", "init_missing", "weights"}
_MASTER_DTYPE = "float32"


class KerasModel(tf_keras.Model):
    """A model with its weights in fp32; it computes in the precision that it was loaded with.

    A call maps token ids, int [b, S], or a dict of them with other features, to a dict of outputs. It accepts the
    features of a batch, and attention_mask and token_type_ids as transformers has them. Without them, every token
    counts and is of the first type.

    Attributes:
        dropout_step: int64, calls with `training=True`. The dropout masks of such a call are those of this step of a
            run with the same seed.
    """

    def __init__(self, network: Transformer, weights: Weights, heads: Collection[str], seed: int, rank: int):
        """Takes the whole model; `heads` are those that have weights, and `rank` chooses other samples' masks."""
        super().__init__(name=weights.model.model_family, dtype=_MASTER_DTYPE)
        own = {name: each for name, each in network.parameters.items() if part_of(name) in ("", *heads)}
        self._heads, self._seed, self._rank, self._source = tuple(heads), seed, rank, weights
        self._names = tuple(own)
        copies = {name: each.variable for name, each in own.items()}
        is_copied = network.dtype != _MASTER_DTYPE
        # Keras tracks what is an attribute: the variables that train, and neither the network nor its copies.
        self.__dict__["_network"], self.__dict__["_copies"] = network, list(copies.values()) if is_copied else []
        self._masters = {name: _master(each) for name, each in own.items()} if is_copied else copies
        self.dropout_step = tf.Variable(0, trainable=False, dtype=tf.int64, name="dropout_step")
        self.built = True

    def named_variables(self) -> dict[str, tf.Variable]:
        """Returns the trainable variables, fp32, by the names that they have in checkpoints, in the model's order."""
        return {name: self._masters[name] for name in self._names}

    @tf.autograph.experimental.do_not_convert
    def call(self, inputs: Any, training: bool = False) -> dict[str, tf.Tensor]:
        """Returns the outputs by name; with `training`, dropout is on. docs/from_transformers.md lists them.

        Raises:
            ValueError: a feature is unknown or missing, or has another shape.
        """
        batch, dropout = features(inputs), None
        if training:
            step = self.dropout_step.assign_add(1, read_value=True) - 1
            dropout = DropoutKey(self._seed, step, self._rank * tf.shape(batch["input_ids"], tf.int64)[0])
        if not self._copies:
            return self._network.named_outputs(batch, dropout, self._heads)
        names: list[str] = []

        @tf.custom_gradient
        def compute(*masters: tf.Tensor) -> tuple:
            for copy, master in zip(self._copies, masters, strict=True):
                copy.assign(tf.cast(master, copy.dtype))
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(self._copies)
                outputs = self._network.named_outputs(batch, dropout, self._heads)
            names.extend(outputs)
            computed = list(outputs.values())

            def gradients(*upstream: tf.Tensor, variables: Any = ()) -> tuple:
                own = tape.gradient(computed, self._copies, upstream, tf.UnconnectedGradients.ZERO)
                return [tf.cast(each, _MASTER_DTYPE) for each in own], [None] * len(variables)

            return computed, gradients

        return dict(zip(names, compute(*self.named_variables().values()), strict=True))

    def trained(self) -> Weights:
        """Returns the weights as they are now, with the tokenizer that is beside those in files."""
        variables = self.named_variables()
        shapes = {name: tuple(each.shape) for name, each in variables.items()}
        return DerivedWeights(self._source, shapes, lambda name: variables[name].numpy())


def _master(parameter: Parameter) -> tf.Variable:
    value = parameter.variable if parameter.initial is None else parameter.initial()
    return tf.Variable(tf.cast(value, _MASTER_DTYPE), name=parameter.shard.name)


def features(inputs: Any) -> dict[str, tf.Tensor]:
    """Returns what a model reads, int32, of token ids or of a dict with them; see `KerasModel`."""
    given = inputs if isinstance(inputs, Mapping) else {"input_ids": inputs}
    batch = {_NAMES.get(name, name): tf.cast(value, tf.int32) for name, value in given.items() if value is not None}
    if unknown := sorted(map(str, batch.keys() - set(_FEATURES))):
        raise ValueError(f"the model got {', '.join(unknown)}; expected of {', '.join((*_FEATURES, *_NAMES))}")
    ids = batch.get("input_ids")
    if ids is None or ids.shape.rank != 2:
        found = "no input_ids" if ids is None else f"input_ids of the shape {ids.shape}"
        raise ValueError(f"the model got {found}; expected one row a text, [b, S]")
    return {"input_mask": tf.ones_like(ids), "segment_ids": tf.zeros_like(ids), **batch}


def load(source: str, rank: int | None, values: Mapping[str, Any]) -> KerasModel:
    """Returns the model at a place, see `tftrain.load`; `values` are flags by name."""
    values = {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}
    argv = flags.command_line("tftrain.load", TrainConfig, {**values, "init_checkpoint": _with_format(source)})
    config, problems, named = flags.read(TrainConfig, argv)
    expected = "remove this argument: it is for a run, and your own loop decides"
    problems += [Problem(name, values.get(name), expected) for name in sorted(named - _FLAGS)]
    config, of_addresses = located.with_local_folders(config)
    kind, place = config.evaluation.weights, parse_place(config.run.init_checkpoint or "")
    problems += [*of_addresses, *field_problems(config.evaluation), *average_problems(kind, place)]
    if problems:
        raise ConfigError(problems)
    config, problems, initial = initial_weights.with_model_of_weights(config, named)
    if problems := problems or list(_problems(config.model, config.compute)):
        raise ConfigError(problems)
    model, draws = config.model, config.run.init_missing
    weights = initial.open(model, "train", draws or not model.is_fine_tuned, kind)
    heads = [head for head in heads_of(model) if draws or model.is_fine_tuned or head in weights.parts]
    if lacking := [head for head in heads_of(model) if head not in heads]:
        logger.info(f"{source} has no {' and no '.join(lacking)}, so the model has no outputs of them")
    weights.model = model
    if config.compute.jit_compile == "auto":  # The loop decides, and says so if XLA compiles it.
        config = changed(config, {"jit_compile": "false"})
    network = make_task(config, Mesh(), None, weights.shard).model
    horovod = sys.modules.get("horovod.tensorflow")
    if rank is None:
        rank = horovod.rank() if horovod and horovod.is_initialized() else 0
    return KerasModel(network, weights, heads, config.run.seed, rank)


def save(model: KerasModel, target: str, architecture: str | None) -> None:
    """Writes a model, see `tftrain.save`."""
    if not isinstance(model, KerasModel):
        raise TypeError(f"tftrain.save got a {type(model).__name__}; expected what tftrain.load returned")
    if problems := place_problems("to", os.fspath(target), exists=False):
        raise ConfigError(problems)
    place = parse_place(os.fspath(target))
    with complete_folder(Path(place.path)) as folder:
        left_out = registry.write_weights(Place(place.format, str(folder)), model.trained(), architecture)
    if left_out:
        logger.info(f"not written, as {place.format} has no such tensors: {listed(left_out)}")


def _with_format(source: str) -> str:
    """Returns FORMAT:PATH; a folder without a format is one of transformers, or a run or a checkpoint of tftrain."""
    path = Path(source := os.fspath(source))
    if parse_place(source) or not path.is_dir():
        return source
    is_other = (path / "config.json").is_file() and any(path.glob("*.safetensors*"))
    return f"{'hf' if is_other else 'tftrain'}:{source}"


def _problems(model: ModelConfig, compute: ComputeConfig) -> Iterator[Problem]:
    yield from (*field_problems(model), *field_problems(compute))
    yield from combinations.check_model(model, DataConfig(), compute, ParallelConfig())
    of_examples = combinations.check_examples(FineTuningConfig(), model, DataConfig(), "evaluate")
    yield from (each for each in of_examples if each.flag in ("task", "labels"))
    if model.is_custom:
        yield Problem("task", model.task, "expected a task of tftrain: the head of your class is yours")
    elif model.task in WITH_CLASSES and not model.labels:
        yield Problem("labels", None, f"expected the names of the classes of --task={model.task}, as a list")
