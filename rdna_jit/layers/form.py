"""What a quantised weight is, apart from its tensors: the part that never changes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import gcd
from typing import NoReturn

import torch

from rdna_jit.errors import ContractError

Tensors = dict[str, torch.Tensor]

# Names that users say, beside those of Form.format.
ALIASES = {"gptq": "int4", "int8": "i8", "fp8": "e4m3", "fp16": "f16", "float16": "f16"}


@dataclass(frozen=True)
class Form:
    """A weight `[N, K]`: its format, and how its scales and zeros are laid out.

    `format`: "int4" (words `[K/8, N]`), "awq", "i8", "e4m3", "e5m2", "mxfp4" or "f16".
    `group_size`: rows of K per scale, 0 where scales do not follow K. `scale` says what one scale
    covers: "group", "channel", "tensor", "block" (`block` is its outputs and inputs) or "".
    `zeros`: there are zero points, `zero_offset` is added to stored int4 ones. `act_order`: rows
    are sorted by group and a tensor says which input each row takes. `activation_bits` 8 lets
    kernels quantise x to 8 bits.
    """

    format: str
    N: int
    K: int
    group_size: int = 0
    scale: str = ""
    scale_dtype: str = "float16"
    block: tuple[int, int] | None = None
    zeros: bool = False
    zero_offset: int = 0
    act_order: bool = False
    input_scale: bool = False
    activation_bits: int = 16

    @property
    def groups(self) -> int:
        """Scales along K of one output; 1 where they do not follow K."""
        return self.K // self.group_size if self.group_size else 1

    @property
    def text(self) -> str:
        """The form as JSON; `parse` reads it."""
        return json.dumps({k: v for k, v in asdict(self).items() if v != _DEFAULTS.get(k)})

    def __str__(self) -> str:
        """`int4, group 128, zeros`: for people, without the sizes."""
        parts = [self.format]
        if self.scale == "block" and self.block:
            parts.append(f"scales per block {self.block[0]}x{self.block[1]}")
        elif self.scale == "group":
            parts.append(f"group {self.group_size}")
        elif self.scale:
            parts.append(f"scales per {self.scale}")
        parts += ["zeros"] * self.zeros + ["act-order"] * self.act_order
        parts += ["8-bit activations"] * (self.activation_bits == 8)
        return ", ".join(parts)


_DEFAULTS = {name: f.default for name, f in Form.__dataclass_fields__.items()}


@cache
def parse(text: str) -> Form:
    """The form that `Form.text` wrote."""
    fields = json.loads(text)
    if fields.get("block") is not None:
        fields["block"] = tuple(fields["block"])
    return Form(**fields)


def refuse(name: str, expected: object, got: object, hint: str = "") -> NoReturn:
    """Raise ContractError for the layer's argument `name`; `hint` says what to do."""
    message = f"QuantizedLinear: {name}: expected {expected}, got {got}"
    raise ContractError(
        f"{message}; {hint}" if hint else message, name=name, expected=expected, got=got
    )


def cut_groups(form: Form, begin: int, end: int, least: int) -> Form:
    """The form of rows `begin` to `end` of K: groups are subdivided where the cut needs it.

    A group that the cut would split becomes several equal ones with the same scale, of `least`
    rows or a multiple. ContractError when they would be smaller.
    """
    size = gcd(form.group_size, begin, end)
    if size != form.group_size and size % least and size != end - begin:
        refuse(
            "slice", f"cuts of K on multiples of {least} rows",
            f"rows {begin}..{end} of K = {form.K} in groups of {form.group_size}",
            "use another number of ranks, or replicate the layer",
        )  # fmt: skip
    return replace(form, K=end - begin, group_size=size)
