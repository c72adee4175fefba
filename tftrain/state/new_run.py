"""A new run: its task, which has the layers of this rank, and the state over the variables."""

from tftrain.config.train import TrainConfig
from tftrain.model.parameters import InitialValues
from tftrain.model.part import joined
from tftrain.parallel.mesh import Mesh
from tftrain.state.run_state import Run, parts_of_rank
from tftrain.tasks import make_task


def new_run(config: TrainConfig, mesh: Mesh, initial: InitialValues | None = None, trains: bool = True) -> Run:
    """Builds a run; a variable without an initial value is drawn. For `trains`, see `Run`."""
    parts = parts_of_rank(config.model, config.data, config.parallel, mesh)
    return Run(make_task(config, mesh, joined(parts), initial), parts, mesh, trains)
