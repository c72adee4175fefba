"""The log: whose lines go where, at which level, and that nothing is lost at the end of a process."""

import io
import logging
import os
import subprocess
import sys
import tempfile

import pytest

from tests.conftest import ROOT
from tftrain.host import log

logger = logging.getLogger("tftrain.somewhere")


INFOS = "a debug\na info\n"
OF_3 = "tftrain.run: rank 3: a warning\ntftrain.run: rank 3: a error\n"


@pytest.mark.parametrize(
    ("given", "out", "err"),
    [
        # The chief shows plain lines from the level on.
        ({"rank": 0, "level": "debug"}, INFOS, OF_3.replace("3", "0")),
        ({"rank": 0, "level": "info"}, "a info\n", OF_3.replace("3", "0")),
        ({"rank": 0, "level": "warning"}, "", OF_3.replace("3", "0")),
        ({"rank": 0, "level": "error"}, "", "tftrain.run: rank 0: a error\n"),
        # Other ranks show warnings alone, with the host if there are several.
        ({"rank": 3, "level": "debug"}, "", OF_3),
        ({"rank": 3, "level": "error", "host": "node2"}, "", "tftrain.run: rank 3 on node2: a error\n"),
        # A program without ranks names none, and may keep stdout for its result.
        (
            {"program": "tftrain.bench", "stream": "stderr"},
            "",
            "a info\ntftrain.bench: a warning\ntftrain.bench: a error\n",
        ),
    ],
)
def test_each_rank_has_its_lines_and_streams(capsys, given, out, err):
    log.configure(**given)
    for name in log.LEVELS:
        getattr(logger, name)(f"a {name}")
    assert capsys.readouterr() == (out, err)


def test_a_line_is_shown_once_although_the_root_logger_has_a_handler(capsys):
    handler = logging.StreamHandler()
    logging.getLogger().addHandler(handler)
    try:
        log.configure()
        logger.warning("once")
    finally:
        logging.getLogger().removeHandler(handler)
    assert capsys.readouterr().err.count("once") == 1


def test_lines_of_threads_are_whole_and_out_before_os_exit(tmp_path):
    program = """
import logging, os, threading
from tftrain.host import log
log.configure()
def say(name):
    for _ in range(200):
        logging.getLogger("tftrain.run").info(name * 50)
threads = [threading.Thread(target=say, args=(name,)) for name in "abcd"]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
os._exit(7)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(name * 50 for name in "abcd" for _ in range(200))


LINES = """
import logging, sys
from tftrain.host import log
log.configure(0)
log.configure(0, "debug")
for number in range(3):
    logging.getLogger("tftrain.run").info("a line %d", number)
open(sys.argv[1], "w").write("a file of the run")
print("printed by a library")
logging.getLogger("tftrain.run").warning("the end")
"""


@pytest.mark.parametrize(
    ("redirection", "reason"),
    [
        (">/dev/full", "standard output can't be written to ([Errno 28] No space left on device)"),
        (">&-", "standard output is closed"),
        ("", "standard output can't be written to ([Errno 32] Broken pipe)"),
        ("<&- >&-", "standard output is closed"),
    ],
)
def test_a_program_goes_on_without_its_standard_output_and_says_so_once(tmp_path, redirection, reason):
    command = ["bash", "-c", f'"$0" -c "$1" "$2" {redirection}', sys.executable, LINES, str(tmp_path / "file")]
    environ = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    reader, without_reader = os.pipe()
    os.close(reader)
    done = subprocess.run(command, env=environ, stdout=without_reader, stderr=subprocess.PIPE, text=True)
    os.close(without_reader)
    assert done.returncode == 0
    first, *others = done.stderr.splitlines()
    assert first.startswith(f"tftrain.run: rank 0: {reason}")
    assert others == ["tftrain.run: rank 0: the end"]
    assert (tmp_path / "file").read_text() == "a file of the run", "nobody prints into another file"


def test_lines_are_written_again_when_the_disk_has_space_again(tmp_path):
    program = """
import logging, resource
from tftrain.host import log
log.configure(0)
say = logging.getLogger("tftrain.run").info
before = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # Python ignores the signal, so writing is an error.
say("lost")
say("lost")
resource.setrlimit(resource.RLIMIT_FSIZE, before)
say("written")
"""
    environ = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    with (tmp_path / "log").open("w") as file:
        done = subprocess.run(
            [sys.executable, "-c", program], env=environ, stdout=file, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "log").read_text() == "written\n"
    (line,) = done.stderr.splitlines()
    assert "standard output can't be written to ([Errno 27] File too large); its lines are lost" in line


def test_a_stream_object_that_is_closed_is_no_error(monkeypatch, capsys):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    log.configure(0)
    logger.info("lost")
    logger.info("lost")
    assert capsys.readouterr().err.count("can't be written to") == 1


def test_a_standard_error_that_is_full_is_no_error(monkeypatch):
    with open("/dev/full", "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        log.configure(0)
        logger.warning("lost")


def test_an_encoding_of_standard_output_loses_no_text():
    program = "from tftrain.host import log; log.configure(0); print('Café データ', flush=True); import logging; "
    program += "logging.getLogger('tftrain.x').info('\u043f')"
    for encoding in ("ascii", "latin-1", "utf-8"):
        environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=True)
        assert (done.stdout.decode(), done.stderr) == ("Café データ\n\u043f\n", b"")


def test_no_temporary_folder_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [str(tmp_path / "none")])
    log.configure(0)
    with log.native_log_on_failure():
        os.write(2, b"hidden")
    assert tempfile.gettempdir() == "/dev/shm"
