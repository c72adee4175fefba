"""The models: encoders and decoders of readable blocks, their output heads and losses."""
