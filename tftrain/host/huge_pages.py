"""Tensors in pages of 2 MiB instead of 4 KiB on the CPU.

A step allocates and frees tensors of many megabytes. The C library takes each from the kernel and gives it back. So in
every step, the kernel clears and maps the memory again, page by page, which takes longer than many operations on it.
glibc (2.35 and later) asks for huge pages if a tunable is set. It reads the tunable only at the start of a process,
hence the restart. https://www.gnu.org/software/libc/manual/html_node/Memory-Allocation-Tunables.html
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "GLIBC_TUNABLES"
TUNABLE = "glibc.malloc.hugetlb"
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def with_huge_pages(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment whose processes allocate in huge pages, unless it already sets the tunable."""
    tunables = environ.get(VARIABLE, "")
    if TUNABLE in tunables:
        return dict(environ)
    return {**environ, VARIABLE: ":".join(filter(None, [tunables, f"{TUNABLE}=1"]))}


def with_kept_memory(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment whose processes allocate in huge pages and never give memory back to the kernel.

    Use it only to measure single operations, whose results then lie in memory that is already mapped. In a run, memory
    that is freed in another order than it was allocated would pile up.
    """
    keep = f"{TUNABLE}=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold={2**40}:glibc.malloc.arena_max=1"
    return {**environ, VARIABLE: keep}


def offered(setting: Path = SETTING) -> bool:
    """Returns whether the kernel gives huge pages to programs that ask for them."""
    try:
        return "[madvise]" in setting.read_text()
    except OSError:
        return False


def restart() -> None:
    """Restarts this program in the same process with huge pages; returns if it has them or the kernel has none.

    Call it before anything that can't be done twice.
    """
    environ = with_huge_pages(os.environ)
    if environ != dict(os.environ) and offered() and sys.orig_argv:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)
