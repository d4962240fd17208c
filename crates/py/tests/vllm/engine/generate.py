"""vLLM in one process, which answers one JSON line for each that it reads: a request with its tokens, one that is only started (``later``) with its
name, a name (``wait``) with the tokens of that request, and ``counters``.

python generate.py MODEL ENGINE_ID SECONDARY_TIERS
"""

import json
import os
import sys
import time

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# vLLM prints to standard output, which is for the answers.
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

import builtins  # noqa: E402

import vllm.triton_utils.dispatcher as dispatcher  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.config import KVTransferConfig  # noqa: E402

# Its scan of all modules meets an object of cffi whose __dict__ is no dictionary.
dispatcher.vars = lambda value: found if isinstance(found := builtins.vars(value), dict) or hasattr(found, "get") else {}
BLOCKS_PER_CHUNK = 8


def transfer_config(engine_id, tiers):
    extra = {
        "spec_name": "CpuTieringSpec",
        "spec_module_path": "cpu_spec",
        "cpu_bytes_to_use": 256 << 20,
        "blocks_per_chunk": BLOCKS_PER_CHUNK,
        "secondary_tiers": tiers,
    }
    return KVTransferConfig(
        kv_connector="OffloadingConnector", kv_role="kv_both", engine_id=engine_id, kv_connector_extra_config=extra
    )


def counters():
    """kvtier's and the tiering's counters in vLLM's own metrics."""
    from prometheus_client import REGISTRY

    found = {}
    for family in REGISTRY.collect():
        for sample in family.samples:
            if "kvtier" in sample.name and not sample.name.endswith(("_created", "_bucket")):
                labels = [value for name, value in sorted(sample.labels.items()) if name in ("reason", "answer", "direction", "kvtier_tier")]
                found[" ".join([sample.name.removeprefix("vllm:"), *labels])] = sample.value
    return found


class Requests:
    """The requests of an engine, which it steps until the wanted one has finished."""

    def __init__(self, engine):
        self.engine, self.began, self.finished = engine, {}, {}

    def start(self, asked):
        name = f"request-{len(self.began)}"
        self.began[name] = time.monotonic()
        sampling = SamplingParams(temperature=0, max_tokens=asked["out"], logprobs=1, ignore_eos=True)
        self.engine.add_request(name, {"prompt_token_ids": asked["ids"]}, sampling)
        return name

    def step(self):
        self.finished.update({one.request_id: one for one in self.engine.step() if one.finished})

    def answer(self, name):
        while name not in self.finished:
            self.step()
        found = self.finished.pop(name)
        text = found.outputs[0]
        return {
            "seconds": round(time.monotonic() - self.began[name], 3),
            "tokens": list(text.token_ids),
            "cached": found.num_cached_tokens,
            "logprobs": [by_token[token].logprob for by_token, token in zip(text.logprobs, text.token_ids)],
        }


def main(model, engine_id, tiers):
    engine = LLM(
        model=model,
        # By itself vLLM would take 16 bits.
        dtype=os.environ.get("KVTIER_VLLM_DTYPE", "float32"),
        enforce_eager=True,
        max_model_len=6144,
        max_num_batched_tokens=6144,
        max_num_seqs=4,
        block_size=32,
        disable_log_stats=False,
        enable_prefix_caching=True,
        seed=0,
        kv_transfer_config=transfer_config(engine_id, json.loads(tiers)),
    )
    requests = Requests(engine.llm_engine)
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked.get("counters"):
            print(json.dumps(counters()), file=answers)
            continue
        name = asked["wait"] if "wait" in asked else requests.start(asked)
        if asked.get("later"):
            # Until its lookups were answered and its loads began.
            for _ in range(20):
                requests.step()
            answer = {"name": name}
        else:
            answer = requests.answer(name)
        print(json.dumps(answer), file=answers)
    engine.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
