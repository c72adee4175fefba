"""Evaluates the held-out split: the task's means and scores, and the unigram entropy of the text's tokens.

The examples are the same for every micro-batch, number of ranks and global batch: `--eval_examples` of them, or all.

A score, such as F1, is computed from the predictions for all examples, which every rank gathers. So it does not depend
on the number of ranks. So is the loss of a task that compares samples: every held-out sample is compared with all. The
vectors of a corpus are gathered in parts, and the first rank alone has all of them and ranks its documents.

The unigram entropy is the lowest loss of a model that knows only how frequent each token is. A lower loss shows that
the model has learned from context.
"""

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import tensorflow as tf

from tftrain.config.train import TrainConfig
from tftrain.data import pipeline
from tftrain.data.phase_data import PhaseData
from tftrain.finetune.corpus_search import CorpusScorer
from tftrain.host import devices
from tftrain.model.part import ModelPart
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Group, Mesh
from tftrain.state.run_state import Evaluation, Run
from tftrain.tasks import sources
from tftrain.tasks.task import Batch, Task
from tftrain.train.gradients import MicroBatch
from tftrain.train.pipeline import forward_only
from tftrain.train.sharded import ShardedModel
from tftrain.train.stage import CompiledStage

_PART = 64  # batches of a corpus whose vectors are gathered at once


class HeldOut:
    """The held-out split, and the compiled forward pass over it; `scorer` is None if the task's means say all."""

    def __init__(
        self,
        config: TrainConfig,
        data: PhaseData,
        task: Task,
        parts: Sequence[ModelPart],
        mesh: Mesh,
        sharded: ShardedModel | None,
        weights: Callable[[], AbstractContextManager] = nullcontext,
    ):
        """Opens the split; nothing is read before the first call, and each call evaluates the task's model as it is.

        `sharded` is the model where ranks hold shards of the weights. `weights` gives the model, within a `with`
        statement, the weights to evaluate.
        """
        self._weights, jit = weights, config.compiles_whole(devices.has_gpu())
        self._config, self._task, self._mesh = config, task, mesh
        self._source = sources.open_source(task, data, "eval", config.run.seed)
        self.scorer = sources.scorer_of(task, self._source)
        self._sharded = sharded
        self._forward = tf.function(self._of_batch, jit_compile=jit and not sharded, autograph=False)
        if mesh.pipeline_parallel_size > 1:
            stage = CompiledStage(task, parts, jit)
            self._forward = tf.function(functools.partial(forward_only, stage, mesh), autograph=False)

    def __call__(self, before_batch: Callable[[], None] = lambda: None) -> Evaluation:
        """Evaluates the model; every rank must call it. `before_batch` is called before each batch."""
        with self._weights():
            return self._evaluate(before_batch)

    def _evaluate(self, before_batch: Callable[[], None]) -> Evaluation:
        # One forward pass takes a micro-batch, as in training; each of several pipeline stages takes one at a time.
        mesh = self._mesh
        samples = self._config.batch.micro_batch_size * mesh.data.size * mesh.pipeline_parallel_size
        share = self._mesh.data.share(samples)
        parts = self._parts()
        sums, counts = np.zeros([len(parts), len(self._task.sums)]), np.zeros(self._config.model.vocab_size)
        ranks, outputs, vectors = isinstance(self.scorer, CorpusScorer), [], None
        indices = [index for index, part in enumerate(parts.values()) for _ in part[::samples]]
        batches = pipeline.eval_batches(self._source, self._config.data, samples, *share, list(parts.values()))
        for number, (index, batch) in enumerate(zip(indices, batches, strict=True), 1):
            before_batch()
            of_batch, predicted = self._forward(batch)
            sums[index] += of_batch.numpy()
            if predicted is not None:
                outputs.append(predicted.numpy())
            if ranks and (number % _PART == 0 or number == len(indices)):
                part, outputs = self._gathered(outputs, samples // mesh.data.size), []
                if vectors is None:
                    vectors = np.empty([len(indices) * samples, *part.shape[1:]], part.dtype)
                if mesh.is_chief:
                    vectors[(number - 1) // _PART * _PART * samples :][: len(part)] = part
            tokens = self._task.text_tokens({name: tensor.numpy() for name, tensor in batch.items()})
            if tokens is not None:
                counts += np.bincount(tokens, minlength=len(counts))
        vector = tf.constant(np.concatenate([sums.reshape(-1), counts]), tf.float64)
        vector = collectives.all_reduce(self._mesh.data, vector, "evaluation").numpy()
        sums, counts = vector[: sums.size], vector[sums.size :]
        # Only the last pipeline stage computes sums; on the others they are zero.
        sums = collectives.all_reduce(mesh.pipeline, tf.constant(sums), "evaluation").numpy().reshape(len(parts), -1)
        total = sums.sum(axis=0)
        examples = int(total[self._task.sums.index("examples")])
        unigram = entropy(counts) if counts.any() else None
        result = Evaluation(self._task.mean_values(total), unigram, examples, self._source.real_examples)
        if self._source.mixture:
            loss = next(mean.name for mean in self._task.means if mean.in_evaluation)
            means = map(self._task.mean_values, sums)
            by_source = {f"{loss}/{name}": of_source[loss] for name, of_source in zip(parts, means, strict=True)}
            values = {name: value for name, value in by_source.items() if value is not None}
            return result._replace(scores=values)
        if self.scorer is None:
            return result
        if ranks:
            vectors = vectors[: len(parts[""])]
            scores = self.scorer.scores(vectors) if mesh.is_chief else None
            scores = collectives.gather_values(mesh.world, scores, "evaluation/scores")[0]
            # There is no pair whose loss could be computed.
            return result._replace(scores=scores, outputs=vectors, means=dict.fromkeys(result.means))
        gathered = self._gathered(outputs, batch_size=samples // mesh.data.size)[: len(parts[""])]
        if self._task.compares_samples:
            result = result._replace(means=self._task.mean_values(total + self._compared(gathered)))
        return result._replace(scores=self.scorer.scores(gathered), outputs=gathered)

    def _compared(self, outputs: np.ndarray) -> np.ndarray:
        """Returns the losses' sums of held-out samples, each compared with all, to add to the sums of the batches.

        Pairs that do not belong together have no loss, unless the loss takes numbers of pairs.
        """
        count = len(outputs)
        belong = np.ones([count], bool) if self._task.takes_numbers else self.scorer.belong_together(count)
        features = {name: values[:count] for name, values in self._source.compared.items()}
        features |= {"example_weights": belong.astype(np.float32)}
        with tf.device("CPU:0"):
            batch = {name: tf.constant(values) for name, values in features.items()}
            sums, _ = self._task.compare(tf.constant(outputs), batch, Group(), trains=False)
        sums = sums | {"weight": np.sum(belong) - count}
        return np.array([float(sums.get(name, 0.0)) for name in self._task.sums])

    def _parts(self) -> dict[str, range]:
        """Returns the rows to read, by the names of the sources of a mixture.

        They hold `eval_examples`, about so many if they are packed, of which each source has its share; 0: all.
        """
        wanted, source = self._config.evaluation.eval_examples, self._source
        rows = wanted * source.num_examples / source.real_examples
        if not source.mixture:
            return {"": range(source.num_examples)[: math.ceil(rows) or None]}
        every = {each: source.mixture.rows(number) for number, each in enumerate(source.mixture.sources)}
        return {each.name: own[: math.ceil(rows * each.share) or None] for each, own in every.items() if own}

    def _of_batch(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns the task's sums, fp32 [len(task.sums)], and what it predicts for each sample, if it has a scorer."""
        if self._sharded:
            forward = self._sharded.forward(MicroBatch(batch, tf.constant(0, tf.int64), None))
            return forward.sums, forward.outputs
        results = self._task.run_part(self._task.model.part, None, batch)
        return self._task.vector(results), results.get("outputs")

    def _gathered(self, outputs: list[np.ndarray], batch_size: int) -> np.ndarray:
        """Returns what all data parallel ranks predict, in the order of the examples; every rank must call it.

        `outputs` are those of this rank's `batch_size` samples of each batch, on the last pipeline stage.
        """
        mesh = self._mesh
        own = np.concatenate(outputs or [np.zeros([0], np.float32)])
        # The last stage's; the others have no rows.
        rows, *shape = max(collectives.gather_values(mesh.pipeline, own.shape, "evaluation/shapes"))
        own = own if outputs else np.zeros([rows, *shape], np.float32)
        own = collectives.all_reduce(mesh.pipeline, tf.constant(own), "evaluation/stages")
        rows_of_ranks = collectives.all_gather_rows(mesh.data, own, "evaluation/outputs").numpy()
        by_rank = rows_of_ranks.reshape(mesh.data.size, rows // batch_size, batch_size, *shape)
        return np.swapaxes(by_rank, 0, 1).reshape(-1, *shape)


def of_run(run: Run, data: PhaseData, phase: int = 0) -> HeldOut | None:
    """Returns the held-out split of the data of a phase; None if it has none, or `--eval_every` says never."""
    config = run.whole.phases[phase]
    if config.evaluation.eval_every < 0 or not data.has_held_out:
        return None
    sharded = ShardedModel(run) if run.shards_weights else None
    weights = run.averaged_weights if config.evaluation.weights == "averaged" else nullcontext
    return HeldOut(config, data, run.task, run.parts, run.mesh, sharded, weights)


def entropy(counts: np.ndarray) -> float:
    """Returns the entropy of a distribution given by its counts, in nats."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
