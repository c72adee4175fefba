"""Processes that measure when asked, and what is heard of them when they can't."""

import pytest

from tftrain.bench.worker import MeasureError, Worker

MODULE = """
import sys
from tftrain.bench.worker import serve

def build(settings):
    print("a library's greeting")
    if "refuse" in settings:
        raise ValueError("not today")
    def answer(request):
        if request == "die":
            print("last words", file=sys.stderr, flush=True)
            sys.exit(3)
        return [request, settings]
    return answer

serve(build)
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    (tmp_path / "echo_worker.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    started = []

    def make(**settings):
        started.append(Worker("echo_worker", settings))
        return started[-1]

    yield make
    for worker in started:
        worker.stop()


def test_workers_take_turns(start):
    one, other = start(number=1), start(number=2)
    for request in (5, 6):
        assert one.ask(request) == [request, {"number": 1}]
        assert other.ask(request) == [request, {"number": 2}]


def test_an_exception_is_the_answer(start):
    with pytest.raises(MeasureError, match="ValueError: not today"):
        start(refuse=True).ask(1)


def test_a_process_that_ends_is_reported_with_its_last_words(start):
    worker = start()
    with pytest.raises(MeasureError, match=r"exit code 3: .*last words"):
        worker.ask("die")
    with pytest.raises(MeasureError, match="exit code 3"):
        worker.ask(1)


def test_an_interpreter_that_does_not_exist_is_named():
    with pytest.raises(MeasureError, match="/no/python"):
        Worker("echo_worker", {}, python="/no/python")


def test_stopping_twice_does_no_harm(start):
    worker = start()
    worker.ask(1)
    worker.stop()
    worker.stop()
