"""Groups of weights by the pattern of their names: what is read, and what is refused."""

import pytest

from tftrain.config import param_groups
from tftrain.config.param_groups import ParamGroup

NAMES = ["embeddings/word", "layer_00/attention/query/kernel", "layer_00/attention/query/bias"]


def test_a_file_has_a_group_on_each_line_and_a_list_says_the_same(tmp_path):
    file = tmp_path / "groups"
    file.write_text("# halves\n*/kernel   rate=0.5\n\nembeddings/* weight_decay=0 rate=2  # all of them\n")
    expected = [ParamGroup("*/kernel", 0.5), ParamGroup("embeddings/*", 2.0, 0.0)]
    assert param_groups.read(str(file)) == expected
    value = param_groups.resolved(str(file))
    file.unlink()
    assert param_groups.read(value) == expected
    assert param_groups.resolved(value) == value
    assert param_groups.of_names(value, NAMES) == {NAMES[0]: expected[1], NAMES[1]: expected[0]}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "No such file or directory; expected a file"),
        ("*/kernel; */bias rate=1", "\\*/kernel: expected a pattern, then rate"),
        ("rate=1", "rate=1: expected a pattern"),
        ("*/kernel rate=fast", "rate=fast: expected rate and weight_decay with numbers of at least 0"),
        ("*/kernel rate=-1", "rate=-1: expected"),
        ("*/kernel rate=nan", "rate=nan: expected"),
        ("*/kernel lr=1", "lr=1: expected rate and"),
        ("layer*/kernel rate=1; *query/* rate=2", "query/kernel matches layer\\*/kernel and \\*query/\\*"),
    ],
)
def test_a_group_that_can_not_be_used_is_refused_with_its_line(value, message):
    (problem,) = param_groups.problems(value, NAMES)
    assert problem.flag == "param_groups"
    with pytest.raises(ValueError, match=message):
        raise ValueError(problem.expected)
    assert "\n" not in str(problem)


def test_no_groups_are_no_problem():
    assert param_groups.problems(None, NAMES) == []
    assert param_groups.of_names(None, NAMES) == {}
    assert param_groups.resolved(None) is None
