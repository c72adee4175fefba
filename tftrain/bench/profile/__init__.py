"""Table `profile`: where the time of a whole training step goes, by kind of operation."""
