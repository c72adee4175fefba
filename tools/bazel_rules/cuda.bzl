"""CUDA kernels by nvcc: compiled with --config=cuda, left out without, because not every machine has nvcc.

One binary holds code for A100 and for H100 and H200, and PTX for what comes later. NVCC names another nvcc than the first
on the path: `--action_env=NVCC=...`.

What is fused is written as fused, so that nvcc may not fuse on its own: g - mean(g) must be 0 where a row is one number.
"""

_NVCC = " ".join([
    "$${NVCC:-nvcc} -std=c++17 -O3 -fmad=false -I. -Xcompiler -fPIC,-fvisibility=hidden,-w",
    "-gencode arch=compute_80,code=sm_80",
    "-gencode arch=compute_90,code=[sm_90,compute_90]",
])

_WITH_CUDA = select({
    "//tools/bazel_rules:cuda": [],
    "//conditions:default": ["//tools/bazel_rules:needs_nvcc"],
})

def cuda_library(name, src, hdrs, deps):
    """The kernels of one .cu file.

    Args:
        name: the library's name.
        src: the .cu file.
        hdrs: all files that it includes.
        deps: the libraries whose headers these are.
    """
    native.genrule(
        name = name + "_object",
        srcs = [src] + hdrs,
        outs = [name + ".o"],
        cmd = _NVCC + " -c $(location {}) -o $@".format(src),
        target_compatible_with = _WITH_CUDA,
    )
    native.cc_library(
        name = name,
        srcs = [name + ".o"],
        alwayslink = True,  # of the kernels of a folder, one may call another
        linkstatic = True,
        target_compatible_with = _WITH_CUDA,
        deps = deps,
    )

def cuda_runtime(name):
    """The static CUDA runtime that comes with nvcc, in a toolkit's lib64 or in the lib of its PyPI packages."""
    native.genrule(
        name = name + "_archive",
        outs = ["libcudart_static.a"],
        cmd = " ".join([
            "root=$$($${NVCC:-nvcc} --dryrun -x cu /dev/null 2>&1 | sed -n 's/^#. TOP=//p') &&",
            "cp $$(ls $$root/lib64/libcudart_static.a $$root/lib/libcudart_static.a 2> /dev/null | head -n 1) $@",
        ]),
        target_compatible_with = _WITH_CUDA,
    )
    native.cc_library(
        name = name,
        srcs = ["libcudart_static.a"],
        linkopts = [
            "-ldl",
            "-lrt",
            "-pthread",
        ],
        target_compatible_with = _WITH_CUDA,
    )
