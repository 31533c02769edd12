"""Collected static files and their version check.

Collecting compresses every file and takes seconds, so it runs only if the fingerprint of the source files has changed.
Before the first collection, the files are served from their source folders.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command
from whitenoise.storage import CompressedManifestStaticFilesStorage

import hetsched

STAMP = "collected"


class StaticFileStorage(CompressedManifestStaticFilesStorage):
    """Storage that uses file names with digests after the collection, and plain names before it.

    JavaScript modules of this product also import each other by the names with digests, because a module that is loaded
    under two names would run twice. Only these modules are searched for imports: the bundles of other packages are
    megabytes large and contain none.
    """

    patterns = (
        *(pattern for pattern in CompressedManifestStaticFilesStorage.patterns if pattern[0] == "*.css"),
        (
            "js/*.js",
            (
                (r"""(?P<matched>\bfrom\s*"(?P<url>\./[^"]+)")""", 'from "%(url)s"'),
                (r"""(?P<matched>\bimport\s*"(?P<url>\./[^"]+)")""", 'import "%(url)s"'),
            ),
        ),
    )

    def stored_name(self, name: str) -> str:
        return str(super().stored_name(name)) if self.hashed_files else name


def are_stale() -> bool:
    """Return whether the collected files are missing or differ from the source files."""
    stamp = Path(settings.STATIC_ROOT) / STAMP
    return not stamp.is_file() or stamp.read_text() != fingerprint()


def collect() -> None:
    """Remove the collected static files and collect them again."""
    root = Path(settings.STATIC_ROOT)
    shutil.rmtree(root, ignore_errors=True)
    call_command("collectstatic", verbosity=0, interactive=False)
    (root / STAMP).write_text(fingerprint())


def fingerprint() -> str:
    """Return a digest of the version and of every source file's name, size and modification time."""
    digest = hashlib.sha256(hetsched.__version__.encode())
    for finder in get_finders():
        for name, storage in finder.list([]):
            facts = os.stat(storage.path(name))
            digest.update(f"{name} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()
