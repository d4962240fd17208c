"""Installs SGLang into the environment of the interpreter that runs this, for machines without a GPU: its wheel, torch, and what its cache imports.

SGLang's own requirements are those of a server with a GPU, gigabytes more. So only those are installed whose modules are imported, in the versions that
SGLang requires.
"""

import importlib.metadata
import re
import subprocess
import sys

SGLANG = "sglang==0.5.23"
# ninja and a C++ compiler build SGLang's hashes at the first use.
NEEDED = ("torch", "numpy", "ninja", "orjson", "IPython", "psutil", "pyzmq", "pydantic", "requests", "packaging", "msgspec", "transformers")
# The packages of modules that have another name.
PACKAGES = {
    "zmq": "pyzmq",
    "PIL": "pillow",
    "yaml": "pyyaml",
    "cv2": "opencv-python-headless",
    "dotenv": "python-dotenv",
    "google": "protobuf",
    "tvm_ffi": "apache-tvm-ffi",
}
MODULES = (
    "sglang.srt.mem_cache.memory_pool_host",
    "sglang.srt.mem_cache.pool_host.mamba",
    "sglang.srt.mem_cache.pool_host.mla",
    "sglang.srt.managers.cache_controller",
    "sglang.srt.mem_cache.unified_radix_cache",
    # SGLang's own fixtures for the tests of its prefix tree.
    "sglang.test.kits.unified_radix_cache.storage",
)
# The most modules that are found missing one by one.
ROUNDS = 60


def pip(*words):
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-warn-conflicts", *words], check=True)


def name_of(requirement):
    return re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower().replace("_", "-")


def required(package):
    """The package as SGLang requires it."""
    wanted = importlib.metadata.requires("sglang") or []
    found = [one.split(";")[0].strip() for one in wanted if name_of(one) == name_of(package) and "extra ==" not in one]
    return found[0] if found else package


def main():
    pip("--no-deps", SGLANG)
    pip(*map(required, NEEDED))
    for _ in range(ROUNDS):
        tried = subprocess.run([sys.executable, "-W", "ignore", "-c", f"import {', '.join(MODULES)}"], capture_output=True, text=True)
        if tried.returncode == 0:
            return
        missing = re.search(r"No module named '([A-Za-z0-9_]+)", tried.stderr)
        if missing is None:
            sys.exit(tried.stderr)
        pip(required(PACKAGES.get(missing[1], missing[1])))
    sys.exit("SGLang imports ever more modules")


if __name__ == "__main__":
    main()
