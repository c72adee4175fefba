"""How ranks are connected."""

import pytest

from tftrain.parallel.mesh import MeshError
from tftrain.parallel.start import stall_limits

CHECK, SHUTDOWN = "HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"


def test_a_stalled_run_ends_unless_the_user_has_other_limits():
    assert stall_limits({}) == {CHECK: "60", SHUTDOWN: "600"}
    assert stall_limits({SHUTDOWN: "90"}) == {CHECK: "60", SHUTDOWN: "90"}


@pytest.mark.parametrize(
    "switched_off",
    [{SHUTDOWN: "0"}, {CHECK: "0"}, {SHUTDOWN: "-1"}, {SHUTDOWN: "never"}, {"HOROVOD_STALL_CHECK_DISABLE": "1"}],
)
def test_no_run_may_switch_that_off(switched_off):
    ((name, value),) = switched_off.items()
    with pytest.raises(MeshError, match=f"{name}={value}: expected"):
        stall_limits(switched_off)
