"""Makes crates/testkit/vectors/serde_cachegen_edge_cases.json: python make_cachegen_vectors.py FILE

Needs LMCache 0.5.6, and no GPU. The cases are of the kind of serde_cachegen.json, with the whole
pickle and the decoded data; the last is one that LMCache refuses.
"""

import json
import sys

import torch
from lmcache.storage_backend.serde import cachegen_decoder as decoder
from lmcache.storage_backend.serde import cachegen_encoder as encoder
from lmcache.storage_backend.serde.cachegen_basics import CacheGenGPUEncoderOutput

INF = float("inf")


def raw_hex(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes().hex()


def bins_by_layer(ranges, layers):
    bins = torch.zeros(layers)
    for start, end, count in ranges:
        bins[start:end] = count
    return bins


def stated(kv, key_bins, value_bins):
    layers, _, tokens, heads, head_size = kv.shape
    return {
        "layers": layers,
        "tokens": tokens,
        "heads": heads,
        "head_size": head_size,
        "key_bins": key_bins,
        "value_bins": value_bins,
        "dtype": str(kv.dtype).removeprefix("torch."),
        "kv_layout": "[L,2,T,H,D]",
        "kv_hex": raw_hex(kv),
    }


def decode(pickled, layers, tokens, channels, bins):
    output = CacheGenGPUEncoderOutput.from_bytes(pickled)
    buffer = torch.zeros((tokens, 2 * layers * channels), dtype=torch.uint8)
    symbols = decoder.decode_function_gpu(
        output.cdf, output.data_chunks, layers, tokens, buffer
    )
    maxima = [output.max_tensors_key, output.max_tensors_value]
    halves = zip(symbols, bins, maxima)
    return symbols, [decoder.do_dequantize(*half) for half in halves]


def case(kv, key_bins, value_bins):
    layers, _, tokens, heads, head_size = kv.shape
    bins = [bins_by_layer(ranges, layers) for ranges in (key_bins, value_bins)]
    output = encoder.encode_function(kv, None, *bins, tokens)
    pickled = output.to_bytes()
    symbols, values = decode(pickled, layers, tokens, heads * head_size, bins)
    ok = {
        "cdf_shape": list(output.cdf.shape),
        "cdf_i16_hex": raw_hex(output.cdf),
        "max_key_dtype": str(output.max_tensors_key.dtype),
        "max_key_hex": raw_hex(output.max_tensors_key),
        "max_value_hex": raw_hex(output.max_tensors_value),
        "chunks": [
            {
                "ntokens": chunk.ntokens,
                "bytestream_hex": raw_hex(chunk.bytestream),
                "lengths": chunk.bytestream_lengths.tolist(),
            }
            for chunk in output.data_chunks
        ],
        "symbols_key": symbols[0].to(torch.int64).tolist(),
        "symbols_value": symbols[1].to(torch.int64).tolist(),
        "dequant_key_f32_hex": raw_hex(values[0].float()),
        "dequant_value_f32_hex": raw_hex(values[1].float()),
        "decoded_hex": raw_hex(torch.stack(values).permute(1, 0, 2, 3).to(kv.dtype)),
        "pickle_hex": pickled.hex(),
        "pickle_head_hex": pickled[:120].hex(),
        "pickle_len": len(pickled),
    }
    return {"in": stated(kv, key_bins, value_bins), "out": {"ok": ok}}


def refused(kv, key_bins, value_bins):
    layers, tokens = kv.shape[0], kv.shape[2]
    bins = [bins_by_layer(ranges, layers) for ranges in (key_bins, value_bins)]
    try:
        encoder.encode_function(kv, None, *bins, tokens)
    except RuntimeError as error:
        out = {"error": "RuntimeError", "text": str(error)}
        return {"in": stated(kv, key_bins, value_bins), "out": out}
    raise SystemExit("LMCache does not refuse it")


generator = torch.Generator().manual_seed(7)


def randn(*shape):
    return torch.randn(*shape, generator=generator)


def cases():
    # An odd number of channels, 32-bit floats, and other bins by layer.
    yield case(randn(3, 2, 9, 3, 5) * 4, [[0, 1, 32], [1, 3, 16]], [[0, 2, 32], [2, 3, 16]])
    yield case(randn(2, 2, 1, 1, 1).to(torch.bfloat16), [[0, 2, 32]], [[0, 2, 32]])
    # Two blocks of tokens, the second of one.
    kv = randn(1, 2, 257, 1, 3) * torch.tensor([1e-3, 1.0, 300.0])
    yield case(kv.to(torch.float16), [[0, 1, 16]], [[0, 1, 16]])
    # Channels of one symbol, which take almost no bits.
    kv = randn(1, 2, 40, 1, 6).to(torch.bfloat16)
    kv[..., 0], kv[..., 1], kv[..., 2] = 0, 5.0, -5.0
    yield case(kv, [[0, 1, 32]], [[0, 1, 32]])
    # Tokens of zeros, of almost zero, of the greatest values, and infinities.
    kv = randn(2, 2, 7, 2, 2)
    kv[0, 0, 1], kv[0, 1, 2], kv[0, 0, 5], kv[1, 1, 0] = 0, 1e-40, 3e38, -0.0
    kv[1, 0, 3, 0, 0], kv[1, 1, 4, 1, 1] = INF, -INF
    yield case(kv, [[0, 1, 8], [1, 2, 40]], [[0, 1, 40], [1, 2, 5]])
    kv = randn(2, 2, 7, 2, 2).to(torch.bfloat16)
    kv[0, 0, 1], kv[1, 1, 0], kv[0, 1, 2, 0, 1] = 0, -0.0, 1e-40
    yield case(kv, [[0, 2, 63]], [[0, 1, 4], [1, 2, 63]])
    # CDFs of another length for keys than for values.
    kv = torch.ones(2, 2, 3, 1, 2, dtype=torch.bfloat16)
    yield refused(kv, [[0, 1, 32], [1, 2, 16]], [[0, 2, 16]])


meta = {
    "what": "CacheGen by LMCache on the CPU, with PyTorch " + torch.__version__.split("+")[0],
    "lmcache": "0.5.6",
    "set": "edge cases",
}
with open(sys.argv[1], "w") as file:
    json.dump({"meta": meta, "cases": list(cases())}, file)
    file.write("\n")
