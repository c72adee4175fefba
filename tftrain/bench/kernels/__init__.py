"""Table `kernels`: every fused op beside TensorFlow's composition of it, and both beside a copy of memory."""
