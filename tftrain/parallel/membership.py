"""A process's place in an elastic job, as the driver inside `horovodrun --host-discovery-script` gives it.

The driver counts. After a change it waits until every process that it started has either ended or asked for its new
place; then it deals the places out anew, and starts processes on the slots that are new. So a process asks once for
each change, and never again for the same one: a second question would be counted as another process's.
"""

import threading
from collections.abc import Mapping

from tftrain.parallel.rendezvous import Store, address_of_store

PLACE = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
# The driver's own limit, HOROVOD_ELASTIC_TIMEOUT, is for hosts that are too few. Until it counts, ranks must end.
ANSWER_SECONDS = 3600


def is_elastic(environ: Mapping[str, str]) -> bool:
    """Whether the process was started by horovodrun's elastic launcher."""
    return environ.get("HOROVOD_ELASTIC") == "1" and address_of_store(environ) is not None


class Membership:
    """The driver, seen from one process.

    Attributes:
        changed: set when the driver has told this process that hosts or slots have come or gone; it tells rank 0.
        store: where the processes of one place leave notes; it is empty again after each change.
    """

    def __init__(self, environ: Mapping[str, str]):
        """Lets the driver know where this process listens.

        Args:
            environ: what horovodrun has set; it names the driver, and the host and slot of this process.
        """
        from horovod.runner.elastic.worker import WorkerNotificationManager

        self._environ, self._address = environ, address_of_store(environ)
        self.changed = threading.Event()
        self.store = Store(self._address)
        self._manager = WorkerNotificationManager()
        self._manager.register_listener(self)
        self._manager.init(
            *self._address.split(":"),
            nic=environ.get("HOROVOD_GLOO_IFACE"),
            hostname=environ["HOROVOD_HOSTNAME"],
            local_rank=int(environ["HOROVOD_LOCAL_RANK"]),
        )

    def on_hosts_updated(self, timestamp: int, update: int) -> None:
        """Takes the driver's word that hosts have changed; Horovod calls it, in a thread."""
        self.changed.set()

    def ask(self) -> dict[str, str] | None:
        """Returns this process's new place, as environment variables; None if it has none any more.

        Waits until every other process of the job has asked as well, or ended.

        Raises:
            STORE_ERRORS: the driver has ended, or does not answer.
        """
        self.changed.clear()
        slot = f"{self._environ['HOROVOD_HOSTNAME']}:{self._environ['HOROVOD_LOCAL_RANK']}"
        answer = Store(self._address, "rank_and_size").get(slot, ANSWER_SECONDS)
        numbers = (answer or "-1").split(",")
        if int(numbers[0]) < 0:
            return None
        return {f"HOROVOD_{name}": number for name, number in zip(PLACE, numbers, strict=True)}
