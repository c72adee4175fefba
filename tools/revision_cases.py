"""The cases of compare_revisions.py: what is trained, with every flag that a result depends on named."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STEPS, MIDDLE = 20, 10

# Rounding in fp32: the largest relative difference of a loss in 20 steps.
ROUNDING = 1e-6

IMPLEMENTATIONS = ("ln_impl", "attn_softmax_impl", "gelu_impl", "dropout_add_impl")
FUSED = dict.fromkeys(IMPLEMENTATIONS, "fused") | {"optimizer": "fused_lamb"}
REFERENCE = dict.fromkeys(IMPLEMENTATIONS, "reference") | {"optimizer": "reference_lamb"}
COMMON = REFERENCE | {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "precision": "fp32",
    "jit_compile": "false",
    "learning_rate": 0.01,
    "warmup_steps": 4,
    "global_batch_size": 16,
    "max_steps": STEPS,
    "log_every": 1,
    "eval_every": MIDDLE,
    "checkpoint_every": MIDDLE,
    "cpu_threads": 1,
    "seed": 7,
}
PREPARE = {"vocab_size": 600, "max_seq_length": 64, "eval_fraction": 0.1, "shard_mb": 0.05, "seed": 3}
DATA = {
    "wordpiece": PREPARE,
    "sentencepiece": PREPARE | {"tokenizer_type": "sentencepiece"},
    "static": PREPARE | {"masking": "static", "dupe_factor": 2},
    "causal": PREPARE | {"objective": "causal"},
}
FROM_FILES = {"train_files": "{data}/train-*.tfrecord", "eval_files": "{data}/eval-*.tfrecord", "vocab_size": 600}


@dataclass(frozen=True)
class Case:
    """One configuration.

    Attributes:
        flags: of `tftrain.run`, beside COMMON; {data} stands for the folder of the records.
        ranks: Horovod ranks; 1 is a plain process.
        data: a key of DATA.
        rounding: why the case may differ by rounding; `tolerance` is the largest relative difference of a loss.
    """

    flags: Mapping[str, Any]
    ranks: int = 1
    data: str = "wordpiece"
    rounding: str = ""
    tolerance: float = ROUNDING

    def all_flags(self) -> dict[str, Any]:
        """Returns the flags with those that all cases share."""
        source = {} if "train_files" in self.flags else {"data_dir": "{data}"}
        return COMMON | source | dict(self.flags)

    def limit(self) -> float:
        """Returns the largest relative difference of a loss that counts as rounding; 0: no difference does."""
        return self.tolerance if self.rounding or self.all_flags()["precision"] == "fp32" else 0.0


# With such large weights some of the first steps overflow; they are skipped, and the loss scale is halved.
FP16 = {"precision": "fp16", "grad_accum_dtype": "fp16", "grad_accum_steps": 4, "initializer_range": 0.6}
BF16 = {"precision": "bf16", "activation_checkpointing": "selective"}
# No fused op drops the embedding's elements; attention dropout stays on.
NO_PLAIN_DROPOUT = {"hidden_dropout_prob": 0}
TP2 = {"tensor_parallel_size": 2}
PP2 = {"pipeline_parallel_size": 2, "grad_accum_steps": 2}
GPT = {"model_family": "gpt"}
GEGLU = {"activation": "geglu", "norm_position": "pre", "gelu_form": "erf", "optimizer": "reference_adamw"}
CASES = {
    "quickstart": Case({}, ranks=2),
    "fused_bf16": Case(FUSED | BF16 | NO_PLAIN_DROPOUT, ranks=2),
    "fused_fp16": Case(FUSED | FP16 | NO_PLAIN_DROPOUT, ranks=2),
    "dropout_bf16": Case(
        FUSED | BF16, ranks=2, rounding="plain dropout, here of the embedding, scales in fp32", tolerance=2**-8
    ),
    "zero1_even": Case({"split_opt_state": True}, ranks=2),
    "zero2_greedy": Case(
        {"split_grad_accum": True, "state_split_strategy": "greedy:2", "grad_accum_steps": 2}, ranks=2
    ),
    "zero3": Case({"split_weights": True, "grad_accum_steps": 2}, ranks=2),
    "tp2_zero1": Case(TP2 | {"split_opt_state": True}, ranks=4),
    "tp2_zero2_fused": Case(FUSED | TP2 | {"split_grad_accum": True, "state_split_strategy": "naive"}, ranks=4),
    "xla_full": Case({"jit_compile": "true", "activation_checkpointing": "full"}),
    "xla_fused": Case(FUSED | {"jit_compile": "true", "grad_accum_steps": 2}),
    "sparse_rows": Case({"sparse_as_dense": False}, ranks=2),
    "static_records": Case(FROM_FILES, data="static"),
    "batch_ramp": Case({"batch_rampup": "4:4:96", "micro_batch_size": 2}, ranks=2),
    "geglu_adamw": Case(GEGLU, data="sentencepiece"),
    "gpt": Case(GPT, data="causal"),
    "pp2_zero_bubble": Case(PP2 | {"pipeline_schedule": "zero_bubble"}, ranks=2),
    "pp2_gpt_full": Case(PP2 | GPT | {"activation_checkpointing": "full"}, ranks=2, data="causal"),
    "tp2_sequence": Case(TP2 | {"sequence_parallel": True}, ranks=2),
    "tp2_xla_fused": Case(FUSED | TP2 | {"jit_compile": "true"}, ranks=2),
    # Grappler rewrites a graph by its structure and names, so that the same mathematics may be rounded otherwise. In
    # fp16, on the wire, such a difference may become one of fp16.
    "no_grappler": Case({"suppress_grappler": True}),
    "hvd_fp16": Case({"hvd_fp16_compression": True, "whole_word_masking": True, "suppress_grappler": True}, ranks=2),
}
