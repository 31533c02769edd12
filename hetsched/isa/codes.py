"""Error codes of this package with their descriptions; codes are stable and never reused."""

from __future__ import annotations

from typing import NoReturn

from hetsched.contracts.errors import InputError

CODES: dict[str, str] = {
    "IsaEmpty": "The string is empty.",
    "IsaTooLong": "The string is longer than any real instruction set.",
    "IsaBadCharacter": "A character that no instruction-set name holds.",
    "IsaUnknownSource": "The source is not one of those that strings come from.",
    "IsaUnknownArchitecture": "Neither RISC-V nor x86-64 nor 64-bit Arm.",
    "IsaUnknownLevel": "The architecture is known, the level is not.",
    "IsaUnknownProfile": "Written like a RISC-V profile, but no ratified one.",
    "IsaMissingBase": "RISC-V: after rv32 or rv64 the base letter i, e or g must follow.",
    "IsaUnknownExtension": "No extension or feature has this name.",
    "IsaUnratified": "The base or extension is a draft; nothing can be promised about it.",
    "IsaRepeatedItem": "The same item is stated twice.",
    "IsaEmptyItem": "Two separators in a row, or one at the end.",
    "IsaBadVersion": "A version that is not written like 2p1 or 2, or where none is allowed.",
    "IsaConflict": "Two items exclude each other.",
    "IsaMissingDependency": "An item requires another one.",
    "IsaWrongXlen": "The extension exists for the other register width only.",
    "IsaMissingPair": "A line of `isa check -` is REQUIRED, tab, OFFERED.",
    "IsaNotDetected": "The cpuinfo text shows no instruction set of this lattice.",
    "PlatformMalformed": "A platform is os/architecture or os/architecture/variant.",
    "OciMalformed": "The files are no complete OCI image layout.",
    "ElfMalformed": "The file is no ELF file or is cut short.",
    "BinfmtMalformed": "The text is no binfmt_misc entry.",
}


def refuse(code: str, message: str, *, hint: str = "") -> NoReturn:
    """Raise an `InputError` with a code of `CODES`."""
    assert code in CODES, code
    raise InputError(code, message, hint=hint)
