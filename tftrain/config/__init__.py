"""What a user sets: flags, flag files, and the typed and checked configurations that they make. No TensorFlow."""
