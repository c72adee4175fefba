"""The process of one rank, from connecting the ranks to its exit code.

A rank ends for its own reason, with the exit code that says it, or because another rank is gone.
"""

import logging
import os
import sys
import time

import tensorflow as tf

from tftrain.config.train import TrainConfig
from tftrain.files.errors import data_error
from tftrain.host import determinism, devices, log, text
from tftrain.host.exit_codes import ExitCode, OutOfMemoryError, RunError
from tftrain.inputs.inputs import Inputs
from tftrain.observe.watchdog import Watchdog
from tftrain.ops.library import MissingLibraryError
from tftrain.parallel import collectives, start, tensorflow_cluster
from tftrain.parallel.launcher import Launch
from tftrain.parallel.mesh import Mesh
from tftrain.supervise import elastic, peer_failure
from tftrain.train import evaluate, rank_checks, seeds

logger = logging.getLogger("tftrain.run")

# The chief prints an error that all ranks raise. A launcher ends all ranks as soon as one has failed.
CHIEF_PRINT_SECONDS = 1.0
ADVICE = "use a smaller --micro_batch_size or --activation_checkpointing; `tftrain.launch --layout=auto` chooses"


def run(config: TrainConfig, inputs: Inputs, launch: Launch) -> int:
    """Connects the ranks, trains or evaluates with a checked configuration, and returns the exit code."""
    compute, code = config.compute, ExitCode.FAILED
    tf.config.experimental.enable_tensor_float_32_execution(compute.tensor_float_32 and not compute.deterministic)
    if compute.deterministic:
        determinism.enable()
    end = ProcessEnd(Watchdog(launch.rank, config.limits, config.run.folder, host=launch.host()), launch)
    try:
        with end.watchdog.limit("connecting the ranks", "start_timeout_seconds"):
            transport = compute.gradient_transport if config.run.mode == "train" else "horovod"
            ranks = start.start(launch, compute.cpu_threads, config.parallel, transport)
            end.watch_peers(ranks)
            rank_checks.before_start(config, inputs, ranks)
        length, longest = config.longest_phase.data.max_seq_length, config.model.max_position_embeddings
        if ranks.is_chief and (note := devices.unused_gpu(os.environ)):
            logger.warning(note)
        if ranks.is_chief and length > longest:
            logger.warning(f"--max_seq_length={length}: converted models will have max_position_embeddings={longest}")
        if config.run.mode == "train":
            code = seeds.train(config, inputs, ranks, end.watchdog)
        else:
            evaluate.evaluate(config, inputs, ranks, end.watchdog)
            # The lines are all that an evaluation leaves.
            code = ExitCode.FAILED if log.lines_are_lost() else ExitCode.DONE
    except (RunError, MissingLibraryError, OSError, tf.errors.OpError) as error:
        cause = cause_of(error, compute.deterministic)
        if cause is None and collectives.is_peer_failure(error):
            end.after_peer()
        if cause is None:
            raise
        code = end.after_error(cause)
    finally:
        end.begin(int(code))
    return code


class ProcessEnd:
    """The end of this process, which the `watchdog` limits."""

    def __init__(self, watchdog: Watchdog, launch: Launch):
        """Lets an exception that Gloo throws in a thread of its own end the process."""
        self.watchdog, self._launch = watchdog, launch
        self._codes: list[int] = []  # One code, once this rank has come to its own end.
        if launch.size > 1:
            peer_failure.on_uncaught_gloo_error(self.after_peer)

    def watch_peers(self, ranks: Mesh) -> None:
        """Lets a collective that waits for a rank that is gone end the process."""
        self.watchdog.pending = ranks.pending
        self.watchdog.stage = ranks.stage if ranks.pipeline_parallel_size > 1 else None
        if self._launch.size > 1:
            abort = tensorflow_cluster.abort if ranks.tensorflow_kinds else lambda: None
            peer_failure.on_forgotten_collective(lambda: bool(ranks.pending.unfinished()), self.after_peer, abort)

    def after_peer(self) -> None:
        """Ends the process at once, because another rank is gone."""
        # Python's own exit takes seconds to free the graphs, and Horovod's may ask the rank that is gone.
        try:
            if not self._codes:
                words = "another rank ended or can't be reached; its own output says why"
                logger.error(f"{words}{self.watchdog.waiting()}")
                self.watchdog.tell_end(ExitCode.PEER_ENDED)
            sys.stdout.flush()
        finally:
            os._exit(self._codes[0] if self._codes else ExitCode.PEER_ENDED)

    def after_error(self, cause: Exception) -> int:
        """Says what ends the run, unless the chief says it for all ranks; returns the exit code."""
        code = getattr(cause, "exit_code", ExitCode.FAILED)
        if self._launch.rank == 0 or not getattr(cause, "on_all_ranks", False):
            file = f"{cause.filename}: " if isinstance(cause, OSError) and cause.filename else ""
            logger.error(f"{file}{text.reason(cause)}" if isinstance(cause, OSError) else cause)
        else:
            self._codes.append(int(code))
            time.sleep(CHIEF_PRINT_SECONDS)
        return code

    def begin(self, code: int) -> None:
        """Tells the exit code to all who must know it, and limits what is left."""
        self._codes.append(code)
        elastic.announce_end(code, os.environ)
        self.watchdog.tell_end(code)
        # Horovod's own exit waits for the other ranks.
        self.watchdog.begin("the end of the process", "exit_timeout_seconds", code or ExitCode.STALLED)


def cause_of(error: Exception, deterministic: bool) -> Exception | None:
    """Returns what to tell the user of an error: TensorFlow wraps one in a record in its own; None if it is unknown."""
    if not isinstance(error, tf.errors.OpError):
        return error
    lines = str(error).splitlines() if isinstance(error, tf.errors.ResourceExhaustedError) else ()
    if reason := next((line for line in lines if "allocat" in line), ""):  # Else the disk is full.
        return OutOfMemoryError(f"{text.one_line(reason)}: {ADVICE}")
    return data_error(error) or (determinism.error_of_op(error) if deterministic else None)
