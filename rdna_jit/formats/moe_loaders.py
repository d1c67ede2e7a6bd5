"""Experts of a checkpoint, found by name and brought into the row layout of MoEWeights.

`collect` sorts tensors into gate, up and down matrices; one function per checkpoint format turns
those into the fields of a MoEWeights. A matrix is handled as a `Part`: its tensors by the last
piece of their names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch

from rdna_jit.errors import ContractError
from rdna_jit.formats import moe as int4
from rdna_jit.formats.fp8 import DTYPES as FP8_TYPES
from rdna_jit.formats.fp8 import check_fp8, fp8_format
from rdna_jit.formats.int4 import fp16_scales
from rdna_jit.formats.int4_words import UNSHUFFLE, reorder_words, unpack_int4
from rdna_jit.formats.moe_weights import check_block

Tensor = torch.Tensor
Fields = dict[str, Any]

_ROLES = {
    "gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down",
    "w2": "down", "gate_up_proj": "gate_up", "w13": "gate_up",
}  # fmt: skip
_ALIASES = {None: "weight", "scale": "weight_scale", "scale_inv": "weight_scale_inv"}
_WITHOUT_EFFECT = {"input_scale", "weight_shape", "weight_g_idx"}  # weights of 16-bit activations
_E8M0 = getattr(torch, "float8_e8m0fnu", torch.uint8)


class Part(NamedTuple):
    """One matrix of one expert."""

    name: str
    tensors: dict[str, Tensor]

    def need(self, key: str) -> Tensor:
        if key not in self.tensors:
            _refuse(f"{self.name}.{key}", "a tensor", f"none, beside {', '.join(self.tensors)}")
        return self.tensors[key]


@dataclass(frozen=True)
class Experts:
    """Matrices by role and expert; stacked ones have no number but a first axis."""

    found: dict[tuple[str, int | None], Part]
    numbers: tuple[int, ...]
    stacked: bool

    def part(self, role: str, expert: int) -> Part | None:
        part = self.found.get((role, None if self.stacked else expert))
        if part is None or not self.stacked:
            return part
        return Part(f"{part.name}[{expert}]", {k: t[expert] for k, t in part.tensors.items()})

    def sides(self, expert: int) -> tuple[list[Part], Part]:
        """Gate and up, or both in one, and down."""
        down, fused = self.part("down", expert), self.part("gate_up", expert)
        for role in ("gate", "up"):
            if fused and (other := self.part(role, expert)):
                _refuse("experts", "gate and up apart, or both in one matrix",
                        f"{fused.name} and {other.name}")  # fmt: skip
        one = [fused] if fused else [self.part("gate", expert), self.part("up", expert)]
        missing = [n for n, p in zip(("gate", "up", "down"), (*one[:1], one[-1], down), strict=True)
                   if p is None]  # fmt: skip
        if missing:
            _refuse("experts", "gate, up and down of each", f"no {missing[0]} of {expert}")
        return [p for p in one if p is not None], down  # type: ignore[return-value]

    def __iter__(self) -> Iterator[tuple[list[Part], Part]]:
        return (self.sides(expert) for expert in self.numbers)

    @property
    def keys(self) -> set[str]:
        return {key for part in self.found.values() for key in part.tensors}

    @property
    def rows_first(self) -> bool:
        """Whether matrices are `[rows, ..]`, told by the scales or by what gate and down share."""
        parts, down = self.sides(self.numbers[0])
        if "weight_packed" in down.tensors:
            pairs = [(p.need("weight_packed"), p.need("weight_scale")) for p in (*parts, down)]
            return all(words.shape[0] == scale.shape[0] for words, scale in pairs)
        fused = len(parts) == 1
        return not fused or parts[0].need("weight").shape[1] == down.need("weight").shape[0]


def collect(
    tensors: Mapping[str, Tensor], prefix: str, experts: Sequence[int] | None = None
) -> Experts:
    """The expert matrices below `prefix`. ContractError for names that say something unknown."""
    start = re.escape(prefix.rstrip(".")) + r"\." if prefix else ""
    pattern = re.compile(
        rf"{start}(?:experts\.)?(?:(\d+)\.)?({'|'.join(_ROLES)})(?:[._]([a-z_][a-z0-9_]*))?"
    )
    found: dict[tuple[str, int | None], Part] = {}
    numbers: set[int | None] = set()
    for name in tensors:
        match = pattern.fullmatch(name)
        if match is None:
            continue
        number, matrix, key = match.groups()
        place = (_ROLES[matrix], None if number is None else int(number))
        numbers.add(place[1])
        if experts is not None and place[1] is not None and place[1] not in experts:
            continue
        tensor = tensors[name]  # of these experts alone: a mapping may load what is asked for
        if not isinstance(tensor, Tensor):
            _refuse(name, "a tensor", type(tensor).__name__)
        base = name if key is None else name[: -len(key) - 1]
        part = found.setdefault(place, Part(base, {}))
        key = _ALIASES.get(key, key)
        if "bias" in key:
            _refuse(name, "experts without a bias", "one; no op adds it")
        if key in part.tensors:
            _refuse(name, "one tensor per expert, matrix and kind", f"another in {part.name}")
        part.tensors[key] = tensor
    if not numbers or (None in numbers and len(numbers) > 1):
        shown = ", ".join(list(tensors)[:4])
        names = "experts.0.gate_proj.qweight or stacked ones like w13_weight"
        _refuse("tensors", f"names like {names} below {prefix!r}", f"{len(tensors)}: {shown}")
    stacked = None in numbers
    if stacked:
        first = next(iter(next(iter(found.values())).tensors.values()))
        count = first.shape[0] if first.dim() > 1 else 0
        for part in found.values():
            for key, tensor in part.tensors.items():
                if tensor.dim() < 1 or tensor.shape[0] != count:
                    _refuse(f"{part.name}.{key}", f"{count} experts on the first axis",
                            list(tensor.shape))  # fmt: skip
        known = range(count)
    else:
        known = range(max(n for n in numbers if n is not None) + 1)
    chosen = tuple(known) if experts is None else tuple(experts)
    present = set(known) if stacked else numbers
    if not chosen:
        _refuse("experts", "at least one expert", "none")
    for number in chosen:
        if number not in present:
            _refuse("experts", f"expert {number}", f"{len(present)} experts without it")
    _check_alike(found)
    return Experts(found, chosen, stacked)


def _check_alike(found: dict[tuple[str, int | None], Part]) -> None:
    """ContractError unless matrices of a role, and gate and up, have tensors of the same shapes."""
    shapes: dict[tuple[str, str], tuple[str, list[int]]] = {}
    for (role, _), part in found.items():
        for key, tensor in part.tensors.items():
            if key in _WITHOUT_EFFECT or key == "g_idx":
                continue
            shape = list(tensor.shape) if tensor.numel() != 1 else [1]
            place = ("gate" if role == "up" else role, key)
            first, wanted = shapes.setdefault(place, (part.name, shape))
            if shape != wanted:
                _refuse(f"{part.name}.{key}", f"shape {wanted}, as {first} has", shape)


def checkpoint(
    tensors: Mapping[str, Tensor], prefix: str, zero_offset: int, experts: Sequence[int] | None
) -> Fields:
    """Fields of experts in a format that is recognised."""
    found = collect(tensors, prefix, experts)
    keys = found.keys - _WITHOUT_EFFECT
    part = found.sides(found.numbers[0])[1]
    if "qweight" in keys:
        q, scales = part.need("qweight"), part.need("scales")
        if q.dtype == torch.uint8 and found.stacked:
            return _wna16(found)
        if q.shape[-1] == scales.shape[-1]:
            return gptq(found, zero_offset)
        if q.shape[-1] * 8 == scales.shape[-1]:
            return awq(found)
    elif keys == {"blocks", "scales"}:
        return mxfp4(found, None)
    elif keys <= {"weight_packed", "weight_scale", "weight_zero_point"}:
        is_words = part.need("weight_packed").dtype == torch.int32
        return compressed_tensors(found) if is_words else mxfp4(found, None)
    elif keys <= {"weight", "weight_scale", "weight_scale_inv"}:
        dtype = part.need("weight").dtype
        scaled = len(keys) == 2
        scale = part.tensors.get("weight_scale", part.tensors.get("weight_scale_inv"))
        if scaled and str(dtype).startswith("torch.float8_e") and dtype != _E8M0:
            return fp8(found, None, None)
        if scale is not None and scale.dtype in (torch.uint8, _E8M0):
            return mxfp4(found, None)
        if dtype == torch.int8 and scaled:
            return compressed_tensors(found)
        if dtype.is_floating_point and dtype.itemsize > 1 and not scaled:
            return floats(found)
    seen = ", ".join(f"{k} {t.dtype} {list(t.shape)}" for k, t in sorted(part.tensors.items()))
    _refuse(part.name, "GPTQ, AWQ, compressed-tensors, fp8, MXFP4 or float experts", seen)


def _wna16(found: Experts) -> Fields:
    """From `w13_qweight` uint8 and the like, which are in this layout already."""
    fields: Fields = {"format": "int4"}
    for name, role in (("w1", "gate_up"), ("w2", "down")):
        whole = found.found.get((role, None))
        if whole is None:
            _refuse("experts", "w13_qweight and w2_qweight", f"no {role}")
        fields[name], fields[f"{name}_scale"] = whole.need("qweight"), whole.need("scales")
        fields[f"{name}_zp"] = whole.tensors.get("qzeros")
    groups = fields["w1_scale"].shape[-1]
    fields["group_size"] = fields["w1"].shape[-1] * 2 // groups if groups > 1 else -1
    return fields


def gptq(found: Experts, zero_offset: int) -> Fields:
    """From `qweight` `[K / 8, N]` (or K / 4), `qzeros` `[K / G, N / 8]`, `scales` `[K / G, N]`."""
    if zero_offset not in (0, 1):
        _refuse("zero_offset", "1, or 0 for gptq_v2", zero_offset)
    gate, down = found.sides(found.numbers[0])
    per = _codes_per_word(down.need("scales").shape[-1], gate[0].need("qweight").shape[-2])

    def convert(part: Part) -> _Integers:
        words, scales = part.need("qweight"), part.need("scales")
        _check_shape(part, "qweight", words, (None, scales.shape[-1]))
        K, groups = words.shape[0] * per, scales.shape[0]
        if groups == 0 or K % groups:
            _refuse(f"{part.name}.scales", f"groups that share the {K} rows of K", groups)
        g_idx = part.tensors.get("g_idx", words.new_empty(0))
        ordered = torch.arange(K, device=g_idx.device) // (K // groups)
        if g_idx.numel() and not torch.equal(g_idx.long(), ordered):
            _refuse(f"{part.name}.g_idx", "rows of K in the order of their groups",
                    "act-order; experts have no permuted x, quantise without desc_act")  # fmt: skip
        zeros = None
        if "qzeros" in part.tensors:
            stored = part.tensors["qzeros"]
            _check_shape(part, "qzeros", stored, (groups, scales.shape[1] // per))
            zeros = (_unpack(stored, per).to(torch.int16) + zero_offset).t()
        return _integers(part, words.t(), scales.t(), zeros, per)

    fields = _integer_fields(found, convert, per)
    _check_offset(fields, zero_offset)
    return fields


def _check_offset(fields: Fields, zero_offset: int) -> None:
    """Refuses zero points that are one off the middle throughout: a symmetric checkpoint of the
    other version."""
    wrong = 8 + (1 if zero_offset else -1)
    zeros = [fields[n] for n in ("w1_zp", "w2_zp") if n in fields]
    if zeros and all(bool((z == wrong * 17).all()) for z in zeros):
        version, offset = ("v2", 0) if zero_offset else ("v1", 1)
        got = f"{wrong} throughout: this is a symmetric {version} checkpoint"
        _refuse("qzeros", "zero points that differ, or 8", f"{got}; pass zero_offset={offset}")


def awq(found: Experts) -> Fields:
    """From `qweight` `[K, N / 8]`, `qzeros` `[K / G, N / 8]`, `scales` `[K / G, N]`."""

    def convert(part: Part) -> _Integers:
        words, stored, scales = part.need("qweight"), part.need("qzeros"), part.need("scales")
        N = scales.shape[-1]
        _check_shape(part, "qweight", words, (None, N // 8))
        _check_shape(part, "qzeros", stored, (scales.shape[0], N // 8))
        codes = unpack_int4(reorder_words(words, UNSHUFFLE), dim=1)
        zeros = unpack_int4(reorder_words(stored, UNSHUFFLE), dim=1)
        return _Integers(int4.pack_codes(codes.t()), _row_scales(part, scales.t()), zeros.t())

    return _integer_fields(found, convert, 8)


def compressed_tensors(found: Experts) -> Fields:
    """From `weight_packed` `[N, K / 8]` (or K / 4), `weight_scale` `[N, K / G]`,
    `weight_zero_point` `[N / 8, K / G]`, or all of them transposed; or int8 `weight` `[N, K]`."""
    if "weight_packed" not in found.keys:
        return _int8(found)
    rows_first = found.rows_first
    turn: Callable[[Tensor], Tensor] = (lambda t: t) if rows_first else (lambda t: t.t())
    (gate, *_), down = found.sides(found.numbers[0])
    width = turn(gate.need("weight_packed")).shape[1]
    per = _codes_per_word(turn(down.need("weight_scale")).shape[0], width)

    def convert(part: Part) -> _Integers:
        words, scales = turn(part.need("weight_packed")), turn(part.need("weight_scale"))
        _check_shape(part, "weight_packed", words, (scales.shape[0], None))
        order = part.tensors.get("weight_g_idx")
        if order is not None and order.numel() and bool((order.diff() < 0).any()):
            _refuse(f"{part.name}.weight_g_idx", "rows of K in the order of their groups",
                    "act-order; experts have no permuted x")  # fmt: skip
        zeros = None
        if "weight_zero_point" in part.tensors:
            stored = turn(part.tensors["weight_zero_point"])
            _check_shape(
                part, "weight_zero_point", stored, (scales.shape[0] // per, scales.shape[1])
            )
            zeros = _unpack(stored.t(), per).t().to(torch.int16)
        return _integers(part, words, scales, zeros, per)

    return _integer_fields(found, convert, per)


def _int8(found: Experts) -> Fields:
    def convert(part: Part) -> _Integers:
        codes, scale = part.need("weight"), part.need("weight_scale")
        if codes.dtype != torch.int8:
            _refuse(f"{part.name}.weight", "torch.int8", codes.dtype)
        if scale.dim() == 1:
            scale = scale[:, None]
        _check_shape(part, "weight_scale", scale, (codes.shape[0], None))
        return _Integers(codes, scale, None)

    return _integer_fields(found, convert, 4)


def fp8(found: Experts, block: tuple[int, int] | None, fmt: str | None) -> Fields:
    """From `weight` `[N, K]` and scales of one number, N, or one per block."""
    down = found.sides(found.numbers[0])[1]
    kind = fp8_format("MoEWeights", f"{down.name}.weight", down.need("weight"), fmt)
    target = FP8_TYPES[kind]
    if block is not None:
        check_block(kind, block)
    key = "weight_scale_inv" if "weight_scale_inv" in found.keys else "weight_scale"
    size = block or (128, 128)
    kinds = set()

    def convert(part: Part, fused: bool = False) -> tuple[Tensor, Tensor]:
        codes, scale = part.need("weight"), part.need(key).float()
        if codes.dtype not in (target, torch.uint8):
            _refuse(f"{part.name}.weight", target, codes.dtype)
        _check_shape(part, "weight", codes, (None, None))
        N, K = codes.shape
        grid = (-(-N // size[0]), -(-K // size[1]))
        _check_finite(part, codes, kind)
        codes = codes.view(torch.uint8)
        if block is None and scale.numel() == 1:
            kinds.add("tensor")
            return codes, scale.reshape(())
        if block is None and scale.shape in ((N,), (N, 1)):
            kinds.add("row")
            return codes, scale.reshape(N)
        if block is None and fused and scale.shape == (2,):  # of gate and of up
            kinds.add("row")
            return codes, scale.repeat_interleave(N // 2)
        if tuple(scale.shape) != grid:
            _refuse(f"{part.name}.{key}", f"one number, {N}, or {list(grid)} for blocks of {size}",
                    list(scale.shape))  # fmt: skip
        kinds.add("block")
        return codes, scale

    sides = [([convert(p, len(one) == 1) for p in one], convert(two)) for one, two in found]
    if "block" in kinds and len(kinds) > 1:
        _refuse(key, "scales of one kind (pass block= for matrices of one block)", sorted(kinds))
    fields: Fields = {"format": kind}
    if "block" in kinds:
        first = sides[0][0]
        # Where gate ends within a block, blocks become less high, so that up begins with one.
        height = math.gcd(size[0], first[0][0].shape[0]) if len(first) == 2 else size[0]
        fields["block"] = (height, size[1])
    per_row = "row" in kinds
    if kinds == {"tensor"}:
        per_row = any(len({float(s) for _, s in one}) > 1 for one, _ in sides)

    def wide(codes: Tensor, scale: Tensor) -> Tensor:
        if "block" in kinds:
            return scale.repeat_interleave(size[0] // height, 0)[: -(-codes.shape[0] // height)]
        return scale.expand(codes.shape[0]) if per_row else scale

    def fuse(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
        scales = [wide(*part) for part in parts]
        return torch.cat(scales) if scales[0].dim() else scales[0]

    one, two = [first for first, _ in sides], [last for _, last in sides]
    fields["w1"] = torch.stack([torch.cat([c for c, _ in parts]) for parts in one]).view(target)
    fields["w1_scale"] = torch.stack([fuse(parts) for parts in one])
    fields["w2"] = torch.stack([c for c, _ in two]).view(target)
    fields["w2_scale"] = torch.stack([wide(*part) for part in two])
    return fields


def _check_finite(part: Part, codes: Tensor, kind: str) -> None:
    try:
        check_fp8(codes, kind)
    except ContractError as error:
        _refuse(f"{part.name}.weight", error.expected, error.got)


def mxfp4(found: Experts, interleaved: bool | None) -> Fields:
    """From bytes `[N, K / 2]` and e8m0 `[N, K / 32]`, or `blocks` `[N, K / 32, 16]`."""
    has_blocks = "blocks" in found.keys
    if interleaved is None:
        interleaved = has_blocks
    names = ("blocks", "scales") if has_blocks else ("weight_packed", "weight_scale")
    if "weight" in found.keys:
        names = ("weight", "weight_scale")

    def convert(part: Part) -> tuple[Tensor, Tensor]:
        codes, scale = part.need(names[0]), part.need(names[1])
        if codes.element_size() != 1 or scale.dtype not in (torch.uint8, _E8M0):
            _refuse(part.name, "bytes of two e2m1 codes and e8m0 scales",
                    f"{codes.dtype} and {scale.dtype}")  # fmt: skip
        codes, scale = codes.view(torch.uint8).flatten(1), scale.view(torch.uint8)
        _check_shape(part, names[1], scale, (codes.shape[0], codes.shape[1] // 16))
        if bool((scale == 255).any()):
            _refuse(f"{part.name}.{names[1]}", "finite scales", "the NaN code 255")
        return codes, scale

    def fuse(parts: list[Part]) -> tuple[Tensor, Tensor]:
        made = [convert(p) for p in parts]
        if len(made) == 2:
            return torch.cat((made[0][0], made[1][0])), torch.cat((made[0][1], made[1][1]))
        codes, scale = made[0]
        if interleaved:
            codes, scale = (torch.cat((t[0::2], t[1::2])) for t in (codes, scale))
        return codes, scale

    one, two = [], []
    for first, last in found:
        one.append(fuse(first))
        two.append(convert(last))
    return {
        "format": "mxfp4",
        "w1": torch.stack([c for c, _ in one]), "w1_scale": torch.stack([s for _, s in one]),
        "w2": torch.stack([c for c, _ in two]), "w2_scale": torch.stack([s for _, s in two]),
    }  # fmt: skip


def floats(found: Experts) -> Fields:
    """From float `weight` `[N, K]`, or `[K, N]`."""
    rows_first = found.rows_first

    def convert(part: Part) -> Tensor:
        w = part.need("weight")
        if not w.is_floating_point() or w.element_size() == 1:
            _refuse(f"{part.name}.weight", "fp16, bf16 or fp32", w.dtype)
        half = (w if rows_first else w.t()).half()
        if not bool(half.isfinite().all()):
            _refuse(
                f"{part.name}.weight", "finite weights that fit fp16", f"{float(w.abs().max())}"
            )
        return half

    sides = list(found)
    return {
        "format": "f16",
        "w1": torch.stack([torch.cat([convert(p) for p in first]) for first, _ in sides]),
        "w1_scale": None,
        "w2": torch.stack([convert(last) for _, last in sides]).contiguous(),
        "w2_scale": None,
    }


# ---- integer codes ----


class _Integers(NamedTuple):
    """A matrix: bytes `[rows, K / 2]` (or int8 `[rows, K]`), scales and zeros `[rows, K / G]`."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None


def _codes_per_word(K: int, words: int) -> int:
    """8 codes of four bits or 4 of eight, from what one row needs."""
    if words and 8 * words == K:
        return 8
    if words and 4 * words == K:
        return 4
    _refuse("experts", "four or eight bits per weight",
            f"{K} rows of down for {words} words along K of gate")  # fmt: skip


def _unpack(words: Tensor, per: int) -> Tensor:
    """Unsigned codes of words along the last axis."""
    if per == 8:
        return unpack_int4(words, dim=1)
    return words.contiguous().view(torch.uint8)


def _integers(
    part: Part, words: Tensor, scales: Tensor, zeros: Tensor | None, per: int
) -> _Integers:
    """From words `[rows, K / per]`; eight-bit codes lose their zero point of 128."""
    if words.dtype != torch.int32:
        _refuse(part.name, "int32 words", words.dtype)
    codes = words.contiguous().view(torch.uint8)
    if per == 8:
        if zeros is not None and int(zeros.max()) > 15:
            _refuse(f"{part.name}.qzeros", "zero points 0..15, which four bits hold",
                    f"{int(zeros.max())} (a stored 15, plus 1); is this a v2 checkpoint? "
                    "then zero_offset=0")  # fmt: skip
        return _Integers(codes, _row_scales(part, scales), zeros)
    if zeros is not None and bool((zeros != 128).any()):
        _refuse(f"{part.name}.qzeros", "symmetric 8-bit weights, zero point 128",
                f"{int(zeros.min())}..{int(zeros.max())}")  # fmt: skip
    return _Integers((codes ^ 128).view(torch.int8), scales.contiguous(), None)


def _row_scales(part: Part, scales: Tensor) -> Tensor:
    try:
        return fp16_scales(scales).contiguous()
    except ContractError as error:
        raise ContractError(f"{part.name}.{error}", name=f"{part.name}.scales") from None


def _integer_fields(found: Experts, convert: Callable[[Part], _Integers], per: int) -> Fields:
    """Stacks experts; groups of w1 and w2 become equal, zero points of 8 throughout disappear."""
    fields: Fields = {"format": "int4" if per == 8 else "i8"}
    matrices: dict[str, list[_Integers]] = {"w1": [], "w2": []}
    for first, last in found:
        matrices["w1"].append(_joined([convert(p) for p in first]))
        matrices["w2"].append(convert(last))
    groups = {}
    for name, made in matrices.items():
        fields[name] = torch.stack([m.codes for m in made])
        scale = torch.stack([m.scales for m in made])
        fields[f"{name}_scale"] = scale
        K = fields[name].shape[2] * (2 if per == 8 else 1)
        groups[name] = K, scale.shape[2]
        zeros = [m.zeros for m in made]
        if any(z is not None for z in zeros):
            eight = torch.full_like(scale[0], 8).to(torch.uint8)
            fields[f"{name}_zp"] = torch.stack(
                [eight if z is None else z.to(torch.uint8) for z in zeros]
            )
    zero_names = [n for n in ("w1_zp", "w2_zp") if n in fields]
    if all(bool((fields[n] == 8).all()) for n in zero_names):
        for n in zero_names:
            del fields[n]
    if all(count == 1 for _, count in groups.values()):
        fields["group_size"] = -1
        if per == 4:
            fields |= {f"{n}_scale": fields[f"{n}_scale"][..., 0].contiguous() for n in matrices}
    else:
        size = math.gcd(*(K // count for K, count in groups.values()))
        fields["group_size"] = size
        for name, (K, count) in groups.items():
            for key in (f"{name}_scale", f"{name}_zp"):
                if key in fields:
                    fields[key] = fields[key].repeat_interleave(K // count // size, -1)
    for n in ("w1_zp", "w2_zp"):
        if n in fields:
            fields[n] = int4.pack_zeros(fields[n])
    scales = [fields[f"{n}_scale"] for n in matrices]
    if any(scale.dtype != torch.float16 for scale in scales):
        fields |= {f"{n}_scale": s.float() for n, s in zip(matrices, scales, strict=True)}
    return fields


def _joined(parts: list[_Integers]) -> _Integers:
    """Gate rows, then up rows."""
    if len(parts) == 1:
        return parts[0]
    zeros: Tensor | None = None
    if any(p.zeros is not None for p in parts):
        zeros = torch.cat(
            [torch.full_like(p.scales, 8).to(torch.int16) if p.zeros is None else
             p.zeros.to(torch.int16) for p in parts]
        )  # fmt: skip
    codes, scales = (torch.cat([getattr(p, n) for p in parts]) for n in ("codes", "scales"))
    return _Integers(codes, scales, zeros)


def _check_shape(part: Part, key: str, tensor: Tensor, shape: tuple[int | None, ...]) -> None:
    fits = tensor.dim() == len(shape) and all(
        want in (None, size) for want, size in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        wanted = ["any" if s is None else s for s in shape]
        _refuse(f"{part.name}.{key}", f"shape {wanted}".replace("'", ""), list(tensor.shape))


def _refuse(name: str, expected: object, got: object) -> NoReturn:
    raise ContractError(
        f"MoEWeights: {name}: expected {expected}, got {got}",
        name=name,
        expected=expected,
        got=got,
    )
