"""Units of memory: GB are 1e9 bytes everywhere, in flags, files and everything that is printed.

Other tools (`nvidia-smi`, PyTorch, most data sheets) count GiB and call them GB; their figures are converted where they
are read.
"""

GB = 10**9
GIB = 2**30
MIB = 2**20
GB_PER_GIB = GIB / GB
