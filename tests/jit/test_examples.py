from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from rdna_jit import Template, config

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def emulator():
    with config.scope(backend="emulator"):
        yield


def test_the_softmax_example_runs_from_top_to_bottom(capsys):
    runpy.run_path(str(EXAMPLES / "softmax.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "relative L2 error" in printed
    assert "0 bytes past the end of y" in printed
    assert printed.count("ContractError") + printed.count("ContractTypeError") == 3


def test_the_moe_layer_example_runs_from_top_to_bottom(capsys):
    runpy.run_path(str(EXAMPLES / "moe_layer.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count("relative L2 error") == printed.count("from one rank") == 3
    assert "runs moe_grouped[" in printed and "runs moe_tile[" in printed
    assert printed.count("fused_moe: ") == 3


@pytest.mark.parametrize(
    ("n", "threads", "dtype"),
    [(1, 32, torch.float32), (33, 32, torch.float16), (500, 256, torch.float32)],
)
def test_softmax_of_other_sizes(n, threads, dtype):
    ctype = {torch.float32: "float", torch.float16: "_Float16"}[dtype]
    kernel = Template.from_file(EXAMPLES / "softmax.hip").specialise(N=n, THREADS=threads, T=ctype)
    x, y = torch.randn(5, n, dtype=dtype), torch.full((5, n), torch.nan, dtype=dtype)
    kernel.launch(5, threads, x, y, 3.0)
    expected = torch.softmax(x.float() * 3.0, dim=-1)
    assert (y.float() - expected).norm() <= 5e-4 * expected.norm()
    again = torch.empty_like(y)
    kernel.launch(5, threads, x, again, 3.0)
    assert torch.equal(y, again)
