"""The process that runs tftrain's training step when asked."""

from collections.abc import Callable
from typing import Any

from tftrain.bench.peers import task, training
from tftrain.bench.worker import serve


def build(settings: dict[str, Any]) -> Callable[[int | str], list[float]]:
    """Builds the step; settings hold task, batches, precision, threads, flags, and extra_flags, which win.

    Returns:
        A function that answers a number of steps with the seconds of each, and `task.PRODUCTS` with the seconds of the
        step's matrix products alone.
    """
    given = f"{settings['flags']} {settings['extra_flags']}"
    config = training.configuration(settings["precision"], settings["threads"], given, task.size(settings))
    batches = task.batches(settings, config.model.vocab_size)
    take = task.turns(training.make_step(config), batches)

    def answer(request):
        return [training.product_seconds(config, batches)] if request == task.PRODUCTS else take(request)

    return answer


if __name__ == "__main__":
    serve(build)
