"""Kernels that LLVM or ptxas would not compile as they say."""

from unittest import mock

from triton import knobs

from einops_fast.backends.triton.launching.compiling import compiling, untangled

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
