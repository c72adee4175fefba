"""The held-out split of a run's data, and a model evaluated on it."""

from collections.abc import Callable

from tftrain.config import DataConfig, TrainConfig
from tftrain.data import pipeline
from tftrain.data.manifest import read_manifest
from tftrain.model.bert import BertPretrainer
from tftrain.parallel.mesh import Mesh
from tftrain.run_state import Evaluation
from tftrain.train.evaluate import Evaluator


class HeldOut:
    """The held-out split and the compiled forward pass over it."""

    def __init__(self, config: TrainConfig, model: BertPretrainer, mesh: Mesh, jit: bool):
        """Opens the split; nothing is read before the first call."""
        self._config, self._mesh = config, mesh
        self._source = pipeline.open_source(config.data, "eval", config.model.vocab_size, config.run.seed)
        self._evaluate = Evaluator(model, config.model.vocab_size, mesh, jit)

    def __call__(self, before_batch: Callable[[], None] = lambda: None) -> Evaluation:
        """Evaluates the model as it is now; every rank must call it. `before_batch` is called before each batch."""
        # One forward pass takes a micro-batch: evaluation needs no more memory than training.
        samples = self._config.batch.micro_batch_size * self._mesh.data.size
        limit = self._config.run.eval_batches * self._config.batch.global_batch_size // samples
        batches = pipeline.eval_batches(
            self._source, self._config.data, samples, *self._mesh.data.share(samples), limit
        )
        return self._evaluate(batch for batch in batches if before_batch() is None)


def has_held_out(data: DataConfig) -> bool:
    """Whether there is anything to evaluate on; training goes without if there is not."""
    if data.data_dir:
        return read_manifest(data.data_dir).examples("eval") > 0
    return data.synthetic_data or data.eval_files is not None
