"""The options of `tftrain.launch`, which have the names that `horovodrun` gives them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields

from tftrain.config.fields import Problem, field_problems, flag, refused


@dataclass(frozen=True)
class LaunchConfig:
    """How many ranks are started, and where (tftrain.launch only)."""

    num_proc: int | None = flag(None, minimum=1, common=True)
    """Number of ranks, also -np N; by default the slots of all hosts. Without hosts, all ranks run on this host."""
    hosts: str | None = flag(None, "Hosts with slots, also -H, such as node1:16,node[2-4]:16; by ssh.", common=True)
    hostfile: str | None = flag(None, names="path", common=True)
    """File with a host on each line, such as `node1 slots=16`; host files of other launchers are read too."""
    network_interfaces: str | None = flag(None)
    """Network interfaces, separated by commas; a host uses its first one. By default the interface to this host."""
    ssh_port: int | None = flag(None, "Port of ssh on all hosts, also -p.", minimum=1, maximum=65535)
    ssh_identity_file: str | None = flag(None, "File of the private key for ssh, also -i.", names="path")
    pass_env: str | None = flag(None)
    """Environment variables for other hosts beside those that python -m tftrain docs security lists: names or patterns,
    separated by commas, such as AWS_*,MY_FLAG. By default, other hosts get no keys and no passwords."""
    start_timeout: float = flag(30.0, "Seconds in which every host must answer.", above=0)
    fork_ranks: bool = flag(False)
    """Fork the ranks of a host from one process that has loaded TensorFlow: they start faster and share memory."""
    layout: str = flag("given", choices=("given", "auto"), common=True)
    """Batch sizes and parallelism of the run. given: as the flags say. auto: the planner chooses the fastest layout
    that fits the memory and has all flags that are given: python -m tftrain docs planner."""
    cluster: str | None = flag(None, names="path")
    """With --layout=auto, the machine: a name of tftrain.plan --list, or FILE.json; by default this host, measured
    once."""
    verbose: bool = flag(False, "Print where each rank runs, how it ended, and the commands for other hosts.")

    def problems(self) -> list[Problem]:
        """Returns every reason to refuse these options by themselves."""
        problems = field_problems(self)
        if self.hosts is not None and self.hostfile is not None:
            problems.append(refused(self, "hostfile", "expected either --hosts or --hostfile"))
        if self.num_proc is None and self.hosts is None and self.hostfile is None:
            problems.append(refused(self, "num_proc", "expected the number of ranks, -np N"))
        if self.ssh_identity_file is not None and not os.path.isfile(self.ssh_identity_file):
            problems.append(refused(self, "ssh_identity_file", "no such file; expected a private key"))
        if self.cluster is not None and self.layout != "auto":
            problems.append(refused(self, "cluster", "remove this flag, or add --layout=auto"))
        return problems


_SHORT = {"-np": "num_proc", "-H": "hosts", "-hostfile": "hostfile", "-p": "ssh_port", "-i": "ssh_identity_file"}
_OTHERS = {"np": "num_proc", "network_interface": "network_interfaces"}
_LONG = {**{each.name: each.name for each in fields(LaunchConfig)}, **_OTHERS}
_FIELDS = _SHORT | {f"--{each}": name for long, name in _LONG.items() for each in (long, long.replace("_", "-"))}
_SWITCHES = ("fork_ranks", "verbose")
_ELASTIC = ("--min-np", "--max-np", "--host-discovery-script", "--blacklist-cooldown-range", "--reset-limit")


def split(args: Sequence[str]) -> tuple[list[str], list[str], list[Problem]]:
    """Separates the arguments of `tftrain.launch`: its own options and the flags of `tftrain.run`, in any order.

    Returns the options as `--field=value`, the flags of `tftrain.run`, and the problems of the command line's form.
    """
    options, flags, problems = [], [], []
    waiting = list(args)
    while waiting:
        arg = waiting.pop(0)
        spelling, separator, value = arg.partition("=")
        if spelling == "--":
            flags += [arg, *waiting]
            break
        if spelling in _ELASTIC:
            expected = "elastic runs are started by horovodrun, see python -m tftrain docs elastic"
            problems.append(Problem(spelling[2:], None, expected))
            if not separator and waiting:
                waiting.pop(0)
        elif arg == "-m" and waiting[:1] == ["tftrain.run"]:
            waiting.pop(0)
            if flags and not flags[-1].startswith("-"):
                flags.pop()  # The interpreter.
            problems.append(Problem("", "python -m tftrain.run", "leave this out; expected only the flags of the run"))
        elif spelling not in _FIELDS:
            flags.append(arg)
        elif separator or _FIELDS[spelling] in _SWITCHES:
            options.append(f"--{_FIELDS[spelling]}{separator}{value}")
        elif waiting:
            options.append(f"--{_FIELDS[spelling]}={waiting.pop(0)}")
        else:
            problems.append(Problem(_FIELDS[spelling], None, f"expected a value after {spelling}"))
    return options, flags, problems
