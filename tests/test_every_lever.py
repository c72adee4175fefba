"""A run that was trained with every lever goes through every program, which needs none of the levers."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.kit.programs import done
from tests.kit.ranks import run_ranks
from tftrain.config.convert import Place
from tftrain.config.fields import implementations
from tftrain.config.model import ModelConfig
from tftrain.formats import registry
from tftrain.prepare.preparation import prepare

SMALL = (
    *("--num_hidden_layers=1", "--hidden_size=32", "--num_attention_heads=2", "--micro_batch_size=2"),
    "--max_steps=2",
)
LEVERS = (
    *(
        *("--ln_impl=fused", "--gelu_impl=fused", "--dropout_add_impl=fused", "--attn_impl=flash"),
        "--optimizer=fused_lamb",
    ),
    *("--precision=bf16", "--ln_dtype=fp32", "--grad_accum_steps=2", "--grad_accum_dtype=bf16", "--deterministic"),
    *("--param_groups=*/kernel rate=0.5 weight_decay=0.1", "--ema_decay=0.9", "--weights=averaged", "--eval_every=2"),
    *(
        "--activation_checkpointing=selective",
        "--hvd_fp16_compression",
        "--memory_optimization=none",
        "--cuda_graphs=false",
    ),
)
# A residual add without a fused op, and heads that share keys and values.
OF_LLAMA = (
    "--dropout_add_impl=auto",
    "--num_attention_heads=4",
    "--num_key_value_heads=2",
)
LAYOUTS = {
    "bert": ("--tensor_parallel_size=2", "--sequence_parallel"),
    "gpt": (
        "--model_family=gpt",
        "--num_hidden_layers=2",
        "--pipeline_parallel_size=2",
        "--pipeline_schedule=zero_bubble",
    ),
    "llama": ("--model_family=llama", *OF_LLAMA, "--tensor_parallel_size=2", "--sequence_parallel"),
    "modernbert": (
        *("--model_family=modernbert", "--dropout_add_impl=auto", "--classifier_pooling=mean"),
        *("--num_hidden_layers=2", "--backward_segments=2", "--split_grad_accum"),
    ),
    "roberta": ("--model_family=roberta", "--num_hidden_layers=2", "--split_weights"),
    "distilbert": ("--model_family=distilbert", "--num_hidden_layers=2", "--pipeline_parallel_size=2"),
}
# What a server does: TensorFlow alone.
BARE = """
import json, sys
sys.modules.update(dict.fromkeys(["tftrain", "tensorflow_text", "tf_keras"]))
import tensorflow as tf
signatures = tf.saved_model.load(sys.argv[1]).signatures
ids = tf.constant([[2, 7, 9, 3]])
inputs = {"input_ids": ids, "input_mask": tf.ones_like(ids), "token_type_ids": tf.zeros_like(ids)}
encode = signatures["encode"]
names = encode.structured_input_signature[1]
print(json.dumps(encode(**{name: inputs[name] for name in names})["hidden_states"].numpy().tolist()))
"""


# The short form is bert's.
@pytest.fixture(
    scope="module",
    params=["bert", *(pytest.param(name, marks=pytest.mark.nightly) for name in [*LAYOUTS][1:])],
)
def trained(request, prepare_config, tmp_path_factory):
    """The folder of a run on two ranks, and its data."""
    folder, data = (tmp_path_factory.mktemp(request.param) / name for name in ("run", "data"))
    prepare(prepare_config(data, objective="causal" if request.param in ("gpt", "llama") else "masked"))
    given = (*SMALL, *LEVERS, *LAYOUTS[request.param], f"--data_dir={data}", f"--output_dir={folder}")
    run_ranks(2, ["-m", "tftrain.run", *given])
    return folder, data


@pytest.mark.slow
@pytest.mark.multirank
def test_it_is_evaluated_and_resumed(trained):
    folder, _ = trained
    done("run", f"--mode=evaluate --output_dir={folder} --weights=averaged")
    plain = implementations(ModelConfig) | {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    plain |= {"sequence_parallel": "false", "pipeline_schedule": "1f1b", "optimizer": "reference_lamb"}
    given = " ".join(f"--{name}={value}" for name, value in plain.items())
    done("run", f"--output_dir={folder} --max_steps=3 {given}")


@pytest.mark.slow
@pytest.mark.multirank
def test_it_is_predicted_exported_and_converted_without_its_levers(trained, tmp_path):
    folder, _ = trained
    done("predict", f"--output_dir={folder} --weights=averaged [MASK]")
    done("convert", f"--from=tftrain:{folder} --to=hf:{tmp_path / 'hf'}")
    done("export", f"--output_dir={folder} --to={tmp_path / 'out'}")
    command = [sys.executable, "-I", "-c", BARE, str(tmp_path / "out/1")]
    served = json.loads(subprocess.run(command, check=True, timeout=200, capture_output=True, text=True).stdout)
    weights = registry.open_weights(Place("hf", str(tmp_path / "hf")))
    assert np.shape(served) == (1, 4, weights.model.hidden_size)
    assert np.isfinite(served).all()
