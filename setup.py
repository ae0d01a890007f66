"""Builds the compiled core.  Everything else about the package is in pyproject.toml.

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

extensions = [
    Extension(
        f"relayd._fast.{source.stem}",
        [str(source)],
        include_dirs=["relayd/_fast"],
        depends=[str(header) for header in Path("relayd/_fast").glob("*.h")],
        extra_compile_args=COMPILE_ARGS,
        extra_link_args=LINK_ARGS,
    )
    for source in sorted(Path("relayd/_fast").glob("*.pyx"))
]

setup(
    ext_modules=cythonize(
        extensions,
        build_dir="build/cython-debug" if DEBUG else "build/cython",
        compiler_directives={
            "language_level": 3,
            "freethreading_compatible": False,
            "boundscheck": DEBUG,
            "wraparound": False,
            "initializedcheck": DEBUG,
            "cdivision": not DEBUG,
            "overflowcheck": DEBUG,
            "binding": True,
            "embedsignature": True,
        },
    ),
)
