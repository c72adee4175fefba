"""Nothing of a file reaches a terminal as a command."""

import csv
import json
import logging
import shutil

import numpy as np
import pytest

from tests.formats.models import DATA
from tftrain import convert, predict
from tftrain.config.fields import Problem
from tftrain.files.errors import FormatError
from tftrain.formats import safetensors_file
from tftrain.host import log
from tftrain.host.exit_codes import RunError
from tftrain.host.text import printable
from tftrain.host.user_code import UserCodeError
from tftrain.inference import prediction_text
from tftrain.observe.trackers import Csv

# Titles and colours (C0 and C1), the end of a line and its begin, the direction of text, half of a surrogate pair.
COMMANDS = ("\x1b]0;PWNED\x07", "\x9b31m", "\x85", "\r", "\b", "\x7f", "\u202e", "\u2066", "\u200f", "\u2028", "\ud800")


def is_safe(text):
    return not any(command in text for command in (*"\x1b\x07\x9b\x85\r\b\x7f\u202e\u2066\u200f\u2028\ud800",))


@pytest.fixture
def tensor(tmp_path):
    """A model of transformers with one more tensor, whose name has every command."""
    folder, path = shutil.copytree(DATA / "hf_bert", tmp_path / "model"), tmp_path / "model/model.safetensors"
    file = safetensors_file.SafetensorsFile(path)
    values = {name: np.asarray(file.read(name), np.float32) for name in file.shapes}
    values["bert.encoder.layer.0.attention.self.query.a" + "".join(COMMANDS[:-1])] = np.zeros(1, np.float32)
    path.unlink()
    safetensors_file.write(path, {name: value.shape for name, value in values.items()}, values.items())
    return folder


@pytest.mark.parametrize("program", [convert, predict])
def test_a_program_shows_the_name_of_a_tensor_without_its_commands(tensor, tmp_path, capfd, program):
    args = {
        convert: [f"--from=hf:{tensor}", f"--to=tftrain:{tmp_path}/out"],
        predict: [f"--init_checkpoint=hf:{tensor}", "x"],
    }
    assert program.main(["program", *args[program]]) == 1
    shown = "".join(capfd.readouterr())
    assert "\\x1b]0;PWNED\\x07" in shown
    assert is_safe(shown)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("error", [RunError, FormatError, UserCodeError, lambda text: Problem("flag", "x", text)])
def test_every_error_is_one_line_without_commands(command, error):
    shown = str(error(f"a{command}b\nc"))
    assert is_safe(shown)
    assert "\n" not in shown
    assert shown.encode()


@pytest.mark.parametrize("command", COMMANDS)
def test_lines_of_the_log_have_no_commands(command, capsys):
    log.configure(program="x")
    for write in (logging.getLogger("tftrain.x").info, logging.getLogger("tftrain.x").warning):
        write(f"a table\n\t{command}")
    shown = capsys.readouterr()
    assert is_safe(shown.out + shown.err)
    assert shown.out == f"a table\n\t{printable(command)}\n", "lines and their indents stay"


@pytest.mark.parametrize("command", COMMANDS)
def test_predictions_have_no_commands(command):
    object_of_task = {"probabilities": {f"a{command}": 1.0}}
    assert is_safe(prediction_text.of_task(f"text{command}", "classification", object_of_task, 5))
    line = prediction_text.json_line({"text": f"{command}\u3000"})
    assert is_safe(line)
    assert "\u3000" in line, "what a terminal only shows stays as it is"
    assert json.loads(line) == {"text": f"{command}\u3000"}


def test_columns_and_cells_of_a_table_are_no_formulas(tmp_path):
    row = {"step": 1, "=HYPERLINK(1)": -2.5, "@x": 1, "-y": None, "loss": 2.5}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    Csv(tmp_path, {}, None).close([], "", 0)
    header, cells = csv.reader((tmp_path / "metrics.csv").open())
    assert header == ["step", "'=HYPERLINK(1)", "'@x", "'-y", "loss"]
    assert cells == ["1", "-2.5", "1", "", "2.5"], "rows with other values than numbers are damaged"
