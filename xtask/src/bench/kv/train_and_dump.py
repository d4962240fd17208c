"""Trains a small transformer on text, and writes the keys and values that it computes for other text.

Usage: train_and_dump.py OUT MINUTES TEXTS

TEXTS names a text file in each line. OUT/<type>.bin has the elements of one chunk after the other. A chunk is as engines store it: for each layer the keys of 256 tokens, then
their values, each token with all heads. Keys are after their rotary position embedding. Prints one JSON object about the model.
"""

import json
import math
import pathlib
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

LAYERS, HEADS, HEAD_DIM, TOKENS, BATCH = 4, 4, 64, 256, 12
WIDTH = HEADS * HEAD_DIM
CHUNKS = 16


def rotate(x):
    """The rotary position embedding of x, which is [batch, heads, tokens, head_dim]."""
    half = HEAD_DIM // 2
    angle = torch.arange(x.shape[2])[:, None] * 10000 ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, kv):
        split = self.qkv(self.before_attention(x)).view(*x.shape[:2], 3, HEADS, HEAD_DIM)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        q, k = rotate(q), rotate(k)
        kv.append((k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.before_mlp(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256))

    def forward(self, tokens):
        """The logits, and the keys and values of each layer."""
        x, kv = self.embed(tokens), []
        for layer in self.layers:
            x = layer(x, kv)
        return self.head(x), kv


def samples(text, count):
    starts = torch.randint(len(text) - TOKENS - 1, (count,)).tolist()
    rows = torch.stack([text[at : at + TOKENS + 1] for at in starts]).long()
    return rows[:, :-1], rows[:, 1:]


def loss_of(model, text, count):
    tokens, following = samples(text, count)
    return F.cross_entropy(model(tokens)[0].flatten(0, 1), following.flatten())


def train(model, text, seconds):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    end, steps = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        loss = loss_of(model, text, BATCH)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    return steps


def dump(model, text, out):
    with torch.no_grad():
        _, kv = model(samples(text, CHUNKS)[0])
    # [layer, key or value, chunk, head, token, element] -> [chunk, layer, key or value, token, head, element]
    chunks = torch.stack([torch.stack(pair) for pair in kv]).permute(2, 0, 1, 4, 3, 5).contiguous()
    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    for name, dtype in types.items():
        (out / f"{name}.bin").write_bytes(chunks.to(dtype).view(torch.uint8).numpy().tobytes())
    return chunks[0].numel()


def main():
    out, minutes = pathlib.Path(sys.argv[1]), float(sys.argv[2])
    torch.manual_seed(1)
    names = pathlib.Path(sys.argv[3]).read_text().splitlines()
    data = b"".join(pathlib.Path(name).read_bytes() for name in names)
    text = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    training, others = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    model = Model()
    steps = train(model, training, 60 * minutes)
    out.mkdir(parents=True, exist_ok=True)
    elements = dump(model, others, out)
    with torch.no_grad():
        bits = loss_of(model, others, 32).item() / math.log(2)
    print(json.dumps({"steps": steps, "text_bytes": len(data), "bits_per_byte": round(bits, 2), "elements_per_chunk": elements}))


main()
