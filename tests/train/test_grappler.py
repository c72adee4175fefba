"""What the flags say of Grappler is what the rewriter does to the graph of the step."""

import dataclasses

import pytest
from tensorflow.python.eager import context

from tests.train.test_step import BASE, batches, trained
from tftrain.config.compute import ComputeConfig
from tftrain.train import grappler

pytestmark = pytest.mark.slow


@pytest.fixture
def rewritten():
    """Returns the operations of the step after Grappler, by name, under some flags."""

    def run(**flags):
        compute = ComputeConfig(**flags)
        grappler.configure(compute)
        context.context().enable_run_metadata()
        context.context().export_run_metadata()  # what ran before: TensorFlow may have kept it
        trained(dataclasses.replace(BASE, compute=compute), data=batches(1))
        graphs = context.context().export_run_metadata().function_graphs
        largest = max((graph.post_optimization_graph for graph in graphs), key=lambda graph: len(graph.node))
        return {node.name: node.op for node in largest.node}

    yield run
    context.context().disable_run_metadata()
    context.context().function_call_options = None


@pytest.mark.parametrize(
    ("setting", "recomputes"),
    [
        ("recomputation", True),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in (("none", False), ("heuristics", True))),
    ],
)
def test_the_memory_optimizer_recomputes_where_it_is_told_to(rewritten, setting, recomputes):
    names = rewritten(memory_optimization=setting)
    assert any(name.startswith("Recomputed/") for name in names) is recomputes


@pytest.mark.parametrize(("suppressed", "fuses"), [pytest.param(False, True, marks=pytest.mark.nightly), (True, False)])
def test_without_grappler_nothing_is_fused(rewritten, suppressed, fuses):
    operations = rewritten(suppress_grappler=suppressed).values()
    assert any(operation.startswith("_Fused") for operation in operations) is fuses


@pytest.mark.parametrize("setting", grappler.MEMORY_OPTIMIZATIONS)
def test_every_setting_reaches_the_options_of_a_call(setting):
    try:
        grappler.configure(ComputeConfig(memory_optimization=setting))
        config = context.context().config
        config.Clear()
        config.MergeFromString(context.context().function_call_options.config_proto_serialized)
        rewriter = config.graph_options.rewrite_options
        assert rewriter.memory_optimization == grappler.MEMORY_OPTIMIZATIONS[setting]
        assert config.allow_soft_placement
    finally:
        context.context().function_call_options = None


def test_settings_without_effect_are_told():
    def told(jit=False, gpu=False, **flags):
        return grappler.without_effect(ComputeConfig(**flags), jit, gpu)

    assert told() is told(jit=True) is told(memory_optimization="recomputation") is told(suppress_grappler=True) is None
    assert told(memory_optimization="swapping", gpu=True) is None
    assert "GPU" in told(memory_optimization="swapping")
    xla = told(jit=True, memory_optimization="none", suppress_grappler=True)
    assert "--memory_optimization=none and --suppress_grappler: no effect, XLA" in xla
