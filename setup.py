"""Builds the compiled core.  Everything else about the package is in pyproject.toml.

Two kinds of modules are compiled: those of `relayd/_fast`, which are Cython, and Python modules that have
a .pxd beside them with the types of what they declare (docs/decisions/004).

RELAYD_BUILD=debug compiles with bounds checks, overflow checks and the invariants that the
sources guard with `IF_DEBUG` (see relayd/_fast/debug.h); the default is the build that ships.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("RELAYD_BUILD") == "debug"

COMPILE_ARGS = [
    "-fstack-protector-strong",
    "-fvisibility=hidden",
    "-Wall",
    "-Wno-unused-function",
    "-Wno-unused-but-set-variable",  # Cython makes some
] + (["-O1", "-g", "-DRELAYD_DEBUG=1"] if DEBUG else ["-O2", "-g0", "-D_FORTIFY_SOURCE=3"])
LINK_ARGS = ["-Wl,-z,relro,-z,now"]

CYTHON = {
    "language_level": 3,
    "freethreading_compatible": False,
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
    "cdivision": not DEBUG,
    "overflowcheck": DEBUG,
    "binding": True,
    "embedsignature": True,
}
# What is Python keeps Python's meaning: only the types are C's, and only the .pxd says them.
PYTHON = {
    "language_level": 3,
    "freethreading_compatible": False,
    "boundscheck": True,
    "wraparound": True,
    "cdivision": False,
    "overflowcheck": True,
    "nonecheck": True,
    "annotation_typing": False,
    "binding": True,
}


def compiled(sources, directives):
    """Return the extension modules that `sources` become."""
    return cythonize(
        [
            Extension(
                ".".join(source.with_suffix("").parts),
                [str(source)],
                include_dirs=["relayd/_fast"],
                depends=[str(header) for header in Path("relayd/_fast").glob("*.h")],
                extra_compile_args=COMPILE_ARGS,
                extra_link_args=LINK_ARGS,
            )
            for source in sources
        ],
        build_dir="build/cython-debug" if DEBUG else "build/cython",
        compiler_directives=directives,
    )


def typed_python():
    """Return the Python modules that have a .pxd."""
    sources = (types.with_suffix(".py") for types in Path("relayd").rglob("*.pxd"))
    return sorted(source for source in sources if source.exists())


setup(
    ext_modules=[
        *compiled(sorted(Path("relayd/_fast").glob("*.pyx")), CYTHON),
        *compiled(typed_python(), PYTHON),
    ],
)
