"""Adapt a frozen layer by low-rank matrices: an einsum of three operands, contracted in the cheapest order.

The product of the two matrices is as large as the frozen weight, and is never made. Prints the plan's operations beside
those of the merged weight, the loss as it falls, and how far the adapters are from the merged weight at the end.
"""

import sys

import torch
from torch import nn

from einops_fast import explain, fast_einsum

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ADAPTER = "batch i, i rank, rank o -> batch o"


class LoRA(nn.Module):
    """A frozen linear layer, and what is learned beside it."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(layer.in_features, rank) * layer.in_features**-0.5)
        self.up = nn.Parameter(torch.zeros(rank, layer.out_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + fast_einsum(ADAPTER, x, self.down, self.up)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        layer = nn.Linear(self.layer.in_features, self.layer.out_features)
        layer.weight.copy_(self.layer.weight + fast_einsum("i rank, rank o -> o i", self.down, self.up))
        layer.bias.copy_(self.layer.bias)
        return layer.to(self.up.device)


def main(tiny: bool) -> None:
    torch.manual_seed(0)
    features, rank, batch, steps = (64, 4, 32, 150) if tiny else (512, 8, 256, 200)
    layer = nn.Linear(features, features)
    # The task: the frozen layer, and a change of low rank that nobody tells the adapters.
    change = torch.randn(features, rank) @ torch.randn(rank, features) / features
    model, change, trained = LoRA(layer, rank).to(DEVICE), change.to(DEVICE), 2 * features * rank
    x = torch.randn(batch, features, device=DEVICE)
    plan = explain(ADAPTER, x, model.down, model.up)
    merged = 2 * features * features * (rank + batch)
    print(f"adapter: order {plan.path}, {plan.flops} operations; by way of the product {merged}")
    print(f"trained: {trained} of {trained + sum(each.numel() for each in layer.parameters())} parameters")

    optimizer = torch.optim.Adam([model.down, model.up], lr=1e-2)
    for step in range(steps):
        x = torch.randn(batch, features, device=DEVICE)
        loss = (model(x) - (model.layer(x) + x @ change)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % (steps // 5) == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.5f}")
    with torch.no_grad():
        print(f"merged: max difference {(model(x) - model.merged()(x)).abs().max():.1e}")


if __name__ == "__main__":
    main("--tiny" in sys.argv)
