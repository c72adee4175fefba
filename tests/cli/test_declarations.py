"""What a declaration says of a flag holds on every command line: type, bounds, choices, and flags that it needs."""

import dataclasses
import itertools

import pytest

from tftrain.bench.config import BenchConfig
from tftrain.cli import flags
from tftrain.config.convert import ConvertConfig
from tftrain.config.export import ExportConfig
from tftrain.config.fields import bounds, field_problems, flag_name, sections, type_of
from tftrain.config.predict import PredictConfig
from tftrain.config.prepare import PrepareConfig
from tftrain.config.train import TrainConfig
from tftrain.host.user_code import CLASS
from tftrain.launching.config import LaunchConfig
from tftrain.plan.config import PlanConfig
from tftrain.schedules.config import ScheduleConfig

PROGRAMS = (
    *(TrainConfig, PrepareConfig, ConvertConfig, PredictConfig, ExportConfig),
    *(PlanConfig, BenchConfig, LaunchConfig, ScheduleConfig),
)
STEPS = {int: 1, float: 0.001}
EXPECTED = {int: "expected a whole number within 64 bits", float: "expected a number", bool: "expected true or false"}
RESTRICTED = [
    pytest.param(config_class, section, field, id=f"{config_class.__name__}-{flag_name(field)}")
    for config_class in PROGRAMS
    for section in sections(config_class())
    for field in dataclasses.fields(section)
    if field.metadata["restrict"]
]


def problems_of(config_class, *args):
    """Returns what is wrong with a command line as far as the declarations say, as lines."""
    config, problems, _ = flags.read(config_class, ["program", *args])
    return [str(each) for each in problems + [p for section in sections(config) for p in field_problems(section)]]


def outside(field, value_type):
    """Returns a value outside each bound of a flag, and one inside each; and what is expected."""
    limits, step = field.metadata, STEPS.get(value_type, 0)
    wrong = {"minimum": -step, "above": 0, "maximum": step, "below": 0}
    right = {"minimum": 0, "above": step, "maximum": 0, "below": -step}
    given = {name: limits[name] for name in wrong if limits[name] is not None}
    values = ([value_type(limit + by[name]) for name, limit in given.items()] for by in (wrong, right))
    return *values, f"expected a number {bounds(field)}".replace("number at least", "number of at least")


def cases_of(section, field):
    """Returns wrong values of a flag, each as it is given and shown and with what is expected, and right ones."""
    value_type, choices, known, cases = type_of(section, field), field.metadata["choices"], set(), []
    if value_type in EXPECTED:
        texts = ("many", "1.5.2", *(("1.5", str(2**63)) if value_type is int else ()))
        cases += [(text, text, EXPECTED[value_type]) for text in texts]
    if value_type is float:
        cases += [(text, str(float(text)), "expected a finite number") for text in ("nan", "inf", "1e999")]
    wrong, right, expected = outside(field, value_type)
    cases += [(str(value), str(value), expected) for value in wrong]
    if choices:
        known = set(map(str, choices)) - {CLASS}
        other = [f"{min(known)}x", *({min(known).upper()} - known)]
        cases += [(text, text, f"expected one of {', '.join(map(str, choices))}") for text in other]
    return cases, [*right, *known]


@pytest.mark.parametrize("config_class", PROGRAMS)
def test_a_wrong_value_is_one_problem_that_names_the_flag_and_what_is_expected(config_class):
    """A command line has the first wrong value of every flag, the next one the second; then come the right ones."""
    wrong, right = [], []
    for section in sections(config_class()):
        for field in dataclasses.fields(section):
            cases, values = cases_of(section, field)
            wrong.append([(flag_name(field), *case) for case in cases])
            right.append([f"--{flag_name(field)}={value}" for value in values])
    for line in itertools.zip_longest(*wrong):
        given = list(filter(None, line))
        found = problems_of(config_class, *(f"--{name}={text}" for name, text, *_ in given))
        assert {f"--{name}={shown}: {expected}" for name, _, shown, expected in given} <= set(found)
    for line in itertools.zip_longest(*right):
        given = list(filter(None, line))
        declared = tuple(f"{each}: expected {words}" for each in given for words in ("a number", "one of"))
        assert not [problem for problem in problems_of(config_class, *given) if problem.startswith(declared)]


@pytest.mark.parametrize("config_class", PROGRAMS)
def test_a_flag_lacks_its_value_unless_it_is_a_switch(config_class):
    fields = [(section, field) for section in sections(config_class()) for field in dataclasses.fields(section)]
    found = problems_of(config_class, *(f"--{flag_name(field)}" for _, field in fields))
    names = [flag_name(field) for section, field in fields if type_of(section, field) is not bool]
    assert found == [f"--{name}: expected a value: --{name}=VALUE" for name in names]


@pytest.mark.parametrize("config_class", PROGRAMS)
def test_what_is_no_flag_is_named(config_class):
    found = problems_of(config_class, "--no_such_flag=1", "-x", "stray")
    stray = "stray: stray argument; every argument is --flag=value"
    assert found == ["--no_such_flag=1: no such flag", "-x: no such flag", stray]


def another(field, value_type):
    """Returns a value of a flag that is not its default."""
    if value_type in (int, float):
        return value_type((field.default or 1) / 2 + 1 if value_type is int else (field.default or 1) / 2)
    if value_type is bool:
        return str(not field.default).lower()
    return next((each for each in field.metadata["choices"] or () if each != field.default), "x")


@pytest.mark.parametrize(("config_class", "section", "field"), RESTRICTED)
def test_a_flag_that_needs_a_value_of_another_flag_is_refused_without(config_class, section, field):
    name, declared = flag_name(field), {each.name: each for each in dataclasses.fields(section)}
    for other, takes in field.metadata["restrict"].items():
        if other not in declared:  # The rule reads several sections: table.txt has rows of it.
            continue
        refused = next(each for each in declared[other].metadata["choices"] if each not in (*takes, CLASS))
        found = problems_of(config_class, f"--{name}={another(field, type_of(section, field))}", f"--{other}={refused}")
        expected = f": remove this flag, or use --{other}={' or '.join(takes)}"
        assert [line for line in found if line.startswith(f"--{name}=") and line.endswith(expected)]
