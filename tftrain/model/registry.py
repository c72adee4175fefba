"""The class of a model by its configuration: the one place that names the classes of the families."""

from tftrain.config.train import ModelConfig
from tftrain.model.bert import BertClassifier, BertPretrainer
from tftrain.model.gpt import Gpt
from tftrain.model.transformer import Transformer

PRETRAINED: dict[str, type[Transformer]] = {"bert": BertPretrainer, "gpt": Gpt}  # by --model_family


def model_class(config: ModelConfig) -> type[Transformer]:
    """Returns the class of a model: that of its family, or the encoder with the head of a fine-tuned task."""
    return BertClassifier if config.is_fine_tuned else PRETRAINED[config.model_family]
