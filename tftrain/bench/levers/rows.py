"""The rows of table `levers`: one model, and the flags of each lever or combination of levers.

The model is BERT base where memory holds it on all ranks, so that a lever's share shows beside the 0.7 GB of TensorFlow
itself. On a smaller machine it is a model of a tenth of the size. The global batch is the same for every row.
"""

from tftrain.bench import host
from tftrain.bench.table import Row
from tftrain.plan.workload import reference_levers

BASE = "base"
REFERENCE = tuple(f"--{flag}={value}" for flag, value in reference_levers().items())
FUSED = "--flagfile=configs/fused.flags"
COMMON = (*REFERENCE, "--synthetic_data", "--max_seq_length=128", "--global_batch_size=16")
BERT_BASE = "bert_base"  # the default sizes of tftrain.run
MODELS = {
    BERT_BASE: (),
    "small": ("--num_hidden_layers=4", "--hidden_size=512", "--num_attention_heads=8", "--vocab_size=8191"),
}
BERT_BASE_GB = 5.2  # of a rank, in the row that needs most

FLAGS = {
    BASE: "",
    "bf16": "--precision=bf16",
    "fp16": "--precision=fp16",
    "bf16_ln_fp32": "--precision=bf16 --ln_dtype=fp32",
    "fused": FUSED,
    "flash": "--attn_impl=flash",
    "selective": "--activation_checkpointing=selective",
    "full": "--activation_checkpointing=full",
    "fused_full": f"{FUSED} --activation_checkpointing=full",
    "recomputation": "--memory_optimization=recomputation",
    "no_grappler": "--suppress_grappler",
    "xla": "--jit_compile=true",
    "geglu": "--activation=geglu",
    "no_key_bias": "--use_bias_in_keys=false",
    "no_hidden_dropout": "--hidden_dropout_prob=0",
    "no_attention_dropout": "--attention_probs_dropout_prob=0",
    "no_dropout": "--hidden_dropout_prob=0 --attention_probs_dropout_prob=0",
    "accum_fp32": "--grad_accum_steps=4",
    "accum_bf16": "--grad_accum_steps=4 --grad_accum_dtype=bf16",
    "accum_fp16": "--grad_accum_steps=4 --grad_accum_dtype=fp16",
    "accum_split": "--grad_accum_steps=4 --split_grad_accum",
    "split": "--split_opt_state",
    "split_grads": "--split_grad_accum",
    "split_naive": "--split_opt_state --state_split_strategy=naive",
    "split_greedy_2": "--split_opt_state --state_split_strategy=greedy:2",
    "fp16_wire": "--hvd_fp16_compression",
    "sparse_rows": "--sparse_as_dense=false",
    "deterministic": "--deterministic",
    "tp_2": "--tensor_parallel_size=2",
    "tp_4": "--tensor_parallel_size=4",
    "tp_2_split": "--tensor_parallel_size=2 --split_opt_state",
    "tp_2_sequence": "--tensor_parallel_size=2 --sequence_parallel",
    "pp_2": "--pipeline_parallel_size=2 --grad_accum_steps=4",
    "pp_4": "--pipeline_parallel_size=4 --grad_accum_steps=4",
    "everything": f"{FUSED} --precision=bf16 --activation_checkpointing=full --use_bias_in_keys=false "
    "--grad_accum_steps=4 --grad_accum_dtype=bf16 --split_grad_accum --tensor_parallel_size=2 --hvd_fp16_compression",
}

# One group: every row is compared with the base of the same run.
ROWS = tuple(Row(name, "levers", {"flags": flags}) for name, flags in FLAGS.items())


def model_name(ranks: int) -> str:
    """Returns bert_base if the free memory holds it on so many ranks of this host, else small; one of `MODELS`."""
    free = host.available_memory_gb()
    return BERT_BASE if free is None or free >= ranks * BERT_BASE_GB else "small"
