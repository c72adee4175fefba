"""The environment variables of ranks."""

from collections.abc import Mapping

from horovod.runner.common.util.env import is_exportable


def for_ranks(
    environ: Mapping[str, str], network: Mapping[str, object], chosen_interfaces: str | None, is_local: bool
) -> dict[str, str]:
    """Returns the variables for the ranks of one host, beside those of each rank's place.

    Args:
        environ: the launcher's.
        network: Horovod's variables for the network.
        chosen_interfaces: the interfaces that the user chose, with commas between; None if they were found.
        is_local: whether the ranks run beside the launcher. Other hosts do not get what only this one has, such as
            CUDA_VISIBLE_DEVICES.
    """
    passed = {name: value for name, value in environ.items() if is_local or is_exportable(name)}
    network = {name: str(value) for name, value in network.items()}
    if chosen_interfaces:
        network["NCCL_SOCKET_IFNAME"] = chosen_interfaces
    elif "NCCL_SOCKET_IFNAME" in environ:
        network.pop("NCCL_SOCKET_IFNAME", None)
    # A rank's lines come out at once, also those of libraries that print.
    return {**passed, "PYTHONUNBUFFERED": "1", **network}
