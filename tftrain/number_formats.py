"""Number formats by the names that flags give them."""

# TensorFlow's names, and bytes of an element.
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
