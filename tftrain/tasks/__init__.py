"""The tasks that a run can train: one file for each task."""

from tftrain.config import TrainConfig
from tftrain.parallel.mesh import Mesh
from tftrain.tasks.bert_pretraining import BertPretraining
from tftrain.tasks.task import Mean, Stages, Task

__all__ = ["Mean", "Stages", "Task", "make_task"]


def make_task(config: TrainConfig, mesh: Mesh) -> Task:
    """Builds the task of a filled-in configuration: this rank's part of the model, with its initial weights."""
    return BertPretraining(config, mesh)
