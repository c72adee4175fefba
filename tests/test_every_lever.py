"""A run that was trained with every lever goes through every program, which needs none of the levers."""

import shlex

import pytest

from tests.kit.programs import done
from tests.kit.ranks import run_ranks
from tftrain.config.fields import implementations
from tftrain.config.model import ModelConfig
from tftrain.inference.serving import signatures
from tftrain.prepare.preparation import prepare

SMALL = "--num_hidden_layers=1 --hidden_size=32 --num_attention_heads=2 --micro_batch_size=2 --max_steps=2"
LEVERS = (
    "--ln_impl=fused --gelu_impl=fused --dropout_add_impl=fused --attn_impl=flash --optimizer=fused_lamb "
    "--precision=bf16 --ln_dtype=fp32 --grad_accum_steps=2 --grad_accum_dtype=bf16 --deterministic --ema_decay=0.9 "
    "--weights=averaged --eval_every=2 --activation_checkpointing=selective --hvd_fp16_compression "
    "--memory_optimization=none --cuda_graphs=false '--param_groups=*/kernel rate=0.5 weight_decay=0.1'"
)
TENSOR = "--tensor_parallel_size=2 --sequence_parallel"
LAYOUTS = {
    "bert": TENSOR,
    "gpt": "--num_hidden_layers=2 --pipeline_parallel_size=2 --pipeline_schedule=zero_bubble",
    # A residual add without a fused op, and heads that share keys and values.
    "llama": f"--dropout_add_impl=auto --num_attention_heads=4 --num_key_value_heads=2 {TENSOR}",
    "modernbert": "--dropout_add_impl=auto --classifier_pooling=mean --num_hidden_layers=2 --backward_segments=2 "
    "--split_grad_accum",
    "roberta": "--num_hidden_layers=2 --split_weights",
    "distilbert": "--num_hidden_layers=2 --pipeline_parallel_size=2",
}


# The short form is bert's.
@pytest.mark.slow
@pytest.mark.multirank
@pytest.mark.parametrize("name", ["bert", *(pytest.param(name, marks=pytest.mark.nightly) for name in [*LAYOUTS][1:])])
def test_every_program_takes_it_without_its_levers(prepare_config, tmp_path, monkeypatch, name):
    run, data = tmp_path / "run", tmp_path / "data"
    prepare(prepare_config(data, objective="causal" if name in ("gpt", "llama") else "masked"))
    given = f"{SMALL} {LEVERS} --model_family={name} {LAYOUTS[name]} --data_dir={data} --output_dir={run}"
    run_ranks(2, ["-m", "tftrain.run", *shlex.split(given)])
    done("run", f"--mode=evaluate --output_dir={run} --weights=averaged")
    done("predict", f"--output_dir={run} --weights=averaged [MASK]")
    done("convert", f"--from=tftrain:{run} --to=hf:{tmp_path / 'hf'}")
    # What is exported on texts is the same network after the tokenizer.
    for builders in ("OF_ENCODERS", "OF_DECODERS"):
        monkeypatch.setattr(signatures, builders, {"encode": signatures.encode})
    done("export", f"--output_dir={run} --to={tmp_path / 'out'}")
    plain = implementations(ModelConfig) | {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    plain |= {"sequence_parallel": "false", "pipeline_schedule": "1f1b", "optimizer": "reference_lamb"}
    done("run", f"--output_dir={run} --max_steps=3 " + " ".join(f"--{each}={value}" for each, value in plain.items()))
