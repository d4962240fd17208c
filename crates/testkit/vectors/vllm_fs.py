"""Writes vllm_fs.json: names and config.json of vLLM's `fs` tier, by vLLM's own code.

    python3 vllm_fs.py UNPACKED_WHEEL > vllm_fs.json

UNPACKED_WHEEL has vllm/v1/kv_offload of vLLM 0.33.0 (0.32.0 gives the same). Only stand-ins for what the mapper imports are made here.
"""

import ast
import importlib.util
import json
import sys
import types
from pathlib import Path


def functions_of(path: Path, names: set[str]) -> dict[str, object]:
    """These functions of a module that cannot be imported whole."""
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    for node in tree.body:
        node.returns = None
        for argument in node.args.args:
            argument.annotation = None
    scope: dict[str, object] = {"OffloadKey": bytes}
    exec(compile(tree, str(path), "exec"), scope)
    return scope


def module(name: str, **members: object) -> None:
    made = types.ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made


def mapper_of(wheel: Path):
    offload = wheel / "vllm/v1/kv_offload"
    keys = {"make_offload_key", "get_offload_block_hash", "get_offload_group_idx"}
    base = functions_of(offload / "base.py", keys)
    module("vllm.v1.kv_offload.base", OffloadingSpec=object, OffloadKey=bytes, **{name: base[name] for name in keys})
    module("vllm.distributed.kv_transfer.kv_connector.v1.offloading.canonical_mapping", canonical_format_id=None)
    spec = importlib.util.spec_from_file_location("file_mapper", offload / "file_mapper.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    # The statement by which the tier writes its config.json.
    manager = "".join((offload / "tiering/fs/manager.py").read_text().split())
    assert "json.dump(self.file_mapper.get_run_config(),f,indent=2,sort_keys=True)" in manager
    return made.FileMapper, base["make_offload_key"]


def configurations():
    layers = [f"model.layers.{n}.self_attn.attn" for n in range(3)]
    groups = [{"tokens_per_block": 16, "layer_names": layers}]
    plain = dict(
        model_name="meta-llama/Llama-3.1-8B-Instruct", tokens_per_hash=16, blocks_per_file=16, tp_size=1, pp_size=1, pcp_size=1,
        dcp_size=1, rank=0, dtype="torch.bfloat16", kv_cache_groups=groups,
    )
    window = groups + [{"tokens_per_block": 32, "layer_names": ["model.layers.3.self_attn.attn"]}]
    yield plain
    yield plain | dict(parallel_agnostic=True, tp_size=4, rank=3)
    yield plain | dict(tp_size=4, pp_size=2, rank=7)
    yield plain | dict(parallel_agnostic=True, replicated_layout=True, canonical_format="v1-nhd")
    yield plain | dict(kv_cache_groups=window, blocks_per_file=1, dtype="auto")
    yield plain | dict(kv_cache_groups=None, model_name="gpt2")
    yield plain | dict(model_name="/models/Modèle \"9\"/\U0001f600\\x\t", inference_engine="other")
    yield plain | dict(model_name="a_b", pcp_size=2, dcp_size=2, rank=12)


HASHES = [(bytes(range(32)), 0), (bytes(range(255, 223, -1)), 1), (b"\xab", 0), (b"\xab\xcd", 7), (b"\x00\x01\x02", 2**32 - 1)]


def main() -> None:
    mapper, make_key = mapper_of(Path(sys.argv[1]))
    cases = []
    for fields in configurations():
        made = mapper(root_dir="", **fields)
        config = json.dumps(made.get_run_config(), indent=2, sort_keys=True)
        names = [
            {"hash": hash.hex(), "group": group, "name": made.get_file_name(make_key(hash, group)).removeprefix("/")}
            for hash, group in HASHES
        ]
        out = {"base": made.base_path.removeprefix("/"), "rank": made.rank, "config_path": made.get_config_file_path().removeprefix("/")}
        cases.append({"in": {"run_config": made.get_run_config()}, "out": out | {"config": config, "names": names}})
    meta = {"what": "names and config.json of the fs tier, by file_mapper.py", "vllm": "0.33.0", "script": "vllm_fs.py"}
    json.dump({"meta": meta, "cases": cases}, sys.stdout, indent=1)
    print()


main()
