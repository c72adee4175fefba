"""The order of the examples, as a pure function of the sample number.

Sample n of a run is example perm(n mod N) of epoch n // N. The seed and the epoch select perm, a permutation of the N
examples. A Feistel network computes the permutation, so no table is stored: any rank can compute any sample
independently, and a run resumes from one integer.

The network permutes pairs (left, right) of Z_a x Z_b, where a x b is at least N and close to it (the generalised
Feistel construction of Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). A result of N or more is
permuted again until it is below N (cycle walking), which keeps the map a bijection.
"""

import math

import numpy as np

_ROUNDS = 10


def mix(value: np.ndarray) -> np.ndarray:
    """Hashes uint64 values with the finalizer of SplitMix64 (Steele, Lea and Flood 2014), a bijection."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def derive_key(*parts: int | np.ndarray) -> np.ndarray:
    """Returns a uint64 key that depends on all parts, non-negative integers or int64 arrays of one shape, in order."""
    with np.errstate(over="ignore"):
        key = np.uint64(0)
        for part in parts:
            step = np.asarray(part).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            key = mix(mix(key + np.uint64(0x632BE59BD9B4E019)) ^ step)
        return key


def example_ids(samples: np.ndarray, num_examples: int, seed: int) -> np.ndarray:
    """Maps global sample numbers from 0, int64 [n], to the numbers of N examples, int64 [n] in [0, N).

    Each example occurs once in any N samples that begin at a multiple of N.
    """
    epochs, positions = np.divmod(np.asarray(samples, np.int64), np.int64(num_examples))
    keys = derive_key(np.full_like(epochs, seed), epochs)
    left_size = math.isqrt(num_examples - 1) + 1
    right_size = -(-num_examples // left_size)
    examples = _feistel(positions.astype(np.uint64), keys, left_size, right_size)
    while (outside := examples >= num_examples).any():
        examples[outside] = _feistel(examples[outside], keys[outside], left_size, right_size)
    return examples.astype(np.int64)


def _feistel(values: np.ndarray, keys: np.ndarray, left_size: int, right_size: int) -> np.ndarray:
    """Permutes [0, left_size * right_size) with one key per value. All arrays are uint64."""
    left_size, right_size = np.uint64(left_size), np.uint64(right_size)
    left, right = np.divmod(values, right_size)
    with np.errstate(over="ignore"):
        for number in range(_ROUNDS):
            step = keys + np.uint64(number + 1) * np.uint64(0x9E3779B97F4A7C15)
            if number % 2:
                right = (right + mix(mix(step) ^ left) % right_size) % right_size
            else:
                left = (left + mix(mix(step) ^ right) % left_size) % left_size
    return left * right_size + right
