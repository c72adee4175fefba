"""A task of your own: `--task=my_module:MyTask`; docs/custom_tasks.md has an example.

The names in `head` are the --labels of the model. So checkpoints, layouts and formats need the flags, not the class.
"""

import abc
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tftrain.config.fields import ConfigError, Problem, changed, flag_values
from tftrain.config.train import TrainConfig
from tftrain.host import user_code
from tftrain.host.user_code import UserCodeError
from tftrain.model.weight_gradients import Deferred
from tftrain.ops.dropout import DropoutKey
from tftrain.ops.tensors import exact_sum
from tftrain.tasks.fine_tuning import LabelledTask, example_weights
from tftrain.tasks.task import Batch, Mean, Sums, Task


class CustomTask(LabelledTask):
    """Base class; `minimizes`, `read` and `terms` are required.

    Attributes:
        head: names of the numbers that a new linear layer of an encoder gives for each token; (): no such layer.
        minimizes: names of the losses; each is a mean, and their sum is minimised.
        reports: names of other means.
        scored: names of what `score` returns, if anything; higher is better, the first chooses the best checkpoint.
    """

    head: ClassVar[tuple[str, ...]] = ()
    minimizes: ClassVar[tuple[str, ...]] = ()
    reports: ClassVar[tuple[str, ...]] = ()
    scored: ClassVar[tuple[str, ...]] = ()
    _texts: Any  # functions `encode` and `tokenize` with the tokenizer of the run; there before `read` is called

    def __init_subclass__(cls, **kwargs):
        """Makes the means and the sums from the names that a class declares."""
        super().__init_subclass__(**kwargs)
        for attribute in ("head", "minimizes", "reports", "scored"):
            names = getattr(cls, attribute)
            if not isinstance(names, tuple) or not all(isinstance(name, str) and name.isidentifier() for name in names):
                raise TypeError(f"{cls.__name__}.{attribute} is {names!r}; expected a tuple of names")
        names = (*cls.minimizes, *cls.reports)
        if len({*names, *cls.scored}) < len(names) + len(cls.scored):
            raise TypeError(f"{cls.__name__} has a name twice in minimizes, reports and scored")
        words = {name: name.replace("_", " ") for name in names}
        cls.means = tuple(
            Mean(name, text, text, name, f"{name}/count", is_loss=name in cls.minimizes) for name, text in words.items()
        )
        cls.sums = (*names, *(mean.weight for mean in cls.means), "examples")

    @abc.abstractmethod
    def read(self, path: str) -> Mapping[str, np.ndarray]:
        """Reads the examples of a file: arrays of n rows each, of numbers or bools, those of `encode` or such ones.

        An encoder needs input_ids, input_mask and, if its family has token types, segment_ids; a decoder input_ids and
        labels, the next tokens, -1 where there is none to learn. Each is [n, S] with S = max_seq_length; or [n, K, S]
        if an example has K sequences. Several texts of a sequence do not see each other if there are sequence_ids, from
        1, and position_ids. Rows of other arrays may have any shape, the same in training and held-out file.
        """

    @abc.abstractmethod
    def terms(self, outputs: tf.Tensor, batch: Batch) -> Mapping[str, tf.Tensor]:
        """Returns what each of b examples adds to each mean, [b], by the names in `minimizes` and `reports`.

        Args:
            outputs: fp32 [b, S, len(head)]; without a head, what the encoder gives, [b, S, H]; of a decoder, the
                cross-entropy of each label in nats, and 1 where it is the most probable token, [b, S, 2]. With K
                sequences, [b, K, S, ...].
            batch: b rows of the arrays that `read` returned.
        """

    def counts(self, batch: Batch) -> Mapping[str, tf.Tensor]:
        """Returns how many things each example has, [b], by the names of those means that are not over examples."""
        return {}

    def predict(self, outputs: tf.Tensor, batch: Batch) -> tf.Tensor:
        """Returns what is predicted for each example, [b, ...], for `score` and predictions.jsonl; see `terms`."""
        return outputs

    def score(self, predictions: np.ndarray, examples: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        """Returns scores by name, given predictions, fp32 [n, ...], and the same n rows of what `read` returned."""
        raise NotImplementedError

    def encode(self, texts: Sequence[str | tuple[str, str]], per_example: int = 1) -> dict[str, np.ndarray]:
        """Returns what an encoder reads of texts, or of pairs of texts; each example has K = `per_example` of them."""
        return self._texts.encode(texts, per_example)

    def tokenize(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the token ids of texts, int32 [n] each, without special tokens."""
        return self._texts.tokenize(texts)

    def _take_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Takes the shape of a row of each array; raises a UserCodeError if an earlier file had other shapes."""
        self._shapes = getattr(self, "_shapes", shapes)
        if shapes != self._shapes:
            raise UserCodeError(f"returned rows of {shapes}; expected those of the training file, {self._shapes}")

    @property
    def sequences(self) -> int:
        """Sequences of an example, of a source that was opened."""
        return int(np.prod(self._shapes["input_ids"][:-1]))

    def step_flops(self, samples: int) -> float:
        """Returns the operations of forward and backward over so many samples, without those of the head."""
        return Task.step_flops(self, samples) if self.config.model.is_causal else super().step_flops(samples)

    def loss_weights(self, batch: Batch) -> tf.Tensor:
        """Returns the sum of the counts of each loss, fp32 [len(losses)]."""
        counts = self._counts(batch, tf.cast(example_weights(batch), tf.float32))
        return tf.stack([counts[mean.weight] for mean in self.losses])

    def loss_sums(self, x: tf.Tensor, batch: Batch, dropout: DropoutKey | None, deferred: Deferred | None) -> Sums:
        """Returns the sums and, for `score`, the predictions; see `Task.compute`."""
        sequences, model = self._shapes["input_ids"], self.model
        if self.config.model.is_causal:
            labels = tf.reshape(tf.maximum(batch["labels"], 0), [-1, sequences[-1]])
            outputs = tf.stack(model.cross_entropy(x, labels), axis=-1)
        else:
            outputs = model.head_outputs(x, batch, dropout, deferred)
        outputs = tf.reshape(outputs, [-1, *sequences, outputs.shape[-1]])
        weights, given = tf.cast(example_weights(batch), outputs.dtype), self._given(batch)
        with self._named("terms"):
            terms = self._sums(self.terms(outputs, given), weights)
            if missing := [mean.name for mean in self.means if mean.name not in terms]:
                raise UserCodeError(f"returned no {missing[0]}, which the class minimizes or reports")
        sums = terms | self._counts(batch, weights) | {"examples": tf.reduce_sum(weights)}
        if self.scored:
            with self._named("predict"):
                sums["outputs"] = tf.cast(self.predict(outputs, given), tf.float32)
                if not sums["outputs"].shape[:1].is_compatible_with(weights.shape):
                    raise UserCodeError(f"returned shape {sums['outputs'].shape}; expected {weights.shape[0]} rows")
        return sums

    @property
    def loss_name(self) -> str:
        """The loss, with the class."""
        return f"the loss of --task={self.config.model.task}"

    def _given(self, batch: Batch) -> dict[str, tf.Tensor]:
        return {name: tf.reshape(batch[name], [-1, *shape]) for name, shape in self._shapes.items()}

    def _counts(self, batch: Batch, weights: tf.Tensor) -> Sums:
        with self._named("counts"):
            counts = self._sums(self.counts(self._given(batch)), weights)
        return {mean.weight: counts.get(mean.name, tf.reduce_sum(weights)) for mean in self.means}

    def _sums(self, values: Mapping[str, tf.Tensor], weights: tf.Tensor) -> Sums:
        """Returns the sums over the examples of the values that a method returned, by the names of means."""
        for name, value in values.items():
            if name not in {mean.name for mean in self.means}:
                raise UserCodeError(f"returned {name}, which the class neither minimizes nor reports")
            if not (shape := tf.convert_to_tensor(value).shape).is_compatible_with(weights.shape):
                raise UserCodeError(f"returned {name} of shape {shape}; expected a number an example, {weights.shape}")
        return {  # The shape may be unknown until the graph runs, as after a gather.
            name: exact_sum(tf.ensure_shape(tf.cast(value, weights.dtype), weights.shape) * weights)
            for name, value in values.items()
        }

    def _named(self, method: str) -> AbstractContextManager:
        """Names the class and a method in what the method raises, within a `with` statement."""
        return user_code.named("task", self.config.model.task, method)


def load(name: str) -> type[CustomTask]:
    """Returns the class of a custom --task; a UserCodeError says why it can't be used."""
    task = user_code.load("task", name, CustomTask)
    if lacking := [*sorted(task.__abstractmethods__), *([] if task.minimizes else ["minimizes"])]:
        raise UserCodeError(f"--task={name}: the class has no {' and no '.join(lacking)}")
    return task


def with_class(config: TrainConfig) -> TrainConfig:
    """Returns the configuration of a custom task with the labels that its class names.

    Raises a UserCodeError, see `load`, or a ConfigError if flags contradict the class.
    """
    model, settings, task = config.model, config.fine_tuning, load(config.model.task)
    head = f"expected {', '.join(task.head) or 'none'}, the head of {model.task}; another class does not go on with it"
    expected = {
        "labels": (model.labels in ((), task.head), head),
        "task": (not (model.is_causal and task.head), "its head has names; expected (): a decoder has no such layer"),
        "best_metric": (settings.best_metric in (None, *task.scored), f"expected one of {', '.join(task.scored)}"),
        "early_stopping": (task.scored or not settings.early_stopping, "expected 0: scored has no names"),
    }
    values = flag_values(config)
    if problems := [Problem(name, values[name], words) for name, (holds, words) in expected.items() if not holds]:
        raise ConfigError(problems)
    return changed(config, {"labels": task.head})
