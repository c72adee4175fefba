"""A rank failure that no collective reports: it ends this rank like any other rank failure.

Before Horovod destroys a process set, it asks all ranks. If one does not answer, Gloo throws in Horovod's background
thread, and C++ ends the process by SIGABRT before Python learns of it.

When the background thread ends, it fails all waiting collectives, and later ones fail at once. But a collective first
checks whether the thread has ended, and only then enters the queue (`horovod/common/operations.cc` of 0.28.1). If the
thread ends in between, the collective waits for ever.
"""

import ctypes
import threading
import time
from collections.abc import Callable

VOID_FUNCTION = ctypes.CFUNCTYPE(None)
TICK_SECONDS = 0.25
# During this time, a collective may still report the failure and end the process, and a save may finish.
FORGOTTEN_SECONDS = 10
# After this time, TensorFlow's own collectives are aborted, which may not learn by themselves that a rank is gone.
ABORT_SECONDS = 5


def on_uncaught_gloo_error(end_process: Callable[[], None]) -> None:
    """Calls a function, which must end the process, when an exception of Gloo is not caught.

    The function runs in the thread that threw. Other uncaught C++ exceptions abort the process as before.
    """
    library = ctypes.CDLL("libstdc++.so.6")
    type_of_exception = library["__cxa_current_exception_type"]
    type_of_exception.restype = ctypes.c_void_p
    set_terminate = library["_ZSt13set_terminatePFvvE"]
    set_terminate.restype, set_terminate.argtypes = VOID_FUNCTION, [VOID_FUNCTION]

    def terminate() -> None:
        # A std::type_info holds two addresses: its virtual table's and its name's.
        if (kind := type_of_exception()) and b"gloo" in ctypes.c_char_p.from_address(kind + 8).value:
            end_process()
        previous()

    handler = VOID_FUNCTION(terminate)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handler))  # C++ keeps only the address.
    previous = set_terminate(handler)


def on_forgotten_collective(
    is_waiting: Callable[[], bool], end_process: Callable[[], None], abort: Callable[[], None] = lambda: None
) -> None:
    """Starts a thread that calls a function if Horovod has ended and this rank still waits for a collective.

    Call it while Horovod runs. `abort` is called first; it ends the collectives of other transports with an error.
    """
    import horovod.tensorflow as hvd

    ranks_of_set, ranks = hvd.mpi_ops._basics.MPI_LIB_CTYPES.horovod_process_set_ranks, (ctypes.c_int * hvd.size())()

    answers = [True]  # whether Horovod ran, each time that it was asked

    def ask() -> None:
        # Process set 0, of all ranks, is destroyed last. While sets are destroyed, the question is not answered: if a
        # rank does not answer either, for as long as Gloo waits.
        while answers[-1]:
            answers.append(ranks_of_set(0, ranks) == 0)
            time.sleep(TICK_SECONDS / 2)

    def has_ended() -> bool:
        is_answered = len(answers) > 1
        del answers[:-1]
        return not (is_answered and answers[-1])

    def watch() -> None:
        # It counts its own ticks, so that the time in which a process was stopped does not count.
        ticks = 0
        while ticks < FORGOTTEN_SECONDS / TICK_SECONDS:
            time.sleep(TICK_SECONDS)
            ticks = ticks + 1 if has_ended() and is_waiting() else 0
            if ticks == ABORT_SECONDS / TICK_SECONDS:
                abort()
        end_process()

    threading.Thread(target=ask, name="state of Horovod", daemon=True).start()
    threading.Thread(target=watch, name="forgotten collectives", daemon=True).start()
