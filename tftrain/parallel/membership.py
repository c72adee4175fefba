"""A process's rank in an elastic job, as the driver inside `horovodrun --host-discovery-script` assigns it.

After a change, the driver waits until every process that it started has either ended or asked for its new assignment.
Then it assigns all ranks anew, and starts processes on new slots. The driver counts requests, so a process must ask
exactly once for each change: a second request would count as that of another process.
"""

import threading
from collections.abc import Mapping

from tftrain.parallel.rendezvous import LauncherStore, address_of_store

ASSIGNED = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
# Longer than the driver's own limit, HOROVOD_ELASTIC_TIMEOUT, which starts only after all old ranks have ended.
ANSWER_SECONDS = 3600


def is_elastic(environ: Mapping[str, str]) -> bool:
    """Returns whether horovodrun's elastic launcher started this process."""
    return environ.get("HOROVOD_ELASTIC") == "1" and address_of_store(environ) is not None


class Membership:
    """The membership of one process.

    Attributes:
        changed: set when hosts or slots have come or gone; the driver notifies only rank 0.
        store: where the processes leave notes for each other; it is empty again after each change.
    """

    def __init__(self, environ: Mapping[str, str]):
        """Registers with the driver, so that it can notify this process; `environ` are horovodrun's variables."""
        from horovod.runner.elastic.worker import WorkerNotificationManager

        self._environ, self._address = environ, address_of_store(environ)
        self.changed = threading.Event()
        self.store = LauncherStore(self._address)
        self._manager = WorkerNotificationManager()
        self._manager.register_listener(self)
        self._manager.init(
            *self._address.split(":"),
            nic=environ.get("HOROVOD_GLOO_IFACE"),
            hostname=environ["HOROVOD_HOSTNAME"],
            local_rank=int(environ["HOROVOD_LOCAL_RANK"]),
        )

    def on_hosts_updated(self, timestamp: int, update: int) -> None:
        """Records that hosts have changed; Horovod calls it in a thread."""
        self.changed.set()

    def next_assignment(self) -> dict[str, str] | None:
        """Returns this process's new ranks as environment variables; None if it is no longer part of the job.

        Waits until every other process of the job has asked as well, or has ended.

        Raises:
            STORE_ERRORS: the driver has ended, or does not answer.
        """
        self.changed.clear()
        slot = f"{self._environ['HOROVOD_HOSTNAME']}:{self._environ['HOROVOD_LOCAL_RANK']}"
        answer = LauncherStore(self._address, "rank_and_size").get(slot, ANSWER_SECONDS)
        numbers = (answer or "-1").split(",")
        if int(numbers[0]) < 0:
            return None
        return {f"HOROVOD_{name}": number for name, number in zip(ASSIGNED, numbers, strict=True)}
