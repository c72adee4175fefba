"""What cuDNN's attention can't compute: flags, data and hosts for which --attn_impl=cudnn is refused."""

from tftrain.config.compute import ComputeConfig
from tftrain.config.data import DataConfig
from tftrain.config.fields import Problem, first_reason, refused
from tftrain.config.model import ModelConfig
from tftrain.config.parallel import ParallelConfig


def reason_against(model: ModelConfig, data: DataConfig, compute: ComputeConfig, parallel: ParallelConfig) -> str:
    """Returns the first of the flags that it can't be combined with, and why; "" if there is none."""
    reasons = {
        "--precision=fp32: cuDNN takes fp16 and bf16": compute.precision == "fp32",
        "--attention_probs_dropout_prob above 0: cuDNN would draw other masks after a resume": (
            model.attention_probs_dropout_prob > 0
        ),
        "--position_embedding=alibi: cuDNN would need a bias for each pair of tokens": (
            model.position_embedding == "alibi"
        ),
        "--local_attention: cuDNN would compute what a window hides": model.local_attention > 0,
        "--document_mask: cuDNN would mix the documents of a row": data.document_mask,
        "--deterministic: cuDNN adds gradients in any order": compute.deterministic,
        "a step that XLA does not compile": not compute.compiles(True, parallel.has_deferred_collectives),
    }
    return first_reason(reasons)


def check_packed_rows(model: ModelConfig, folder: str) -> list[Problem]:
    """Returns why rows of data that hold several examples refuse it."""
    return problems(model, f": the rows of {folder} are packed, and cuDNN would mix their examples")


def problems(model: ModelConfig, reason: str) -> list[Problem]:
    """Returns the problem of a model that asks for it, if there is a reason against it."""
    if model.attn_impl != "cudnn" or not reason:
        return []
    return [refused(model, "attn_impl", f"expected flash or softmax{reason}")]
