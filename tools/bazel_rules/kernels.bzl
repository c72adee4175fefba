"""Macros for custom_ops/kernels, where every op has the same files: NAME.h, NAME.cc, NAME-inl.h, NAME_test.cc."""

# What is fused is written as fused: g - mean(g) must be 0 where a row is one number.
# Vector types pass only between functions that are inlined; GCC's own headers leave unused lanes undefined on purpose.
_COPTS = [
    "-O3",
    "-ffp-contract=off",
    "-Wno-psabi",
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
]

def kernel_library(name, deps = []):
    """The CPU kernels of one op, and its reference."""
    native.cc_library(
        name = name,
        srcs = [name + ".cc"],
        hdrs = [name + ".h", name + "_reference.h"],
        copts = _COPTS,
        linkstatic = True,  # symbols are hidden
        textual_hdrs = [name + "-inl.h"],
        deps = [":common"] + deps,
    )

def kernel_test(name):
    """The unit tests of one op."""
    native.cc_test(
        name = name + "_test",
        size = "small",
        srcs = [name + "_test.cc"],
        copts = _COPTS,
        linkstatic = True,
        deps = [":" + name, ":testing"],
    )
