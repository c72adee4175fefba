"""Table `peers`: a whole training step of BERT-base, here and in other people's code, in turns."""
