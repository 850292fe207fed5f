"""Serve requests of different lengths in one batch: each step decodes one word of every request, from one cache.

``cache_seqlens`` says how many keys of each slot count. A new request takes the slot of a finished one: old keys behind
its end have no effect. The model is made up. Prints the steps, and how many requests got what they get without a cache.
"""

import sys

import torch
import torch.nn.functional as F

from einops_fast import attention, fast_einsum

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PATTERN = "b i h d, b j g d, b j g e -> b i h e"  # 4 heads of queries share one of keys
WORDS, HEADS, SHARED, SIZE = 50, 8, 2, 16


class Model:
    """One layer of attention: what comes before the cache, and what comes after."""

    def __init__(self) -> None:
        self.embedding = torch.randn(WORDS, HEADS * SIZE, device=DEVICE)
        self.to_q = torch.randn(HEADS * SIZE, HEADS, SIZE, device=DEVICE) * 0.2
        self.to_kv = torch.randn(2, HEADS * SIZE, SHARED, SIZE, device=DEVICE) * 0.2

    def project(self, ids: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embedding[torch.tensor(ids, device=DEVICE)]
        return fast_einsum("b i c, c h d -> b i h d", x, self.to_q), fast_einsum("bic,ncgd->nbigd", x, self.to_kv)

    def next_words(self, attended: torch.Tensor) -> list[int]:
        return fast_einsum("b h d, w (h d) -> b w", attended[:, -1], self.embedding).argmax(-1).tolist()


def alone(model: Model, words: list[int], end: int) -> list[int]:
    """Return the words of a request, each from all words before it: torch's attention, no cache."""
    while len(words) < end:
        q, kv = model.project([words])
        q, k, v = (each.transpose(1, 2) for each in (q, *kv))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
        words = words + model.next_words(attended)
    return words


def serve(model: Model, requests: list[tuple[list[int], int]], slots: int, longest: int) -> tuple[list, int]:
    """Return the words of each request, and how many steps all of them took."""
    cache = torch.full((2, slots, longest, SHARED, SIZE), float("nan"), device=DEVICE)
    answers, waiting, running, steps = [words for words, _ in requests], list(range(len(requests))), {}, 0
    while waiting or running:
        for slot in range(slots):
            if waiting and slot not in running:
                running[slot] = number = waiting.pop(0)
                cache[:, slot, : len(answers[number])] = model.project([answers[number]])[1][:, 0]
        words = [answers[running[slot]] if slot in running else [0] for slot in range(slots)]
        lengths = torch.tensor([len(each) for each in words], dtype=torch.int32, device=DEVICE)
        q, kv = model.project([each[-1:] for each in words])
        cache[:, range(slots), (lengths - 1).long()] = kv[:, :, 0]
        following = model.next_words(attention(PATTERN, q, *cache, cache_seqlens=lengths))
        for slot, number in running.items():
            answers[number] = [*answers[number], following[slot]]
        running = {slot: number for slot, number in running.items() if len(answers[number]) < requests[number][1]}
        steps += 1
    return answers, steps


def main(tiny: bool) -> None:
    torch.manual_seed(0)
    slots, count, longest = (3, 8, 24) if tiny else (16, 100, 256)
    sizes = torch.randint(1, longest // 2, (count, 2)).tolist()
    requests = [(torch.randint(WORDS, (prompt,)).tolist(), prompt + more) for prompt, more in sizes]
    model = Model()
    answers, steps = serve(model, requests, slots, longest)
    same = sum(answer == alone(model, *request) for answer, request in zip(answers, requests, strict=True))
    print(f"{sum(more for _, more in sizes)} words in {steps} steps")
    print(f"{same} of {count} requests have the words that they get alone")


if __name__ == "__main__":
    main("--tiny" in sys.argv)
