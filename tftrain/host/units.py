"""Units of memory, and number formats by the names that flags give them.

GB are 1e9 bytes everywhere, in flags, files and everything that is printed. Other tools (`nvidia-smi`, PyTorch, most
data sheets) count GiB and call them GB; their figures are converted where they are read.
"""

GB = 10**9
GIB = 2**30
MIB = 2**20
GB_PER_GIB = GIB / GB

# TensorFlow's names, and bytes of an element.
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


def shown(value: float | None, digits: int = 4) -> str:
    """Returns a mean with so many digits after the point, and a dash for one of nothing."""
    return "-" if value is None else f"{value:.{digits}f}"
