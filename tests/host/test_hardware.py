"""The cores and the memory that control groups leave a process, in both versions of them, nested and in containers."""

import math
import os
import resource
from types import SimpleNamespace

import pytest

from tftrain.host import hardware
from tftrain.host.units import GB

V1 = "30 25 0:26 {root} {mount}/memory rw,relatime shared:13 - cgroup cgroup rw,memory\n"
V1_CPU = "31 25 0:27 {root} {mount}/cpu\\040time rw - cgroup cgroup rw,cpu,cpuacct\n"
V1_PIDS = "33 25 0:29 {root} {mount}/pids rw - cgroup cgroup rw,pids\n"
V2 = "32 25 0:28 {root} {mount}/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Returns a function that makes control groups of files with contents, and this process a member of one."""

    def make(own, files, root="/"):
        proc, mount = tmp_path / "proc", tmp_path / "mount"
        proc.mkdir()
        (proc / "cgroup").write_text(f"5:memory:{own}\n3:cpu,cpuacct:{own}\n2:pids:{own}\n1:name=systemd:/\n0::{own}\n")
        (proc / "mountinfo").write_text((V1 + V1_CPU + V1_PIDS + V2).format(root=root, mount=mount))
        for name, content in files.items():
            path = mount / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content}\n")
        found = hardware.control_groups
        monkeypatch.setattr(hardware, "control_groups", lambda controller: found(controller, proc))

    return make


@pytest.mark.parametrize(
    ("own", "root", "files", "limit"),
    [
        ("/a/job_7", "/", {"memory/a/job_7/memory.limit_in_bytes": 10**9}, 1.0),
        (
            "/a/job_7",
            "/",
            {"memory/a/memory.limit_in_bytes": 10**9, "memory/a/job_7/memory.limit_in_bytes": 2**62},
            1.0,
        ),
        ("/a/b/c", "/", {"unified/a/memory.max": 2 * 10**9, "unified/a/b/c/memory.max": "max"}, 2.0),
        ("/", "/", {"unified/memory.max": 3 * 10**8}, 0.3),
        # A container without a namespace of control groups: the mount begins at its own.
        ("/docker/4f", "/docker/4f", {"memory/memory.limit_in_bytes": 5 * 10**8}, 0.5),
        ("/docker/4f/x", "/docker/4f", {"memory/x/memory.limit_in_bytes": 4 * 10**8}, 0.4),
        # The own group is outside what is mounted: the limit of the mounted one is the nearest that is known.
        ("/other", "/docker/4f", {"memory/memory.limit_in_bytes": 5 * 10**8}, 0.5),
        ("/a", "/", {"memory/a/memory.limit_in_bytes": "damaged"}, math.inf),
    ],
)
def test_memory_is_the_least_limit_from_the_own_control_group_to_the_root(groups, own, root, files, limit):
    groups(own, files, root)
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB
    assert hardware.host_memory_gb() == pytest.approx(min(limit, host))


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu time/a/cpu.cfs_quota_us": 50_000, "cpu time/a/cpu.cfs_period_us": 100_000}, 0.5),
        ({"cpu time/a/cpu.cfs_quota_us": -1, "cpu time/a/cpu.cfs_period_us": 100_000}, math.inf),
        ({"unified/a/cpu.max": "150000 100000"}, 1.5),
        ({"unified/a/b/cpu.max": "max 100000", "unified/a/cpu.max": "25000 100000"}, 0.25),
        ({}, math.inf),
    ],
)
def test_a_quota_of_processor_time_counts_as_so_many_cores(groups, monkeypatch, files, cores):
    groups("/a/b", files)
    assert hardware.core_quota() == cores
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5})
    assert hardware.cores() == min(3, math.ceil(cores) if cores < math.inf else 3)


def test_without_proc_a_process_has_the_whole_host(tmp_path):
    assert list(hardware.control_groups("memory", tmp_path / "nosuch")) == []
    assert 1 <= hardware.cores() <= os.cpu_count()


def test_limits_that_end_tensorflow_without_a_reason_are_said(groups):
    assert hardware.tight_limits() == []
    before = resource.getrlimit(resource.RLIMIT_AS)
    groups("/a/b", {"pids/a/pids.max": 40, "pids/a/b/pids.max": "max"})
    resource.setrlimit(resource.RLIMIT_AS, (31 * 10**9, before[1]))
    try:
        memory, threads = hardware.tight_limits()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert "limited to 31.0 GB (ulimit -v)" in memory
    assert "at most 40 threads and processes (" in threads
    assert "a/pids.max)" in threads


@pytest.mark.parametrize(("number", "error", "expected"), [(12040, 0, (12, 4)), (13000, 0, (13, 0)), (0, 35, None)])
def test_the_driver_names_its_version_of_cuda(monkeypatch, number, error, expected):
    def get_version(pointer):
        pointer._obj.value = number
        return error

    monkeypatch.setattr(hardware.ctypes, "CDLL", lambda _: SimpleNamespace(cuDriverGetVersion=get_version))
    assert hardware.cuda_version() == expected


def test_without_a_driver_there_is_no_version_of_cuda(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(hardware.ctypes, "CDLL", missing)
    assert hardware.cuda_version() is None
