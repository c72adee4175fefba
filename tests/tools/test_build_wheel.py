"""`make wheel`: what the wheels contain, and that they train in an environment without the repository."""

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import tftrain
from tftrain.cli import help
from tools import build_wheel

ROOT = Path(__file__).parents[2]
PLATFORM = sysconfig.get_platform().replace("-", "_")
PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
SMALL = (
    *("--num_hidden_layers=1", "--hidden_size=32", "--num_attention_heads=2", "--synthetic_data", "--vocab_size=101"),
    *("--max_seq_length=16", "--global_batch_size=4", "--max_steps=2", "--log_every=1", "--eval_every=-1"),
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, in a folder that had one of another version."""
    folder = tmp_path_factory.mktemp("wheel")
    ops = folder / "libtftrain_ops.so"
    ops.write_bytes(b"the library")
    (folder / "tftrain-0.0.1-py3-none-any.whl").touch()
    return build_wheel.build_tftrain(ops, folder)


def test_the_wheel_contains_the_package_and_the_ops_for_one_platform(wheel):
    assert list(wheel.parent.glob("*.whl")) == [wheel], "wheels of other versions are gone"
    version = re.fullmatch(rf"tftrain-([\d.]+)-{PYTHON}-{PYTHON}-{PLATFORM}\.whl", wheel.name)[1]
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert archive.read("tftrain/ops/libtftrain_ops.so") == b"the library"
        metadata = archive.read(f"tftrain-{version}.dist-info/METADATA").decode()
        assert "Root-Is-Purelib: false" in archive.read(f"tftrain-{version}.dist-info/WHEEL").decode()
    assert f"\nVersion: {version}\n" in metadata
    assert "\nRequires-Dist: tensorflow==" in metadata
    assert {name.split("/")[0] for name in names} == {"tftrain", f"tftrain-{version}.dist-info"}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "tftrain").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    assert all(f"\n{line}\n" in metadata for line in ("License-Expression: Apache-2.0", "License-File: LICENSE"))
    guides = {f"tftrain/docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert guides == {name for name in names if name.endswith(".md")}
    data = {path.name for path in (ROOT / "tftrain").rglob("*") if path.suffix in (".css", ".csv", ".html", ".json")}
    assert data <= {name.split("/")[-1] for name in names}


def test_the_console_command_and_the_guides_work_from_an_empty_folder(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "empty").mkdir()
    (command,) = importlib.metadata.Distribution.at(next((tmp_path / "site").glob("*.dist-info"))).entry_points
    assert (command.group, command.name) == ("console_scripts", "tftrain")
    start = f"import sys; from {command.module} import {command.attr}; sys.argv[0] = 'tftrain'; {command.attr}()"

    def outcome(*args):
        environ = {"PYTHONPATH": str(tmp_path / "site"), "PATH": os.environ["PATH"]}
        line = [sys.executable, "-c", start, *args]
        return subprocess.run(line, cwd=tmp_path / "empty", env=environ, capture_output=True, text=True, timeout=60)

    assert outcome("docs", "levers").stdout.startswith("# ")
    done = outcome("schedules", "--micro_batches=4")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1f1b: 4 stages, 4 micro-batches\n")
    assert outcome("launch", "--version").stdout == f"tftrain {tftrain.__version__}\n"


def test_requirements_have_the_versions_and_hashes_of_what_the_wheels_need_and_of_nothing_else():
    entry = "a-b==1.2 ; python_version < '3.13' \\\n    --hash=sha256:00 \\\n    --hash=sha256:01\n"
    lock = f"# by uv\n{entry}    # via c\nd_e==3\n"
    assert build_wheel.locked(lock, {"a-b", "d-e"}) == f"{entry}d_e==3\n"
    assert build_wheel.locked(lock, {"d-e"}) == "d_e==3\n"
    names = build_wheel.needed(["tftrain", "horovod"])
    assert {"tensorflow", "numpy", "cloudpickle", "markupsafe"} <= names
    assert names.isdisjoint({"pytest", "beam", "ray"})
    entries = build_wheel.locked((ROOT / "requirements.lock").read_text(), names - {"tftrain", "horovod"})
    pinned = re.findall(r"^([\w.-]+)==.*\n    --hash=", entries, re.MULTILINE)
    assert {build_wheel.canonicalize_name(name) for name in pinned} == names - {"tftrain", "horovod"}


# Nightly: half a minute of pip and of a training; the content is tested above.
@pytest.mark.nightly
@pytest.mark.multirank
def test_the_wheels_train_in_an_environment_without_the_repository(tmp_path):
    if not build_wheel.OPS.exists():
        pytest.skip("the fused ops are not built")
    dist, home = tmp_path / "dist", tmp_path / "venv"
    subprocess.run([sys.executable, "tools/build_wheel.py", f"--to={dist}"], cwd=ROOT, check=True)
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    # The other packages come from this environment. Python reads no .pth files in a folder that a .pth file adds, so
    # the editable tftrain stays out.
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "other.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    install = "-m pip install --quiet --ignore-installed --no-index --no-deps tftrain horovod"
    subprocess.run([python, *install.split(), f"--find-links={dist}"], check=True)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = ["launch", "-np", "2", *SMALL, f"--output_dir={tmp_path / 'run'}"]
    done = subprocess.run(
        [home / "bin" / "tftrain", *options], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ln_impl=fused" in done.stdout
    assert "step 2/2" in done.stdout
    places = "import horovod, tftrain; print(tftrain.__file__, horovod.__file__)"
    shown = subprocess.run([python, "-c", places], cwd=tmp_path, env=environ, capture_output=True, text=True).stdout
    assert all(Path(path).is_relative_to(packages) for path in shown.split()), shown


# Nightly: minutes of downloads and of programs.
@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("resolution", ["highest", "lowest-direct"])
def test_the_example_of_each_program_works_as_typed_from_the_wheel_without_extras(tmp_path, resolution):
    wheel, home = build_wheel.build_tftrain(None, tmp_path), tmp_path / "venv"
    uv, python = Path(sys.executable).with_name("uv"), home / "bin/python"
    subprocess.run([uv, "venv", "--quiet", f"--python={sys.executable}", home], check=True)
    install = [uv, "pip", "install", "--quiet", f"--python={python}", f"--resolution={resolution}"]
    subprocess.run([*install, wheel], check=True)
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environ["PATH"] = f"{python.parent}{os.pathsep}{environ['PATH']}"
    (tmp_path / "empty").mkdir()

    def outcome(line):
        command = ["bash", "-e", "-o", "pipefail", "-c", line]
        return subprocess.run(command, cwd=tmp_path / "empty", env=environ, capture_output=True, text=True, timeout=300)

    examples = {program: help.command(help.paragraphs(program)[2]) for program in help.PROGRAMS}
    needs_horovod = examples.pop("launch")
    for line in [*examples.values(), "tftrain run --mode=evaluate --output_dir=runs/try --eval_examples=4"]:
        done = outcome(line)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    done = outcome(needs_horovod)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert "Horovod can't be imported" in done.stderr
