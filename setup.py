"""Gives the wheel a platform's tag where it contains the compiled ops; pyproject.toml has all else.

`tools/build_wheel.py` copies the ops into the package before it builds the wheel.
"""

from pathlib import Path

from setuptools import Distribution, setup

OPS = Path(__file__).parent / "tftrain" / "ops" / "libtftrain_ops.so"


class BinaryDistribution(Distribution):
    """A package that contains a compiled library although setuptools compiles none."""

    def has_ext_modules(self) -> bool:
        """Whether the wheel is for one platform and one version of Python."""
        return OPS.exists()


setup(distclass=BinaryDistribution)
