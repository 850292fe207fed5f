"""An attention of sixteen heads and a thousand positions, to be changed in one respect or another."""

from einops_fast.attention.spec import AttentionSpec

SPEC = AttentionSpec(
    batch=(2, 8), q_batch=(2, 8), k_batch=(2, 8), v_batch=(2, 8), q_len=1000, kv_len=1000, head_dim=64, v_head_dim=64,
    dtype="float16", scale=0.125, strides=((512000, 64, 512, 1),) * 3,
)  # fmt: skip
