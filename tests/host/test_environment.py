"""What names a host and a version of the project."""

import shutil
from pathlib import Path

from tftrain.host import environment


def test_a_changed_source_is_another_version_of_the_project(tmp_path):
    package = Path(environment.__file__).parents[1]
    copy = tmp_path / "tftrain"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert environment.project(copy) == environment.project()
    with (copy / "train" / "step.py").open("a") as file:
        file.write("# changed\n")
    assert environment.project(copy) != environment.project()


def test_a_host_has_the_name_that_the_launcher_knows():
    assert environment.host_name({"HOROVOD_HOSTNAME": "node2"}) == "node2"
    assert environment.host_name({})
