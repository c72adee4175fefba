"""Names of number formats: as flags have them, and as TensorFlow does."""

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
