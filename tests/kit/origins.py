"""Operations do not remember where they were made: a tenth of the time to trace a function.

TensorFlow names the place beside an error of a graph that runs. pytest without other test processes keeps it.
"""

import os

from tensorflow.python.util import tf_stack


def forget() -> None:
    """Gives each operation of this process from now on the same place, this one."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        here = tf_stack.extract_stack()
        tf_stack.extract_stack = lambda stacklevel=1: here
