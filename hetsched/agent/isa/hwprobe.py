"""Query a RISC-V kernel for usable extensions: the system call riscv_hwprobe.

Queried for all CPUs at once, the kernel returns their common extensions. It has bits for known extensions only, so the
result is a lower bound: an older kernel has fewer bits.
Source: Linux Documentation/arch/riscv/hwprobe.rst, arch/riscv/include/uapi/asm/hwprobe.h.
"""

from __future__ import annotations

import os
from collections.abc import Callable

_SYSCALL = 258
_BASE_BEHAVIOR, _IMA_EXT_0 = 3, 4
_NAMES = """
fd c v zba zbb zbs zicboz zbc zbkb zbkc zbkx zknd zkne zknh zksed zksh zkt zvbb zvbc zvkb zvkg zvkned zvknha zvknhb
zvksed zvksh zvkt zfh zfhmin zihintntl zvfh zvfhmin zfa ztso zacas zicond zihintpause zve32x zve32f zve64x zve64f zve64d
zimop zca zcb zcd zcf zcmop zawrs supm zicntr zihpm zfbfmin zvfbfmin zvfbfwma zicbom zaamo zalrsc zabha
"""
Ask = Callable[[tuple[int, ...]], dict[int, int] | None]


def probed_isa(ask: Ask | None = None, xlen: int = 64) -> str | None:
    """Return the kernel's answer as an ISA string, None without one."""
    answers = (ask or _ask_kernel)((_BASE_BEHAVIOR, _IMA_EXT_0))
    if answers is None or not answers.get(_BASE_BEHAVIOR, 0) & 1:
        return None
    bits = answers.get(_IMA_EXT_0, 0)
    names = [name for at, name in enumerate(_NAMES.split()) if bits >> at & 1]
    letters = "ima" + "".join("fd" if name == "fd" else name for name in names if name in ("fd", "c", "v"))
    return "_".join((f"rv{xlen}{letters}", *(name for name in names if len(name) > 2)))


def _ask_kernel(keys: tuple[int, ...]) -> dict[int, int] | None:
    if not os.uname().machine.startswith("riscv"):
        return None
    import ctypes

    class HwprobePair(ctypes.Structure):
        _fields_ = (("key", ctypes.c_int64), ("value", ctypes.c_uint64))

    pairs = (HwprobePair * len(keys))(*(HwprobePair(key, 0) for key in keys))
    library = ctypes.CDLL(None, use_errno=True)
    failed = library.syscall(ctypes.c_long(_SYSCALL), pairs, ctypes.c_size_t(len(keys)), ctypes.c_size_t(0), None, 0)
    # The kernel returns an unknown key as -1.
    return None if failed else {pair.key: pair.value for pair in pairs if pair.key >= 0}
