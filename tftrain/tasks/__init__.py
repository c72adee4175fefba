"""The tasks that a run can train: one file for each task."""

from tftrain.config import TrainConfig
from tftrain.formats.weights import Weights
from tftrain.model.part import ModelPart
from tftrain.parallel.mesh import Mesh
from tftrain.tasks.bert_pretraining import BertPretraining
from tftrain.tasks.gpt_pretraining import GptPretraining
from tftrain.tasks.task import Mean, Task

__all__ = ["Mean", "Task", "make_task"]

TASKS = {"bert": BertPretraining, "gpt": GptPretraining}  # by --model_family


def make_task(config: TrainConfig, mesh: Mesh, part: ModelPart | None = None, initial: Weights | None = None) -> Task:
    """Builds the task of a filled-in configuration: this rank's part of the model, with its initial weights."""
    return TASKS[config.model.model_family](config, mesh, part, initial)
