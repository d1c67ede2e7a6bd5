"""Weight formats: packers, converters between checkpoint layouts, and exact dequantisers."""

from rdna_jit.formats.int4 import (
    act_order,
    awq_to_gptq,
    ct_to_gptq,
    dequantize_w4,
    fp16_scales,
    gptq_shuffle,
    gptq_to_awq,
    gptq_to_ct,
    gptq_to_nk,
    gptq_unshuffle,
    nk_to_gptq,
    pack_zeros,
    unpack_zeros,
)
from rdna_jit.formats.int4_weight import (
    Int4Weight,
    pack_awq,
    pack_compressed_tensors,
    pack_gptq,
    quantize_int4,
)
from rdna_jit.formats.int4_words import pack_int4, unpack_int4
from rdna_jit.formats.int8 import dequantize_i8, make_int8_shadow
from rdna_jit.formats.moe_weights import MoEWeights

__all__ = [
    "Int4Weight",
    "MoEWeights",
    "act_order",
    "awq_to_gptq",
    "ct_to_gptq",
    "dequantize_i8",
    "dequantize_w4",
    "fp16_scales",
    "gptq_shuffle",
    "gptq_to_awq",
    "gptq_to_ct",
    "gptq_to_nk",
    "gptq_unshuffle",
    "make_int8_shadow",
    "nk_to_gptq",
    "pack_awq",
    "pack_compressed_tensors",
    "pack_gptq",
    "pack_int4",
    "pack_zeros",
    "quantize_int4",
    "unpack_int4",
    "unpack_zeros",
]
