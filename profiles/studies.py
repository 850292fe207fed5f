"""The studies by name. To add one is to add its entry to :data:`STUDIES`."""

from __future__ import annotations

from einops_fast.profiles.attention.study import AttentionStudy
from einops_fast.profiles.contraction.study import ContractionStudy
from einops_fast.profiles.einsum.study import EinsumStudy
from einops_fast.profiles.first_calls.study import FirstCallsStudy
from einops_fast.profiles.ops.study import OpsStudy
from einops_fast.profiles.overhead.study import OverheadStudy
from einops_fast.profiles.programs.study import ProgramsStudy
from einops_fast.profiles.study import Study

STUDIES: dict[str, Study] = {
    "einsum": EinsumStudy(),
    "contraction": ContractionStudy(),
    "overhead": OverheadStudy(),
    "attention": AttentionStudy(),
    "ops": OpsStudy(),
    "first-calls": FirstCallsStudy(),
    "programs": ProgramsStudy(),
}
