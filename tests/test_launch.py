"""`tftrain.launch`: its command line, and a run on two ranks that Ctrl-C interrupts."""

import dataclasses
import json
import os
import re
import signal
import sys

import pytest

from tests.kit.ranks import run_ranks, started_ranks
from tests.kit.runs import SMALL
from tests.plan.test_choice import MACHINE
from tftrain import launch
from tftrain.checkpoint import folder
from tftrain.cli import flags
from tftrain.config.fields import sections
from tftrain.config.train import TrainConfig
from tftrain.launching.config import LaunchConfig, split


@pytest.mark.parametrize(
    ("args", "options", "flags"),
    [
        (["-np", "2", "--seed=3"], ["--num_proc=2"], ["--seed=3"]),
        (["--seed=3", "-np=2"], ["--num_proc=2"], ["--seed=3"]),
        (["--num-proc", "2", "-H", "a:1,b:1"], ["--num_proc=2", "--hosts=a:1,b:1"], []),
        (["-p", "22", "-i", "key", "--verbose"], ["--ssh_port=22", "--ssh_identity_file=key", "--verbose"], []),
        (["--hostfile", "f", "--start-timeout", "9"], ["--hostfile=f", "--start_timeout=9"], []),
        (["-np", "2", "--fork-ranks", "--seed=3"], ["--num_proc=2", "--fork_ranks"], ["--seed=3"]),
        (["--network-interfaces=eth0,lo"], ["--network_interfaces=eth0,lo"], []),
        # Flags of the run may have one dash, too.
        (["-np", "2", "-precision=bf16", "-i=x"], ["--num_proc=2", "--ssh_identity_file=x"], ["-precision=bf16"]),
        (["-np", "2", "--", "-np"], ["--num_proc=2"], ["--", "-np"]),
    ],
)
def test_options_and_flags_are_told_apart(args, options, flags):
    assert split(args) == (options, flags, [])


def test_no_option_has_the_name_of_a_flag_of_the_run():
    flags = {field.name for section in sections(TrainConfig()) for field in dataclasses.fields(section)}
    assert flags.isdisjoint(field.name for field in dataclasses.fields(LaunchConfig))


@pytest.mark.parametrize(
    ("args", "lines"),
    [
        (["-np"], ["--num_proc: expected a value after -np"]),
        (
            ["-np", "2", "-H", "a:b", "--nosuch=1"],
            ["--hosts=a:b: 'a:b' is not a host with its slots; expected node1:16,node2:16", "--nosuch=1: no such flag"],
        ),
        (["-np", "2", "--hosts=a:2", "--hostfile=b"], ["--hostfile=b: expected either --hosts or --hostfile"]),
        (["-np", "1", "-i", "/nosuch"], ["--ssh_identity_file=/nosuch: no such file; expected a private key"]),
        (
            ["-np", "2", "--min-np", "1", *SMALL],
            ["--min-np: elastic runs are started by horovodrun, see python -m tftrain docs elastic"],
        ),
        # The flags of the run; tests/bad_inputs has others, and other options.
        (["-np", "2", "--flagfile=/nosuch"], ["--flagfile=/nosuch: No such file or directory; expected a text file"]),
    ],
)
def test_wrong_flags_are_refused_before_a_rank_starts(args, lines, capfd, monkeypatch):
    from tftrain.launching import job

    monkeypatch.setattr(job, "run", lambda *_: pytest.fail("a rank was started"))
    with pytest.raises(SystemExit) as end:
        launch.main(["tftrain.launch", *args])
    assert end.value.code == 2
    output = capfd.readouterr()
    assert output.out == ""
    printed = output.err.splitlines()
    assert printed[-1] == f"tftrain.launch: {flags.HINT}"
    for line in lines:
        assert sum(each.startswith(f"tftrain.launch: {line}") for each in printed) == 1, output.err


def test_help_has_the_flags_of_launcher_and_run(capsys):
    with pytest.raises(SystemExit) as end:
        launch.main(["tftrain.launch", "--help=all"])
    assert end.value.code == 0
    shown = re.findall(r"^  --(\w+)=", capsys.readouterr().out, re.MULTILINE)
    expected = [field.name for each in (LaunchConfig(), *sections(TrainConfig())) for field in dataclasses.fields(each)]
    assert shown == expected


def test_ranks_get_the_flags_of_a_flagfile(tmp_path, monkeypatch):
    from tftrain.launching import job

    started = []
    monkeypatch.setattr(job, "run", lambda *args: started.append(args) or 75)
    file = tmp_path / "small.flags"
    file.write_text("\n".join([*SMALL, "--preempt_save_seconds=7"]))
    own = ["--global_batch_size=8", "--max_steps=5", f"--output_dir={tmp_path}"]
    args = ["-np", "2", "--fork_ranks", f"--flagfile={file}", *own]
    assert launch.main(["tftrain.launch", *args]) == 75
    ((hosts, command, config, limits, fork_server, layouts),) = started
    assert fork_server == [sys.executable, "-m", "tftrain.rank_server", *command[3:]]
    assert command == [sys.executable, "-m", "tftrain.run", *SMALL, "--preempt_save_seconds=7", *own]
    assert (len(hosts), config.num_proc, limits.save, layouts) == (1, 2, 7 + launch.MARGIN_SECONDS, None)


@pytest.mark.nightly
@pytest.mark.multirank
def test_ctrl_c_saves_forked_ranks_and_the_next_start_continues_without_a_fork(tmp_path):
    flags = [*SMALL, "--global_batch_size=8", f"--output_dir={tmp_path}"]
    launch = ["-m", "tftrain.launch", "-np", "2", *flags]
    with started_ranks(1, [*launch, "--fork_ranks", "--max_steps=1000000"]) as launcher:
        launcher.wait_for("loss ")
        os.killpg(launcher.processes[0].pid, signal.SIGINT)
        assert launcher.codes([0], 60) == [75], launcher.output()
        said = launcher.output()
    (saved,) = folder.find(tmp_path)
    step = int(saved.name.removeprefix("step_"))
    assert "[0]<stdout>" not in said
    assert "Traceback" not in said
    assert said.count("received SIGINT") == 3  # The launcher and each rank, once.
    last = f"stopped after step {step}, and the state is saved: start the same command again to continue"
    assert said.splitlines()[-1] == last
    assert f"loss curve {tmp_path / 'loss_curve.png'}\n" in said
    assert (tmp_path / "loss_curve.png").is_file()
    said = run_ranks(1, [*launch, f"--max_steps={step + 1}"])
    assert f"continuing after step {step} of {saved}" in said
    assert re.search(rf"learning rate \S+ at step {step} -> \S+: the schedule is shortened to {step + 1} steps", said)


def machine_file(folder, **figures):
    """Writes figures of a machine, so that a launcher need not measure it."""
    path = folder / "machine.json"
    path.write_text(json.dumps({**dataclasses.asdict(MACHINE), **figures}))
    return f"--machine_file={path}"


@pytest.mark.multirank
@pytest.mark.parametrize("ranks", [2, pytest.param(1, marks=pytest.mark.nightly)])
def test_auto_layout_trains_and_a_resume_keeps_it_on_as_many_ranks(tmp_path, ranks, monkeypatch, capsys):
    from tftrain.launching import job

    flags = [*SMALL, "--global_batch_size=8", f"--output_dir={tmp_path}", machine_file(tmp_path)]
    given = ["--layout=auto", "--fork_ranks", "--activation_checkpointing=full", *flags]
    said = run_ranks(1, ["-m", "tftrain.launch", *given, "-np", "2", "--max_steps=3"])
    chosen = re.search(r"^  1  (\S+) s a step, \S+ GB: data (\d) x tensor (\d) .* fastest of \d+ layouts", said, re.M)
    assert int(chosen[2]) * int(chosen[3]) <= 2
    assert said.count("slower, mostly by") + said.count(": as fast") == 2
    assert re.search(rf"^  step 2 +\S+ +{chosen[1]}$", said, re.M), "planned beside measured"
    if ranks == 2:
        commands = []
        monkeypatch.setattr(job, "run", lambda places, command, *_: commands.append(command) or 0)
        assert launch.main(["tftrain.launch", *given, "-np", "2", "--max_steps=4"]) == 0
        assert "layout: that of the checkpoint stays, on 2 ranks" in capsys.readouterr().out
        assert [command[3:] for command in commands] == [[*given[2:], "--max_steps=4"]]
    else:
        said = run_ranks(1, ["-m", "tftrain.launch", *given, "-np", "1", "--micro_batch_size=2", "--max_steps=4"])
        assert re.search(r"layout: (\d+) of \1 layouts of 1 ranks fit", said)
        assert "8 = 2 samples x 4 micro-batches x 1 ranks" in said
        assert "continuing after step 3" in said


@pytest.mark.nightly
@pytest.mark.multirank
def test_a_layout_slower_than_the_plans_of_others_is_followed_by_them_and_at_last_by_the_fastest(tmp_path):
    # A machine that does not exist: every layout is slower than planned.
    machine = machine_file(tmp_path, peak_fp32=1e3, memory_gbs=1e6)
    size = ["--hidden_size=256", "--num_attention_heads=4", "--max_seq_length=128", "--global_batch_size=32"]
    flags = [*SMALL, *size, f"--output_dir={tmp_path}", machine, "--max_steps=120", "--eval_every=-1"]
    said = run_ranks(1, ["-m", "tftrain.launch", "--layout=auto", "-np", "1", *flags], seconds=600)
    moves = said.count("layout: continuing with")
    assert moves in (2, 3), "three layouts, and back to the first or the second unless the third is the fastest"
    assert said.count("continuing after step") == moves
    assert "step 120/120" in said
