"""Tiny programs for other architectures that show the ISA of an emulator and its slowdown.

The CPU that an emulator emulates depends on its version and build options and not on its name. On RISC-V, one program
for each extension executes an instruction of the extension and then exit(0). If the emulator lacks the extension, the
program is killed because of an illegal instruction. On x86-64, a program writes the CPUID words. On Arm, a program
writes its auxiliary vector, which contains the capability words. The slowdown is the emulated time of a loop (four
integer operations, a floating-point product and two sums) divided by its native time, after subtracting the time of an
empty program from each.
Source: RISC-V, x86-64 and Arm instruction encodings; checked against the assemblers in a test.
Invariant: nothing is written to disk; each program is a file in memory of less than 400 bytes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

from hetsched.agent.isa.hwcaps import capability_names, capability_words
from hetsched.agent.programs import ProgramOutput, run
from hetsched.contracts.errors import InputError
from hetsched.isa import Isa, parse
from hetsched.isa.arm import ARM
from hetsched.isa.x86 import X86

_MACHINES = {"riscv64": (243, 5), "aarch64": (183, 0), "x86_64": (62, 0)}
_HEADER_BYTES, _ADDRESS = 120, 0x400000
_REPEATS = 3

# name -> instructions that exist only with this extension
RISCV: dict[str, tuple[int, ...]] = {
    "v": (0xCC00F057, 0x021080D7),  # vsetivli zero,1,e8,m1,ta,ma; vadd.vv v1,v1,v1
    "zicond": (0x0EB55533,),  # czero.eqz a0,a0,a1
    "zawrs": (0x01D00073,),  # wrs.sto
    "zfa": (0xF0150553,),  # fli.s fa0,0.375
    "zfh": (0x04A57553,),  # fadd.h fa0,fa0,fa0
    "zba": (0x20A52533,),  # sh1add a0,a0,a0
    "zbb": (0x60251513,),  # cpop a0,a0
    "zbc": (0x0AA51533,),  # clmul a0,a0,a0
    "zbkb": (0x08A54533,),  # pack a0,a0,a0
    "zbkx": (0x28A52533,),  # xperm4 a0,a0,a0
    "zbs": (0x28A51533,),  # bset a0,a0,a0
    "zknd": (0x3AA50533,),  # aes64ds a0,a0,a0
    "zkne": (0x32A50533,),  # aes64es a0,a0,a0
    "zknh": (0x10251513,),  # sha256sig0 a0,a0
    "zksed": (0x30A50533,),  # sm4ed a0,a0,a0,0
    "zksh": (0x10851513,),  # sm3p0 a0,a0
}
# The base of every riscv64 emulator, with the hint extensions, which run on every CPU.
_RISCV_BASE = "rv64imafdc_zicsr_zifencei_zicntr_zihintntl_zihintpause_zicbop"
_RISCV_EXIT = (0x05D00893, 0x00000513, 0x00000073)  # li a7,93; li a0,0; ecall
_RISCV_EXIT_42 = (0x05D00893, 0x02A00513, 0x00000073)  # li a7,93; li a0,42; ecall
_RISCV_LOOP = (
    0x009892B7, 0x6802829B, 0x00100313,  # li t0,10000000; li t1,1
    0xD222F053, 0xD2237153, 0x1A017153,  # fcvt.d.l ft0,t0; fcvt.d.l ft2,t1; fdiv.d ft2,ft2,ft0
    0x02530333, 0x00534333, 0x00D31393, 0x00730333,  # mul, xor, slli 13, add
    0x120171D3, 0x0230F0D3, 0x0220F0D3,  # fmul.d ft3,ft2,ft0; fadd.d ft1,ft1,ft3; fadd.d ft1,ft1,ft2
    0xFFF28293, 0xFE0290E3,  # addi t0,t0,-1; bnez
)  # fmt: skip
_ARM_EXIT = (0xD2800000, 0xD2800BA8, 0xD4000001)  # mov x0,#0; mov x8,#93; svc #0
_ARM_LOOP = (
    0xD292D009, 0xF2A01309, 0xD280002A,  # mov x9,#10000000; mov x10,#1
    0x9E620120, 0x9E620142, 0x1E601842,  # scvtf d0,x9; scvtf d2,x10; fdiv d2,d2,d0
    0x9B097D4A, 0xCA09014A, 0x8B0A354A,  # mul, eor, add lsl 13
    0x1E600843, 0x1E632821, 0x1E622821,  # fmul d3,d2,d0; fadd d1,d1,d3; fadd d1,d1,d2
    0xF1000529, 0x54FFFF21,  # subs x9,x9,#1; b.ne
)  # fmt: skip
_ARM_STACK = (0xD2800020, 0x910003E1, 0xD2808002, 0xD2800808, 0xD4000001)  # write(1, sp, 1024)
_X86_EXIT = bytes.fromhex("b83c000000 31ff 0f05")  # mov $60,%eax; xor %edi,%edi; syscall
_X86_LOOP = bytes.fromhex(
    "b980969800 b801000000"  # mov $10000000,%ecx; mov $1,%eax
    "f2480f2ac1 f2480f2ad0 f20f5ed0"  # cvtsi2sd %rcx,%xmm0; cvtsi2sd %rax,%xmm2; divsd %xmm0,%xmm2
    "480fafc1 4831c8 4889c2 48c1e20d 4801d0"  # imul, xor, mov, shl $13, add
    "660f28da f20f59d8 f20f58cb f20f58ca"  # movapd, mulsd, addsd, addsd
    "ffc9 75db"  # dec %ecx; jnz
)
_X86_CPUID = bytes.fromhex(
    "b801000000 31c9 0fa2 52 51"  # leaf 1: push %rdx, %rcx
    "b807000000 31c9 0fa2 51 53"  # leaf 7: push %rcx, %rbx
    "b801000080 31c9 0fa2 52 51"  # leaf 0x80000001: push %rdx, %rcx
    "b801000000 bf01000000 4889e6 ba30000000 0f05"  # write(1, sp, 48)
)
# The six words in stack order; each maps bits to the features that make up the levels.
_CPUID_BITS: tuple[dict[int, str], ...] = (
    {0: "lahf_lm", 5: "abm"},
    {11: "syscall", 29: "lm"},
    {3: "bmi1", 5: "avx2", 8: "bmi2", 16: "avx512f", 17: "avx512dq", 28: "avx512cd", 30: "avx512bw", 31: "avx512vl"},
    {},
    {0: "pni", 9: "ssse3", 12: "fma", 13: "cx16", 19: "sse4_1", 20: "sse4_2", 22: "movbe", 23: "popcnt", 25: "aes",
     26: "xsave", 28: "avx", 29: "f16c"},
    {0: "fpu", 8: "cx8", 15: "cmov", 23: "mmx", 24: "fxsr", 25: "sse", 26: "sse2"},
)  # fmt: skip


def program(machine: str, code: bytes) -> bytes:
    """Return an ELF program with one segment."""
    number, flags = _MACHINES[machine]
    size = _HEADER_BYTES + len(code)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, number, 1, _ADDRESS + _HEADER_BYTES, 64, 0, flags, 64, 56, 1, 64, 0, 0)
    return header + struct.pack("<IIQQQQQQ", 1, 5, 0, _ADDRESS, _ADDRESS, size, size, 0x1000) + code


def emulated_isa(interpreter: str | None, machine: str) -> Isa | None:
    """Return the ISA of the emulator, or None if it cannot be tried; without `interpreter` the kernel selects it."""
    if machine == "riscv64":
        return _try_riscv(interpreter)
    outcome = _run(machine, _code(machine, ask=True), interpreter)
    if outcome is None or outcome.status != 0:
        return None
    # The output was decoded with one byte per character.
    content = outcome.output.encode("latin-1", "replace")
    names = _cpuid_names(content) if machine == "x86_64" else _stack_names(content)
    family = X86 if machine == "x86_64" else ARM
    level = family.highest_level(frozenset(names))
    return _parsed("+".join((level, *sorted(names - family.levels[level])))) if level else None


def slowdown(interpreter: str | None, machine: str) -> float | None:
    """Return emulated time / native time of the loop, or None if one of the two cannot be measured."""
    native = os.uname().machine
    if native not in _MACHINES:
        return None
    emulated, own = _loop_seconds(machine, interpreter), _loop_seconds(native, None)
    return round(max(emulated / own, 0.1), 1) if emulated and own else None


def _try_riscv(interpreter: str | None) -> Isa | None:
    # First check that the emulator can run programs at all: status 42 can only come from the program itself.
    plain = _run("riscv64", _pack_words(_RISCV_EXIT_42), interpreter)
    if plain is None or plain.status != 42:
        return None
    named = [name for name, words in RISCV.items() if _exits_normally(interpreter, words)]
    return _parsed("_".join((_RISCV_BASE, *named)))


def _exits_normally(interpreter: str | None, words: tuple[int, ...]) -> bool:
    outcome = _run("riscv64", _pack_words((*words, *_RISCV_EXIT)), interpreter)
    return outcome is not None and outcome.status == 0


def _loop_seconds(machine: str, interpreter: str | None) -> float | None:
    """Return the shortest time of several runs of the loop, minus the shortest time of an empty program."""
    idle = [_run(machine, _code(machine), interpreter) for _ in range(_REPEATS)]
    busy = [_run(machine, _code(machine, loop=True), interpreter) for _ in range(_REPEATS)]
    if any(outcome is None or outcome.status != 0 for outcome in (*idle, *busy)):
        return None
    spent = min(outcome.seconds for outcome in busy if outcome) - min(outcome.seconds for outcome in idle if outcome)
    return spent if spent > 0 else None


def _code(machine: str, *, ask: bool = False, loop: bool = False) -> bytes:
    if machine == "x86_64":
        return (_X86_LOOP if loop else b"") + (_X86_CPUID if ask else b"") + _X86_EXIT
    if machine == "aarch64":
        return _pack_words((*(_ARM_LOOP if loop else ()), *(_ARM_STACK if ask else ()), *_ARM_EXIT))
    return _pack_words((*(_RISCV_LOOP if loop else ()), *_RISCV_EXIT))


def _run(machine: str, code: bytes, interpreter: str | None) -> ProgramOutput | None:
    """Run a program from memory, either with the emulator or directly by the kernel."""
    file = os.memfd_create("trial", os.MFD_CLOEXEC)
    try:
        os.write(file, program(machine, code))
        path = f"/proc/self/fd/{file}"
        return run([interpreter, path] if interpreter else [path], files=(file,), encoding="latin-1")
    finally:
        os.close(file)


def _pack_words(words: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


def _cpuid_names(content: bytes) -> frozenset[str]:
    if len(content) != 8 * len(_CPUID_BITS):
        return frozenset()
    words = struct.unpack(f"<{len(_CPUID_BITS)}Q", content)
    return frozenset(
        name for word, bits in zip(words, _CPUID_BITS, strict=True) for at, name in bits.items() if word >> at & 1
    )


def _stack_names(content: bytes) -> frozenset[str]:
    """Parse a program's initial stack: argc, arguments, NULL, environment, NULL, auxiliary vector."""
    words = iter([word for (word,) in struct.iter_unpack("<Q", content)])
    next(words, None)
    for _ in range(2):
        _skip_to_null(words)
    rest = list(words)
    found = capability_words(struct.pack(f"<{len(rest)}Q", *rest))
    return capability_names("arm", found) if found else frozenset()


def _skip_to_null(words: Iterator[int]) -> None:
    for word in words:
        if word == 0:
            return


def _parsed(text: str) -> Isa | None:
    try:
        return parse(text, source="dt-isa-extensions")
    except InputError:
        return None
