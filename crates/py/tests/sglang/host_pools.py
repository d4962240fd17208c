"""Host pools of SGLang's own classes, in host memory.

The buffers are made here and not by the classes' constructors, which need a device's pools. What is tested of the classes is where their pages are:
``get_page_buffer_meta``, ``get_data_page`` and their geometry. The nightly run makes pools with the constructors too (``engine/``).
"""

import threading

import numpy as np
from real_sglang import dsa, mamba, memory_pool_host, mha, mla, page_unified, torch

# Tokens of a page.
TOKENS = 4
PAGES = 32
HEADS, DIM, LAYERS = 4, 64, 3
MLA_DIM = 96
DTYPE = torch.bfloat16
LAYOUTS = ("page_first", "page_first_direct", "page_head", "layer_first", "page_unified")
MLA_LAYOUTS = ("page_first", "page_first_direct", "layer_first", "page_unified")


def _of_class(cls, **attributes):
    pool = object.__new__(cls)
    pool.__dict__.update(layout="page_first", page_size=TOKENS, page_num=PAGES, size=PAGES * TOKENS, device="cpu", pin_memory=False)
    pool.__dict__.update(start_layer=0, end_layer=LAYERS, layer_num=LAYERS, dtype=DTYPE, lock=threading.RLock(), **attributes)
    return pool


def mha_pool(layout="page_first", heads=HEADS, dtype=DTYPE, **change):
    """Keys and values with heads."""
    pool = _of_class(mha.MHATokenToKVPoolHost, head_num=heads, head_dim=DIM, v_head_dim=DIM)
    pool.__dict__.update(layout=layout, dtype=dtype, target_layer_num=LAYERS)
    pool.__dict__.update(change)
    layers, tokens, size, pages = pool.layer_num, pool.page_size, pool.size, pool.page_num
    if layout == "page_unified":
        pool.page_unified_layout = page_unified.PageUnifiedLayout(
            page_size=tokens, layer_num=layers, head_num=heads, head_group_num=1, head_dim=DIM, itemsize=dtype.itemsize
        )
    shapes = {
        "layer_first": (2, layers, size, heads, DIM),
        "page_first": (2, size, layers, heads, DIM),
        "page_first_direct": (2, pages, layers, tokens, heads, DIM),
        "page_head": (2, pages, heads, tokens, layers, DIM),
        "page_unified": (pages, 1, layers, 2, tokens, heads, DIM),
    }
    pool.kv_buffer = torch.zeros(shapes[layout], dtype=dtype)
    return pool


def mla_pool(layout="page_first", dtype=DTYPE, **change):
    """Latents, the same on all ranks."""
    pool = _of_class(mla.MLATokenToKVPoolHost, kv_cache_dim=MLA_DIM, kv_lora_rank=MLA_DIM - 32, qk_rope_head_dim=32)
    pool.__dict__.update(layout=layout, dtype=dtype, target_layer_num=LAYERS)
    pool.__dict__.update(change)
    layers, tokens, size, pages = pool.layer_num, pool.page_size, pool.size, pool.page_num
    if layout == "page_unified":
        pool.page_unified_layout = page_unified.PageUnifiedLayout(
            page_size=tokens, layer_num=layers, head_num=1, head_group_num=1, head_dim=MLA_DIM, itemsize=dtype.itemsize, is_mla=True
        )
    shapes = {
        "layer_first": (layers, size, 1, MLA_DIM),
        "page_first": (size, layers, 1, MLA_DIM),
        "page_first_direct": (pages, layers, tokens, 1, MLA_DIM),
        "page_unified": (pages, layers, tokens, MLA_DIM),
    }
    pool.kv_buffer = torch.zeros(shapes[layout], dtype=dtype)
    return pool


def mamba_pool(slots=PAGES):
    """States, one for each page that has one."""
    pool = _of_class(mamba.MambaPoolHost, num_mamba_layers=2, temporal_state_elem_size=40, conv_state_elem_sizes=[24, 8])
    pool.__dict__.update(page_size=1, size=slots, page_num=slots, temporal_dtype=torch.float32, conv_dtype=DTYPE, slot_state_device_tensors=[])
    pool.__dict__.update(temporal_state_shape=(5, 8), conv_state_shapes=[(3, 8), (8,)])
    pool.temporal_buffer = torch.zeros((slots, 2, 5, 8), dtype=torch.float32)
    pool.conv_buffer = [torch.zeros((slots, 2, 3, 8), dtype=DTYPE), torch.zeros((slots, 2, 8), dtype=DTYPE)]
    return pool


def indexer_pool():
    """The keys of an indexer, beside latents."""
    pool = _of_class(dsa.DSAIndexerPoolHost, indexer_page_stride_size=264, indexer_dtype=torch.uint8)
    pool.index_k_with_scale_buffer = torch.zeros((PAGES, LAYERS, 264), dtype=torch.uint8)
    return pool


def window_pool(layout="page_first", name="swa"):
    """A compressed pool of DeepSeek V4."""
    pool = _of_class(memory_pool_host.DeepSeekV4PagedHostPool, pool_name=name, item_bytes=320, slot_page_size=TOKENS, page_aligned_only=True)
    pool.__dict__.update(layout=layout, dtype=torch.uint8, num_host_pages=PAGES)
    if layout == "layer_first":
        pool.kv_buffer = [torch.zeros((PAGES, 320), dtype=torch.uint8) for _ in range(LAYERS)]
    else:
        pool.kv_buffer = torch.zeros((PAGES, LAYERS, 320), dtype=torch.uint8)
    return pool


def logical_pool():
    """The anchor of a model whose pages are all in other pools."""
    pool = object.__new__(memory_pool_host.LogicalHostPool)
    pool.__dict__.update(size=PAGES * TOKENS, page_size=TOKENS, layout="layer_first", kv_buffer=None, dtype=torch.uint8, layer_num=0)
    return pool


def indices(pages, tokens=TOKENS):
    """The indices of these pages of a pool."""
    return torch.from_numpy(np.concatenate([np.arange(page * tokens, (page + 1) * tokens) for page in pages]).astype(np.int64))


def _memory(pool, page, tokens):
    """The memory of a page, part by part, as SGLang's class says where it is."""
    import ctypes

    if pool.layout == "page_unified":
        size = pool.page_unified_layout.bytes_per_page
        parts = [(pool.kv_buffer.data_ptr() + page * size, size)]
    else:
        parts = zip(*pool.get_page_buffer_meta(indices([page], tokens)))
    return [np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8)), (length,)) for address, length in parts]


def fill(pool, page, seed, tokens=TOKENS):
    """Writes bytes that nothing else has into a page."""
    for at, part in enumerate(_memory(pool, page, tokens)):
        part[:] = np.random.default_rng([seed, at]).integers(0, 256, len(part), dtype=np.uint8)


def read(pool, page, tokens=TOKENS):
    """The bytes of a page."""
    return b"".join(part.tobytes() for part in _memory(pool, page, tokens))
