"""Computes the gradients of a pipeline stage by any schedule.

A schedule is a list of actions (`tftrain.schedules`). This module makes one graph of them. An action that computes is a
call of a compiled function, and control dependencies run these calls one after the other. A transfer waits for its
tensor, and a receive for the computation before it, so transfers run while the stage computes.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import tensorflow as tf

from tftrain.config.parallel import ParallelConfig
from tftrain.host.units import DTYPES
from tftrain.model.gathered_weights import ReadAgain
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Mesh
from tftrain.schedules import orders
from tftrain.schedules.table import Action, ActionKind, Schedule, input_of, output_of
from tftrain.state.run_state import Run
from tftrain.tasks.task import Batch
from tftrain.train.gradients import OUTPUT_GRADIENTS, Gradients, MicroBatch, Position, compare, without_gradients
from tftrain.train.stage import Backward, CompiledStage, Forward
from tftrain.train.stage_clock import StageClock


def forward_only(
    stage: CompiledStage, mesh: Mesh, batch: Batch, position: Position | None = None
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Runs a batch of whole micro-batches forward; without a position, as in an evaluation.

    Returns:
        The sums, fp32 [len(task.sums)], zeros but on the last stage; and there, what the task predicts for each sample,
        if it has a scorer. The sums are there when this stage has done its work.
    """
    task, config = stage.task, stage.task.config
    count = task.batch_size(batch) // config.batch.micro_batch_size
    graph = StageGraph(stage, mesh, schedule_of(config.parallel, count, orders.forward_only), batch, position)
    sums = graph.run().sums
    return sums, tf.concat(graph.outputs, axis=0) if graph.outputs else None


class PipelineGradients:
    """The gradients of this rank's stage over all micro-batches of a global batch; for `clock`, see `TrainStep`."""

    def __init__(self, run: Run):
        self._run = run
        # What backward keeps of a compiled part is a copy, which a weight need not have.
        products = ReadAgain() if run.jit else None
        self._stage = CompiledStage(run.task, run.parts, run.jit, products)
        self.clock = StageClock() if run.config.log.trace_pipeline else None

    def __call__(self, batch: Batch, position: Position) -> Gradients:
        """Computes the gradients of this rank's share of a global batch, times the loss scale.

        The share is the same on all stages: some times micro_batch_size samples.
        """
        run, config = self._run, self._run.config
        count = run.task.batch_size(batch) // config.batch.micro_batch_size
        table = schedule_of(config.parallel, count)
        dtype = tf.as_dtype(DTYPES[config.batch.grad_accum_dtype])
        gradients = StageGraph(self._stage, run.mesh, table, batch, position, dtype, self.clock).run()
        dense = run.task.model.token_embedding.with_gradient_of_copy(run.mesh, gradients.dense)
        return gradients._replace(dense=dense)

    def outputs(self, batch: Batch, position: Position) -> tf.Tensor:
        """Returns the task's outputs for this rank's share of a global batch, see `Accumulation`.

        On all stages but the last, it is a tensor that is there when this stage has done its work.
        """
        done, outputs = forward_only(self._stage, self._run.mesh, batch, position)
        with tf.control_dependencies([done]):
            return done if outputs is None else tf.identity(outputs)


def schedule_of(parallel: ParallelConfig, micro_batches: int, make: Callable[..., Schedule] = orders.table) -> Schedule:
    """Returns the table of the schedule that a run's flags ask for."""
    sizes = parallel.pipeline_parallel_size, micro_batches, parallel.virtual_pipeline_size
    return make(parallel.pipeline_schedule, *sizes)


class PartOfShare(NamedTuple):
    """A batch that is a part of a rank's share of the global batch."""

    end: int  # index after its last sample in the global batch
    inputs: tf.Tensor | None  # what the first part of the model takes, see `CompiledStage.forward`


class StageGraph:
    """The graph of one batch, made from the actions of this rank's stage."""

    def __init__(
        self,
        stage: CompiledStage,
        mesh: Mesh,
        table: Schedule,
        batch: Batch,
        position: Position | None,
        dtype: tf.DType | None = tf.float32,
        clock: StageClock | None = None,
        part: PartOfShare | None = None,
    ):
        """Starts an empty graph for a batch of `table.micro_batches` micro-batches.

        Args:
            stage, mesh, table, clock: what computes, on which of the ranks, by which schedule, and is measured how.
            batch, position: the batch, and its position in the run; None in an evaluation.
            dtype: in which the gradients of micro-batches are added; None: their own.
            part: where in this rank's share the batch is; None: it is the whole share.

        Attributes:
            of_inputs: their gradient, once the graph has run.
            outputs: predictions of each micro-batch, on the last stage if no backward follows.
        """
        self._stage, self._mesh, self._table = stage, mesh, table
        self._batch, self._position, self._dtype, self._clock = without_gradients(batch), position, dtype, clock
        self._upstream, self._trains = batch.get(OUTPUT_GRADIENTS), position is not None and position.trains
        # A first pass is in the graph of the update, where names are unique.
        self._prefix = "" if self._trains or position is None else "first_pass."
        samples = stage.task.batch_size(batch)
        end = part.end if part else (mesh.data.rank + 1) * samples
        self._samples, self._first_sample = samples // table.micro_batches, end - samples
        self._halves = any(action.kind is ActionKind.BACKWARD_INPUTS for action in table.stages[mesh.stage])
        self._forwards: dict[tuple[int, int], Forward] = {}
        self._backwards: dict[tuple[int, int], Backward] = {}
        self._tensors: dict[str, tf.Tensor] = {}  # by the name of their transfer
        self._sent: list[tf.Tensor] = []
        self._order: list[tf.Tensor] = []  # what the next computation waits for
        self._gradients: dict[int, tf.Tensor] = {}
        self._sums = tf.zeros([len(stage.task.sums)])
        self.outputs: list[tf.Tensor] = []
        self._inputs, self.of_inputs = part and part.inputs, None

    def run(self) -> Gradients:
        """Adds all actions; returns the gradients of all variables and the task's sums, after everything was sent."""
        add = {
            ActionKind.FORWARD: self._forward,
            ActionKind.BACKWARD: self._backward,
            ActionKind.BACKWARD_INPUTS: self._backward,
            ActionKind.BACKWARD_WEIGHTS: self._backward_weights,
            ActionKind.SEND: self._send,
            ActionKind.RECEIVE: self._receive,
        }
        if self._clock:
            self._clock.start()
        for action in self._table.stages[self._mesh.stage]:
            with tf.control_dependencies(self._order):
                add[action.kind](action)
        if self._clock:
            self._clock.store()
        with tf.control_dependencies([collectives.prevent_pruning(each) for each in self._sent]):
            variables, total = enumerate(self._stage.variables if self._trains else ()), self._gradients.get
            # A token embedding has no gradient if its rows are inputs and it is no output layer.
            found = ((total(index), variable) for index, variable in variables)
            dense = [tf.identity(tf.zeros_like(variable) if each is None else each) for each, variable in found]
            return Gradients(dense, None, tf.identity(self._sums))

    def _forward(self, action: Action) -> None:
        stage, inputs = self._stage, self._input(action)
        inputs = self._inputs if inputs is None else inputs
        batch = {name: self._rows(tensor, action.micro_batch) for name, tensor in self._batch.items()}
        first_sample = tf.constant(self._first_sample + action.micro_batch * self._samples, tf.int64)
        with self._measured(action, inputs) as ended:
            micro = MicroBatch(batch, first_sample, self._position)
            forward = stage.forward(action.chunk, inputs, micro, self._halves)
            ended([forward.output])
        if self._trains:
            self._forwards[action.chunk, action.micro_batch] = forward
        if forward.sums is not None:
            self._sums += forward.sums
            if forward.outputs is not None:
                self.outputs.append(forward.outputs)
            self._order = [self._sums]
        else:
            self._output(action, forward.output)
            self._order = [forward.output]

    def _backward(self, action: Action) -> None:
        forward, upstream = self._forwards.pop((action.chunk, action.micro_batch)), self._input(action)
        if forward.sums is not None and self._stage.task.compares_samples:
            upstream = self._gradient_of_outputs(forward.output, action.micro_batch)
        with self._measured(action, upstream) as ended:
            done = self._stage.backward(forward, upstream)
            ended([*done.of_variables.values(), *done.upstream])
        if done.of_inputs is not None:
            self._output(action, done.of_inputs)
        self._order = [*self._added(done.of_variables), *([] if done.of_inputs is None else [done.of_inputs])]
        if action.kind is ActionKind.BACKWARD_INPUTS:
            self._order += done.upstream
            self._backwards[action.chunk, action.micro_batch] = done

    def _backward_weights(self, action: Action) -> None:
        with self._measured(action, None) as ended:
            backward = self._backwards.pop((action.chunk, action.micro_batch))
            gradients = self._stage.backward_weights(action.chunk, backward)
            ended(gradients.values())
        self._order = self._added(gradients)

    def _gradient_of_outputs(self, outputs: tf.Tensor, micro_batch: int) -> tf.Tensor:
        """Returns the gradient of the loss by the outputs of a micro-batch of samples that are compared."""
        if self._upstream is not None:
            return self._rows(self._upstream, micro_batch)
        gradient, sums = compare(self._stage.task, self._mesh.data, outputs, self._batch, self._position)
        self._sums += sums
        return gradient

    def _send(self, action: Action) -> None:
        link = self._mesh.link(action.peer)
        self._sent.append(collectives.send(link, self._tensors.pop(action.name), f"{self._prefix}{action.name}"))

    def _receive(self, action: Action) -> None:
        task = self._stage.task
        shape, dtype = [self._samples, *task.activation_shape(self._batch)], tf.as_dtype(task.model.dtype)
        received = collectives.receive(self._mesh.link(action.peer), shape, dtype, f"{self._prefix}{action.name}")
        self._tensors[action.name] = received

    def _measured(self, action: Action, inputs: tf.Tensor | None) -> contextlib.AbstractContextManager:
        """Returns a context for a computation, which yields a function that takes the results."""
        return self._clock.measure(action, inputs) if self._clock else contextlib.nullcontext(lambda results: None)

    def _input(self, action: Action) -> tf.Tensor | None:
        receive = input_of(action, self._mesh.stage, self._mesh.pipeline_parallel_size, self._table.chunks)
        return receive and self._tensors.pop(receive.name)

    def _output(self, action: Action, tensor: tf.Tensor) -> None:
        send = output_of(action, self._mesh.stage, self._mesh.pipeline_parallel_size, self._table.chunks)
        if send:
            self._tensors[send.name] = tensor
        else:
            self.of_inputs = tensor

    def _added(self, gradients: Mapping[int, tf.Tensor]) -> list[tf.Tensor]:
        """Adds gradients of variables to those so far; returns the sums."""
        for index, gradient in gradients.items():
            gradient, total = tf.cast(gradient, self._dtype or gradient.dtype), self._gradients.get(index)
            self._gradients[index] = gradient if total is None else total + gradient
        return [self._gradients[index] for index in gradients]

    def _rows(self, tensor: tf.Tensor, micro_batch: int) -> tf.Tensor:
        return tf.reshape(tensor, [self._table.micro_batches, self._samples, *tensor.shape[1:]])[micro_batch]
