"""What each rank does in `test_layouts`: the same training in many layouts, against one rank alone.

    horovodrun -np 4 --gloo python -m tests.train.layouts [CASE ...]     # without names, all that so many ranks can

The one-rank run is made in the same process, from the same seed and global batches, dropout on.
"""

import dataclasses
import functools
import sys
import time

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from tests.checkpoint import states
from tests.train.test_step import BASE, SEQ, VOCAB, batches
from tftrain.config.parallel import BatchConfig, ParallelConfig
from tftrain.model.implementations import FLAGS
from tftrain.parallel import collectives
from tftrain.parallel import start as starting
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.mesh import Mesh
from tftrain.parallel.start import start
from tftrain.run_state import Run
from tftrain.train.step import TrainStep

STEPS, SAMPLES, ACCUMULATE = 20, 16, 4
LAMB = "reference_lamb"
FUSED = dict.fromkeys(FLAGS, "fused")
# The key biases' gradients are nothing but roundings, which Adam turns into steps of full length. The vocabulary of 67
# divides by nothing.
MODEL = dataclasses.replace(BASE.model, use_bias_in_keys=False, num_hidden_layers=1, num_attention_heads=4)
WIDE = {"hidden_size": 2560, "num_hidden_layers": 1, "intermediate_size": 64}
DEEP = {"num_hidden_layers": 5}
# Many gradients of so small a decoder's attention are next to nothing. A large epsilon keeps Adam from turning their
# roundings into steps of full length.
GPT, GPT_EPSILON = {"model_family": "gpt"}, 0.1
# At 0.01 the losses of so wide a model jump up and down, and with them grow the roundings of sums in another order.
SLOWLY = 0.001
ZERO_1, ZERO_2 = {"split_opt_state": True}, {"split_opt_state": True, "split_grad_accum": True}


def case(
    accumulate=1,
    optimizer="reference_lamb",
    model=(),
    compute=(),
    grad_accum_dtype="fp32",
    learning_rate=0.01,
    packed=False,
    **parallel,
):
    """Returns a configuration, of which `parallel` is all that the one-rank run does without.

    If it is `packed`, every row has two examples, see `two_in_a_row`.
    """
    packed_data = dataclasses.replace(BASE.data, synthetic_data=False, data_dir="packed")
    epsilon = GPT_EPSILON if dict(model).get("model_family") == "gpt" else BASE.optimizer.adam_epsilon
    return dataclasses.replace(
        BASE,
        data=packed_data if packed else BASE.data,
        model=dataclasses.replace(MODEL, **dict(model)),
        batch=BatchConfig(None, accumulate, SAMPLES, grad_accum_dtype=grad_accum_dtype),
        optimizer=dataclasses.replace(
            BASE.optimizer, optimizer=optimizer, learning_rate=learning_rate, adam_epsilon=epsilon
        ),
        compute=dataclasses.replace(BASE.compute, **dict(compute)),
        parallel=ParallelConfig(**parallel),
    )


def matrix():
    """Returns every way of dividing the state, with and without micro-batches, by tensor parallel size."""
    found = {}
    for tensor in (1, 2, 4):
        for accumulate in (1, ACCUMULATE):
            name = f"tp{tensor}-accumulate{accumulate}"
            found[f"{name}-zero0"] = case(accumulate, tensor_parallel_size=tensor)
            for stage, flags in (("zero1", ZERO_1), ("zero2", ZERO_2)):
                for strategy in ("even", "naive", "greedy:1"):
                    found[f"{name}-{stage}-{strategy}"] = case(
                        accumulate, tensor_parallel_size=tensor, state_split_strategy=strategy, **flags
                    )
    return found


def pipelines():
    """Returns cases of pipeline stages: every schedule, and every lever beside one of them."""

    def staged(stages, **flags):
        return case(**{"accumulate": ACCUMULATE, "model": DEEP, **flags}, pipeline_parallel_size=stages)

    interleaved = {"pipeline_schedule": "interleaved", "virtual_pipeline_size": 2}
    zero_bubble = {"pipeline_schedule": "zero_bubble"}
    found = {
        "pp2": staged(2, accumulate=1),
        "pp2-full-checkpointing": staged(2, compute={"activation_checkpointing": "full"}),
        "pp2-zero_bubble-selective-fused": staged(
            2, **zero_bubble, model={**DEEP, **FUSED}, compute={"activation_checkpointing": "selective"}
        ),
        "pp2-list": staged(2, pipeline_split="1,4"),
        "pp2-xla": staged(2, compute={"jit_compile": "true"}),
        "pp2-bf16": staged(2, compute={"precision": "bf16"}, model={**DEEP, "ln_dtype": "fp32"}),
        "pp2-fp16": staged(2, compute={"precision": "fp16"}),
        "pp2-gpt": staged(2, model={**DEEP, **GPT}),
        "pp2-gpt-interleaved-rotary-geglu": staged(
            2, model={**DEEP, **GPT, "position_embedding": "rotary", "activation": "geglu"}, **interleaved
        ),
        "pp2-adamw": staged(2, optimizer="fused_adamw"),
        "dp2-pp2-zero1": staged(2, **ZERO_1),
        "dp2-pp2-zero1-naive-fused-packed": staged(
            2, **ZERO_1, state_split_strategy="naive", optimizer="fused_lamb", packed=True
        ),
        "tp2-pp2": staged(2, tensor_parallel_size=2),
        "tp2-pp2-gpt-zero_bubble": staged(2, tensor_parallel_size=2, model={**DEEP, **GPT}, **zero_bubble),
        "tp2-pp2-zero1-interleaved": staged(2, **ZERO_1, tensor_parallel_size=2, **interleaved),
        "pp8": staged(8, model={"num_hidden_layers": 9}, accumulate=8),
        "pp8-gpt": staged(8, model={"num_hidden_layers": 9, **GPT}, accumulate=8),
        "dp2-pp4-zero1-gpt": staged(4, **ZERO_1, model={**DEEP, **GPT}),
        "tp2-pp4": staged(4, tensor_parallel_size=2),
        "tp2-pp4-gpt": staged(4, tensor_parallel_size=2, model={**DEEP, **GPT}),
        "dp2-tp2-pp2-zero1": staged(2, **ZERO_1, tensor_parallel_size=2),
        "dp2-tp2-pp2-zero1-gpt-fused": staged(
            2, **ZERO_1, tensor_parallel_size=2, model={**DEEP, **GPT, **FUSED}, optimizer="fused_lamb"
        ),
    }
    for schedule, flags in {"gpipe": {"pipeline_schedule": "gpipe"}, "1f1b": {}, "zero_bubble": zero_bubble}.items():
        found |= {f"pp2-{schedule}": staged(2, **flags), f"pp4-{schedule}": staged(4, **flags)}
    found |= {
        "pp2-interleaved": staged(2, **interleaved),
        "pp4-interleaved": staged(4, model={"num_hidden_layers": 9}, **interleaved),
    }
    return found


def sequences():
    """Returns cases of sequence parallelism, and of tensor parallel ranks whose pieces XLA compiles."""
    xla, sequence = {"compute": {"jit_compile": "true"}}, {"sequence_parallel": True}
    selective, full = ({"activation_checkpointing": mode} for mode in ("selective", "full"))
    tp2, tp4 = {"tensor_parallel_size": 2}, {"tensor_parallel_size": 4}
    decoder = {**DEEP, **GPT, "position_embedding": "alibi"}
    return {
        "tp2-xla": case(**tp2, **xla),
        "tp2-xla-fused-geglu-accumulate": case(ACCUMULATE, **tp2, **xla, model={**FUSED, "activation": "geglu"}),
        "tp2-xla-selective": case(**tp2, compute={"jit_compile": "true", **selective}),
        "tp2-xla-full": case(**tp2, compute={"jit_compile": "true", **full}),
        "tp2-sequence": case(**tp2, **sequence),
        "tp2-sequence-fused-accumulate": case(ACCUMULATE, **tp2, **sequence, model=FUSED),
        "tp2-sequence-sparse": case(**tp2, **sequence, compute={"sparse_as_dense": False}),
        "tp2-sequence-xla-fused": case(**tp2, **sequence, **xla, model=FUSED),
        "tp2-sequence-selective-geglu-pre_norm": case(
            **tp2, **sequence, compute=selective, model={"activation": "geglu", "norm_position": "pre"}
        ),
        "tp2-sequence-full-gpt": case(**tp2, **sequence, compute=full, model=decoder),
        "tp2-sequence-gpt-fused": case(ACCUMULATE, **tp2, **sequence, model={**decoder, **FUSED}),
        "tp2-sequence-fp16": case(**tp2, **sequence, compute={"precision": "fp16"}),
        "tp2-sequence-bf16": case(**tp2, **sequence, compute={"precision": "bf16"}, model={"ln_dtype": "fp32"}),
        "dp2-tp2-sequence-zero1-fused-packed": case(
            **tp2, **sequence, **ZERO_1, model=FUSED, optimizer="fused_lamb", packed=True
        ),
        "dp2-tp2-sequence-zero2": case(ACCUMULATE, **tp2, **sequence, **ZERO_2),
        "tp4-sequence": case(**tp4, **sequence, model=DEEP),
        "tp2-pp2-sequence": case(ACCUMULATE, **tp2, **sequence, pipeline_parallel_size=2, model=DEEP),
        "tp2-pp2-sequence-zero_bubble-gpt": case(
            ACCUMULATE, **tp2, **sequence, pipeline_parallel_size=2, pipeline_schedule="zero_bubble", model=decoder
        ),
    }


CASES = {
    **matrix(),
    **sequences(),
    "zero1-even-adamw": case(**ZERO_1, optimizer="reference_adamw"),
    "zero1-even-lion": case(**ZERO_1, optimizer="lion", learning_rate=SLOWLY),
    "zero1-even-fused_adamw": case(**ZERO_1, optimizer="fused_adamw"),
    "zero1-even-sparse": case(**ZERO_1, compute={"sparse_as_dense": False}),
    "zero1-even-fused-accumulate": case(ACCUMULATE, **ZERO_1, optimizer="fused_lamb", model=FUSED),
    "zero1-even-wide": case(**ZERO_1, model=WIDE, learning_rate=SLOWLY),
    "zero2-even-accumulate-xla": case(ACCUMULATE, **ZERO_2, compute={"jit_compile": "true"}),
    "zero2-greedy:1-fused-accumulate": case(
        ACCUMULATE, **ZERO_2, optimizer="fused_lamb", state_split_strategy="greedy:1"
    ),
    "tp2-sparse-accumulate": case(ACCUMULATE, tensor_parallel_size=2, compute={"sparse_as_dense": False}),
    "tp2-zero1-even-fused": case(**ZERO_1, tensor_parallel_size=2, optimizer="fused_lamb", model=FUSED),
    "tp2-zero1-even-wide-geglu": case(
        **ZERO_1, tensor_parallel_size=2, model={**WIDE, "activation": "geglu"}, learning_rate=SLOWLY
    ),
    "tp4-zero2-fused_adamw-accumulate": case(
        ACCUMULATE, **ZERO_2, tensor_parallel_size=4, optimizer="fused_adamw", model=FUSED
    ),
    "zero2-bf16-accumulate": case(ACCUMULATE, **ZERO_2, compute={"precision": "bf16"}, model={"ln_dtype": "fp32"}),
    "zero1-greedy:3": case(**ZERO_1, state_split_strategy="greedy:3"),
    "tp2-zero1-greedy:2": case(**ZERO_1, tensor_parallel_size=2, state_split_strategy="greedy:2"),
    "tp2-zero1-full-checkpointing": case(
        ACCUMULATE, **ZERO_1, tensor_parallel_size=2, model=FUSED, compute={"activation_checkpointing": "full"}
    ),
    "zero0-fp16-wire": case(compute={"hvd_fp16_compression": True}),
    "zero1-fp16-wire": case(**ZERO_1, compute={"hvd_fp16_compression": True}),
    "zero2-fp16-buffers": case(ACCUMULATE, **ZERO_2, grad_accum_dtype="fp16"),
    "tp2-zero2-fp16-accumulate": case(
        ACCUMULATE, **ZERO_2, tensor_parallel_size=2, compute={"precision": "fp16"}, model=FUSED
    ),
    **pipelines(),
}
# Of 16-bit weights, a gradient is a sum over many roundings of either sign: a few of them are left.
TOLERANCES = {"fp32": (1e-5, 1e-4), "bf16": (8 * 2**-8, 4 * 2**-8), "fp16": (8 * 2**-11, 4 * 2**-11)}


def narrowest(config):
    """Returns the narrowest format that gradients pass through."""
    if config.compute.hvd_fp16_compression or config.batch.grad_accum_dtype == "fp16":
        return "fp16"
    return config.compute.precision


def train(config, mesh):
    """Returns what every update reported, and the whole state before and after the first one."""
    run = Run(config.resolve(mesh.size), mesh)
    step = TrainStep(run)
    begin, end = mesh.data.share(SAMPLES)
    infos, states = [], [snapshot(run)]
    draw = token_batches if config.model.is_decoder else batches
    for number, batch in enumerate(draw(STEPS, samples=SAMPLES)):
        batch = two_in_a_row(batch) if config.data.data_dir else batch
        info = step({name: tensor[begin:end] for name, tensor in batch.items()})
        infos.append((*np.asarray(info.sums), float(info.grad_norm)))
        if number == 0:
            states.append(snapshot(run))
    return np.array(infos), states


def two_in_a_row(batch):
    """Returns a batch whose rows are two examples: what was one is cut in the middle. There might be three."""
    samples, half = batch["input_ids"].shape[0], SEQ // 2
    positions, second = np.arange(SEQ) % half, np.arange(SEQ) >= half
    labels = batch["next_sentence_labels"]
    labels = tf.stack([labels, tf.roll(labels, 1, 0), tf.zeros_like(labels)], 1)
    rows = {
        "sequence_ids": batch["input_mask"] * (1 + second),
        "position_ids": batch["input_mask"] * positions,
        "sequence_starts": tf.tile([[0, half, 0]], [samples, 1]),
        "next_sentence_labels": labels,
    }
    both = tf.cast(batch["input_mask"][:, half], tf.float32)
    return {
        **{name: value for name, value in batch.items() if name != "example_weights"},
        **{name: tf.cast(value, tf.int32) for name, value in rows.items()},
        "sequence_weights": tf.stack([tf.ones([samples]), both, tf.zeros([samples])], 1),
    }


def token_batches(count, samples):
    """Random batches of a decoder."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        tokens = rng.integers(1, VOCAB, (samples, SEQ + 1))
        yield {"input_ids": tf.constant(tokens[:, :-1], tf.int32), "labels": tf.constant(tokens[:, 1:], tf.int32)}


def snapshot(run):
    """Returns a copy of the whole state on the chief; every rank takes part."""
    return {name: np.array(value, np.float64) for name, value in states.collected(run).items()}


@functools.cache
def alone(config):
    """Trains on this rank alone, without dividing anything."""
    return train(dataclasses.replace(config, parallel=ParallelConfig()), Mesh())


def compare(name, config, mesh):
    """Trains in a layout and, on the chief, compares with one rank alone."""
    infos, states = train(config, mesh)
    if not mesh.is_chief:
        return
    expected, expected_states = alone(dataclasses.replace(config, parallel=ParallelConfig()))
    at_once, later = TOLERANCES[narrowest(config)]
    # Sums of losses; numbers of predicted words and of samples, which nothing rounds; last comes the gradient norm.
    losses, counts = ([0, -1], [1, 3]) if config.model.is_decoder else ([0, 3, -1], [1, 5])
    np.testing.assert_array_equal(infos[:, counts], expected[:, counts], err_msg=name)
    np.testing.assert_allclose(infos[0, losses], expected[0, losses], rtol=at_once, err_msg=name)
    np.testing.assert_allclose(infos[:, losses[:-1]], expected[:, losses[:-1]], rtol=later, err_msg=name)
    (before, after), (expected_before, expected_after) = states, expected_states
    for tensor, value in expected_after.items():
        np.testing.assert_array_equal(before[tensor], expected_before[tensor], err_msg=f"{name}: {tensor}")
        if narrowest(config) != "fp32" and not tensor.startswith("adam_m"):
            continue  # Where a gradient is next to nothing, its roundings decide the direction of the first update.
        # Moments after one update are the gradients and their squares.
        change, expected_change = after[tensor] - before[tensor], value - expected_before[tensor]
        error = np.linalg.norm(change - expected_change)
        # Both weights that were updated are rounded to fp32, which may show where the update is small beside them.
        allowed = at_once * np.linalg.norm(expected_change) + 2 * 2**-24 * np.linalg.norm(value)
        assert error <= allowed, f"{name}: {tensor}: {error}, expected at most {allowed}"


def sizes(config):
    """Returns the tensor parallel and the pipeline parallel size."""
    return config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size


def main(names):
    """Runs the named cases, by default all that so many ranks can, by the sizes of their tensor parallel groups."""
    mesh, launch = None, launch_from_environment()
    starting.value_of_rank_0 = lambda launch, name, value: value  # The launcher's store remembers the first start.
    names = names or [name for name in CASES if not CASES[name].parallel.problems(launch.size, {})]
    for name in sorted(names, key=lambda name: sizes(CASES[name])):
        if mesh is None or (mesh.tensor_parallel_size, mesh.pipeline_parallel_size) != sizes(CASES[name]):
            if mesh is not None:
                hvd.shutdown()
            mesh = start(launch, 1, *sizes(CASES[name]))
        begin = time.perf_counter()
        compare(name, CASES[name], mesh)
        if mesh.is_chief:
            print(f"{name} agrees, {time.perf_counter() - begin:.1f} s", flush=True)
        collectives.gather_numbers(mesh.world, 0.0, "end")  # Horovod ends on all ranks when one is done.


if __name__ == "__main__":
    main(sys.argv[1:])
