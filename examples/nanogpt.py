"""Train a small GPT on characters, with attention written by einsum: words for axes, no transpose, no reshape.

The text is this file. Prints how far the attention is from torch's own, the loss as it falls, and what the trained
model writes. ``--compile`` lets ``torch.compile`` find the attention and fuse it.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from einops_fast import fast_einsum

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Parameter(torch.randn(3, width, width) * width**-0.5)
        self.out = nn.Parameter(torch.randn(width, width) * width**-0.5)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = fast_einsum("b i c, three c (h d) -> three b i h d", x, self.qkv, h=self.heads)
        scores = fast_einsum("b i h d, b j h d -> b h i j", q, k) * q.shape[-1] ** -0.5
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return fast_einsum("b h i j, b j h d, (h d) c -> b i c", weights, v, self.out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norms[0](x))
        return x + self.feed(self.norms[1](x))


def reference(block: Block, x: torch.Tensor) -> torch.Tensor:
    """Return the block's attention by torch's own functions."""
    q, k, v = ((x @ w).unflatten(-1, (block.heads, -1)).transpose(1, 2) for w in block.qkv)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2) @ block.out


def main(tiny: bool, compiled: bool) -> None:
    torch.manual_seed(0)
    letters = sorted(set(text := Path(__file__).read_text("utf-8")))
    data = torch.tensor([letters.index(letter) for letter in text], device=DEVICE)
    width, heads, layers, length, batch, steps = (32, 4, 1, 32, 8, 60) if tiny else (128, 8, 2, 64, 16, 300)
    embed, place, head = nn.Embedding(len(letters), width), nn.Embedding(length, width), nn.Linear(width, len(letters))
    blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
    parameters = list(nn.ModuleList([embed, place, blocks, head]).to(DEVICE).parameters())
    x = place.weight[None]
    print(f"attention: max difference {(blocks[0].attend(x) - reference(blocks[0], x)).abs().max():.1e}")

    def logits(ids: torch.Tensor) -> torch.Tensor:
        return head(blocks(embed(ids) + place.weight[: ids.shape[1]]))

    forward = torch.compile(logits, backend="einops_fast") if compiled else logits
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)
    for step in range(steps):
        rows = data[torch.randint(len(data) - length, (batch, 1)) + torch.arange(length + 1)]
        loss = F.cross_entropy(forward(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % (steps // 5) == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}")
    ids = data[None, :8]
    for _ in range(80):
        ids = torch.cat([ids, torch.multinomial(logits(ids[:, -length:])[:, -1].softmax(-1), 1)], 1)
    print("sample:", repr("".join(letters[i] for i in ids[0].tolist())))


if __name__ == "__main__":
    main("--tiny" in sys.argv, "--compile" in sys.argv)
