"""The cache on disk, in a folder of a test's own."""

import warnings

import pytest

from einops_fast.runtime import disk_cache


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the cache is; nothing there yet, and nothing said yet."""
    path = tmp_path / "not" / "there"
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(path))
    monkeypatch.setattr(disk_cache, "_known_trouble", set())
    return path


@pytest.fixture
def heard():
    """All that was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught
