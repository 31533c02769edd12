"""Collected static files and their version check.

Collecting compresses every file and takes seconds, so it runs only if the fingerprint of the source files has changed.
Before the first collection, the files are served from their source folders.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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

    def post_process(self, *args: Any, **options: Any) -> Iterator[Any]:
        """Write the fingerprint after the files, so that an image with collected files needs no second collection."""
        yield from super().post_process(*args, **options)
        Path(self.location, STAMP).write_text(fingerprint())


def are_stale() -> bool:
    """Return whether the collected files are missing or differ from the source files."""
    stamp = Path(settings.STATIC_ROOT) / STAMP
    return not stamp.is_file() or stamp.read_text() != fingerprint()


def collect() -> None:
    """Remove the collected static files and collect them again."""
    shutil.rmtree(settings.STATIC_ROOT, ignore_errors=True)
    call_command("collectstatic", verbosity=0, interactive=False)


def fingerprint() -> str:
    """Return a digest of the version and of every source file's name and content.

    Modification times differ between the build of an image and its containers.
    """
    digest = hashlib.sha256(hetsched.__version__.encode())
    for finder in get_finders():
        for name, storage in finder.list([]):
            content = Path(storage.path(name)).read_bytes()
            digest.update(f"{name} {hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()
