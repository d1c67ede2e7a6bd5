"""`QuantizedLinear`: a linear layer whose weight stays quantised, for inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rdna_jit.dispatch import Plan
from rdna_jit.layers import checkpoint, selector
from rdna_jit.layers.form import Form, Tensors, parse, refuse
from rdna_jit.layers.storage import complete, storage_of

_library = torch.library.Library("rdna_jit", "FRAGMENT")
_library.define("quantized_linear(Tensor x, Tensor[] weight, Tensor? bias, str form) -> Tensor")


def _quantized_linear(x: Tensor, weight: list[Tensor], bias: Tensor | None, form: str) -> Tensor:
    """The layer as an op, so that a compiled graph chooses by the rows of the call."""
    kind = selector.kind_of(parse(form))
    names = storage_of(kind.form.format).layout(kind.form)
    return selector.run(kind, x, dict(zip(names, weight, strict=True)), bias)


def _fake(x: Tensor, weight: list[Tensor], bias: Tensor | None, form: str) -> Tensor:
    return x.new_empty((x.shape[0], parse(form).N))


torch.library.register_fake("rdna_jit::quantized_linear", _fake, lib=_library)
for _key in ("CPU", "CUDA"):
    _library.impl("quantized_linear", _quantized_linear, _key)


class QuantizedLinear(nn.Module):
    """`y = x @ W.t() + bias` with W `[out_features, in_features]` kept in its format.

    x and y are fp16, of any leading dimensions; sums are fp32. Inference only. Made by a
    constructor per checkpoint format (`from_gptq`, `from_awq`, `from_compressed_tensors`,
    `from_int8`, `from_fp8`, `from_mxfp4`, `from_float`), by `from_checkpoint`, which recognises
    them, or by `quantize`. The plain constructor makes an empty layer for `load_state_dict`:
    `details` are the fields of `Form`.

    The tensors are buffers named as `Form`'s storage names them. Casts of the module
    (`.half()`, `.to(torch.float32)`) leave their dtypes, which belong to the format. Each call
    chooses its kernel by the number of rows, also in a compiled graph: `rdna_jit.explain(layer,
    x)` says which and why.
    """

    in_features: int
    out_features: int
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        format: str,
        group_size: int | None = None,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        **details: Any,
    ) -> None:
        made = complete(format, out_features, in_features, group_size, **details)
        tensors = {
            name: torch.zeros(shape, dtype=dtype, device=device)
            for name, (shape, dtype) in storage_of(made.format).layout(made).items()
        }
        zeros = torch.zeros(out_features, dtype=torch.float16, device=device) if bias else None
        self._fill(made, tensors, zeros)

    @classmethod
    def of(cls, form: Form, tensors: Mapping[str, Tensor], bias: Tensor | None) -> QuantizedLinear:
        """The layer of a form and its tensors, which are checked."""
        layer = cls.__new__(cls)
        layer._fill(form, tensors, bias)
        return layer

    @classmethod
    def from_gptq(
        cls,
        qweight: Tensor,
        qzeros: Tensor | None,
        scales: Tensor,
        g_idx: Tensor | None = None,
        *,
        version: int = 1,
        bits: int = 4,
        bias: Tensor | None = None,
    ) -> QuantizedLinear:
        """From a GPTQ checkpoint: qweight int32 `[K*bits/32, N]`, qzeros int32
        `[K/G, N*bits/32]` (None: symmetric), scales `[K/G, N]`, g_idx int32 `[K]`.

        `version` 1 stores zeros less one, 2 ("gptq_v2") as they are.
        """
        made = checkpoint.gptq(qweight, qzeros, scales, g_idx, version=version, bits=bits)
        return cls.of(*made, bias)

    @classmethod
    def from_awq(
        cls,
        qweight: Tensor,
        qzeros: Tensor,
        scales: Tensor,
        *,
        repack: bool | None = None,
        bias: Tensor | None = None,
    ) -> QuantizedLinear:
        """From an AWQ checkpoint: qweight int32 `[K, N/8]`, qzeros int32 `[K/G, N/8]`, scales
        `[K/G, N]`.

        The words are turned once to those of int4, whose kernel takes fewer instructions, unless
        `repack=False` keeps them or groups are no multiple of 32.
        """
        return cls.of(*checkpoint.awq(qweight, qzeros, scales, repack=repack), bias)

    @classmethod
    def from_compressed_tensors(
        cls,
        weight_packed: Tensor,
        weight_scale: Tensor,
        weight_zero_point: Tensor | None = None,
        weight_g_idx: Tensor | None = None,
        *,
        bits: int = 4,
        bias: Tensor | None = None,
    ) -> QuantizedLinear:
        """From a pack-quantized compressed-tensors checkpoint (wna16): weight_packed int32
        `[N, K*bits/32]`, weight_scale `[N, K/G]`, weight_zero_point int32 `[N*bits/32, K/G]`
        (None: symmetric), weight_g_idx int32 `[K]`."""
        made = checkpoint.compressed_tensors(
            weight_packed, weight_scale, weight_zero_point, weight_g_idx, bits=bits
        )
        return cls.of(*made, bias)

    @classmethod
    def from_int8(
        cls, weight: Tensor, weight_scale: Tensor, *, bias: Tensor | None = None
    ) -> QuantizedLinear:
        """From int8 codes `[N, K]` and scales: one, `[N]`, `[N, 1]` or `[N, K/G]`."""
        return cls.of(*checkpoint.int8(weight, weight_scale), bias)

    @classmethod
    def from_fp8(
        cls,
        weight: Tensor,
        weight_scale: Tensor | None = None,
        *,
        weight_scale_inv: Tensor | None = None,
        input_scale: Tensor | None = None,
        block: tuple[int, int] | None = None,
        fmt: str | None = None,
        bias: Tensor | None = None,
    ) -> QuantizedLinear:
        """From fp8 codes `[N, K]` and scales: one, `[N]`, `[N, 1]`, or one per block.

        Both names of the scale multiply. `block` (outputs, inputs) is (128, 128) where the shape
        says so. `input_scale` is the activations' in a static checkpoint; they stay fp16 unless
        `activation_bits = 8` asks for fp8, static with this scale and per row without it.
        `fmt` "e4m3" or "e5m2" tells what uint8 codes are. Codes of NaN are refused.
        """
        scales = [s for s in (weight_scale, weight_scale_inv) if s is not None]
        if len(scales) != 1:
            refuse("weight_scale", "weight_scale or weight_scale_inv", f"{len(scales)} of them")
        made = checkpoint.fp8(weight, scales[0], block=block, input_scale=input_scale, fmt=fmt)
        return cls.of(*made, bias)

    @classmethod
    def from_mxfp4(
        cls, weight: Tensor, weight_scale: Tensor, *, bias: Tensor | None = None
    ) -> QuantizedLinear:
        """From e2m1 codes uint8 `[N, K/2]`, low nibble for even k, or blocks `[N, K/32, 16]`, and
        e8m0 scales `[N, K/32]`."""
        return cls.of(*checkpoint.mxfp4(weight, weight_scale), bias)

    @classmethod
    def from_float(cls, weight: Tensor, *, bias: Tensor | None = None) -> QuantizedLinear:
        """A float matrix `[N, K]` kept as fp16."""
        return cls.of(*checkpoint.plain(weight), bias)

    @classmethod
    def quantize(
        cls,
        weight: Tensor,
        format: str,
        group_size: int | None = None,
        *,
        bias: Tensor | None = None,
        **how: Any,
    ) -> QuantizedLinear:
        """Round a float matrix `[N, K]` to a format, to the nearest code: "gptq" ("int4"), "awq",
        "int8", "fp8" ("e4m3"), "e5m2", "mxfp4", "f16".

        `group_size` along K, -1 the whole of it; int4 takes 128 if none is given, int8 one scale
        per output. `symmetric=True` leaves int4 without zeros. fp8 takes `scale`: "channel",
        "tensor" or a block (outputs, inputs).
        """
        if weight.dim() != 2 or not weight.is_floating_point():
            refuse("weight", "a float matrix [N, K]", f"{weight.dtype} {list(weight.shape)}")
        return cls.of(*storage_of(format).quantize(weight.detach(), group_size, **how), bias)

    @classmethod
    def from_checkpoint(
        cls, tensors: Mapping[str, Tensor], prefix: str = "", *, gptq_version: int | None = None
    ) -> QuantizedLinear:
        """The layer whose entries begin with `prefix`, its format told by names and dtypes.

        ContractError lists what was seen when they fit no format. `gptq_version` 1 or 2 says how
        zeros are stored; where it is not given, all 7 is 1, all 8 is 2, anything else is 1.
        """
        return cls.of(*checkpoint.recognise(tensors, prefix, gptq_version=gptq_version))

    def _fill(self, form: Form, tensors: Mapping[str, Tensor], bias: Tensor | None) -> None:
        super().__init__()
        if form.K % storage_of(form.format).rows_of and form.format != "f16":
            refuse("in_features", f"a multiple of {storage_of(form.format).rows_of}", form.K)
        for name, (shape, dtype) in storage_of(form.format).layout(form).items():
            tensor = tensors[name]
            if tuple(tensor.shape) != shape or tensor.dtype != dtype:
                refuse(name, f"{dtype} {list(shape)}", f"{tensor.dtype} {list(tensor.shape)}")
            self.register_buffer(name, tensor.contiguous())
        if bias is not None:
            if tuple(bias.shape) != (form.N,):
                refuse("bias", f"shape [{form.N}]", list(bias.shape))
            bias = bias.detach().half().contiguous()
        self.register_buffer("bias", bias)
        self._adopt(form)

    def _adopt(self, form: Form) -> None:
        self.in_features, self.out_features = form.K, form.N
        self._kind = selector.kind_of(form)
        self._names = tuple(storage_of(form.format).layout(form))

    @property
    def form(self) -> Form:
        """The weight's format, with everything but the tensors."""
        return self._kind.form

    @property
    def format(self) -> str:
        return self._kind.form.format

    @property
    def group_size(self) -> int:
        """Rows of K per scale, 0 where scales do not follow K."""
        return self._kind.form.group_size

    @property
    def activation_bits(self) -> int:
        """8 lets kernels round x to 8 bits where they have a way to; 16, the default, does not."""
        return self._kind.form.activation_bits

    @activation_bits.setter
    def activation_bits(self, bits: int) -> None:
        if bits not in (8, 16):
            refuse("activation_bits", "8 or 16", bits)
        self._adopt(replace(self.form, activation_bits=bits))

    @property
    def tensors(self) -> Tensors:
        """The weight's tensors by name, without the bias."""
        return {name: getattr(self, name) for name in self._names}

    @property
    def nbytes(self) -> int:
        """Bytes of the weight's tensors and the bias."""
        return sum(t.nbytes for t in self._buffers.values() if t is not None)

    def forward(self, x: Tensor) -> Tensor:
        """fp16 `[..., out_features]` of x fp16 `[..., in_features]`."""
        if x.dim() == 2:
            return self._rows(x)
        if not x.dim() or x.shape[-1] != self.in_features:
            refuse("x", f"shape [..., {self.in_features}]", list(x.shape))
        y = self._rows(x.reshape(-1, self.in_features))
        return y.view(*x.shape[:-1], self.out_features)

    def _rows(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            refuse("x", "no gradient: the layer is for inference", "x.requires_grad",
                   "call it under torch.inference_mode()")  # fmt: skip
        if torch.compiler.is_compiling():
            weight = [getattr(self, name) for name in self._names]
            y: Tensor = torch.ops.rdna_jit.quantized_linear(x, weight, self.bias, self._kind.text)
            return y
        self._check(x)
        held = self._buffers  # attributes of a module cost more
        return selector.run(self._kind, x, held, held["bias"])  # type: ignore[arg-type]

    def _check(self, x: Tensor) -> None:
        if x.dtype != torch.float16:
            refuse("x", "torch.float16", x.dtype, "call x.half()")
        if x.shape[1] != self.in_features:
            refuse("x", f"shape [..., {self.in_features}]", list(x.shape))
        device = self._buffers[self._names[0]].device  # type: ignore[union-attr]
        if x.device != device:
            refuse("x", f"a tensor on {device}, as the layer", x.device, "move one of them")

    def plan(self, x: Tensor) -> Plan:
        """What a call would run: for `rdna_jit.explain` and `rdna_jit.warm`."""
        x = x.reshape(-1, x.shape[-1])
        self._check(x)
        return selector.plan(self._kind, x, self.tensors, self.bias)

    def dequantize(self, dtype: torch.dtype = torch.float16) -> Tensor:
        """The weight `[out_features, in_features]`, rounded once to `dtype`."""
        return storage_of(self.format).dequantize(self.form, self.tensors, dtype)

    def slice(self, dim: int, rank: int, size: int) -> QuantizedLinear:
        """Part `rank` of `size` equal ones, for tensor parallelism.

        `dim` 0 cuts the outputs (column parallel): results are concatenated. `dim` 1 cuts the
        inputs (row parallel): results are added, and only rank 0 keeps the bias. ContractError
        says what does not divide and why.
        """
        if dim not in (0, 1):
            refuse("dim", "0 (outputs) or 1 (inputs)", dim)
        if not 0 <= rank < size:
            refuse("rank", f"0..{size - 1}", rank)
        form, storage = self.form, storage_of(self.format)
        if size == 1:
            return self.of(form, self.tensors, self.bias)
        length, axis = ((form.N, "outputs"), (form.K, "inputs"))[dim]
        unit = (storage.columns_of, storage.rows_of)[dim]
        if length % size or length // size % unit:
            refuse(
                "size", f"{axis} that divide into parts of a multiple of {unit}",
                f"{length} in {size} parts", "use another number of ranks, or replicate the layer",
            )  # fmt: skip
        if dim == 1 and form.act_order:
            refuse(
                "dim", "0: an act-order weight cannot be cut along its inputs", 1,
                "the groups of one rank's inputs have their scales on all ranks; requantise "
                "without desc_act, or replicate the layer",
            )  # fmt: skip
        share = length // size
        cut = storage.rows if dim else storage.columns
        part, tensors = cut(form, self.tensors, rank * share, (rank + 1) * share)
        tensors = {name: t.contiguous() for name, t in tensors.items()}
        bias = self.bias
        if bias is not None:
            bias = (bias if rank == 0 else None) if dim else bias[rank * share : (rank + 1) * share]
        return self.of(part, tensors, bias)

    def extra_repr(self) -> str:
        kernels = ", ".join(k.__name__ for k in selector.serving(self.form))
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, {self.form}, "
            f"bias={self.bias is not None}, {self.nbytes} bytes, kernels: {kernels}"
        )

    def get_extra_state(self) -> Tensor:
        """The form as bytes of JSON, which any state-dict file can hold."""
        return torch.tensor(list(self._kind.text.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        form = parse(bytes(state.tolist()).decode())
        layout = storage_of(form.format).layout(form)
        mine = {name: (tuple(t.shape), t.dtype) for name, t in self.tensors.items()}
        if layout != mine:
            refuse("state_dict", f"a layer of the form ({self.form})", f"({form})")
        self._adopt(form)

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Tensor], prefix: str = "") -> QuantizedLinear:
        """The layer that `state_dict` described, under `prefix`."""
        key = f"{prefix}_extra_state"
        if key not in state:
            refuse("state", f"an entry {key!r}", ", ".join(sorted(state)) or "nothing")
        form = parse(bytes(state[key].tolist()).decode())
        names = storage_of(form.format).layout(form)
        tensors = {name: state[prefix + name] for name in names}
        return cls.of(form, tensors, state.get(f"{prefix}bias"))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantizedLinear:
        # Dtypes belong to the format: a cast moves the tensors and converts none of them.
        for name, tensor in self._buffers.items():
            if tensor is not None:
                moved = fn(tensor)
                kept = moved.dtype == tensor.dtype
                self._buffers[name] = moved if kept else tensor.to(moved.device)
        return self
