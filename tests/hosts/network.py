"""Hosts on one machine: each has a network, process numbers, a name and a mount table of its own, and an sshd.

A host is a set of Linux namespaces, held by a process that is its init. One more such set holds the switch, a bridge
to which each host's `eth0` leads. When the test process ends for any reason, the inits see the end of their input, and
the kernel ends everything inside: nothing is left on the machine, and two networks at once do not meet.

It needs root, `ip` (iproute2), `sshd` (openssh-server), `unshare` and `nsenter` (util-linux).
"""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from tests.kit.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("ip", "sshd", "ssh", "ssh-keygen", "unshare", "nsenter", "mount")
SECONDS = 20
# An init: reaps the processes that it inherits, until the end of its input.
INIT = """
import os, select
print(flush=True)
while not select.select([0], [], [], 0.05)[0]:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass
"""
SSHD_CONFIG = """
HostKey /etc/ssh/host_key
AuthorizedKeysFile /etc/ssh/authorized_keys
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
"""
SSH_CONFIG = """
Host *
  IdentityFile /etc/ssh/id
  GlobalKnownHostsFile /etc/ssh/known_hosts
  LogLevel ERROR
"""


class Namespaces:
    """A set of namespaces, held by its init; `pid` is the init's, as this process sees it."""

    def __init__(self, name: str):
        """Starts the init; `name` becomes the host name inside."""
        kinds = ("--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "--propagation=private")
        self._unshare = subprocess.Popen(
            ["unshare", *kinds, sys.executable, "-SEc", INIT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._unshare.stdout.readline() != b"\n":
            raise OSError("namespaces can't be made")
        (init,) = psutil.Process(self._unshare.pid).children()
        self.pid = init.pid
        self.run("sh", "-c", f"mount -t tmpfs none /run && mkdir /run/sshd && hostname {name} && ip link set lo up")

    def command(self, *args: str, environ: Mapping[str, str] | None = None) -> list[str]:
        """Returns the command that runs a program inside, in the root of the repository."""
        variables = [f"{name}={value}" for name, value in (environ or {}).items()]
        return ["nsenter", f"--target={self.pid}", "-m", "-u", "-n", "-p", "env", "-C", str(ROOT), *variables, *args]

    def run(self, *args: str) -> None:
        """Runs a program inside to its end.

        Raises:
            OSError: it failed; with what it printed.
        """
        done = subprocess.run(self.command(*args), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"{' '.join(args)}: {done.stderr}")

    def processes(self, *args: str) -> list[psutil.Process]:
        """Returns the processes inside, except the init and the dead, whose arguments begin with these."""
        here, found = os.readlink(f"/proc/{self.pid}/ns/pid"), []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                inside = process.pid != self.pid and os.readlink(f"/proc/{process.pid}/ns/pid") == here
                if inside and process.status() != psutil.STATUS_ZOMBIE:
                    found += [process] if tuple(process.cmdline()[1 : 1 + len(args)]) == args else []
        return found

    def kill(self) -> None:
        """Kills all processes inside at once, as when a host loses its power; the kernel removes the namespaces."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._unshare.stdin.close()
        self._unshare.wait()
        self._unshare.stdout.close()


class Host(Namespaces):
    """A host with its own name and address."""

    def __init__(self, name: str, address: str, files: Path, switch: Namespaces):
        """Makes it; `files` has what belongs into /etc, `switch` is what it is connected to."""
        super().__init__(name)
        self.name, self.address, self._files, self._switch = name, address, files, switch
        self._sshd: subprocess.Popen | None = None
        for path in ("hosts", "shadow", "ssh"):
            self.bind(files / path, Path("/etc") / path)
        own = Path("~root/.ssh").expanduser()
        if own.exists():
            self.run("mount", "-t", "tmpfs", "none", str(own))
        # Only the network namespace is the switch's: the command must find the init by its number.
        link = f"ip link add {self.port} type veth peer name eth0 netns {self.pid}"
        subprocess.run(["nsenter", f"--target={switch.pid}", "-n", *link.split()], check=True)
        self._switch.run("ip", "link", "set", self.port, "master", "switch", "up")
        self._set_address()
        self.start_sshd()

    def _set_address(self) -> None:
        # Always the same hardware address: other hosts may know it.
        hardware = f"02:00:00:00:00:{int(self.address.rpartition('.')[2]):02x}"
        given = f"ip addr add {self.address}/24 dev eth0 && ip link set eth0 address {hardware} up"
        self.run("sh", "-c", given)

    @property
    def port(self) -> str:
        """The name of its port in the switch."""
        return f"to_{self.name}"

    def bind(self, source: Path, target: Path) -> None:
        """Lets this host see another file or folder in a place."""
        self.run("mount", "--bind", str(source), str(target))

    def start_sshd(self) -> None:
        """Starts sshd and waits until it listens."""
        log = self._files / f"sshd_{self.name}.log"
        with log.open("wb") as file:
            program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
            self._sshd = subprocess.Popen(self.command(program, "-D", "-e"), stdin=subprocess.DEVNULL, stderr=file)
        is_running = lambda: self._sshd.poll() is None  # noqa: E731
        wait_until(lambda: "listening on 0.0.0.0" in log.read_text(), SECONDS, log.read_text, is_running)

    def stop_sshd(self) -> None:
        """Ends the sshd that listens; connections that it has accepted stay."""
        for process in psutil.Process(self._sshd.pid).children():
            process.terminate()
        self._sshd.wait()

    def disconnect(self) -> None:
        """Lets the switch drop everything from and to this host; no side gets a message or sees a link go down."""
        self._switch.run("ip", "link", "set", self.port, "nomaster")

    def reconnect(self) -> None:
        """Undoes `disconnect`."""
        self._switch.run("ip", "link", "set", self.port, "master", "switch")

    def slow_down(self, delay_ms: int, loss_percent: float) -> None:
        """Replaces the cable by one that delays each frame, in each direction, and loses some: `slow_cable.py`."""
        self._switch.run("ip", "link", "del", self.port)
        numbers = map(str, (self._switch.pid, self.pid, delay_ms, loss_percent))
        cable = [sys.executable, str(Path(__file__).with_name("slow_cable.py")), *numbers, self.port]
        # Its standard input ends with this process.
        self._cable = subprocess.Popen(cable, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._cable.stdout.readline() == b"\n"
        self._switch.run("ip", "link", "set", self.port, "master", "switch", "up")
        self._set_address()

    def kill(self) -> None:
        super().kill()
        self._sshd.wait()


@contextlib.contextmanager
def network(folder: Path, *names: str, ssh_options: str = "") -> Iterator[dict[str, Host]]:
    """Makes hosts that reach each other by name and by ssh, and removes them at the end; yields them by name.

    The new folder gets keys and logs; `ssh_options` are further lines of the hosts' ssh_config.
    """
    addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}
    ssh = folder / "ssh"
    ssh.mkdir(parents=True)
    for key in ("id", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(ssh / key)], check=True)
    (ssh / "authorized_keys").write_bytes((ssh / "id.pub").read_bytes())
    key = (ssh / "host_key.pub").read_text()
    (ssh / "known_hosts").write_text("".join(f"{name},{address} {key}" for name, address in addresses.items()))
    (ssh / "sshd_config").write_text(SSHD_CONFIG)
    (ssh / "ssh_config").write_text(f"{SSH_CONFIG}{ssh_options}\n")
    (folder / "hosts").write_text("".join(f"{a} {n}\n" for n, a in {"localhost": "127.0.0.1", **addresses}.items()))
    # Without PAM, sshd refuses root where the account is locked.
    (folder / "shadow").write_text("root:*:19000:0:99999:7:::\nsshd:*:19000::::::\n")
    with contextlib.ExitStack() as stack:
        switch = Namespaces("switch")
        stack.callback(switch.kill)
        switch.run("ip", "link", "add", "switch", "type", "bridge")
        switch.run("ip", "link", "set", "switch", "up")
        hosts = {}
        for name, address in addresses.items():
            hosts[name] = Host(name, address, folder, switch)
            stack.callback(hosts[name].kill)
        yield hosts


@functools.cache
def unavailable_reason() -> str:
    """Returns why this machine can't have such hosts; "" if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    if missing := [program for program in PROGRAMS if not shutil.which(program, path=path)]:
        return f"hosts need {', '.join(missing)} (Debian: openssh-server, openssh-client, iproute2)"
    try:
        probe = Namespaces("probe")
    except OSError as error:
        return f"this process may make no namespaces: {error}"
    try:
        probe.run("ip", "link", "add", "switch", "type", "bridge")
        probe.run("ip", "link", "add", "left", "type", "veth", "peer", "name", "right")
        return ""
    except OSError as error:
        return f"the kernel has no bridge or no veth: {error}"
    finally:
        probe.kill()
