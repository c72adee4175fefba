"""A new run: its task, which has the layers of this rank, and the state over the variables."""

from tftrain.config.train import TrainConfig
from tftrain.formats.weights import Weights
from tftrain.model.part import joined
from tftrain.parallel.mesh import Mesh
from tftrain.state.run_state import Run, division_of, parts_of_rank
from tftrain.tasks import make_task


def new_run(config: TrainConfig, mesh: Mesh, initial: Weights | None = None, trains: bool = True) -> Run:
    """Builds a run; a variable that the initial weights lack is drawn. For `trains`, see `Run`."""
    part = joined(parts_of_rank(division_of(config.model, config.data, config.parallel), mesh))
    return Run(config, mesh, make_task(config, mesh, part, initial and initial.shard), trains)
