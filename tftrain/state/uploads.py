"""`--output_dir` at an address: a thread copies the run's folder there after each checkpoint, while training goes on.

Each pass brings the address up to date with the folder. So what a pass could not do, the next one does, and a run that
is started again does what its last one left. The run that began last has the address: an older one uploads no more.
"""

import errno
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterable
from pathlib import Path, PurePath

from tftrain.checkpoint import folder, manifest, remote
from tftrain.checkpoint.errors import FailedSavesError
from tftrain.checkpoint.remote import CHECKPOINTS
from tftrain.checkpoint.save import Superseded
from tftrain.config.run import RunConfig
from tftrain.files import addresses, durable
from tftrain.files.addresses import is_address, join
from tftrain.host.environment import host_name
from tftrain.host.text import reason
from tftrain.parallel import collectives
from tftrain.parallel.horovod_settings import stall_shutdown_seconds
from tftrain.parallel.mesh import Mesh
from tftrain.state.saves import EXIT_SECONDS, ROUND_SHARE

logger = logging.getLogger(__name__)

# These belong to this host: they are no part of what a run leaves.
_LOCAL = ("run.lock", "stacks")
_OWNER = ".owner"
_WAITING = "waiting"


class Uploads:
    """The uploads of one run. Leaving its `with` statement waits for the last one, on every rank.

    Attributes:
        problem: why the last pass has failed, on the chief; "" if it has not.
    """

    def __init__(self, run: RunConfig, seconds: float, mesh: Mesh):
        """The last upload may take `seconds`."""
        self.problem = ""
        self._address, self._folder = run.output_dir, Path(run.folder or "")
        self._seconds, self._mesh = seconds, mesh
        self._owner, self._has_begun = f"{host_name()} {secrets.token_hex(8)}", False
        self._uploaded: dict[Path, tuple[int, int]] = {}  # The state of each file when it was copied.
        self._due, self._ends = threading.Event(), False
        self._goes_on_from: int | None = None  # Later checkpoints at the address are still to be set aside.
        self._thread: threading.Thread | None = None

    def begin(self, step: int, superseded: Superseded) -> None:
        """Starts the thread, on the chief of a run at an address.

        Args:
            step: that the run goes on from. Checkpoints of later steps at the address are set aside there; with -1, all
                is another run's, and what that reported is set aside as well.
            superseded: returns those of complete checkpoints that are to be removed.
        """
        if self._mesh.is_chief and is_address(self._address):
            self._goes_on_from = step
            # A daemon thread: a process must be able to end although a server does not answer.
            self._thread = threading.Thread(target=self._run, args=(superseded,), name="upload", daemon=True)
            self._thread.start()

    def go_back(self, step: int) -> None:
        """Lets the next pass set aside the checkpoints of later steps."""
        pending = self._goes_on_from
        self._goes_on_from = step if pending is None else min(step, pending)

    def request(self) -> None:
        """Lets another pass begin, now or after the one under way."""
        self._due.set()

    def __enter__(self) -> "Uploads":
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Waits for the last pass.

        Raises:
            FailedSavesError: it has failed, or takes longer than `save_timeout_seconds`; on all ranks alike.
        """
        self._ends = True
        self.request()
        if error and self._thread:
            self._thread.join(EXIT_SECONDS)
        if error or not is_address(self._address):
            return
        end, state = time.monotonic() + self._seconds, _WAITING
        # In rounds: Horovod ends a run whose collective takes too long.
        while state == _WAITING:
            if self._thread:
                left = end - time.monotonic()
                self._thread.join(max(0.0, min(ROUND_SHARE * stall_shutdown_seconds(), left)))
                late = f"the server has not taken it within {self._seconds:.0f} s" if left <= 0 else _WAITING
                state = late if self._thread.is_alive() else self.problem
            state = collectives.gather_values(self._mesh.world, state, "uploaded")[0]
        if state:
            where = f"--output_dir={self._address}: the last upload has failed: {state}"
            raise FailedSavesError(f"{where}; {self._folder} has all: start the same command again to upload it")

    def _run(self, superseded: Superseded) -> None:
        is_last = False
        while not is_last:
            self._due.wait()
            self._due.clear()
            is_last = self._ends
            try:
                self._own()
                if (step := self._goes_on_from) is not None:
                    self._set_aside(step)
                    self._goes_on_from = None if self._goes_on_from == step else self._goes_on_from
                self._update(superseded)
                self.problem = ""
            except Exception as error:
                # After any error: the run must not wait for a thread that has ended.
                self.problem = f"{getattr(error, 'filename', None) or self._address}: {reason(error)}"
                again = "" if is_last else "; the next checkpoint brings another try"
                logger.warning(f"the upload has failed: {self.problem}{again}")

    def _own(self) -> None:
        """Writes at the address which run has it; raises an OSError if another run has done so since."""
        path = join(self._address, _OWNER)
        if not self._has_begun:
            durable.write(self._folder / _OWNER, self._owner.encode())
            addresses.upload(path, self._folder / _OWNER)
            self._has_begun = True
        elif (owner := addresses.read_small(path, 1 << 12).decode(errors="replace")) != self._owner:
            raise OSError(errno.EBUSY, f"another run has begun there, on {owner.partition(' ')[0]}", self._address)

    def _set_aside(self, step: int) -> None:
        """Moves checkpoints of later steps, which the run that goes on here does not have, out of the way."""
        files, aside = addresses.listing(self._address), time.strftime("set_aside_%Y%m%d_%H%M%S")
        later = [path for path in remote.checkpoints(files) if folder.order(path)[0] > step]
        reports = [PurePath(name) for name in folder.REPORTS] if step < 0 else []
        for path in (*later, *reports):
            for file in (each for each in files if remote.is_in(each, str(path))):
                to = join(self._address, CHECKPOINTS, aside, file.removeprefix(f"{CHECKPOINTS}/"))
                addresses.copy(join(self._address, file), to)
            self._remove(path, files)
        if later:
            logger.info(f"{join(self._address, CHECKPOINTS)}: {len(later)} of later steps, moved to {aside}")

    def _update(self, superseded: Superseded) -> None:
        files, paths = addresses.listing(self._address), self._folder.rglob("*")
        # Before the checkpoints, so that one that is visible has its tokenizer and its configuration.
        addresses.in_parallel(self._copy, [path for path in paths if self._is_report(path)])
        for path in reversed(folder.find(self._folder)):
            name = path.relative_to(self._folder)
            if f"{name}/{manifest.NAME}" not in files:
                self._remove(name, files)  # What an upload that was cut off has left.
                self._copy_checkpoint(path)
        files = addresses.listing(self._address)
        complete = remote.checkpoints(files)
        begun = {PurePath(file).parent for file in files if file.startswith(f"{CHECKPOINTS}/")} - set(complete)
        for path in [*superseded(complete), *(each for each in begun if len(each.parts) == 2 and folder.order(each))]:
            self._remove(path, files)

    def _is_report(self, path: Path) -> bool:
        top = path.relative_to(self._folder).parts[0]
        return top not in (CHECKPOINTS, *_LOCAL) and not path.name.startswith(".") and path.is_file()

    def _copy(self, path: Path) -> None:
        """Copies a file if it has changed since it was copied last."""
        status = path.stat()
        state = status.st_mtime_ns, status.st_size
        if self._uploaded.get(path) != state:
            addresses.upload(join(self._address, path.relative_to(self._folder).as_posix()), path)
            self._uploaded[path] = state

    def _copy_checkpoint(self, path: Path) -> None:
        target = join(self._address, CHECKPOINTS, path.name)
        try:
            shards = [name for name in os.listdir(path) if name != manifest.NAME]
            addresses.in_parallel(lambda name: addresses.upload(join(target, name), path / name), shards)
            addresses.upload(join(target, manifest.NAME), path / manifest.NAME)
        except OSError:
            if (path / manifest.NAME).exists():
                raise
            return  # It was removed meanwhile, as an old one; what there is of it will be, too.
        logger.info(f"uploaded {target}")

    def _remove(self, path: PurePath, files: Iterable[str]) -> None:
        """Removes what `files` say that there is of a checkpoint at the address, the manifest first."""
        inside = [file for file in files if remote.is_in(file, str(path))]
        inside.sort(key=lambda file: manifest.NAME not in file)
        for some in (inside[:1], inside[1:]):
            addresses.in_parallel(lambda file: addresses.remove(join(self._address, file)), some)
