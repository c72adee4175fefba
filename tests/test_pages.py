"""Pages that name messages, versions, modules, variables and planned figures: these are those of the code."""

import re

import pytest

from tests.kit.ranks import ROOT
from tftrain.checkpoint.manifest import FORMAT_VERSION
from tftrain.cli import flags
from tftrain.config.train import TrainConfig
from tftrain.data.manifest import FORMAT
from tftrain.host.exit_codes import ExitCode
from tools import environment_variables, recipe_table

PAGES = {path.stem: path.read_text() for path in (ROOT / "docs").glob("*.md")}
RECIPES = sorted((ROOT / "configs/recipes").glob("*.flags"))
CODE = {path: path.read_text() for path in (ROOT / "tftrain").rglob("*.py")}
VARIABLE = re.compile(r'"((?:HOROVOD|NCCL|TF|TFTRAIN|XLA|CUDA|OMP|XDG|GLIBC)_[A-Z_]*[A-Z])"')
VALUES = re.compile(r"\.\.\.|--\w+(?:=\S*)?|\d+|[=:;()*]|\bnode2\b")  # what differs from run to run
SHORTEST = 12  # characters of a passage


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_flags_of_a_recipe_belong_together_on_eight_ranks(path):
    config = flags.parse(TrainConfig, ["run", f"--flagfile={path}", "--data_dir=data", "--output_dir=run"])
    assert config.problems(8) == []
    assert PAGES["recipes"].count(f"`{path.stem}`") >= 2  # its plan and its loss


def test_recipes_have_the_figures_of_the_planner():
    assert f"\n{recipe_table.table()}<!-- end -->" in PAGES["recipes"], "replace: python tools/recipe_table.py"


def test_every_environment_variable_of_the_code_is_in_the_table():
    listed = {name for each in environment_variables.VARIABLES for name in each.name.split(", ")}
    assert {name for text in CODE.values() for name in VARIABLE.findall(text)} - listed == set()


def test_messages_that_troubleshooting_quotes_are_in_the_code():
    cells = [line.split(" | ")[0] for line in PAGES["troubleshooting"].splitlines() if line.startswith("| ")]
    quotes = [quote for cell in cells for quote in re.findall(r"`([^`]+)`", cell) if " " in quote]
    passages = [part.strip(" ,.") for quote in quotes for part in VALUES.split(quote)]
    tools = [path.read_text() for path in (*(ROOT / "tools").glob("*.py"), ROOT / "tools/setup.sh")]
    code = re.sub(r'"\s*f?"', "", " ".join([*CODE.values(), *tools]))  # a message on several lines
    assert [part for part in passages if len(part) >= SHORTEST and part not in code] == []


def test_every_exit_code_has_its_remedy():
    page = PAGES["troubleshooting"]
    assert [code for code in ExitCode if 1 < code < ExitCode.SIGNALLED and f"xit code {int(code)}" not in page] == []


def test_versions_are_those_of_the_lock_files():
    text = "".join((ROOT / name).read_text() for name in ("requirements.lock", "requirements-tf2.21.lock"))
    locked = re.findall(r"^(?:tensorflow|tensorflow-text|tf-keras)==([\d.]+)", text, re.MULTILINE)
    wanted = [*locked, f"`format_version` {FORMAT_VERSION}", f"`format` {FORMAT}"]
    assert [words for words in wanted if words not in PAGES["versions"]] == []


@pytest.mark.parametrize("line", re.findall(r"^\| `(tftrain[.\w]*)` \| (.*?) \|", PAGES["api"], re.MULTILINE))
def test_public_names_exist(line):
    file = ROOT / line[0].replace(".", "/")
    source = CODE[file / "__init__.py" if file.is_dir() else file.with_suffix(".py")]
    assert [name for name in re.findall(r"`(\w+)`", line[1]) if not re.search(rf"\b{name}\b", source)] == []
