"""The recipes of configs/recipes: their flags belong together, and their page has the figures of today's planner."""

import re

import pytest

from tests.kit.ranks import ROOT
from tftrain.cli import flags
from tftrain.config.train import TrainConfig
from tools import environment_variables, recipe_table

PAGE = (ROOT / "docs/recipes.md").read_text()
RECIPES = sorted((ROOT / "configs/recipes").glob("*.flags"))
# Names of environment variables as string literals.
VARIABLE = re.compile(r'"((?:HOROVOD|NCCL|TF|TFTRAIN|XLA|CUDA|OMP|XDG|GLIBC)_[A-Z_]*[A-Z])"')


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_flags_of_a_recipe_belong_together_on_eight_ranks(path):
    config = flags.parse(TrainConfig, ["run", f"--flagfile={path}", "--data_dir=data", "--output_dir=run"])
    assert config.problems(8) == []


def test_page_has_the_figures_of_the_planner():
    assert f"\n{recipe_table.table()}<!-- end -->" in PAGE, "replace its table: python tools/recipe_table.py"


def test_page_has_the_plan_and_the_loss_of_each_recipe():
    assert all(PAGE.count(f"`{path.stem}`") >= 2 for path in RECIPES)


def test_every_environment_variable_of_the_code_is_in_the_table():
    listed = {name for each in environment_variables.VARIABLES for name in each.name.split(", ")}
    used = {name for path in (ROOT / "tftrain").rglob("*.py") for name in VARIABLE.findall(path.read_text())}
    assert used - listed == set()
