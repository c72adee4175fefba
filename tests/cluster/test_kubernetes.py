"""The manifests of configs/kubernetes are valid for Kubernetes and the MPI operator; tftrain takes their command."""

import os
import shutil
import socket
import subprocess

import jsonschema
import pytest
import yaml

from tests.cluster.mpijob_schema import MPI_JOB
from tests.kit.ranks import ROOT
from tftrain.cli import flags
from tftrain.config.fields import sections
from tftrain.config.train import TrainConfig
from tftrain.launching import config as launching
from tftrain.launching import hosts

FOLDER = ROOT / "configs/kubernetes"
JOB = yaml.safe_load((FOLDER / "mpijob.yaml").read_text())
ROLES = ("Launcher", "Worker")
VERSIONS = ("1.29", "1.37")
AFTER_SAVE_SECONDS = 20  # The launcher waits as long, see docs/reliability.md.


def container(role):
    """Returns the only container of a role."""
    (only,) = JOB["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]["containers"]
    return only


def resources():
    """Yields what Kubernetes gets: the claim, and the pods that the operator makes of the templates."""
    yield yaml.safe_load((FOLDER / "storage.yaml").read_text())
    yield yaml.safe_load((FOLDER / "network.yaml").read_text())
    for role in ROLES:
        replicas = JOB["spec"]["mpiReplicaSpecs"][role]
        spec = {**replicas["template"]["spec"], "restartPolicy": replicas["restartPolicy"]}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": role.lower()}, "spec": spec}


@pytest.mark.parametrize("version", VERSIONS)
def test_claim_and_pods_are_valid_for_kubernetes(version):
    validate = pytest.importorskip("kubernetes_validate").validate
    for resource in resources():
        validate(resource, version, strict=True)


def test_the_job_is_valid_for_the_operator():
    jsonschema.validate(JOB, MPI_JOB)


def test_all_volumes_that_are_mounted_exist():
    for role in ROLES:
        spec = JOB["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]
        mounted = {mount["name"] for mount in container(role)["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}
    claim = yaml.safe_load((FOLDER / "storage.yaml").read_text())
    assert spec["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_the_command_starts_a_rank_for_each_gpu_of_each_worker(tmp_path):
    python, module, program, *arguments = container("Launcher")["command"]
    assert [python, module, program] == ["python", "-m", "tftrain.launch"]
    options, of_run, problems = launching.split(arguments)
    assert not problems
    workers, slots = JOB["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"], JOB["spec"]["slotsPerWorker"]
    assert container("Worker")["resources"]["limits"]["nvidia.com/gpu"] == slots
    # As the operator writes it.
    hostfile, name = tmp_path / "hostfile", JOB["metadata"]["name"]
    lines = [f"{name}-worker-{number}.{name}.default.svc slots={slots}\n" for number in range(workers)]
    hostfile.write_text("".join(lines))
    (flag,) = [option for option in options if option.startswith("--hostfile=")]
    options[options.index(flag)] = f"--hostfile={hostfile}"
    config = flags.parse(launching.LaunchConfig, ["tftrain.launch", *options])
    assert [len(host.slots) for host in hosts.assign(config)] == [slots] * workers
    # The flag file is the user's.
    own = [flag for flag in of_run if not flag.startswith("--flagfile=")]
    assert len(own) == len(of_run) - 1
    run = flags.parse(TrainConfig, ["tftrain.run", *own])
    assert sections(run)
    for role in ROLES:
        spec = JOB["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]
        assert spec["terminationGracePeriodSeconds"] > run.limits.preempt_save_seconds + AFTER_SAVE_SECONDS
    assert run.run.output_dir.startswith(container("Worker")["volumeMounts"][0]["mountPath"])


def test_pods_have_no_rights_that_the_job_does_not_need():
    policy = yaml.safe_load((FOLDER / "network.yaml").read_text())["spec"]
    for role in ROLES:
        template = JOB["spec"]["mpiReplicaSpecs"][role]["template"]
        assert template["spec"]["automountServiceAccountToken"] is False
        assert template["metadata"]["labels"] == policy["podSelector"]["matchLabels"]
        rights = container(role)["securityContext"]
        assert (rights["allowPrivilegeEscalation"], rights["capabilities"]["drop"]) == (False, ["ALL"])
    (rule,) = policy["ingress"]
    assert rule == {"from": [{"podSelector": policy["podSelector"]}]}


def test_sshd_of_a_pod_works_with_its_rights_and_only_with_the_key_of_the_job(tmp_path):
    if os.getuid() or not all(shutil.which(each) for each in ("setpriv", "ssh-keygen", "/usr/sbin/sshd")):
        pytest.skip("needs root, setpriv and sshd")
    os.makedirs("/run/sshd", exist_ok=True)
    for name in ("id_rsa", "other"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", tmp_path / name], check=True)
    shutil.copy(tmp_path / "id_rsa.pub", tmp_path / "authorized_keys")
    for name in ("ssh_config", "sshd_config"):
        text = (FOLDER / name).read_text().replace("/root/.ssh", str(tmp_path))
        (tmp_path / name).write_text(text)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    rights = ",".join(f"+{each.lower()}" for each in container("Worker")["securityContext"]["capabilities"]["add"])
    limited = ["setpriv", "--no-new-privs", f"--bounding-set=-all,{rights}", "--inh-caps=-all"]
    options = ["-o", "ListenAddress=127.0.0.1", "-o", f"AuthorizedKeysFile={tmp_path}/authorized_keys", "-p", str(port)]
    ssh = ["ssh", "-F", tmp_path / "ssh_config", "-i", tmp_path / "id_rsa", "-o", "BatchMode=yes", "-p", str(port)]
    for key, code in (("id_rsa", 0), ("other", 255)):
        config = tmp_path / f"sshd_{key}"
        config.write_text((tmp_path / "sshd_config").read_text().replace("id_rsa", key))
        server = subprocess.Popen([*limited, "/usr/sbin/sshd", "-De", "-f", config, *options], stderr=subprocess.PIPE)
        try:
            server.stderr.readline()  # It listens.
            login = subprocess.run([*ssh, "127.0.0.1", "true"], capture_output=True, text=True, timeout=30)
            assert login.returncode == code, login.stderr
            assert code == 0 or "Host key verification failed" in login.stderr
        finally:
            server.terminate()
            server.wait()
