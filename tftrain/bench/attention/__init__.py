"""Table `attention`: time and memory of every attention core, forward and backward, by the sequence length."""
