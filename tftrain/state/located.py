"""Folders and addresses that flags name: what is read is brought to this host, and where to write must be writable."""

import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from tftrain.checkpoint import remote
from tftrain.checkpoint.errors import CheckpointError
from tftrain.config.convert import parse_place
from tftrain.config.fields import Problem, changed
from tftrain.config.run import RunConfig
from tftrain.config.train import TrainConfig
from tftrain.files import addresses, durable
from tftrain.files.addresses import is_address, local_name
from tftrain.host.text import reason

logger = logging.getLogger("tftrain.run")


def with_local_folders(config: TrainConfig) -> tuple[TrainConfig, list[Problem]]:
    """Fetches the run at `--output_dir`, and what `--resume` and `--init_checkpoint` name, if that is an address.

    Every rank may call it: the first one on a host fetches, the others wait.

    Returns:
        The configuration with `local_dir` set, and with paths for the other two; and why something can't be fetched.
    """
    values: dict[str, Any] = {}
    cache, run, resume = config.data.cache, config.run, config.checkpoint.resume
    folders = {"local_dir": run.local_dir, "cache_dir": cache.given_folder}
    if problems := [
        Problem(flag, path, "expected a local folder") for flag, path in folders.items() if is_address(path)
    ]:
        return config, problems
    initial = parse_place(run.init_checkpoint or "")
    flag, value = "", ""
    try:
        if is_address(run.output_dir):
            flag, value = "output_dir", run.output_dir
            local = os.path.abspath(run.local_dir or cache.path("runs", local_name(value)))
            values["local_dir"] = local
            if resume in ("auto", "best"):
                remote.fetch_run(value, Path(local), with_best=resume == "best")
        if is_address(resume):
            flag, value = "resume", resume
            values["resume"] = str(remote.local_copy(resume, cache))
        if initial and is_address(initial.path):
            flag, value = "init_checkpoint", run.init_checkpoint
            values["init_checkpoint"] = f"{initial.format}:{remote.local_copy(initial.path, cache)}"
    except (OSError, CheckpointError) as error:
        problems.append(Problem(flag, value, f"{reason(error)}; expected an address that can be read"))
    return changed(config, values), problems


def output_problems(settings: RunConfig) -> list[Problem]:
    """Returns why nothing can be written to a run's folder, which is made if it is not there, or to its address."""
    target = settings.folder
    try:
        os.makedirs(target, exist_ok=True)
        if os.stat(target).st_mode & 0o002:
            logger.warning(f"{target}: every user of this host may write there, and change this run; use chmod o-w")
        durable.probe(Path(target))
        with tempfile.NamedTemporaryFile(dir=target, prefix=".") as file:
            if is_address(settings.output_dir):
                target = settings.output_dir
                addresses.upload(probe := addresses.join(target, os.path.basename(file.name)), file.name)
                addresses.remove(probe)
            return []
    except OSError as error:
        flag = "output_dir" if target == settings.output_dir else "local_dir"
        what = "an address" if is_address(target) else "a folder"
        return [Problem(flag, target, f"expected {what} that can be written to: {error.strerror}")]
