"""How far the first update of each rule in a layout is from that of one rank, and why.

    python -m tests.train.update_errors [RULE ...]     # prints the table of docs/results/optimizers.md

The difference of two updates is the norm of what they differ by, over the norm of the update. The momenta tell the
gradients of both runs, from which NumPy computes both updates once more in fp64. So a difference comes from the
gradients, whose sums have another order in each layout, or from the rounding of the update and of the new weights.
"""

import dataclasses
import sys
import types

import numpy as np

from tests.kit.ranks import run_ranks
from tests.optim.test_optimizer import Reference
from tests.train import layouts
from tftrain.config.parallel import ParallelConfig
from tftrain.parallel import collectives
from tftrain.parallel.launcher import launch_from_environment
from tftrain.parallel.mesh import Mesh
from tftrain.parallel.start import start

RULES = ("adamw", "reference_lamb", "stableadamw", "muon")
LAYOUTS = {
    "ZeRO-1": layouts.ZERO_1,
    "ZeRO-2": layouts.ZERO_2,
    "ZeRO-3": layouts.ZERO_3,
    "tp 2": {"tensor_parallel_size": 2},
    "pp 2": {"pipeline_parallel_size": 2, "accumulate": layouts.ACCUMULATE},
}
TITLES = "rule | layout | all weights | worst tensor | its update | its gradient | exact updates of it | rounding"


def configured(rule, layout):
    """Returns the configuration of a rule in a layout, with the epsilon of users."""
    config = layouts.case(**{"model": {"num_hidden_layers": 2}, "optimizer": rule, **LAYOUTS[layout]})
    return dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, adam_epsilon=1e-6))


def gradients_of(after, config):
    """Returns the clipped gradients of the first update by the names of the weights, fp64; momenta were zero before."""
    shares = {"muon_m": 1 - config.optimizer.muon_momentum, "adam_m": 1 - config.optimizer.adam_beta1}
    slots = [(*name.split("/", 1), value) for name, value in after.items()]
    return {name: value / shares[slot] for slot, name, value in slots if slot in shares}


def exact_updates(before, gradients, config):
    """Returns the update of each weight in fp64, but for the learning rate."""
    names = [name.removeprefix("master/") for name in before if name.startswith("master/")]
    weights = {name: before[f"master/{name}"] for name in names}
    optimizer = dataclasses.replace(config.optimizer, clip_global_norm=0.0, warmup_steps=1)
    reference = Reference(optimizer, weights)
    reference.apply({name: gradients[name] for name in names})
    return {name: reference.w[name] - weights[name] for name in names}


def errors(states, expected_states, config):
    """Returns the difference over all weights, and a row of differences for each weight."""
    (before, after), (_, expected_after) = states, expected_states
    gradients, expected_gradients = gradients_of(after, config), gradients_of(expected_after, config)
    exact = exact_updates(before, gradients, config)
    expected_exact = exact_updates(before, expected_gradients, config)
    norm, rows, whole, sizes = np.linalg.norm, [], [], []
    for name, update in expected_exact.items():
        before_it = before[f"master/{name}"]
        change, expected_change = after[f"master/{name}"] - before_it, expected_after[f"master/{name}"] - before_it
        rate, size = np.vdot(expected_change, update) / np.vdot(update, update), norm(expected_change)
        whole.append(norm(change - expected_change))
        sizes.append(size)
        rounding = norm(change - rate * exact[name]), norm(expected_change - rate * update)
        rows.append(
            types.SimpleNamespace(
                name=name,
                update=whole[-1] / size,
                gradient=norm(gradients[name] - expected_gradients[name]) / norm(expected_gradients[name]),
                exact=rate * norm(exact[name] - update) / size,
                rounding=max(rounding) / size,
            )
        )
    return norm(whole) / norm(sizes), rows


def print_rows(rules, sizes):
    """Prints the rows of the layouts that so many tensor parallel ranks and stages make."""
    launch = launch_from_environment()
    layouts.STEPS = 1
    layouts.starting.value_of_rank_0 = lambda launch, name, value: value  # As in layouts.main.
    tensor, pipeline = sizes
    parallel = ParallelConfig(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, group_transport="horovod")
    mesh = start(launch, 1, parallel)
    for rule in rules:
        for layout in LAYOUTS:
            config = configured(rule, layout)
            if layouts.sizes(config) != sizes:
                continue
            _, states = layouts.train(config, mesh)
            if mesh.is_chief:
                _, expected = layouts.train(dataclasses.replace(config, parallel=ParallelConfig()), Mesh())
                whole, rows = errors(states, expected, config)
                worst = max(rows, key=lambda row: row.update)
                numbers = worst.update, worst.gradient, worst.exact, worst.rounding
                cells = rule.removeprefix("reference_"), layout, f"{whole:.1e}", worst.name
                print(f"| {' | '.join(cells)} | {' | '.join(f'{each:.1e}' for each in numbers)} |", flush=True)
            collectives.gather_numbers(mesh.world, 0.0, "end")


def main(args):
    """Starts four ranks for each mesh; in a rank, `args` begin with its sizes."""
    if launch_from_environment().size > 1:
        print_rows(args[2:], tuple(map(int, args[:2])))
        return
    print(f"| {TITLES} |\n| --- | --- | ---: | --- |{' ---: |' * 4}")
    for sizes in ("1", "1"), ("2", "1"), ("1", "2"):
        output = run_ranks(4, ["-m", "tests.train.update_errors", *sizes, *(args or RULES)], seconds=550)
        print("\n".join(line for line in output.splitlines() if line.startswith("| ")), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
