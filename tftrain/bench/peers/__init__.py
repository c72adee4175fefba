"""Table `peers`: a whole training step of BERT base in tftrain, tf-models and Hugging Face, measured in turns."""
