"""Table `accumulation`: how much of a gradient is lost when micro-batches add up in each number format."""
