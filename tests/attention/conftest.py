"""Fakes in the place of all implementations of attention."""

import pytest

from einops_fast.attention import registry
from einops_fast.attention.registry import register_implementation


@pytest.fixture
def offer(monkeypatch):
    """Put fakes in the place of all implementations."""

    def offer(**fakes):
        for name, fake in fakes.items():
            fake.name = name
        monkeypatch.setattr(registry, "_entries", {})
        monkeypatch.setattr(registry, "_made", {})
        for name, fake in fakes.items():
            register_implementation(name, "", lambda fake=fake: fake)
        return fakes

    return offer
