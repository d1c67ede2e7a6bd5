"""Weights from the tensors of a checkpoint: a form and its tensors for each format.

The functions take tensors as the files hold them; `recognise` finds out which they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from rdna_jit import formats
from rdna_jit.layers.form import Form, Tensors, refuse
from rdna_jit.layers.storage import F16Storage, Int4Storage

Tensor = torch.Tensor
Weight = tuple[Form, Tensors]


def gptq(
    qweight: Tensor,
    qzeros: Tensor | None,
    scales: Tensor,
    g_idx: Tensor | None = None,
    *,
    version: int = 1,
    bits: int = 4,
) -> Weight:
    """int32 `[K*bits/32, N]`, zeros int32 `[K/G, N*bits/32]` or None (the middle code)."""
    if version not in (1, 2):
        refuse("version", "1 (zeros stored less one) or 2 (zeros as they are)", version)
    if bits not in (4, 8):
        refuse("bits", "4 or 8", bits, "other widths are not served")
    _check("qweight", qweight, torch.int32, 2)
    _check_tensor("scales", scales)
    N, codes = qweight.shape[1], 32 // bits
    K = qweight.shape[0] * codes
    if scales.dim() != 2 or scales.shape[1] != N or not scales.shape[0] or K % scales.shape[0]:
        hint = ""
        if scales.dim() == 2 and scales.shape[1] == N * 8:
            hint = "these words look like AWQ's: use from_awq"
        refuse("scales", f"shape [K/G, {N}] with K = {K}", list(scales.shape), hint)
    if qzeros is not None:
        _check("qzeros", qzeros, torch.int32, 2)
        _check_packed("qweight", N, codes)
        if tuple(qzeros.shape) != (scales.shape[0], N // codes):
            refuse("qzeros", f"shape [{scales.shape[0]}, {N // codes}]", list(qzeros.shape))
    if g_idx is not None:
        _check_tensor("g_idx", g_idx)
        if g_idx.numel() != K:
            refuse("g_idx", f"{K} entries", g_idx.numel())
    offset = 2 - version
    if bits == 4:
        return _four_bits(formats.pack_gptq(qweight, qzeros, scales, g_idx, zero_offset=offset))
    zeros = None if qzeros is None else _bytes(qzeros, 1).short() + offset
    return _eight_bits(_bytes(qweight, 0), zeros, scales, g_idx)


def awq(qweight: Tensor, qzeros: Tensor, scales: Tensor, *, repack: bool | None = None) -> Weight:
    """int32 `[K, N/8]` with columns interleaved, zeros int32 `[K/G, N/8]`, scales `[K/G, N]`.

    Repacked to int4's words unless that is not wanted, or groups are too small for its kernels.
    """
    _check("qweight", qweight, torch.int32, 2)
    _check("qzeros", qzeros, torch.int32, 2)
    K, N = qweight.shape[0], qweight.shape[1] * 8
    if scales.dim() != 2 or scales.shape[1] != N or not scales.shape[0] or K % scales.shape[0]:
        hint = "these words look like GPTQ's: use from_gptq" if scales.shape[-1] * 8 == N else ""
        refuse("scales", f"shape [K/G, {N}] with K = {K}", list(scales.shape), hint)
    if tuple(qzeros.shape) != (scales.shape[0], N // 8):
        refuse("qzeros", f"shape [{scales.shape[0]}, {N // 8}]", list(qzeros.shape))
    group = K // scales.shape[0]
    if repack is None:
        repack = group % 32 == 0 or group == K
    if repack:
        return Int4Storage.of(formats.pack_awq(qweight, qzeros, scales))
    form = Form("awq", N, K, group, scale="group", zeros=True)
    return form, {"qweight": qweight, "qzeros": qzeros, "scales": formats.fp16_scales(scales)}


def _four_bits(weight: formats.Int4Weight) -> Weight:
    """int4's words; AWQ's order where only its kernels have groups as small as these."""
    group, K, N = weight.group_size, weight.K, weight.N
    if group % 32 == 0 or group == K or group % 2 or group < 16:
        return Int4Storage.of(weight)
    if weight.perm is not None or N % 8:
        return Int4Storage.of(weight)
    zeros = torch.full((K // group, N), 8, dtype=torch.uint8, device=weight.qweight.device)
    if weight.qzeros is not None:
        zeros = formats.unpack_zeros(weight.qzeros, weight.zero_offset)
        if int(zeros.max()) > 15:  # which AWQ cannot store
            return Int4Storage.of(weight)
    literal = formats.pack_int4(zeros, dim=1)
    words, qzeros = formats.gptq_to_awq(formats.gptq_unshuffle(weight.qweight), literal)
    return awq(words, qzeros, weight.scales, repack=False)


def compressed_tensors(
    weight_packed: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor | None = None,
    weight_g_idx: Tensor | None = None,
    *,
    bits: int = 4,
) -> Weight:
    """int32 `[N, K*bits/32]`, scales `[N, K/G]`, zeros int32 `[N*bits/32, K/G]` or None."""
    if bits not in (4, 8):
        refuse("bits", "4 or 8", bits, "other widths are not served")
    _check("weight_packed", weight_packed, torch.int32, 2)
    _check_tensor("weight_scale", weight_scale)
    N, codes = weight_packed.shape[0], 32 // bits
    K = weight_packed.shape[1] * codes
    if weight_scale.dim() == 1:
        weight_scale = weight_scale[:, None]
    fits = weight_scale.dim() == 2 and weight_scale.shape[0] == N
    if not fits or not weight_scale.shape[1] or K % weight_scale.shape[1]:
        refuse("weight_scale", f"shape [{N}, K/G] with K = {K}", list(weight_scale.shape))
    groups = weight_scale.shape[1]
    if weight_zero_point is not None:
        _check("weight_zero_point", weight_zero_point, torch.int32, 2)
        _check_packed("weight_packed", N, codes)
        if tuple(weight_zero_point.shape) != (N // codes, groups):
            got = list(weight_zero_point.shape)
            refuse("weight_zero_point", f"shape [{N // codes}, {groups}]", got)
    if weight_g_idx is not None and weight_g_idx.numel() != K:
        refuse("weight_g_idx", f"{K} entries", weight_g_idx.numel())
    if bits == 4:
        return _four_bits(
            formats.pack_compressed_tensors(
                weight_packed, weight_scale, weight_zero_point, weight_g_idx
            )
        )
    zeros = None if weight_zero_point is None else _bytes(weight_zero_point, 0).t().short()
    return _eight_bits(_bytes(weight_packed, 1).t(), zeros, weight_scale.t(), weight_g_idx)


def int8(weight: Tensor, weight_scale: Tensor) -> Weight:
    """int8 `[N, K]`, scales per tensor, per output (`[N]`, `[N, 1]`) or per group `[N, K/G]`."""
    _check("weight", weight, torch.int8, 2)
    N, K = weight.shape
    scale = (
        weight_scale if weight_scale.dtype == torch.float32 else formats.fp16_scales(weight_scale)
    )
    dtype = str(scale.dtype).removeprefix("torch.")
    if scale.numel() in (1, N):
        scale = scale.reshape(-1).expand(N) if scale.numel() == 1 else scale.reshape(N)
        form = Form("i8", N, K, scale="channel", scale_dtype=dtype)
    elif scale.dim() == 2 and scale.shape[0] == N and scale.shape[1] and K % scale.shape[1] == 0:
        form = Form("i8", N, K, K // scale.shape[1], scale="group", scale_dtype=dtype)
    else:
        refuse("weight_scale", f"shape [1], [{N}], [{N}, 1] or [{N}, K/G]", list(scale.shape))
    return form, {"weight": weight, "weight_scale": scale.contiguous()}


def fp8(
    weight: Tensor,
    weight_scale: Tensor,
    *,
    block: tuple[int, int] | None = None,
    input_scale: Tensor | None = None,
    fmt: str | None = None,
) -> Weight:
    """Codes `[N, K]`, scales that multiply: one, `[N]`, `[N, 1]`, or one per block.

    `block` is (outputs, inputs); blocks of 128 x 128 are seen from the shape. `fmt` "e4m3" or
    "e5m2" for codes in uint8. `input_scale`: of static 8-bit activations.
    """
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        refuse("weight", "fp8 codes [N, K]", _short(weight))
    found = formats.check_fp8(weight, fmt)
    N, K = weight.shape
    scale = weight_scale.float()
    form = Form(
        found, N, K, scale="tensor", scale_dtype="float32", input_scale=input_scale is not None
    )
    if scale.numel() == 1 and block is None:
        scale = scale.reshape(1)
    elif scale.numel() == N and scale.dim() in (1, 2) and block is None:
        form, scale = replace(form, scale="channel"), scale.reshape(N)
    else:
        bn, bk = block or (128, 128)
        if tuple(scale.shape) != (-(-N // bn), -(-K // bk)):
            hint = "" if block else "say block=(outputs, inputs) for blocks of another size"
            expected = f"shape [1], [{N}], [{N}, 1] or [{-(-N // bn)}, {-(-K // bk)}]"
            refuse("weight_scale", expected, list(scale.shape), hint)
        form = replace(form, scale="block", block=(bn, bk))
    if not bool(scale.isfinite().all()):
        refuse("weight_scale", "finite scales", "infinities or NaN")
    tensors = {"weight": weight.view(formats.fp8.DTYPES[found]), "weight_scale": scale}
    if input_scale is not None:
        if input_scale.numel() != 1:
            refuse("input_scale", "one scale", list(input_scale.shape))
        tensors["input_scale"] = input_scale.float().reshape(1)
    return form, tensors


def mxfp4(weight: Tensor, weight_scale: Tensor) -> Weight:
    """e2m1 bytes `[N, K/2]` (low nibble: even k) or blocks `[N, K/32, 16]`, e8m0 `[N, K/32]`."""
    weight = weight.flatten(1) if weight.dim() == 3 else weight
    formats.check_mxfp4(weight, weight_scale)
    form = Form("mxfp4", weight.shape[0], weight.shape[1] * 2, 32, scale="group")
    tensors = {"weight": weight, "weight_scale": weight_scale}
    return form, {name: t.view(torch.uint8) for name, t in tensors.items()}


def plain(weight: Tensor) -> Weight:
    """A float matrix `[N, K]` as fp16; ContractError for values that do not fit."""
    if weight.dim() != 2 or not weight.is_floating_point():
        refuse("weight", "a float matrix [N, K]", f"{weight.dtype} {list(weight.shape)}")
    return F16Storage.quantize(weight, None)


def recognise(
    tensors: Mapping[str, Tensor], prefix: str = "", *, gptq_version: int | None = None
) -> tuple[Form, Tensors, Tensor | None]:
    """Form, tensors and bias of the layer whose entries begin with `prefix`.

    Told by names and dtypes; what cannot be told is refused with what was seen. GPTQ's version is
    not in the files: where it is not given, zeros that are all 7 are version 1 and all 8 version
    2 (both mean symmetric), others version 1.
    """
    head = prefix if not prefix or prefix.endswith(".") else prefix + "."
    names = (n for n in tensors if n.startswith(head) and "." not in n.removeprefix(head))
    own = {name.removeprefix(head): tensors[name] for name in names}  # only these are read
    bias = own.pop("bias", None)
    seen = set(own)
    for needed, optional, dtypes, make in _KNOWN:
        fits = needed <= seen <= needed | optional
        if fits and all(own[name].dtype in wanted for name, wanted in dtypes.items()):
            made = make(own, gptq_version)
            return (*made, bias)
    listed = ", ".join(f"{n} {_short(t)}" for n, t in sorted(own.items())) or "nothing"
    refuse(
        f"checkpoint entries {head}*" if head else "checkpoint",
        "the tensors of a GPTQ, AWQ, compressed-tensors, int8, fp8, MXFP4 or float layer",
        listed, _advice(seen),
    )  # fmt: skip


def _advice(seen: set[str]) -> str:
    if not seen:
        return "pass the layer's prefix, such as model.layers.0.mlp.down_proj"
    if "weight_global_scale" in seen or "weight_scale_2" in seen:
        return "NVFP4 is not served: quantise to MXFP4 or int4"
    return "from_gptq, from_awq, from_compressed_tensors and from_float take tensors by role"


def _from_words(own: Tensors, version: int | None) -> Weight:
    qweight, scales, qzeros = own["qweight"], own["scales"], own.get("qzeros")
    N = scales.shape[-1]
    if qweight.shape[-1] * 8 == N and qzeros is not None:
        return awq(qweight, qzeros, scales)
    bits = 4
    if "g_idx" in own and own["g_idx"].numel():
        bits = 32 * qweight.shape[0] // own["g_idx"].numel()
    elif qzeros is not None:
        bits = 32 * qzeros.shape[-1] // N
    if version is None:
        version = 2 if qzeros is not None and _all_codes(qzeros, bits, 1 << bits - 1) else 1
    g_idx = own.get("g_idx")
    if g_idx is not None:
        g_idx = g_idx.int() if g_idx.numel() else None
    return gptq(qweight, qzeros, scales, g_idx, version=version, bits=bits)


def _from_packed(own: Tensors, version: int | None) -> Weight:
    packed, zeros = own["weight_packed"], own.get("weight_zero_point")
    bits = 4
    if "weight_shape" in own:
        bits = 32 * packed.shape[1] // int(own["weight_shape"].reshape(-1)[1])
    elif zeros is not None:
        bits = 32 * zeros.shape[0] // packed.shape[0]
    g_idx = own.get("weight_g_idx")
    return compressed_tensors(
        packed, own["weight_scale"], zeros, None if g_idx is None else g_idx.int(), bits=bits
    )


def _from_fp8(own: Tensors, version: int | None) -> Weight:
    scales = [name for name in ("weight_scale", "weight_scale_inv") if name in own]
    if len(scales) != 1:
        refuse("checkpoint", "weight_scale or weight_scale_inv", " and ".join(scales) or "neither")
    return fp8(own["weight"], own[scales[0]], input_scale=own.get("input_scale"))


def _pair(weight: str, scale: str) -> Callable[[Tensors, int | None], Weight]:
    return lambda own, _: mxfp4(own[weight], own[scale])


_FP8 = tuple(
    dtype for name, dtype in vars(torch).items()
    if name.startswith(("float8_e4m3", "float8_e5m2")) and isinstance(dtype, torch.dtype)
)  # fmt: skip
_BYTES = (torch.uint8,)
_E8M0 = (torch.uint8, *(getattr(torch, n) for n in ("float8_e8m0fnu",) if hasattr(torch, n)))
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_INT32 = (torch.int32,)
# Needed names, optional names, dtypes that tell the format, and what makes the weight.
_KNOWN: list[
    tuple[
        set[str],
        set[str],
        dict[str, tuple[torch.dtype, ...]],
        Callable[[Tensors, int | None], Weight],
    ]
] = [
    ({"qweight", "scales"}, {"qzeros", "g_idx"}, {"qweight": _INT32}, _from_words),
    (
        {"weight_packed", "weight_scale"},
        {"weight_zero_point", "weight_g_idx", "weight_shape"},
        {"weight_packed": _INT32},
        _from_packed,
    ),
    (
        {"weight", "weight_scale"},
        set(),
        {"weight": (torch.int8,)},
        lambda own, _: int8(own["weight"], own["weight_scale"]),
    ),
    (
        {"weight"},
        {"weight_scale", "weight_scale_inv", "input_scale"},
        {"weight": _FP8},
        _from_fp8,
    ),
    *(
        ({weight, scale}, set(), {weight: _BYTES, scale: _E8M0}, _pair(weight, scale))
        for weight, scale in (
            ("weight", "weight_scale"),
            ("weight_packed", "weight_scale"),
            ("weight_blocks", "weight_scales"),
            ("blocks", "scales"),
        )
    ),
    ({"weight"}, set(), {"weight": _FLOATS}, lambda own, _: plain(own["weight"])),
]


def _eight_bits(
    codes: Tensor, zeros: Tensor | None, scales: Tensor, g_idx: Tensor | None
) -> Weight:
    """uint8 codes `[K, N]`, zeros `[K/G, N]` or None (128), scales `[K/G, N]`, to int8 `[N, K]`."""
    (K, N), groups = codes.shape, scales.shape[0]
    perm = None if g_idx is None else formats.act_order(g_idx, groups)
    if perm is not None:
        codes = codes[perm.long()]
    kind = "group" if groups > 1 else "channel"
    shape = (N, groups) if groups > 1 else (N,)
    tensors = {
        "weight": (codes.short() - 128).to(torch.int8).t().contiguous(),
        "weight_scale": formats.fp16_scales(scales).t().reshape(shape),
    }
    moved = zeros is not None and bool((zeros != 128).any())
    if moved:
        assert zeros is not None
        tensors["weight_zero"] = (zeros - 128).t().reshape(shape)
    if perm is not None:
        tensors["perm"] = perm
    form = Form(
        "i8", N, K, K // groups if groups > 1 else 0, scale=kind, zeros=moved,
        act_order=perm is not None,
    )  # fmt: skip
    return form, tensors


def _bytes(words: Tensor, dim: int) -> Tensor:
    """uint8 codes of int32 words that hold four neighbours along `dim`."""
    return words.movedim(dim, -1).contiguous().view(torch.uint8).movedim(-1, dim)


def _all_codes(words: Tensor, bits: int, code: int) -> bool:
    word = sum(code << bits * slot for slot in range(32 // bits))
    return bool((words == word - (1 << 32 if word >> 31 else 0)).all())


def _check(name: str, tensor: object, dtype: torch.dtype, dims: int) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype != dtype or tensor.dim() != dims:
        got = _short(tensor) if isinstance(tensor, Tensor) else type(tensor).__name__
        refuse(name, f"{dtype} with {dims} dimensions", got)


def _check_tensor(name: str, tensor: object) -> None:
    if not isinstance(tensor, Tensor):
        refuse(name, "a tensor", type(tensor).__name__)


def _check_packed(name: str, N: int, codes: int) -> None:
    """Zeros of a word's worth of columns share a word."""
    if N % codes:
        refuse(name, f"a multiple of {codes} columns, as zeros are packed", N)


def _short(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
