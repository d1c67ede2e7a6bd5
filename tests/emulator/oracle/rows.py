"""The whole table: importing this module fills it."""

from tests.emulator.oracle import compare, convert, division, floating, half, integer, scalar
from tests.emulator.oracle.table import SCALAR, VECTOR

MODULES = (compare, convert, division, floating, half, integer, scalar)

__all__ = ["MODULES", "SCALAR", "VECTOR"]
