"""Programs as people write them: none of them knows of this package, but for the one that calls attention by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["MODELS", "Program", "Sizes"]

Sizes = dict[str, int]


@dataclass(frozen=True)
class Program:
    """A module and its batches; it returns a loss where it is trained without ``cotangent``."""

    module: nn.Module
    batches: list[tuple[Tensor, ...]]
    cotangent: Tensor | None = None
    named: Callable[..., Tensor] | None = None  # the same by one call of attention


# Attention written as einsums


class TwoEinsums(nn.Module):
    """Two einsums and a softmax."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)


def two_einsums(sizes: Sizes, device: str, dtype: torch.dtype) -> Program:
    from einops_fast import attention

    shape = (sizes["batch"], sizes["length"], sizes["heads"], sizes["width"] // sizes["heads"])
    q, k, v, cotangent = (torch.randn(shape, device=device, dtype=dtype) for _ in range(4))
    batch = tuple(each.requires_grad_() for each in (q, k, v))
    pattern = "b i h d, b j h d, b j h e -> b i h e"
    return Program(TwoEinsums(), [batch], cotangent, lambda *operands: attention(pattern, *operands))


# Transformers in plain PyTorch


class Attention(nn.Module):
    """What every self-attention has."""

    def __init__(self, width: int, heads: int, *, bias: bool = True) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width), heads


class ManualAttention(Attention):
    """Causal self-attention by matrix products, with its mask in a buffer."""

    def __init__(self, width: int, heads: int, longest: int) -> None:
        super().__init__(width, heads)
        self.register_buffer("mask", torch.ones(longest, longest).tril()[None, None])

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = (each.view(split).transpose(1, 2) for each in self.qkv(x).split(width, dim=2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])
        hidden = self.get_buffer("mask")[:, :, :length, :length] == 0
        scores = scores.masked_fill(hidden, float("-inf"))
        mixed = F.softmax(scores, dim=-1) @ v
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, length, width))


class RelativeAttention(Attention):
    """Causal self-attention by einsum, with a bias for each distance that is trained."""

    def __init__(self, width: int, heads: int, longest: int) -> None:
        super().__init__(width, heads)
        self.distances = nn.Embedding(longest, heads)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).unbind(2)
        at = torch.arange(length, device=x.device)
        distance = at[:, None] - at[None, :]
        scores = torch.einsum("bihd,bjhd->bhij", q * (width // self.heads) ** -0.5, k)
        scores = scores + self.distances(distance.clamp(min=0)).permute(2, 0, 1)
        scores = scores.masked_fill(distance < 0, torch.finfo(scores.dtype).min)
        return self.out(torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).reshape(batch, length, width))


class FullAttention(Attention):
    """Self-attention by matrix products without a mask, as in models of vision."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, dim=-1))
        weights = nn.functional.softmax(torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5, dim=-1)
        return self.out(torch.matmul(weights, v).transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    """Attention and two linear layers, with norms before them."""

    def __init__(self, attention: nn.Module, width: int) -> None:
        super().__init__()
        self.attention, self.norms = attention, nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Language(nn.Module):
    """A decoder of words."""

    def __init__(self, attention: type, sizes: Sizes) -> None:
        super().__init__()
        width, longest = sizes["width"], sizes["length"]
        self.words, self.places = nn.Embedding(sizes["words"], width), nn.Embedding(longest, width)
        layers = [Layer(attention(width, sizes["heads"], longest), width) for _ in range(sizes["layers"])]
        self.layers, self.norm = nn.Sequential(*layers), nn.LayerNorm(width)
        self.head = nn.Linear(width, sizes["words"], bias=False)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        logits = self.head(self.norm(self.layers(x)))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


class Vision(nn.Module):
    """A transformer over patches of images."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, side = sizes["width"], sizes["side"]
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.places = nn.Parameter(torch.randn(1, (side // 16) ** 2, width) * 0.02)
        layers = [Layer(FullAttention(width, sizes["heads"], bias=False), width) for _ in range(sizes["layers"])]
        self.layers, self.head = nn.Sequential(*layers), nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1000))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        return F.cross_entropy(self.head(self.layers(x).mean(1)), labels)


def _language(attention: type, sizes: Sizes, device: str, dtype: torch.dtype, *, varied: bool = False) -> Program:
    longest = sizes["length"]
    batches: list[tuple[Tensor, ...]] = []
    for length in range(longest // 2 + 3, longest, longest // 20) if varied else (longest,):
        words = torch.randint(sizes["words"], (sizes["batch"], length + 1), device=device)
        batches.append((words[:, :-1].contiguous(), words[:, 1:].contiguous()))
    return Program(Language(attention, sizes).to(device, dtype), batches)


def vision(sizes: Sizes, device: str, dtype: torch.dtype) -> Program:
    images = torch.randn(sizes["batch"], 3, sizes["side"], sizes["side"], device=device, dtype=dtype)
    labels = torch.randint(1000, (sizes["batch"],), device=device)
    return Program(Vision(sizes).to(device, dtype), [(images, labels)])


# A representation of pairs, as in models of proteins


class TriangleProduct(nn.Module):
    """Updates each pair by products over a third."""

    def __init__(self, width: int, *, outgoing: bool) -> None:
        super().__init__()
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.sides, self.gates = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.out, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        self.equation = "bikc,bjkc->bijc" if outgoing else "bkic,bkjc->bijc"

    def forward(self, pairs: Tensor) -> Tensor:
        x = self.norm(pairs)
        left, right = (self.sides(x) * self.gates(x).sigmoid()).chunk(2, dim=-1)
        mixed = torch.einsum(self.equation, left, right)
        return self.out(self.after(mixed)) * self.gate(x).sigmoid()


class TriangleAttention(nn.Module):
    """Attends along rows of pairs, or columns, with a bias from the third side."""

    def __init__(self, width: int, heads: int, *, starting: bool) -> None:
        super().__init__()
        self.norm, self.bias = nn.LayerNorm(width), nn.Linear(width, heads, bias=False)
        self.qkv, self.gate = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.out, self.heads, self.starting = nn.Linear(width, width), heads, starting

    def forward(self, pairs: Tensor) -> Tensor:
        x = self.norm(pairs if self.starting else pairs.transpose(1, 2))
        q, k, v = (each.unflatten(-1, (self.heads, -1)) for each in self.qkv(x).chunk(3, dim=-1))
        scores = torch.einsum("brihd,brjhd->brhij", q, k) * q.shape[-1] ** -0.5
        scores = scores + torch.einsum("bijh->bhij", self.bias(x))[:, None]
        mixed = torch.einsum("brhij,brjhd->brihd", torch.softmax(scores, dim=-1), v).flatten(-2)
        mixed = self.out(mixed * self.gate(x).sigmoid())
        return mixed if self.starting else mixed.transpose(1, 2)


class PairLayer(nn.Module):
    """Both products, both attentions and a transition."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        products = [TriangleProduct(width, outgoing=outgoing) for outgoing in (True, False)]
        attentions = [TriangleAttention(width, heads, starting=starting) for starting in (True, False)]
        transition = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )
        self.parts = nn.ModuleList([*products, *attentions, transition])

    def forward(self, pairs: Tensor) -> Tensor:
        for part in self.parts:
            pairs = pairs + part(pairs)
        return pairs


class Pairs(nn.Module):
    """Layers of pairs under autocast."""

    def __init__(self, sizes: Sizes, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[PairLayer(sizes["width"], sizes["heads"]) for _ in range(sizes["layers"])])
        self.dtype = dtype

    def forward(self, pairs: Tensor, wanted: Tensor) -> Tensor:
        with torch.autocast(pairs.device.type, self.dtype, enabled=self.dtype != torch.float32):
            made = self.layers(pairs)
        return F.mse_loss(made.float(), wanted)


def pairs(sizes: Sizes, device: str, dtype: torch.dtype) -> Program:
    shape = (sizes["batch"], sizes["length"], sizes["length"], sizes["width"])
    return Program(Pairs(sizes, dtype).to(device), [tuple(torch.randn(shape, device=device) for _ in range(2))])


# A block of a diffusion model


class CrossAttention(nn.Module):
    """Attention over places of an image, or from these to words, with heads in the batch."""

    def __init__(self, width: int, heads: int, source: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(size, width, bias=False) for size in (width, source, source))
        self.out, self.heads = nn.Linear(width, width), heads

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2).flatten(0, 1)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(source)), self.split(self.v(source))
        weights = (torch.einsum("bid,bjd->bij", q, k) * q.shape[-1] ** -0.5).softmax(dim=-1)
        mixed = torch.einsum("bij,bjd->bid", weights, v)
        return self.out(mixed.unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2))


class Diffusion(nn.Module):
    """Convolutions, attention over places, and attention to words."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, heads = sizes["width"], sizes["heads"]
        self.before = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
        self.places, self.words = CrossAttention(width, heads, width), CrossAttention(width, heads, 768)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        self.gated, self.out = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, images: Tensor, words: Tensor, wanted: Tensor) -> Tensor:
        images = images + self.before(images)
        x = images.flatten(2).transpose(1, 2)
        normed = self.norms[0](x)
        x = x + self.places(normed, normed)
        x = x + self.words(self.norms[1](x), words)
        value, gate = self.gated(self.norms[2](x)).chunk(2, dim=-1)
        x = x + self.out(value * F.gelu(gate))
        return F.mse_loss(x.transpose(1, 2).unflatten(2, images.shape[2:]), wanted)


def diffusion(sizes: Sizes, device: str, dtype: torch.dtype) -> Program:
    shape = (sizes["batch"], sizes["width"], sizes["side"], sizes["side"])
    images, wanted = (torch.randn(shape, device=device, dtype=dtype) for _ in range(2))
    words = torch.randn(sizes["batch"], 77, 768, device=device, dtype=dtype)
    return Program(Diffusion(sizes).to(device, dtype), [(images, words, wanted)])


# A state-space model in its chunked form


class StateSpace(nn.Module):
    """The dual form of Mamba-2: within chunks as attention without softmax, between them by their states.

    Dao and Gu, Transformers are SSMs, 2024, section 6.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.chunk, self.state = sizes["heads"], sizes["chunk"], sizes["state"]
        width = sizes["width"]
        self.inner = nn.Linear(width, 2 * width + 2 * self.state + self.heads, bias=False)
        self.decay, self.out = nn.Parameter(torch.zeros(self.heads)), nn.Linear(width, width, bias=False)

    @staticmethod
    def sums(x: Tensor) -> Tensor:
        """Sums from after j up to i, and minus infinity where j is later."""
        total = x.cumsum(-1)
        between = total[..., :, None] - total[..., None, :]
        length = x.shape[-1]
        earlier = torch.ones(length, length, device=x.device, dtype=torch.bool).tril()
        return between.masked_fill(~earlier, -torch.inf)

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        value, gate, b, c, rate = self.inner(x).split([width, width, self.state, self.state, self.heads], dim=-1)
        rate = F.softplus(rate.float())
        steps = (-self.decay.float().exp() * rate).unflatten(1, (-1, self.chunk)).permute(0, 3, 1, 2)  # b h c l
        value = (value.unflatten(-1, (self.heads, -1)) * rate[..., None].to(value.dtype)).unflatten(1, (-1, self.chunk))
        b, c = (each.unflatten(1, (-1, self.chunk)) for each in (b, c))
        within = self.sums(steps).exp().to(x.dtype)
        total = steps.cumsum(-1)
        diagonal = torch.einsum("bcln,bcsn,bhcls,bcshp->bclhp", c, b, within, value)
        left = (total[..., -1:] - total).exp().to(x.dtype)
        states = torch.einsum("bcln,bhcl,bclhp->bchpn", b, left, value)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], dim=1)
        chunks = self.sums(F.pad(total[..., -1], (1, 0))).exp().to(x.dtype)
        states = torch.einsum("bhzc,bchpn->bzhpn", chunks, states)[:, :-1]
        off = torch.einsum("bcln,bchpn,bhcl->bclhp", c, states, total.exp().to(x.dtype))
        return self.out((diagonal + off).flatten(3).flatten(1, 2) * F.silu(gate))


class StateSpaces(nn.Module):
    """Layers of it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.RMSNorm(sizes["width"]), StateSpace(sizes)) for _ in range(sizes["layers"])]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return F.mse_loss(x.float(), wanted.float())


def state_spaces(sizes: Sizes, device: str, dtype: torch.dtype) -> Program:
    shape = (sizes["batch"], sizes["length"], sizes["width"])
    made = StateSpaces(sizes).to(device, dtype)
    return Program(made, [tuple(torch.randn(shape, device=device, dtype=dtype) for _ in range(2))])


MODELS: dict[str, Callable[[Sizes, str, torch.dtype], Program]] = {
    **{each.__name__: each for each in (two_einsums, vision, pairs, diffusion, state_spaces)},
    "manual_gpt": partial(_language, ManualAttention),
    "manual_gpt_lengths": partial(_language, ManualAttention, varied=True),
    "relative_decoder": partial(_language, RelativeAttention),
}
