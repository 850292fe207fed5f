"""Kernels that LLVM or ptxas would not compile as they say."""

from unittest import mock

import pytest
from triton import knobs

from einops_fast.backends.triton.launching.compiling import compiling, unpromised, untangled

START = """
\tbfe.u32 \t%r152, %r151, 4, 14;
\tcvt.u64.u32 \t%rd32, %r152;
\tor.b64 \t%rd66, %rd32, 4611686293305294848;
\tadd.s64 \t%rd68, %rd32, 4611686293305294976;
\tadd.s64 \t%rd70, %rd32, 4611686293305295104;
"""
OF_ANOTHER_LAYOUT = """\tor.b64 \t%rd87, %rd32, -4611685949707911168;
\tadd.s64 \t%rd88, %rd32, -4611685949707911136;
\tadd.s64 \t%rd89, %rd32, -4611685949707911104;
"""


def test_further_descriptors_are_made_of_the_first() -> None:
    expected = """
\tbfe.u32 \t%r152, %r151, 4, 14;
\tcvt.u64.u32 \t%rd32, %r152;
\tor.b64 \t%rd66, %rd32, 4611686293305294848;
\tadd.s64 \t%rd68, %rd66, 128;
\tadd.s64 \t%rd70, %rd66, 256;
\tor.b64 \t%rd87, %rd32, -4611685949707911168;
\tadd.s64 \t%rd88, %rd87, 32;
\tadd.s64 \t%rd89, %rd87, 64;
"""
    assert untangled(START + OF_ANOTHER_LAYOUT) == expected
    assert untangled(expected) == expected


@pytest.mark.parametrize(
    "ptx",
    [
        START,
        # No address of 14 bits, which a combination could be a sum of.
        START.replace("4, 14", "4, 16") + OF_ANOTHER_LAYOUT,
        # Written more than once: nobody knows what is in there.
        START + OF_ANOTHER_LAYOUT + "\tadd.s64 \t%rd32, %rd32, 4;\n",
        "\n".join(f"$L__BB0_{at}:\n{line}" for at, line in enumerate((START + OF_ANOTHER_LAYOUT).split("\n"))),
    ],
    ids=["one layout", "no address", "written twice", "blocks"],
)
def test_others_stay_as_they_are(ptx: str) -> None:
    assert untangled(ptx) == ptx


def test_the_first_may_be_a_sum_with_bits_of_an_address() -> None:
    sums = OF_ANOTHER_LAYOUT.replace("or.b64", "add.s64").replace("168;", "100;")
    assert "%rd87, -36;" in untangled(START + sums)
    combined = OF_ANOTHER_LAYOUT.replace("168;", "160;")
    assert untangled(START + combined).endswith("%rd88, %rd32, -4611685949707911136;\n\tadd.s64 \t%rd89, %rd88, 32;\n")


def test_nothing_is_promised_of_shifts_of_vectors() -> None:
    shifted = "%18 = shl nuw nsw <2 x i32> %16, <i32 31, i32 3>"
    assert unpromised(shifted) == "%18 = shl <2 x i32> %16, <i32 31, i32 3>"
    for as_it_is in ("%12 = shl nuw nsw i32 %10, 3", "%9 = add nuw nsw <2 x i32> %8, splat (i32 14)"):
        assert unpromised(as_it_is) == as_it_is


def test_triton_compiles_that() -> None:
    """In all threads that are at it, besides what others have Triton do, and for as long as that."""
    stages = dict.fromkeys(("llir", "ptx"), lambda source, metadata: source)
    other = mock.Mock(return_value=("key", "digest"))
    with mock.patch.object(knobs.runtime, "add_stages_inspection_hook", other):
        with compiling():
            with compiling():
                pass
            hook = knobs.runtime.add_stages_inspection_hook
            assert hook is not other
            key, digest = hook()
            hook(None, stages, None, None, 90)
        assert knobs.runtime.add_stages_inspection_hook is other
    assert key.startswith("key")
    assert digest.startswith("digest")
    assert key != "key"
    assert other.call_args_list == [mock.call(), mock.call(None, stages, None, None, 90)]
    assert stages["llir"]("shl nuw <2 x i32> %1, %2", {}) == "shl <2 x i32> %1, %2"
    assert stages["ptx"](START + OF_ANOTHER_LAYOUT, {}) == untangled(START + OF_ANOTHER_LAYOUT)
