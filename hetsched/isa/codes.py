"""Error codes of this package with their descriptions; codes are stable and never reused."""

from __future__ import annotations

from typing import NoReturn

from hetsched.contracts.errors import InputError

CODES: dict[str, str] = {
    "IsaEmpty": "The string is empty.",
    "IsaTooLong": "The string is longer than any real instruction set.",
    "IsaBadCharacter": "The string contains a character that is not used in instruction-set names.",
    "IsaUnknownSource": "The source of the string is unknown.",
    "IsaUnknownArchitecture": "The architecture is not RISC-V, x86-64 or 64-bit Arm.",
    "IsaUnknownLevel": "The level is not a level of the architecture.",
    "IsaUnknownProfile": "The name has the form of a RISC-V profile, but is not a ratified profile.",
    "IsaMissingBase": "RISC-V: rv32 or rv64 is not followed by the base letter i, e or g.",
    "IsaUnknownExtension": "No extension or feature has this name.",
    "IsaUnratified": "The base or extension is not ratified.",
    "IsaRepeatedItem": "An item is repeated.",
    "IsaEmptyItem": "The string has two consecutive separators or ends with a separator.",
    "IsaBadVersion": "A version does not have the form 2p1 or 2, or is not allowed here.",
    "IsaConflict": "Two items are mutually exclusive.",
    "IsaMissingDependency": "An item requires another item that is missing.",
    "IsaWrongXlen": "The extension exists only for the other register width.",
    "IsaMissingPair": "A line of `isa check -` does not have the form REQUIRED, tab, OFFERED.",
    "IsaNotDetected": "The cpuinfo text does not contain a supported instruction set.",
    "PlatformMalformed": "The platform does not have the form os/architecture or os/architecture/variant.",
    "OciMalformed": "The files are not a complete OCI image layout.",
    "ElfMalformed": "The file is not an ELF file or is truncated.",
    "BinfmtMalformed": "The text is not a binfmt_misc entry.",
}


def refuse(code: str, message: str, *, hint: str = "") -> NoReturn:
    """Raise an `InputError` with a code of `CODES`."""
    assert code in CODES, code
    raise InputError(code, message, hint=hint)
