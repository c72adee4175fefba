"""Random levers on random layouts: a run trains as one plain rank does, and goes on in another layout as it did.

    python -m tests.train.crossings [--cases=20] [--seed=1]

Each case trains one rank with flags that change results, then the same with levers that must change none: half of the
steps on one layout, from there on another one, and an evaluation on one rank. It compares losses, gradient norms,
learning rates, and what evaluations give. Exit code: 1 if a case differs, or a run ends otherwise than with 0.
"""

import argparse
import json
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.finetune import files
from tests.formats.models import DATA
from tests.kit.data_sets import config_of, write_corpus
from tests.kit.ranks import run_ranks
from tftrain.checkpoint import folder as checkpoints
from tftrain.cli import flags
from tftrain.config.fields import ConfigError
from tftrain.config.model import TASKS
from tftrain.config.train import TrainConfig
from tftrain.prepare.preparation import prepare

GLOBAL_BATCH, STEPS, HALF = 16, 6, 3
SECONDS = 400
COMMON = {
    **{"num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "global_batch_size": GLOBAL_BATCH},
    **{"max_steps": STEPS, "log_every": 1, "eval_every": HALF, "checkpoint_every": HALF, "keep_last": 2},
    **{"cpu_threads": 1, "report_to": "csv"},
}
ENCODER_TASKS = tuple(task for task in TASKS if task not in ("pretraining", "completion"))
# What a layout does not draw, it says, because a resumed run goes on with the flags of its checkpoint.
PLAIN = {
    **{"tensor_parallel_size": 1, "sequence_parallel": False, "group_transport": "auto"},
    **{"pipeline_parallel_size": 1, "pipeline_schedule": "1f1b", "virtual_pipeline_size": 1, "backward_segments": 1},
    **{"split_opt_state": False, "split_grad_accum": False, "split_weights": False, "prefetch_blocks": 1},
    **{"split_group": "all", "state_split_strategy": "even", "activation_checkpointing": "none"},
    **{"jit_compile": False, "sparse_as_dense": True, "memory_checkpoint_steps": 0, "checkpoint_async": True},
    **{
        "micro_batch_size": 4,
        "attn_impl": "softmax",
        "ln_impl": "auto",
        "gelu_impl": "auto",
        "dropout_add_impl": "auto",
    },
    **{"attn_softmax_impl": "auto", "memory_optimization": "default", "data_readers": 1, "deterministic": False},
}
# A rounding grows from step to step. With 16 bits, layouts round differently from the first one on.
RTOL, GROWTH = 1e-6, 4
RTOL_HALF = 0.05
LOSSES = ("eval_lm_loss", "eval_mlm_loss", "eval_task_loss")
GROUPS = "layer_*/attention/*/kernel rate=2; embeddings/* rate=0.5 weight_decay=0"


class Layout(NamedTuple):
    """A number of ranks, of hosts, and the flags that change no results."""

    ranks: int
    hosts: int
    flags: Mapping[str, object]

    def __str__(self) -> str:
        drawn = {name: value for name, value in self.flags.items() if value != PLAIN[name]}
        return f"{self.ranks} ranks on {self.hosts} hosts {' '.join(as_flags(drawn))}"


class Crossing(NamedTuple):
    """The flags of a case that change results, and the layouts of its two halves."""

    flags: Mapping[str, object]
    first: Layout
    second: Layout


def as_flags(values: Mapping[str, object]) -> list[str]:
    """Returns the flags of a command."""
    return [f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in values.items()]


def draw(seed: int, data: Path) -> Crossing:
    """Draws a case that no program refuses."""
    rng = random.Random(seed)
    given = next(
        each for each in (drawn_flags(rng, data) for _ in range(1000)) if is_accepted({**plain(each), **each}, 1)
    )

    def layout():
        tried = (drawn_layout(rng, given) for _ in range(1000))
        return next(each for each in tried if is_accepted({**given, **each.flags}, each.ranks))

    return Crossing(given, layout(), layout())


def is_accepted(values: Mapping[str, object], ranks: int) -> bool:
    """Returns whether a run with these flags would begin."""
    given = as_flags({**COMMON, **values, "output_dir": "OUT"})
    try:
        flags.parse(TrainConfig, ["tftrain.run", *given]).resolve(ranks)
    except ConfigError:
        return False
    return True


def drawn_flags(rng: random.Random, data: Path) -> dict[str, object]:
    """Draws what changes results."""
    family = rng.choice(["bert", "gpt", "llama", "modernbert"])
    is_causal = family in ("gpt", "llama")
    values: dict[str, object] = {
        "model_family": family,
        "precision": rng.choice(["fp32", "fp32", "fp32", "bf16", "fp16"]),
    }
    values |= drawn_data(rng, is_causal, data)
    values["optimizer"] = rng.choice(["lamb", "adamw", "lion", "muon", "stableadamw", "fused_lamb", "fused_adamw"])
    values["learning_rate"] = rng.choice([0.0005, 0.001])
    values["clip_global_norm"] = rng.choice([0, 0.05, 1])
    values["schedule"] = rng.choice(["polynomial", "cosine", "constant", "inverse_sqrt"])
    values["weight_decay"] = rng.choice([0, 0.1])
    if family in ("bert", "gpt"):
        rate = rng.choice([0, 0.1])
        values |= {"hidden_dropout_prob": rate, "attention_probs_dropout_prob": rate}
    values |= drawn_blocks(rng, family)
    if rng.random() < 0.3:
        values |= {"ema_decay": 0.9, "weights": rng.choice(["trained", "averaged"])}
    if rng.random() < 0.3:
        values["param_groups"] = GROUPS
    if rng.random() < 0.2:
        values["on_spike"] = "skip"
    return values


def drawn_blocks(rng: random.Random, family: str) -> dict[str, object]:
    """Draws what blocks are made of, each with one chance in four; which family takes which is another question."""
    every = {
        **{"activation": ["gelu", "geglu", "swiglu"], "gelu_form": ["tanh", "erf"], "norm_position": ["pre", "post"]},
        **{
            "position_embedding": ["learned", "rotary", "alibi"],
            "query_key_norm": [True],
            "num_key_value_heads": [2, 1],
        },
        **{"bias": ["all", "query_key_value", "none"], "use_bias_in_keys": [False], "tie_output": [True, False]},
        **{"next_sentence": [False], "rope_scaling": ["llama3:8,1,4,16"], "attention_head_size": [16]},
        **{"classifier_pooling": ["mean"], "ln_dtype": ["fp32"], "grad_accum_dtype": ["bf16"]},
        **{"hvd_fp16_compression": [True]},
    }
    values: dict[str, object] = {"local_attention": 8} if family == "modernbert" else {}
    for name, choices in every.items():
        value = rng.choice(choices)
        if rng.random() < 0.25 and is_accepted(
            {"model_family": family, "synthetic_data": True, **values, name: value}, 1
        ):
            values[name] = value
    return values


def drawn_data(rng: random.Random, is_causal: bool, data: Path) -> dict[str, object]:
    """Draws a task with its files, or prepared text and the order in which it comes."""
    values: dict[str, object] = {}
    if rng.random() < 0.35:
        task = "completion" if is_causal else rng.choice(ENCODER_TASKS)
        given = (data / "tasks" / task).read_text().split()
        values = dict(flag.removeprefix("--").split("=", 1) for flag in given)
        if is_causal and rng.random() < 0.5:
            values["batch_rampup"] = "8:8:24"
        return values
    kind = "causal" if is_causal else rng.choice(["masked", "packed"])
    values["eval_examples"] = 20
    if rng.random() < 0.3:
        values["mix"] = f"one=0.7:{data / kind},two=0.3:{data / ('other_' + kind)}"
    else:
        values["data_dir"] = data / kind
    if rng.random() < 0.25:
        values["batch_rampup"] = "8:8:24"
    elif rng.random() < 0.4:
        values["phases"] = data / ("causal.phases" if is_causal else "masked.phases")
    elif is_causal and rng.random() < 0.5:
        values["document_mask"] = True
    return values


def plain(given: Mapping[str, object]) -> dict[str, object]:
    """Returns the flags of one plain rank; the texts of a micro-batch are what an embedding is compared with."""
    return {**PLAIN, **({"micro_batch_size": 2} if given.get("task") == "embedding" else {})}


def drawn_layout(rng: random.Random, given: Mapping[str, object]) -> Layout:
    """Draws what changes no results; whether the trainer accepts it, is another question."""
    ranks, values = rng.choice([2, 4, 4]), plain(given)
    tensor = rng.choice([1, 1, 2])
    stages = rng.choice([1, 1, 2]) if ranks > tensor else 1
    values |= {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages}
    values["sequence_parallel"] = tensor > 1 and rng.random() < 0.5
    if stages > 1:
        values["pipeline_schedule"] = rng.choice(["1f1b", "gpipe", "interleaved", "zero_bubble"])
        values["virtual_pipeline_size"] = 2 if values["pipeline_schedule"] == "interleaved" else 1
    split = rng.choice(["", "split_opt_state", "split_grad_accum", "split_weights", "split_weights"])
    if split:
        values[split] = True
        values["state_split_strategy"] = rng.choice(["even", "even", "naive", "greedy:2"])
    if split == "split_weights":
        values |= {"prefetch_blocks": rng.choice([0, 1, 2]), "split_group": rng.choice(["all", "host"])}
    values["backward_segments"] = rng.choice([1, 1, 2])
    if given.get("task") != "embedding":
        values["micro_batch_size"] = rng.choice([1, 2, 4])
    values["activation_checkpointing"] = rng.choice(["none", "selective", "full"])
    values["jit_compile"] = rng.choice([True, False])
    values["group_transport"] = rng.choice(["auto", "auto", "tensorflow"])
    values["memory_checkpoint_steps"] = rng.choice([0, 2])
    values["sparse_as_dense"] = rng.choice([True, True, False])
    values["checkpoint_async"] = rng.choice([True, True, False])
    if not given.get("hidden_dropout_prob"):  # Each attention core draws masks of its own.
        values["attn_impl"] = rng.choice(["softmax", "flash"])
    for name in ("ln_impl", "gelu_impl", "dropout_add_impl", "attn_softmax_impl"):
        values[name] = rng.choice(["auto", "auto", "reference"])
    values["memory_optimization"] = rng.choice(["default", "none"])
    values["data_readers"] = rng.choice([1, 2])
    values["deterministic"] = rng.random() < 0.2
    # Tensor parallel ranks of one group are on one host.
    return Layout(ranks, rng.choice([1, 2]) if ranks > tensor else 1, values)


def write_data(folder: Path) -> None:
    """Prepares text for each kind of family, writes files of phases, and the flags and files of each task."""
    corpus = folder / "corpus"
    write_corpus(corpus)
    of_kinds = {"masked": {}, "packed": {"packing": "greedy", "short_seq_prob": 0.9}, "causal": {"objective": "causal"}}
    for name, changes in of_kinds.items():
        prepare(config_of(corpus, folder / name, **changes))
        prepare(config_of(corpus, folder / f"other_{name}", **{**changes, "short_seq_prob": 0.5}))
    (folder / "masked.phases").write_text("until_samples=64\nmasked_lm_prob=0.3\n")
    (folder / "causal.phases").write_text("until_samples=64\ndocument_mask=true\n")
    (folder / "tasks").mkdir()
    of_tasks = files.write_tasks(folder)
    completions = [files.write_completions(folder / f"{split}_completions.jsonl", 60, 1) for split in ("train", "eval")]
    sources = [f"--{split}_file={path}" for split, path in zip(("train", "eval"), completions, strict=True)]
    of_tasks["completion"] = (
        "--task=completion",
        *sources,
        f"--tokenizer_dir={DATA / 'hf_llama'}",
        "--max_seq_length=48",
    )
    for name, given in of_tasks.items():
        (folder / "tasks" / name).write_text(" ".join(given))


def rounds(given: Mapping[str, object]) -> bool:
    """Returns whether numbers of 16 bits are added, which ranks and micro-batches do in another order."""
    return bool(given["precision"] != "fp32" or given.get("grad_accum_dtype") or given.get("hvd_fp16_compression"))


def values_of(output_dir: Path) -> dict[tuple[int, str], float]:
    """Returns what is compared, by step and name."""
    found = {}
    for line in (output_dir / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        for name, value in row.items():
            is_score = name.startswith("eval_") and not name.endswith(("seconds", "_per_second"))
            if name in ("grad_norm", "learning_rate") or name.endswith("loss") or is_score:
                found[row["step"], name] = value
    return found


def differences(found: Mapping, expected: Mapping, after: int, in_half: bool = False) -> list[str]:
    """Returns in words what differs after a step; `in_half`: whether products have 16 bits."""
    problems = []
    for (step, name), value in expected.items():
        other = found.get((step, name))
        if step <= after or (value is None and other is None and (step, name) in found):
            continue
        if value is None:
            problems.append(f"step {step}: {name} is {other}, not a number on one rank")
            continue
        limit = RTOL_HALF * abs(value) if in_half else RTOL * GROWTH ** (step - 1) * max(1.0, abs(value))
        if other is None or not abs(other - value) <= limit:
            problems.append(f"step {step}: {name} is {other}, {value} on one rank")
    return problems


def problems_of(case: Crossing, folder: Path) -> list[str]:
    """Does the runs of a case, in folders below an empty one, and returns in words what is wrong."""
    given = {**COMMON, **case.flags}

    def train(name, layout):
        args = [*as_flags({**given, **layout.flags}), f"--output_dir={folder / name}"]
        run_ranks(layout.ranks, ["-m", "tftrain.run", *args], seconds=SECONDS, hosts=layout.hosts)
        return values_of(folder / name)

    expected, in_half = train("one", Layout(1, 1, plain(given))), rounds(given)
    problems = [f"first half: {each}" for each in differences(train("two", case.first), expected, 0, in_half)]
    for path in checkpoints.find(folder / "two"):
        if checkpoints.order(path)[0] > HALF:
            shutil.rmtree(path)
    found = train("two", case.second)
    problems += [f"second half: {each}" for each in differences(found, expected, HALF, in_half)]
    evaluate = ["-m", "tftrain.run", "--mode=evaluate", f"--output_dir={folder / 'two'}"]
    alone = {**plain(given), **{name: given[name] for name in ("eval_examples", "weights") if name in given}}
    output = run_ranks(1, [*evaluate, *as_flags(alone)], seconds=SECONDS)
    (loss,) = (found[STEPS, name] for name in LOSSES if (STEPS, name) in found)
    printed = re.findall(r"loss +([\d.]+)", output)
    if len(printed) != 1 or abs(float(printed[0]) - loss) > (RTOL_HALF * loss if in_half else 6e-5):
        problems.append(f"evaluate: {loss:.4f} is not in\n{output}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.train.crossings", description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first case; the others follow")
    args = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory(prefix="crossings.") as home:
        write_data(Path(home) / "data")
        for seed in range(args.seed, args.seed + args.cases):
            case = draw(seed, Path(home) / "data")
            print(f"seed {seed}: {' '.join(as_flags(case.flags))}\n  {case.first}\n  {case.second}", flush=True)
            try:
                problems = problems_of(case, Path(home) / str(seed))
            except AssertionError as error:
                problems = [str(error)]
            failures += bool(problems)
            print("\n".join(f"  FAILED {each}" for each in problems) or "  the same", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
