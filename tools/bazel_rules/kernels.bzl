"""Macros for the folders of custom_ops/kernels. An op has NAME.h, NAME.cc, NAME-inl.h, NAME_reference.h, NAME_test.cc and
NAME.cu; a folder may have more files that these include, and more .cu files, which nvcc compiles apart.
"""

load("//tools/bazel_rules:cuda.bzl", "cuda_library")

# What is fused is written as fused: g - mean(g) must be 0 where a row is one number.
# Vector types pass only between functions that are inlined; GCC's own headers leave unused lanes undefined on purpose.
_COPTS = [
    "-O3",
    "-ffp-contract=off",
    "-Wno-psabi",
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
]

_EMULATED_COPTS = [
    "-ffp-contract=off",
    "-fno-strict-aliasing",  # packs are read as words
    "-Wno-unknown-pragmas",
]

def kernel_folder(name):
    """The ops of one folder: NAME on the CPU, `cuda` by nvcc, `emulated` the same code on the CPU, and a test of each op.

    Args:
        name: the folder's name.
    """
    native.cc_library(
        name = name,
        srcs = native.glob(["*.cc"], exclude = ["*_test.cc"]),
        hdrs = native.glob(["*.h"], exclude = ["*-inl.h"]),
        copts = _COPTS,
        linkstatic = True,  # symbols are hidden
        textual_hdrs = native.glob(["*-inl.h"]),
        deps = ["//custom_ops/kernels/common", "//custom_ops/kernels/cuda"],
    )
    for source in native.glob(["*_test.cc"]):
        kernel_test(source, [":" + name])

    sources = [source[:-len(".cu")] for source in native.glob(["*.cu"])]
    for source in sources:
        cuda_library(
            name = source + "_cuda",
            src = source + ".cu",
            hdrs = native.glob(["*.h", "*.cuh"]) + [
                "//custom_ops/kernels/common:headers",
                "//custom_ops/kernels/cuda:headers",
            ],
            deps = [":" + name],
        )
        native.genrule(
            name = source + "_emulated_source",
            srcs = [source + ".cu"],
            outs = [source + "_emulated.cc"],
            cmd = "cp $< $@",
        )
    native.cc_library(
        name = "cuda",
        deps = [":" + source + "_cuda" for source in sources],
    )
    native.cc_library(
        name = "emulated",
        testonly = True,
        srcs = [source + "_emulated.cc" for source in sources],
        copts = _EMULATED_COPTS,
        linkstatic = True,
        textual_hdrs = native.glob(["*.cuh"]),
        deps = [":" + name, "//custom_ops/kernels/emulation"],
    )

def kernel_test(source, deps, **kwargs):
    """One file of unit tests.

    Args:
        source: NAME_test.cc.
        deps: the libraries under test.
        **kwargs: size and tags.
    """
    native.cc_test(
        name = source[:-len(".cc")],
        size = kwargs.pop("size", "small"),
        srcs = [source],
        copts = _COPTS,
        linkstatic = True,
        deps = deps + ["//custom_ops/kernels/common:testing"],
        **kwargs
    )
