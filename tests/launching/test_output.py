"""What ranks print comes out as it is, in whole lines, on the stream that they chose."""

import os
import pty
import subprocess
import threading

from tests.launching.fakes import ROOT, SECONDS, command_of, environment, started
from tftrain.launching.lines import Stream, forward


def test_stdout_and_stderr_are_as_the_ranks_wrote_them(tmp_path):
    script = """
if rank == 0:
    sys.stdout.buffer.write("Größe \\t\\x1e 漢 \\r".encode() + b"\\xff\\n\\n last line")
else:
    run(0.3)
    raise ValueError("not as expected")
"""
    with started(tmp_path, script, options={"verbose": False}) as job:
        assert job.code() == 1
        assert (tmp_path / "stdout").read_bytes() == "Größe \t\x1e 漢 \r".encode() + b"\xff\n\n last line\n"
        error = job.output("stderr")
    assert error.startswith("Traceback (most recent call last):\n")
    assert "ValueError: not as expected\ntftrain.launch: rank 1 on localhost ended with 1: its own lines" in error
    assert error.count("Traceback") == 1


def test_lines_of_ranks_do_not_mix(tmp_path):
    script = """
for number in range(150):
    for part in (f"<{rank}", f" {number} ", "x" * 3000, ">\\n"):
        sys.stdout.write(part)
        sys.stdout.flush()
"""
    with started(tmp_path, script, ranks=3) as job:
        assert job.code() == 0, job.everything()
        lines = job.output().splitlines()
    assert sorted(lines) == sorted(f"<{rank} {number} {'x' * 3000}>" for rank in range(3) for number in range(150))
    for rank in range(3):
        assert [line for line in lines if line[1] == str(rank)] == [
            f"<{rank} {number} {'x' * 3000}>" for number in range(150)
        ]


def test_ranks_go_on_when_the_output_is_closed(tmp_path):
    script = "[say('x' * 1000) for _ in range(300)]; note('done'); sys.exit(5)"
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(command_of(script), cwd=ROOT, env=environment(tmp_path), stdout=writer)
    os.close(writer)
    assert process.wait(SECONDS) == 5
    assert (tmp_path / "done_0").exists()
    assert (tmp_path / "done_1").exists()


def test_ranks_have_a_terminal_if_the_launcher_has_one(tmp_path):
    script = """
if rank == 0:
    size = os.get_terminal_size(sys.stdout.fileno())
    sys.stdout.write(f"{sys.stdout.isatty()} {size.columns} {sys.stderr.isatty()}\\n\\rbar")
    sys.stdout.flush()
    run(0.5)
    sys.stdout.write("\\rbar end\\n")
"""
    ours, theirs = pty.openpty()
    subprocess.run(["stty", "rows", "30", "cols", "77", "-onlcr"], stdin=theirs, check=True)
    process = subprocess.Popen(
        command_of(script, 1), cwd=ROOT, env=environment(tmp_path), stdout=theirs, stderr=subprocess.PIPE
    )
    os.close(theirs)
    seen = b""
    while not seen.endswith(b"end\n"):
        seen += os.read(ours, 1000)
    assert process.wait(SECONDS) == 0
    assert seen == b"True 77 False\n\rbar\rbar end\n"


def test_a_line_without_end_is_passed_on_in_parts():
    stream, pieces = Stream(None), []
    reader = threading.Thread(target=forward, args=(stream, pieces.append))
    reader.start()
    for _ in range(50):
        os.write(stream.writer, b"x" * 60000)
    os.close(stream.writer)
    reader.join(SECONDS)
    assert b"".join(pieces) == b"x" * 3_000_000 + b"\n"
    assert max(map(len, pieces)) < 1_200_000
