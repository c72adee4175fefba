"""Ranks that are forked from one process: what differs from programs of their own, and what does not."""

import threading
import time

import pytest

from tests.kit.waiting import is_alive, wait_for_end, wait_until
from tests.launching.fakes import LIMITS, started
from tftrain.launching import forking


def test_a_forked_rank_is_a_child_of_the_agent_in_a_session_of_its_own(tmp_path):
    script = """
note("agent", os.getppid())
assert os.getsid(0) == os.getpgid(0) == os.getpid()
assert sys.stdin.read() == ""
assert os.environ["WORD"] == "given" and "OMP_NUM_THREADS" not in os.environ
assert os.environ["TFTRAIN_FORKED"] == "1"
files = sorted(map(int, os.listdir("/proc/self/fd")))
say(f"{os.getpid()} {len(files)}")
say("to stderr", sys.stderr)
"""
    environ = {"WORD": "given"}
    with started(tmp_path, script, forked=True, environ=environ) as job:
        assert job.code() == 0, job.everything()
        lines = sorted(job.output().splitlines())
        assert [line.split()[:2] for line in lines] == [["rank", "0"], ["rank", "1"]]
        assert len({line.split()[2] for line in lines}) == 2
        # Standard streams, and the folder that is listed.
        assert {line.split()[3] for line in lines} == {"4"}
        assert sorted(job.output("stderr").splitlines()) == ["rank 0 to stderr", "rank 1 to stderr"]
        assert job.pid("agent", 0) == job.pid("agent", 1)


THREAD = "import threading, time; threading.Thread(target=time.sleep, args=[30], daemon=True).start()"


@pytest.mark.parametrize(
    ("preparation", "words"),
    [("raise SystemExit('no such module')", "no such module\n"), (THREAD, "an import has started threads (")],
)
def test_a_server_that_fails_forks_no_rank_and_is_one_line_with_its_own_words_before_it(tmp_path, preparation, words):
    with started(tmp_path, "say('runs')", forked=True, preparation=preparation) as job:
        assert job.code() == 1
        assert words in job.output("stderr")
        line = "localhost: the process that forks the ranks ended with 1 before it had forked all of them; "
        assert f"\ntftrain.launch: {line}" in job.output("stderr")
        assert job.output() == ""


def test_a_killed_launcher_leaves_no_server(tmp_path):
    preparation = f"import os, time; open('{tmp_path}/server', 'w').write(str(os.getpid())); time.sleep(30)"
    with started(tmp_path, "say('runs')", forked=True, preparation=preparation) as job:
        wait_until(lambda: (tmp_path / "server").exists() and (tmp_path / "server").read_text(), 10)
        server = int((tmp_path / "server").read_text())
        assert is_alive(server)
        job.process.terminate()
        time.sleep(0.2)
        job.process.kill()
        wait_for_end(server, LIMITS.save + 5)


def test_threads_are_counted_without_the_harmless_ones(monkeypatch):
    before, release = forking.extra_threads(), threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        found = forking.extra_threads()
        assert len(found) == len(before) + 1
        monkeypatch.setattr(forking, "HARMLESS_THREADS", forking.HARMLESS_THREADS | set(found))
        assert forking.extra_threads() == []
    finally:
        release.set()
        thread.join()


def test_a_process_that_has_opened_a_gpu_is_not_forked(tmp_path, monkeypatch):
    device = tmp_path / "nvidia0"
    monkeypatch.setattr(forking, "extra_threads", list)
    monkeypatch.setattr(forking, "GPU_FILES", str(tmp_path / "nvidia"))
    forking.check_can_fork()
    with device.open("w"), pytest.raises(SystemExit, match=rf"an import has opened {device}; start without"):
        forking.check_can_fork()
