"""The installed TensorFlow wheel as the repository @tf: symlinks to its headers and libraries, nothing copied."""

_FIND = """
import importlib.util, pathlib
print(pathlib.Path(importlib.util.find_spec("tensorflow").origin).parent)
"""

def _tensorflow_repository(ctx):
    workspace = ctx.path(Label("//:WORKSPACE")).dirname
    python = ctx.os.environ.get("TFTRAIN_PYTHON") or str(workspace) + "/.venv/bin/python"
    found = ctx.execute([python, "-c", _FIND])
    if found.return_code:
        fail(("{} has no TensorFlow; run `make setup`, or name another Python in TFTRAIN_PYTHON:\n" +
              "{}").format(python, found.stderr))
    root = ctx.path(found.stdout.strip())
    ctx.symlink(root.get_child("include"), "include")
    for library in ["libtensorflow_cc.so.2", "libtensorflow_framework.so.2"]:
        ctx.symlink(root.get_child(library), library)

    # A virtual environment's interpreter knows itself by its path, so a symlink to it would be another Python.
    ctx.file("python.sh", "#!/bin/sh\nexec '{}' \"$@\"\n".format(python), executable = True)
    ctx.symlink(Label("//tools/bazel_rules:tensorflow.BUILD"), "BUILD")

tensorflow_repository = repository_rule(
    implementation = _tensorflow_repository,
    environ = ["TFTRAIN_PYTHON"],
    local = True,
)
