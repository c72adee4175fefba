"""The tasks that a run can train, chosen by its configuration."""

from tftrain.config.fine_tuning import SCORED
from tftrain.config.train import TrainConfig
from tftrain.model.parameters import InitialValues
from tftrain.model.part import ModelPart
from tftrain.parallel.mesh import Mesh
from tftrain.tasks import custom
from tftrain.tasks.bert_pretraining import BertPretraining, MaskedWords
from tftrain.tasks.causal_pretraining import CausalPretraining
from tftrain.tasks.completion import Completion
from tftrain.tasks.custom import CustomTask, with_class
from tftrain.tasks.fine_tuning import Classification, MultiLabel, QuestionAnswering, Regression, TokenClassification
from tftrain.tasks.sentence_embedding import ScoredPairs, SentenceEmbedding
from tftrain.tasks.task import Batch, Mean, Task

__all__ = ["Batch", "CustomTask", "Mean", "Task", "make_task", "with_class"]

PRETRAINING = {  # by what the family learns, and by --next_sentence
    ("masked", True): BertPretraining,
    ("masked", False): MaskedWords,
    ("causal", True): CausalPretraining,
}
FINE_TUNING = {  # by --task
    "classification": Classification,
    "multi_label": MultiLabel,
    "regression": Regression,
    "token_classification": TokenClassification,
    "question_answering": QuestionAnswering,
    "embedding": SentenceEmbedding,
    "completion": Completion,
}


def make_task(
    config: TrainConfig, mesh: Mesh, part: ModelPart | None = None, initial: InitialValues | None = None
) -> Task:
    """Builds the task of a filled-in configuration: this rank's part of the model, with its initial weights."""
    model = config.model
    if model.is_custom:
        task = custom.load(model.task)
    else:
        task = FINE_TUNING[model.task] if model.reads_examples else PRETRAINING[model.objective, model.next_sentence]
        if model.task == "embedding" and config.fine_tuning.embedding_loss in SCORED:
            task = ScoredPairs
    return task(config, mesh, part, initial)
