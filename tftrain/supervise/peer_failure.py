"""The loss of a rank where no collective fails because of it: said like every other.

Horovod asks all ranks before it takes a process set apart. Where one does not answer, Gloo throws in Horovod's own
thread; C++ would end the process by SIGABRT, before Python has heard of anything.

When that thread ends, it fails the collectives that wait, and those that come later fail at once. But a collective
first looks whether the thread has ended and is queued then (`horovod/common/operations.cc` of 0.28.1): where the
thread ends in between, the collective waits for ever.
"""

import ctypes
import threading
import time
from collections.abc import Callable

NOTHING = ctypes.CFUNCTYPE(None)
TICK_SECONDS = 0.25
# What fails as it should has its own way to the process's end meanwhile, with a save that is under way.
FORGOTTEN_SECONDS = 10


def on_uncaught_gloo(act: Callable[[], None]) -> None:
    """Has an uncaught exception of Gloo's call a function, by the thread that threw it; others end the process as ever.

    Args:
        act: must end the process; C++ aborts it otherwise.
    """
    library = ctypes.CDLL("libstdc++.so.6")
    type_of_exception = library["__cxa_current_exception_type"]
    type_of_exception.restype = ctypes.c_void_p
    set_terminate = library["_ZSt13set_terminatePFvvE"]
    set_terminate.restype, set_terminate.argtypes = NOTHING, [NOTHING]

    def terminate() -> None:
        # A std::type_info is the address of its table, and that of its name.
        if (found := type_of_exception()) and b"gloo" in ctypes.c_char_p.from_address(found + 8).value:
            act()
        before()

    handler = NOTHING(terminate)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handler))  # C++ keeps the address alone.
    before = set_terminate(handler)


def on_forgotten(waits: Callable[[], bool], act: Callable[[], None]) -> None:
    """Starts a thread that calls a function when Horovod, which runs now, has ended and this rank still waits for it.

    It is not the watchdog's: the question itself waits while Horovod takes process sets apart.

    Args:
        waits: whether a collective has begun and not ended.
        act: must end the process.
    """
    import horovod.tensorflow as hvd

    ranks_of_set, ranks = hvd.mpi_ops._basics.MPI_LIB_CTYPES.horovod_process_set_ranks, (ctypes.c_int * hvd.size())()

    def has_ended() -> bool:
        # The first process set, of all ranks, is taken apart last.
        return ranks_of_set(0, ranks) != 0

    threading.Thread(target=_watch, args=(has_ended, waits, act), name="forgotten collectives", daemon=True).start()


def _watch(has_ended: Callable[[], bool], waits: Callable[[], bool], act: Callable[[], None]) -> None:
    # Ticks of its own, not the clock's: a process that was stopped and continued has them all.
    ticks = 0
    while ticks < FORGOTTEN_SECONDS / TICK_SECONDS:
        time.sleep(TICK_SECONDS)
        ticks = ticks + 1 if has_ended() and waits() else 0
    act()
