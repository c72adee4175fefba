"""Mutates the files of a small checkpoint and reads it: what was saved, or a CheckpointError, and nothing else.

python -m tests.checkpoint.fuzz --count=10000 --seed=1
"""

import argparse
import random
import tempfile
from pathlib import Path

from tftrain.checkpoint import shard
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.reader import Reader

WORDS = [b"0", b"-1", b"18446744073709551616", b"1e400", b"null", b"[]", b"{}", b'"', b"../", b"\x00", b"true", b"NaN"]


def mutated(content: bytes, source: random.Random) -> bytes:
    """Changes some bytes: flips, cuts, repeats, or puts in something that JSON knows."""
    data = bytearray(content)
    for _ in range(source.randint(1, 4)):
        place = source.randrange(len(data) + 1)
        length = source.choice((1, 2, 8, 64))
        match source.randrange(5):
            case 0 if data:
                data[place % len(data)] ^= 1 << source.randrange(8)
            case 1:
                del data[place : place + length]
            case 2:
                data[place:place] = data[place : place + length]
            case 3:
                data[place : place + source.choice((0, 1, length))] = source.choice(WORDS)
            case 4:
                del data[place:]
    return bytes(data)


def fuzz(path: Path, read_all, count: int, source: random.Random) -> int:
    """Reads so many mutants of a checkpoint; any other error than a CheckpointError comes out.

    Of each second mutant of a shard, size and SHA-256 are what the manifest says, so that its header is looked at.
    """
    originals = {file: file.read_bytes() for file in sorted(path.iterdir())}
    for number in range(count):
        file = source.choice(list(originals))
        file.write_bytes(mutated(originals[file], source))
        try:
            if file.suffix == ".safetensors" and number % 2:
                expected = Reader(path).manifest.files[file.name]._replace(bytes=file.stat().st_size)
                list(shard.load(file, expected))
            else:
                read_all(path)
        except CheckpointError as error:
            named = file.name in str(error)
        else:
            named = True
        # What is wrong in a manifest may show in a shard.
        assert named or file.name == "manifest.json", file.name
        file.write_bytes(originals[file])
    return count


def main():
    """Fuzzes as often as the command line says."""
    from tests.checkpoint import states
    from tests.checkpoint.test_damage import TENSORS, read_all

    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = states.saved(folder, TENSORS).path
        print(f"{fuzz(path, read_all, args.count, random.Random(args.seed))} mutants, no crash")


if __name__ == "__main__":
    main()
