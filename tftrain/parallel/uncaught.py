"""What Gloo throws where nobody catches it, when a rank is gone: said like every other loss of a rank.

Horovod asks all ranks before it takes a process set apart. Where one does not answer, Gloo throws in Horovod's own
thread; C++ would end the process by SIGABRT, before Python has heard of anything.
"""

import ctypes
from collections.abc import Callable

NOTHING = ctypes.CFUNCTYPE(None)


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
