"""Puts the guides into the package, and gives a wheel with the compiled ops a platform's tag.

`tools/build_wheel.py` copies the ops into the package before it builds the wheel. pyproject.toml has all else.
"""

import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
OPS = ROOT / "tftrain" / "ops" / "libtftrain_ops.so"


class BinaryDistribution(Distribution):
    """A package that contains a compiled library although setuptools compiles none."""

    def has_ext_modules(self) -> bool:
        """Whether the wheel is for one platform and one version of Python."""
        return OPS.exists()


class WithGuides(build_py):
    """A build whose package contains the pages of docs/, which `python -m tftrain docs` shows."""

    def run(self) -> None:
        """Copies the package, and the pages unless the package stays in its place."""
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib) / "tftrain" / "docs"
            folder.mkdir(parents=True, exist_ok=True)
            for page in (ROOT / "docs").glob("*.md"):
                shutil.copy(page, folder)


setup(distclass=BinaryDistribution, cmdclass={"build_py": WithGuides})
