"""Which programs are measured, and at which sizes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from einops_fast.profiles.cases import AnyCase

# The largest sizes on a CPU.
ON_CPU = {"batch": 2, "length": 128, "width": 128, "heads": 4, "layers": 2, "words": 512, "side": 32, "chunk": 32}


@dataclass(frozen=True)
class ProgramCase(AnyCase):
    """One program."""

    name: str  # what tables call it
    model: str  # a name in `models.MODELS`
    extents: dict[str, int] = field(hash=False)
    trained: bool = True  # a step goes both ways, and updates the weights

    @property
    def called(self) -> str:
        return "training step" if self.trained else "inference"

    @property
    def sizes(self) -> str:
        return ", ".join(f"{name} {size}" for name, size in self.extents.items())

    def directions(self) -> tuple[bool, ...]:
        return (self.trained,)

    def scaled(self, device: str, dtype: str) -> ProgramCase:
        if device != "cpu":
            return self
        return replace(self, extents={name: min(size, ON_CPU.get(name, size)) for name, size in self.extents.items()})


def _case(name: str, model: str, *, trained: bool = True, **extents: int) -> ProgramCase:
    return ProgramCase(name, model, extents, trained)


_WRITTEN_OUT = (
    _case("two-einsums", "two_einsums", batch=4, length=2048, width=1024, heads=16),
    _case("nanogpt", "manual_gpt", batch=8, length=1024, width=768, heads=12, layers=6, words=50304),
    _case(
        "nanogpt-lengths", "manual_gpt_lengths",
        batch=8, length=1024, width=768, heads=12, layers=6, words=50304,
    ),
    _case(
        "relative-decoder", "relative_decoder", batch=4, length=1024, width=1024, heads=16, layers=6, words=32000
    ),
    _case("vit-by-hand", "vision", batch=64, side=224, width=768, heads=12, layers=6),
    _case("pairs", "pairs", batch=1, length=256, width=128, heads=4, layers=4),
    _case("diffusion-block", "diffusion", batch=4, side=64, width=320, heads=8),
    _case("mamba2", "state_spaces",
          batch=4, length=2048, width=1024, heads=16, chunk=128, state=64, layers=4),
)  # fmt: skip
_MODELS = (
    _case("bert-base", "bert", batch=16, length=512, width=768, heads=12, layers=12, words=30522),
    _case("bert-6x1024", "bert", batch=64, length=512, width=1024, heads=16, layers=6, words=30522),
    _case("gpt2", "gpt2", batch=8, length=1024, width=768, heads=12, layers=12, words=50257),
    _case("llama-6x2048", "llama", batch=4, length=2048, width=2048, heads=16, layers=6, words=32000),
    _case("llama-lora", "llama_low_rank", batch=4, length=2048, width=2048, heads=16, layers=6, words=32000),
    _case("llama-prefill", "llama_prefill", trained=False,
          batch=1, length=2048, width=2048, heads=16, layers=6, words=32000),
    _case("gemma2", "gemma2", batch=4, length=1024, width=1024, heads=8, layers=6, words=32000),
    _case("t5-base", "t5", batch=8, length=512, width=768, heads=12, layers=6, words=32128),
    _case("vit-base", "vit", batch=64, side=224, width=768, heads=12, layers=6, words=1),
    _case("whisper-small", "whisper", batch=4, length=1500, width=768, heads=12, layers=4, words=51865),
)  # fmt: skip

# Layers of models alone, and attention at the sizes of EPOI's benchmarks (https://github.com/comaniac/epoi).
_LAYERS = (
    _case("bert-large-layer", "bert_layer", batch=8, length=512, width=1024, heads=16),
    _case("gpt2-medium-block", "gpt2_block", batch=8, length=512, width=1024, heads=16),
    *(
        _case(f"epoi-{model}-{batch}x{length}x{width}x{heads}", model,
              batch=batch, length=length, width=width, heads=heads)
        for model, longest in (("bert_attention", 512), ("gpt_attention", 1024))
        for batch, length, width, heads in ((8, longest, 1024, 16), (16, 512, 8192, 64), (4, 2048, 8192, 64))
    ),
)  # fmt: skip

FAMILIES = {
    "public": (*_WRITTEN_OUT, *_MODELS), "written-out": _WRITTEN_OUT, "transformers": _MODELS, "layers": _LAYERS,
}  # fmt: skip
