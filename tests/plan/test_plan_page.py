"""The page of a plan in a browser: legible at every width, bars as long as their labels, figures as printed."""

import contextlib
import io
import re

import pytest

from tests.page import browser
from tftrain.plan import __main__ as plan

GPT = ["--model_family=gpt", "--cluster=a100_80gb", "--nodes=2", "--num_hidden_layers=24", "--hidden_size=2048",
       "--num_attention_heads=16", "--max_seq_length=512", "--precision=bf16", "--max_steps=1000"]  # fmt: skip
JOBS = {
    "plan": (*GPT, "--micro_batch_size=4", "--grad_accum_steps=2"),
    "tight": (*GPT, "--micro_batch_size=64"),
    "search": (*GPT, "--search", "--global_batch_size=64", "--top=3"),
    "megatron": (*GPT, "--trainer=megatron", "--micro_batch_size=4"),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Returns the page of each job, and what the program printed."""
    folder = tmp_path_factory.mktemp("pages")
    found, printed = {}, {}
    for name, given in JOBS.items():
        found[name] = folder / f"{name}.html"
        with contextlib.redirect_stdout(io.StringIO()) as out:
            plan.main(["plan", *given, f"--html={found[name]}"])
        printed[name] = out.getvalue()
    return found, printed


@pytest.mark.parametrize("scheme", browser.SCHEMES)
def test_pages_are_legible_and_bars_are_as_long_as_their_labels(pages, tmp_path_factory, scheme):
    chromium = browser.chromium(tmp_path_factory.mktemp("chromium"))
    found = browser.layouts(chromium, pages[0], scheme, tmp_path_factory.mktemp("harness") / "harness.html")
    browser.assert_legible(found)
    for each in found:
        assert len(each["panels"]) >= 3
        for lines in each["panels"]:
            browser.assert_bars(lines, f"{each['name']} at {each['width']}")


def test_the_page_has_the_figures_that_are_printed(pages):
    for name in ("plan", "tight", "megatron"):
        text, printed = pages[0][name].read_text(), pages[1][name]
        peak = re.search(r"peak +([\d.]+)", printed)[1]
        assert f"Memory of the fullest rank: {float(peak):.1f} of" in text
        for kind in ("exact", "old", "corrected"):
            value = re.search(rf"FLOPs a step, {kind} +(\S+)", printed)[1]
            assert value in text


def test_layouts_of_the_frontier_are_commands_and_get_slower_with_less_memory(pages):
    text = pages[0]["plan"].read_text()
    rows = re.findall(r'<td class="number">([\d.e+-]+)</td><td class="number">([\d.]+)</td>', text)
    seconds, gb = zip(*[(float(one), float(other)) for one, other in rows], strict=True)
    assert len(rows) > 3
    assert list(seconds) == sorted(seconds)
    assert list(gb) == sorted(gb, reverse=True)
    assert text.count("python -m tftrain.launch -np 16") == len(rows)


def test_a_page_that_cannot_be_written_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        plan.main(["plan", *JOBS["plan"], f"--html={tmp_path}"])
    assert f"--html={tmp_path}: expected a file to write" in capsys.readouterr().err


def test_the_micro_batch_of_embeddings_is_free_as_their_loss_does_not_depend_on_it(tmp_path, capsys):
    task = ("--task=embedding", "--train_file=pairs.tsv", "--micro_batch_size=64", "--global_batch_size=1024")
    given = ("--flagfile=configs/large.flags", *task, "--max_seq_length=512", "--cluster=a100_40gb")
    assert plan.main(["plan", *given, f"--html={tmp_path / 'plan.html'}"]) == 1
    commands = re.findall("python -m tftrain.launch [^<\n]*", (tmp_path / "plan.html").read_text())
    printed = capsys.readouterr().out
    commands += re.findall("python -m tftrain.launch .*", printed)
    assert len({each for command in commands for each in re.findall(r"--micro_batch_size=\d+", command)}) > 3
    assert re.search(r"\n  vectors +0\.\d*[1-9]", printed)
    assert re.search(r"\n  first pass +\d*\.\d*[1-9]", printed)
