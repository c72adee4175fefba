"""The log: whose lines go where, at which level, and that nothing is lost at the end of a process."""

import errno
import io
import logging
import subprocess
import sys

import pytest

from tftrain import log

logger = logging.getLogger("tftrain.somewhere")


def say_all():
    for level in log.LEVELS:
        getattr(logger, level)(f"a {level}")


@pytest.mark.parametrize(
    ("level", "shown"),
    [("debug", "a debug\na info\n"), ("info", "a info\n"), ("warning", ""), ("error", "")],
)
def test_the_chief_shows_plain_lines_from_the_level_on(capsys, level, shown):
    log.configure(0, level)
    say_all()
    assert capsys.readouterr().out == shown


def test_other_ranks_show_warnings_only(capsys):
    log.configure(3, "debug")
    say_all()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "tftrain.run: rank 3: a warning\ntftrain.run: rank 3: a error\n"


def test_warnings_can_be_left_out(capsys):
    log.configure(0, "error")
    say_all()
    assert capsys.readouterr().err == "tftrain.run: rank 0: a error\n"


def test_a_program_without_ranks_names_none_and_may_keep_stdout_for_its_result(capsys):
    log.configure(program="tftrain.bench", stream="stderr")
    say_all()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "a info\ntftrain.bench: a warning\ntftrain.bench: a error\n"


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
from tftrain import log
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


def test_an_error_of_the_stream_reaches_the_caller(monkeypatch):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    log.configure()
    with pytest.raises(OSError, match="No space left"):
        logger.info("a line")
