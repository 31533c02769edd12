"""Instruction set of a machine, from every available source.

Sources can disagree: vendor firmware lists draft extensions, hypervisors hide flags, and a compiler knows only the
target of its distribution. The first readable source is accepted, in this order: /proc/cpuinfo, the device tree's exact
list, its deprecated string, riscv_hwprobe, the capability words, the dynamic loader, the compiler. Every other source
is compared with the accepted source, and contradictions are reported. A source that gives only a lower bound
contradicts the accepted source only if it lists additional features.
Device tree: `riscv,isa-base` with `riscv,isa-extensions` is an exact list; `riscv,isa` is the deprecated string. Only
extensions that every enabled CPU has are used. riscv_hwprobe returns the common extensions of all CPUs, as a lower
bound, because a kernel does not report extensions that it does not know.
Source: domain rules of hetsched.isa; Linux Documentation/arch/riscv/{uabi,hwprobe}.rst; device-tree binding
riscv/extensions.yaml; ISAMatch (gcc -v).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from msgspec import UNSET, structs

from hetsched.agent.isa.compilers import cross_isas, native_compiler
from hetsched.agent.isa.emulation import probe_emulation
from hetsched.agent.isa.hwcaps import capability_names, capability_words, known_names
from hetsched.agent.programs import is_root_owned, run
from hetsched.agent.tree import Tree
from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.agent_report import IsaSource, MachineIsa, MachineProblem
from hetsched.isa import CpuReport, Isa, parse, read_cpuinfo
from hetsched.isa.x86 import X86

_SYSCALL = 258
_BASE_BEHAVIOR, _IMA_EXT_0 = 3, 4
_NAMES = """
fd c v zba zbb zbs zicboz zbc zbkb zbkc zbkx zknd zkne zknh zksed zksh zkt zvbb zvbc zvkb zvkg zvkned zvknha zvknhb
zvksed zvksh zvkt zfh zfhmin zihintntl zvfh zvfhmin zfa ztso zacas zicond zihintpause zve32x zve32f zve64x zve64f zve64d
zimop zca zcb zcd zcf zcmop zawrs supm zicntr zihpm zfbfmin zvfbfmin zvfbfwma zicbom zaamo zalrsc zabha
"""
Ask = Callable[[tuple[int, ...]], dict[int, int] | None]


def query_kernel_isa(ask: Ask | None = None) -> str | None:
    """Return the result of riscv_hwprobe as an ISA string, or None if it is not available."""
    answers = (ask or _ask_kernel)((_BASE_BEHAVIOR, _IMA_EXT_0))
    if answers is None or not answers.get(_BASE_BEHAVIOR, 0) & 1:
        return None
    bits = answers.get(_IMA_EXT_0, 0)
    names = [name for at, name in enumerate(_NAMES.split()) if bits >> at & 1]
    letters = "ima" + "".join("fd" if name == "fd" else name for name in names if name in ("fd", "c", "v"))
    return "_".join((f"rv64{letters}", *(name for name in names if len(name) > 2)))


def _ask_kernel(keys: tuple[int, ...]) -> dict[int, int] | None:
    if not os.uname().machine.startswith("riscv"):
        return None
    import ctypes

    class HwprobePair(ctypes.Structure):
        _fields_ = (("key", ctypes.c_int64), ("value", ctypes.c_uint64))

    pairs = (HwprobePair * len(keys))(*(HwprobePair(key, 0) for key in keys))
    library = ctypes.CDLL(None, use_errno=True)
    failed = library.syscall(ctypes.c_long(_SYSCALL), pairs, ctypes.c_size_t(len(keys)), ctypes.c_size_t(0), None, 0)
    # For an unknown key the kernel sets the key to -1.
    return None if failed else {pair.key: pair.value for pair in pairs if pair.key >= 0}


PLACES = ("proc/device-tree/cpus", "sys/firmware/devicetree/base/cpus")
MAX_CPUS = 1024
_LIMIT_BYTES = 8192


def cpu_folders(tree: Tree) -> list[str]:
    """Return the names of the CPU folders of the device tree, without disabled CPUs."""
    for place in PLACES:
        found = [name for name in tree.names(place) if name.startswith("cpu@")]
        if len(found) > MAX_CPUS:
            tree.problems.append(
                MachineProblem("DeviceTreeTooLarge", f"only {MAX_CPUS} CPUs of the device tree are read", f"/{place}")
            )
        folders = [f"{place}/{name}" for name in found[:MAX_CPUS]]
        enabled = [
            folder for folder in folders if strings(tree, f"{folder}/status")[:1] not in (["disabled"], ["fail"])
        ]
        if enabled:
            return enabled
    return []


def stated_list(tree: Tree, folders: list[str]) -> str | None:
    """Return the base and the common extensions of all CPUs as one ISA string.

    Returns None if a CPU states no extensions, or if the CPUs have different bases.
    """
    bases: set[str] = set()
    common: set[str] | None = None
    for folder in folders:
        base, extensions = strings(tree, f"{folder}/riscv,isa-base"), strings(tree, f"{folder}/riscv,isa-extensions")
        if len(base) != 1 or not extensions:
            return None
        bases.add(base[0])
        common = set(extensions) if common is None else common & set(extensions)
    if len(bases) != 1:
        return None
    # i and e are left out because the base contains them. The other names, single letters too, are joined by `_`.
    return "_".join((bases.pop(), *sorted((common or set()) - {"i", "e"})))


def stated_strings(tree: Tree, folders: list[str]) -> list[str]:
    """Return the `riscv,isa` of every CPU, or an empty list if a CPU states none."""
    found = [strings(tree, f"{folder}/riscv,isa") for folder in folders]
    return [text[0] for text in found] if all(found) else []


def strings(tree: Tree, path: str) -> list[str]:
    """Return the NUL-separated strings of a device tree property."""
    data = tree.data(path, _LIMIT_BYTES)
    if not data:
        return []
    return [part.decode("ascii", "replace").strip() for part in data.split(b"\0") if part.strip()]


# Limit that suffices for two thousand x86 CPUs with all fields.
MAX_CPUINFO_BYTES = 4 << 20
_MAX_SHOWN, _MAX_TEXT = 4096, 1000
_LOADER = "/lib64/ld-linux-x86-64.so.2"
_LOADER_LEVEL = re.compile(r"^ +(x86-64-v[1-9]) \(supported", re.MULTILINE)
_SHORT = {"zicntr", "zihpm", "zicsr", "zifencei"}


class Reading(NamedTuple):
    """Report of one source; `names` lists the reported features, `domain` the features it can report (None: all)."""

    source: str
    text: str
    isa: Isa | None
    names: frozenset[str]
    exact: bool
    domain: frozenset[str] | None = None


def probe_isa(tree: Tree) -> MachineIsa:
    """Return the instruction sets that the machine runs natively, by emulation, and as compiler targets."""
    report = _cpuinfo(tree)
    readings = [] if report is None else [_of_report(report)]
    family = report.family if report else _local_family(tree)
    readings += _device_tree(tree)
    readings += _kernel_readings(tree, family)
    readings += _loader(tree, family)
    if compiler := native_compiler(tree):
        text = f"Target: {compiler.target}" + (f" --with-arch={compiler.stated}" if compiler.stated else "")
        readings.append(Reading(f"{compiler.path} -v", text, compiler.isa, _names(compiler.isa), exact=False))
    chosen = next((reading for reading in readings if reading.isa is not None), None)
    _report_conflicts(tree, report, chosen)
    sources = tuple(_source(reading, chosen) for reading in readings)
    found = MachineIsa(
        family=report.family if report else chosen.isa.arch if chosen and chosen.isa else None,
        canonical=chosen.isa.canonical if chosen and chosen.isa else None,
        sources=sources,
        emulated=probe_emulation(tree),
        cross=cross_isas(tree),
    )
    return _with_details(found, report, chosen)


def _with_details(found: MachineIsa, report: CpuReport | None, chosen: Reading | None) -> MachineIsa:
    isa = chosen.isa if chosen else None
    if found.family == "riscv":
        return structs.replace(found, extensions=tuple(sorted(isa.extensions)) if isa else ())
    if report is not None:
        return structs.replace(found, level=report.level, features=report.features)
    return structs.replace(found, level=isa.base if isa else None, features=UNSET)


def _cpuinfo(tree: Tree) -> CpuReport | None:
    text = tree.text("proc/cpuinfo", MAX_CPUINFO_BYTES)
    if text is None:
        _problem(tree, "IsaSourceMissing", "the file cannot be read", "/proc/cpuinfo")
        return None
    try:
        return read_cpuinfo(text)
    except InputError as error:
        _problem(tree, error.code, error.message, "/proc/cpuinfo")
        return None


def _of_report(report: CpuReport) -> Reading:
    isa = report.isa
    shown = (isa.input if report.family == "riscv" else "") if isa else ""
    text = shown or " ".join(report.features)
    names = frozenset(report.features) if report.family != "riscv" else _names(isa)
    return Reading("/proc/cpuinfo", text, isa, names, exact=True)


def _device_tree(tree: Tree) -> list[Reading]:
    folders = cpu_folders(tree)
    readings = []
    if stated := stated_list(tree, folders):
        isa = _parsed(tree, stated, "device tree riscv,isa-extensions")
        readings.append(Reading("device tree riscv,isa-extensions", stated, isa, _names(isa), exact=True))
    if strings := stated_strings(tree, folders):
        # If CPUs differ, only their common extensions are used, as for /proc/cpuinfo; the strings are parsed in its
        # format.
        text = " & ".join(dict.fromkeys(strings))
        try:
            isa = read_cpuinfo("\n\n".join(f"isa: {string}" for string in strings)).isa
        except InputError as error:
            _problem(tree, error.code, error.message, "device tree riscv,isa")
            isa = None
        readings.append(Reading("device tree riscv,isa", text, isa, _names(isa), exact=True))
    return readings


def _kernel_readings(tree: Tree, family: str | None) -> list[Reading]:
    if not tree.is_this_machine or family is None:
        return []
    readings = []
    if family == "riscv" and (probed := query_kernel_isa()):
        isa = _parsed(tree, probed, "riscv_hwprobe")
        readings.append(Reading("riscv_hwprobe", probed, isa, _names(isa), exact=False))
    vector = tree.data("proc/self/auxv")
    words = capability_words(vector) if vector else None
    if words and (domain := known_names(family)):
        names = capability_names(family, words)
        shown = f"AT_HWCAP={words[0]:#x} AT_HWCAP2={words[1]:#x}"
        readings.append(Reading("auxiliary vector", shown, None, names, exact=False, domain=domain))
    return readings


def _loader(tree: Tree, family: str | None) -> list[Reading]:
    """Read the level from the dynamic loader, which itself uses CPUID to choose library folders."""
    if family != "x86" or not tree.is_this_machine or not is_root_owned(_LOADER):
        return []
    levels = _loader_levels()
    if not levels:
        return []
    isa = _parsed(tree, levels[-1], _LOADER)
    domain = frozenset().union(*X86.levels.values())
    return [Reading(f"{_LOADER} --help", " ".join(levels), isa, _names(isa), exact=False, domain=domain)]


@lru_cache(maxsize=1)
def _loader_levels() -> tuple[str, ...]:
    """Return the x86-64 levels that the loader lists as supported; cached, because the CPU does not change."""
    completed = run([_LOADER, "--help"])
    return tuple(sorted(_LOADER_LEVEL.findall(completed.output))) if completed and completed.status == 0 else ()


def _source(reading: Reading, chosen: Reading | None) -> IsaSource:
    return IsaSource(
        source=reading.source,
        text=reading.text[:_MAX_SHOWN],
        canonical=reading.isa.canonical if reading.isa else None,
        bound="exact" if reading.exact else "lower",
        conflict=_conflict(reading, chosen),
    )


def _conflict(reading: Reading, chosen: Reading | None) -> str | None:
    """Describe how a source contradicts the accepted source."""
    if chosen is None or reading is chosen:
        return None
    if reading.isa and chosen.isa and (reading.isa.arch, reading.isa.xlen) != (chosen.isa.arch, chosen.isa.xlen):
        return f"it describes a {reading.isa.xlen}-bit {reading.isa.arch} machine"
    more = reading.names - chosen.names
    less: frozenset[str] = frozenset()
    if reading.domain is not None:
        less = (chosen.names & reading.domain) - reading.names
    elif reading.exact:
        less = chosen.names - reading.names - _SHORT
    differences = [f"names {' '.join(sorted(more))}, which {chosen.source} does not"] if more else []
    differences += [f"does not name {' '.join(sorted(less))}"] if less else []
    text = "it " + ", and ".join(differences)
    return text[:_MAX_TEXT] if differences else None


def _report_conflicts(tree: Tree, report: CpuReport | None, chosen: Reading | None) -> None:
    for note in report.notes if report else ():
        rejected = report is not None and note in report.rejected
        _problem(tree, "IsaNotBelieved" if rejected else "IsaDiffersBetweenCpus", note, "/proc/cpuinfo")
    if chosen is None:
        where = f": a {report.xlen}-bit {report.family} machine is not supported" if report else ""
        _problem(tree, "IsaUnknown", f"the ISA of the machine is unknown{where}", "")
    elif chosen.source != "/proc/cpuinfo":
        _problem(tree, "IsaFromSecondSource", f"the ISA of the machine is read from {chosen.source}", chosen.source)


def _local_family(tree: Tree) -> str | None:
    if not tree.is_this_machine:
        return None
    import os

    machine = os.uname().machine
    families = {"x86_64": "x86", "aarch64": "arm"}
    return "riscv" if machine.startswith("riscv") else families.get(machine)


def _parsed(tree: Tree, text: str, about: str) -> Isa | None:
    try:
        return parse(text, source="dt-isa-extensions")
    except InputError as error:
        _problem(tree, error.code, error.message, about)
        return None


def _names(isa: Isa | None) -> frozenset[str]:
    return isa.extensions if isa else frozenset()


def _problem(tree: Tree, code: str, message: str, about: str) -> None:
    text = f"{about}: {message}" if about else message
    tree.problems.append(MachineProblem(code, text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…", about))
