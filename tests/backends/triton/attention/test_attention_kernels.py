"""The attention kernels against float64: on a GPU, or in Triton's interpreter where there is none."""

import pytest
from attention_features import FEATURES
from attention_problems import attention, check, tiles


def test_segments_in_any_order() -> None:
    """Documents that lie one after the other let blocks be skipped; others must not be lost by that."""
    spec, inputs = attention((1, 2), 40, 70, segments=(1, 2), window=(60, 60))
    inputs.q_segments = inputs.q_segments.roll(13, -1)
    inputs.kv_segments = inputs.kv_segments.flip(-1).roll(29, -1) * 2 - 1
    inputs.q_segments = inputs.q_segments * 2 - 1
    with tiles():
        check(spec, inputs)


@pytest.mark.parametrize("name", FEATURES)
def test_features(name: str) -> None:
    with tiles():
        check(*attention(**FEATURES[name]))
