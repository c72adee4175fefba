"""Prints figures of the structure of tftrain/: its mass, and how far a reader must walk.

`tests/tools/test_house.py` holds them: `.venv/bin/python tools/house.py`.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

FAMILIES = (
    "bert",
    "gpt",
    "gpt2",
    "llama",
    "modernbert",
    "roberta",
    "xlm_roberta",
    "camembert",
    "distilbert",
    "qwen2",
    "qwen3",
)
_FAMILY = re.compile(rf'"({"|".join(FAMILIES)})"|\bis_decoder\b')
_CONFIG = "tftrain.config.train"
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """A file of Python: its dotted name, path below the root, text and syntax tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The first folder below tftrain/, or the file itself."""
        return self.name.split(".")[1] if "." in self.name else ""

    @property
    def lines(self) -> int:
        """Lines of the file."""
        return self.text.count("\n")

    def functions(self) -> Iterator[Function]:
        """Yields functions and methods, nested ones too."""
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    def imports(self) -> Iterator[str]:
        """Yields dotted names that are imported anywhere in the file: modules, and names of modules."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)


def parameters(function: Function) -> list[ast.arg]:
    """Returns the named parameters of a function other than self and cls."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return [argument for argument in arguments if argument.arg not in ("self", "cls")]


def modules(folder: Path) -> list[Module]:
    """Returns the modules below a folder of the repository, by path."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        dotted = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
        found.append(Module(dotted.removesuffix(".__init__"), path, text, ast.parse(text)))
    return found


class House:
    """Figures of a checkout; each method is one."""

    def __init__(self, root: Path):
        """Reads the files below `root`, a checkout."""
        self.modules = modules(root / "tftrain")
        self.tests = modules(root / "tests")
        known = {module.name: module for module in self.modules}
        self._edges = {m.name: {known[name].name for name in m.imports() if name in known} for m in self.modules}
        self._lines = {module.name: module.lines for module in self.modules}

    def _where(self, is_one: Callable[[Function], bool]) -> list[str]:
        return [f"{m.name}.{node.name}" for m in self.modules for node in m.functions() if is_one(node)]

    def package_lines(self) -> int:
        """Lines of tftrain/."""
        return sum(self._lines.values())

    def test_lines(self) -> int:
        """Lines of tests/."""
        return sum(module.lines for module in self.tests)

    def long_files(self) -> list[str]:
        """Files over 300 lines."""
        return [module.name for module in self.modules if module.lines > 300]

    def long_functions(self) -> list[str]:
        """Functions over 60 lines."""
        return self._where(lambda node: _length(node) > 60)

    def wide_functions(self) -> list[str]:
        """Functions with more than 8 parameters."""
        return self._where(lambda node: len(parameters(node)) > 8)

    def untyped_parameters(self) -> list[str]:
        """Parameters without a type, by function."""
        return [
            f"{module.name}.{node.name}:{argument.arg}"
            for module in self.modules
            for node in module.functions()
            for argument in parameters(node)
            if argument.annotation is None
        ]

    def config_signatures(self) -> list[str]:
        """Functions that take the whole TrainConfig."""

        def takes(node: Function) -> bool:
            annotations = [argument.annotation for argument in parameters(node) if argument.annotation]
            return any("TrainConfig" in ast.unparse(annotation) for annotation in annotations)

        return self._where(takes)

    def config_importers(self) -> list[str]:
        """Files that import config.train."""
        return [module.name for module in self.modules if _CONFIG in module.imports()]

    def loop_imports(self) -> list[str]:
        """Names of tftrain that train/loop.py imports."""
        loop = self._module("tftrain.train.loop")
        nodes = [node for node in ast.walk(loop.tree) if isinstance(node, ast.ImportFrom)]
        own = [node for node in nodes if (node.module or "").startswith("tftrain")]
        return sorted({f"{node.module}.{alias.name}" for node in own for alias in node.names})

    def loop_longest(self) -> int:
        """Lines of the longest function of train/loop.py."""
        return max(map(_length, self._module("tftrain.train.loop").functions()))

    def family_files(self) -> list[str]:
        """Files that name a family."""
        return [module.name for module in self.modules if _FAMILY.search(module.text)]

    def shared_class_names(self) -> list[str]:
        """Names of classes that several packages have."""
        packages = defaultdict(set)
        for module in self.modules:
            for node in module.tree.body:
                if isinstance(node, ast.ClassDef):
                    packages[node.name].add(module.package)
        return sorted(name for name, rooms in packages.items() if len(rooms) > 1)

    def closure(self, name: str) -> tuple[int, int]:
        """Returns how many files a module imports in the end, itself included, and their lines."""
        reached, left = set(), [name]
        while left:
            module = left.pop()
            if module not in reached:
                reached.add(module)
                left.extend(self._edges[module])
        return len(reached), sum(map(self._lines.__getitem__, reached))

    def _module(self, name: str) -> Module:
        return next(module for module in self.modules if module.name == name)


def _length(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def main() -> None:
    """Prints each figure; of a list, its length."""
    house = House(Path.cwd())
    for name, figure in vars(House).items():
        if not name.startswith("_") and name != "closure":
            value = figure(house)
            print(f"{figure.__doc__.rstrip('.'):55} {value if isinstance(value, int) else len(value)}")
    for name in ("tftrain.model.decoder", "tftrain.train.step"):
        print(f"{f'Files and lines that {name} imports':55} {house.closure(name)}")


if __name__ == "__main__":
    main()
