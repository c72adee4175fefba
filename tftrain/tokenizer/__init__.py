"""Text and ids: kinds of tokenizers, their files, normalization, and learners of vocabularies."""
