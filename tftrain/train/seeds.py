"""`--seeds`: the same fine-tuning with several seeds, and the mean and the spread of the scores.

The score of a fine-tuned model depends much on the seed when examples are few (Dodge et al., arXiv 2002.06305), so one
run says little.
"""

import gc
import json
import logging
import statistics
from collections.abc import Mapping
from pathlib import Path

from tftrain.checkpoint import scores as scores_file
from tftrain.config.fields import changed
from tftrain.config.train import TrainConfig
from tftrain.host.exit_codes import ExitCode
from tftrain.inputs.inputs import Inputs
from tftrain.observe.watchdog import Watchdog
from tftrain.parallel.mesh import Mesh
from tftrain.train import loop

logger = logging.getLogger(__name__)

NAME = "seeds.json"


def train(config: TrainConfig, inputs: Inputs, mesh: Mesh, watchdog: Watchdog | None = None) -> ExitCode:
    """Does `loop.train`; with several seeds once for each, in OUTPUT_DIR/seed_N, unless that run is done already.

    Returns:
        DONE; or what the first run that did not end so returned.
    """
    if config.fine_tuning.seeds == 1:
        return loop.train(config, inputs, mesh, watchdog)
    first, folder = config.run.seed, Path(config.run.folder)
    seeds = range(first, first + config.fine_tuning.seeds)
    runs = [changed(config, {"seed": seed, "output_dir": str(folder / f"seed_{seed}")}) for seed in seeds]
    for run in runs:
        logger.info(f"seed {run.run.seed}: {run.run.folder}")
        code = loop.train(run, inputs.of_run(run.run.folder), mesh, watchdog)
        gc.collect()
        if code != ExitCode.DONE:
            return code
    if mesh.is_chief:
        report(folder, {run.run.seed: run.run.folder for run in runs})
    return ExitCode.DONE


def report(output_dir: Path, runs: Mapping[int, str]) -> None:
    """Prints the best score of each seed, their mean and their standard deviation, and writes OUTPUT_DIR/seeds.json.

    `runs` has the folder of each seed's run.
    """
    scores_by_seed = {seed: scores_file.read(folder) for seed, folder in runs.items()}
    scores = {seed: scores.best for seed, scores in scores_by_seed.items() if scores and scores.best}
    if not scores:
        logger.info("no held-out examples were scored, so there is no mean over the seeds")
        return
    metric, values = scores_by_seed[min(scores)].metric, [score.value for score in scores.values()]
    mean, spread = statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0
    for seed, score in scores.items():
        logger.info(f"seed {seed}: best {metric} {score.value:.4f} after step {score.step}")
    logger.info(f"{metric} over {len(values)} seeds: mean {mean:.4f}, standard deviation {spread:.4f}")
    content = {"metric": metric, "scores": {str(seed): score.value for seed, score in scores.items()}}
    content |= {"mean": mean, "standard_deviation": spread}
    path = output_dir / NAME
    try:
        path.write_text(json.dumps(content, indent=1) + "\n")
    except OSError as error:
        logger.warning(f"{path}: can't be written: {error}")
