"""Tensors in pages of 2 MiB instead of 4 KiB on the CPU.

A step allocates and frees tensors of many megabytes. The C library takes each from the kernel and gives it back, so
every step meets its memory anew: the kernel clears and maps it page by page as it is written, which takes longer than
many an operation on it. glibc (2.35 and later) asks for huge pages if a tunable says so, but reads it only when a
process starts, hence the restart. https://www.gnu.org/software/libc/manual/html_node/Memory-Allocation-Tunables.html
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "GLIBC_TUNABLES"
TUNABLE = "glibc.malloc.hugetlb"
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def with_huge_pages(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment whose processes allocate in huge pages, unless it decides about them already."""
    tunables = environ.get(VARIABLE, "")
    if TUNABLE in tunables:
        return dict(environ)
    return {**environ, VARIABLE: ":".join(filter(None, [tunables, f"{TUNABLE}=1"]))}


def with_kept_memory(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment whose processes allocate in huge pages and never give memory back to the kernel.

    For measuring operations alone: their results lie in memory that has been met before. In a run, memory that is freed
    in another order than it was taken would pile up.
    """
    keep = f"{TUNABLE}=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold={2**40}:glibc.malloc.arena_max=1"
    return {**environ, VARIABLE: keep}


def offered(setting: Path = SETTING) -> bool:
    """Whether the kernel gives huge pages to programs that ask for them."""
    try:
        return "[madvise]" in setting.read_text()
    except OSError:
        return False


def restart() -> None:
    """Starts this program again in the same process with huge pages, if there are any and it has none yet.

    Call it before anything that can't be done twice. Returns where there is nothing to gain.
    """
    environ = with_huge_pages(os.environ)
    if environ != dict(os.environ) and offered() and sys.orig_argv:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)
