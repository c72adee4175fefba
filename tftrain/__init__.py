"""tftrain: training of encoders and decoders on TensorFlow 2 and Horovod.

Importing this package loads no TensorFlow: configuration, planning and the checks of a run's flags stay instant.
"""

__version__ = "1.0.0"
