"""Fine-tune a BERT of transformers with its modules sped up in place: ``nn.optimize`` before, ``nn.restore`` after.

The task is made up: is the first word of a sentence in it again? Prints how many modules were replaced, how far the
results of the optimized model are from those of the model as it was, the loss as it falls, and the accuracy.
"""

import sys

import torch
from transformers import BertConfig, BertForSequenceClassification

from einops_fast import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORDS, LENGTH = 24, 12


def sentences(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return words, which of them aren't padding, and the answers."""
    ids = torch.randint(1, WORDS, (count, LENGTH), device=DEVICE)
    ids[:, 0] = 1 + torch.arange(count, device=DEVICE) % 2
    mask = torch.arange(LENGTH, device=DEVICE) < torch.randint(4, LENGTH + 1, (count, 1), device=DEVICE)
    return ids * mask, mask.long(), (mask & (ids == ids[:, :1]))[:, 1:].any(1).long()


def main(tiny: bool) -> None:
    torch.manual_seed(0)
    width, layers, steps, batch = (32, 1, 80, 64) if tiny else (64, 2, 120, 128)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.05,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config).to(DEVICE).eval()
    ids, mask, _ = sentences(16)
    before = model(ids, mask).logits
    report = nn.optimize(model)
    difference = (model(ids, mask).logits - before).abs().max()
    print(f"replaced {len(report.replaced)} modules of {len(report.rows)}: max difference {difference:.1e}")

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for step in range(steps):
        ids, mask, answers = sentences(batch)
        loss = model(ids, mask, labels=answers).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % (steps // 5) == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}")

    model.eval()
    ids, mask, answers = sentences(1000)
    fast = model(ids, mask).logits
    restored = nn.restore(model)
    difference = (model(ids, mask).logits - fast).abs().max()
    print(f"restored {restored} modules: max difference {difference:.1e}")
    print(f"accuracy {(fast.argmax(1) == answers).double().mean():.2f}, always the same answer {majority(answers):.2f}")


def majority(answers: torch.Tensor) -> float:
    """Return the accuracy of whoever always gives the more frequent answer."""
    share = answers.double().mean().item()
    return max(share, 1 - share)


if __name__ == "__main__":
    main("--tiny" in sys.argv)
