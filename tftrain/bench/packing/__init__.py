"""Table `packing`: the same text in rows of one example and in packed rows."""
