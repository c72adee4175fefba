"""Other hosts: a script in the place of ssh runs the command here."""

import os
import socket
import sys

import pytest

from tests.launching.fakes import started
from tftrain.host.exit_codes import ExitCode

HOST = "192.0.2.7"
SSH = """#!/bin/sh
for last; do :; done
echo "$@" >> "$NOTES/ssh"
cd /
exec env -i PATH="$PATH" NOTES="$NOTES" sh -c "$last"
"""


@pytest.fixture
def ssh(tmp_path):
    """Returns a function that puts a script into the place of ssh and returns the environment for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        try:
            unsent.connect((HOST, 9))
        except OSError:
            pytest.skip("this machine has no network address but 127.0.0.1")

    def install(script=SSH):
        path = tmp_path / "bin" / "ssh"
        path.parent.mkdir()
        path.write_text(script)
        path.chmod(0o755)
        return {"PATH": f"{path.parent}:{os.environ['PATH']}"}

    return install


def test_ranks_of_another_host_have_folder_environment_and_signals(tmp_path, ssh):
    script = """
listen(signal.SIGINT, code=75)
names = ("WORD", "CUDA_VISIBLE_DEVICES", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE", "HOROVOD_CONTROLLER")
names += ("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME")
say(f"{os.getcwd()} {[os.environ.get(name) for name in names]}")
run(15)
"""
    environ = {**ssh(), "WORD": 'it\'s "$HOME"', "CUDA_VISIBLE_DEVICES": "0"}
    options = {"hosts": f"localhost:1,{HOST}:2", "ssh_port": 2222, "ssh_identity_file": "/a key", "pass_env": "W*"}
    options["network_interfaces"] = "nosuch0,lo"
    with started(tmp_path, script, 3, options=options, environ=environ) as job:
        job.wait_for("HOME", 3)
        job.press_ctrl_c()
        assert job.code() == 75, job.everything()
        lines = sorted(job.output().splitlines())
    word, network = "'it\\'s \"$HOME\"'", "'gloo', 'lo', 'nosuch0,lo'"
    assert lines[0::2] == [
        f"rank 0 {os.getcwd()} [{word}, '0', '0', '3', {network}]",
        f"rank 1 {os.getcwd()} [{word}, None, '0', '3', {network}]",
        f"rank 2 {os.getcwd()} [{word}, None, '1', '3', {network}]",
    ]
    (call,) = (tmp_path / "ssh").read_text().splitlines()
    assert f" -p 2222 -i /a key -- {HOST} " in call
    assert "StrictHostKeyChecking" not in call


@pytest.mark.parametrize(
    ("asked", "got"), [(None, ""), ("AWS_*,SESSION", "AWS_SECRET_ACCESS_KEY=canary SESSION=canary ")]
)
def test_keys_and_passwords_stay_on_this_host_unless_they_are_asked_for(tmp_path, ssh, asked, got):
    script = "say(' '.join(f'{name}={value}' for name, value in sorted(os.environ.items()) if 'canary' in value))"
    secrets = ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "WANDB_API_KEY", "PGPASSWORD", "GITHUB_PAT", "SESSION")
    environ = {
        **ssh(),
        **dict.fromkeys(secrets, "canary"),
        "https_proxy": "http://u:canary@proxy",
        "TF_NAME": "a canary",
    }
    with started(tmp_path, script, 1, options={"hosts": f"{HOST}:1", "pass_env": asked}, environ=environ) as job:
        assert job.code() == 0, job.everything()
        names = "GITHUB_PAT, HF_TOKEN, PGPASSWORD, WANDB_API_KEY, https_proxy"
        assert job.output().splitlines()[-1] == f"rank 0 {got}TF_NAME=a canary"
        assert (
            f"{HOST} does not get {'' if asked else 'AWS_SECRET_ACCESS_KEY, '}{names}; --pass_env=NAME" in job.output()
        )


def test_lines_of_a_login_script_are_passed_on_as_errors(tmp_path, ssh):
    environ = ssh(SSH.replace("cd /", "echo welcome; echo -n to; echo it >&2"))
    with started(tmp_path, "say('runs')", 1, options={"hosts": f"{HOST}:1"}, environ=environ) as job:
        assert job.code() == 0, job.everything()
        assert job.output() == "rank 0 runs\n"
        assert sorted(job.output("stderr").splitlines()) == ["it", "to", "welcome"]


@pytest.mark.parametrize(
    ("script", "hosts", "start_timeout", "lines"),
    [
        pytest.param(
            "echo 'Permission denied (publickey).' >&2\nexit 255",
            f"localhost:1,{HOST}:1",
            30,
            f"Permission denied (publickey).\ntftrain.launch: rank 1 on {HOST} can't start: Permission denied "
            f"(publickey).; expected `ssh {HOST} true` to work without a password\n",
            id="refuses",
        ),
        pytest.param(
            "echo 'sh: 1: cd: no such folder' >&2\nexit 2",
            f"{HOST}:2",
            30,
            f"sh: 1: cd: no such folder\ntftrain.launch: ranks 0, 1 on {HOST} can't start: sh: 1: cd: no such folder; "
            f"the launcher's agent ended there with 2; expected on that host this folder, {os.getcwd()}, and this "
            f"interpreter, {sys.executable}\n",
            id="has not the folder",
        ),
        pytest.param(
            "exec sleep 30",
            f"{HOST}:2",
            0.5,
            f"tftrain.launch: {HOST}: no answer within --start_timeout=0.5 seconds\n",
            id="does not answer",
        ),
    ],
)
def test_a_host_that_can_not_be_used_is_named_and_no_rank_starts(tmp_path, ssh, script, hosts, start_timeout, lines):
    options = {"hosts": hosts, "start_timeout": start_timeout}
    with started(tmp_path, "say('runs')", options=options, environ=ssh(f"#!/bin/sh\n{script}\n")) as job:
        assert job.code() == ExitCode.FAILED
        assert job.output() == ""
        assert job.output("stderr") == lines


def test_a_connection_that_breaks_ends_the_job(tmp_path, ssh):
    script = "listen(signal.SIGTERM, code=75); note('rank'); note('agent', os.getppid()); say('runs'); run(15)"
    options = {"hosts": f"localhost:1,{HOST}:1"}
    with started(tmp_path, script, options=options, environ=ssh()) as job:
        job.wait_for("runs", 2)
        os.kill(job.pid("agent", 1), 9)
        assert job.code() == ExitCode.PEER_ENDED, job.everything()
        assert f"{HOST}: the connection to its ranks has ended" in job.output("stderr")
        assert job.output("stderr").splitlines()[-1] == (
            f"tftrain.launch: rank 1 on {HOST}: no connection; check the host and the network, expected "
            f"`ssh {HOST} true` to work; start again to continue"
        )
