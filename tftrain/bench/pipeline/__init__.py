"""Table `pipeline`: the bubble of every schedule over real ranks, beside that of its table."""
