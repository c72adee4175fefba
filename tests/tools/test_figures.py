"""Figures of pages are written from the output of the commands that the pages name."""

import os
import re
import subprocess
import sys

import pytest

from tftrain.cli import flags
from tftrain.config.train import TrainConfig
from tftrain.host.units import GB
from tftrain.plan.forecast import bytes_by_kind
from tftrain.plan.memory import estimate
from tftrain.plan.system import of_trainer
from tftrain.plan.workload import from_config
from tools import figures
from tools.figure_lines import differences, filled
from tools.page_commands import blocks

MAKEFILE = (figures.ROOT / "Makefile").read_text()
MARKS = [(page, mark) for page in figures.pages() for mark in figures.marks(page)]

OUTPUT = """compiling
10:00:01  step  50/300  loss 8.01 (lm 7.31 nsp 0.70)  14.6 samples/s  eta 0:18:18
10:00:09  step 100/300  loss 7.02 (lm 6.31 nsp 0.71)  15.6 samples/s  eta 0:18:18
[MASK]: list 0.5, tensor 0.25
1: launch --a=1 --b=2.5 --c=3
1.5 GB
"""


def test_the_tool_starts_as_the_pages_write_it():
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, "tools/figures.py", "--help"], cwd=figures.ROOT, env=environ, check=True)


def test_every_mark_names_a_command_that_pages_can_run():
    for page, mark in MARKS:
        target = re.match(r"make (\w+)", mark.command)
        known = mark.command in figures.TABLES or mark.command.startswith(("python ", "printf ", "apt-get "))
        assert known or (target and f"\n{target[1]}: " in MAKEFILE), (page, mark.command)


def test_no_number_of_a_sentence_begins_a_line():
    # There Markdown takes the line as HTML.
    for page, mark in MARKS:
        is_first = page.read_text()[: mark.start].rpartition("\n")[2].startswith("<!--")
        assert is_first == mark.text.startswith("\n"), (page, mark.text)


@pytest.mark.parametrize(("page", "mark"), [case for case in MARKS if case[1].is_planned])
def test_planned_figures_are_those_of_the_planner(page, mark, tmp_path):
    assert differences(mark.text, figures.shown(mark, figures.Outputs(tmp_path)), exact=True) == []


def test_the_planned_memory_of_make_train_is_that_of_the_planner():
    sizes = ["--vocab_size=4096", "--max_seq_length=64", "--max_predictions_per_seq=10"]
    batch = ["--micro_batch_size=32", "--grad_accum_steps=1"]
    flagfile = f"--flagfile={figures.ROOT}/configs/quickstart.flags"
    work = from_config(flags.parse(TrainConfig, ["run", flagfile, *sizes, *batch]), 2, gpu=False, per_node=2)
    planned = bytes_by_kind(estimate(work, of_trainer(gpu=False)))
    (table,) = [mark.text for page, mark in MARKS if page.name == "memory.md" and not mark.words]
    for kind, size in planned.items():
        (line,) = [line for line in table.splitlines() if line.strip().startswith(kind.replace("_", " "))]
        assert line.split()[-1] == f"{size / GB:.3f}", line


def test_lines_of_a_page_are_replaced_by_those_of_the_output_with_the_same_words():
    page = ["```", "...", "09:09:09  step 100/300  loss 1.00 (lm 1.00 nsp 1.00)  99 samples/s  eta 0:00:01"]
    page += ["[MASK]: value 0.1, list 0.0", "1: launch ... --b=7 ...", "```"]
    assert list(filled(page, OUTPUT.splitlines())) == [
        *("```", "...", OUTPUT.splitlines()[2], "[MASK]: list 0.5, tensor 0.25", "1: launch ... --b=2.5 ...", "```")
    ]


def test_a_line_that_the_output_lacks_is_an_error():
    with pytest.raises(SystemExit, match="not in the output of its command:\nunigram entropy"):
        list(filled(["unigram entropy 6.2"], OUTPUT.splitlines()))


def test_times_may_differ_by_half_losses_by_rounding_and_plans_not_at_all():
    line, loss = OUTPUT.splitlines()[1], "masked-LM loss 5.29"
    assert differences(line.replace("14.6", "20.6").replace("10:00", "11:11"), line, exact=False) == []
    assert len(differences(line.replace("14.6", "64.6"), line, exact=False)) == 1
    assert differences("masked-LM loss 5.30", loss, exact=False) == []
    assert len(differences("masked-LM loss 6.30", loss, exact=False)) == 1
    assert len(differences("masked-LM loss 5.30", loss, exact=True)) == 1


def test_a_number_in_a_sentence_keeps_its_decimals(tmp_path):
    page = tmp_path / "page.md"
    sentence = "It takes <!-- figures: above, size -->{}<!-- end -->.\n"
    page.write_text("```\npython -c 'print(\"size 1.26 MB\")'\n```\n" + sentence.format("9.9"))
    figures.write(page, figures.Outputs(tmp_path))
    assert page.read_text().endswith(sentence.format("1.3"))


def test_blocks_of_commands_are_told_from_output():
    page = "```\npython a.py \\\n    --b  # why\n```\n```\nloss 1\n```\n\n```python a.py\nx\n```\n"
    commands, output, code = blocks(page)
    assert (commands.commands, output.commands, code.commands) == (["python a.py  --b"], [], [])
    assert (code.is_python, code.name, code.text) == (True, "a.py", "x\n")
