"""The class of a model by its configuration: the one place that names the classes of models."""

from tftrain.config.model import ModelConfig
from tftrain.model.bert import BertClassifier, BertPretrainer
from tftrain.model.decoder import Decoder
from tftrain.model.text_embedder import BertEmbedder, DecoderEmbedder
from tftrain.model.transformer import Transformer

# By what the family learns.
PRETRAINED: dict[str, type[Transformer]] = {"masked": BertPretrainer, "causal": Decoder}
EMBEDDERS: dict[str, type[Transformer]] = {"masked": BertEmbedder, "causal": DecoderEmbedder}


def model_class(config: ModelConfig) -> type[Transformer]:
    """Returns the class of a model: that of its objective, or the encoder with the head of a fine-tuned task."""
    if config.gives_vectors:
        return EMBEDDERS[config.objective]
    return BertClassifier if config.is_fine_tuned else PRETRAINED[config.objective]
