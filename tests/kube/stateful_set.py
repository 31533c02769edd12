"""Controller and kubelet of a release's StatefulSet: its pod runs as a local process."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.error
from pathlib import Path
from typing import Any, Self

from .local_release import LocalRelease

_SECONDS = 0.5


class StatefulSetController:
    """Run the pod of a release, and replace it when its template changes; used in a `with` statement.

    `environment` is a file with the environment of the running container, for commands that `kubectl exec` would run.
    The failure of a pod ends the controller, and is raised at the end of the block.
    """

    def __init__(self, release: LocalRelease) -> None:
        self.environment: Path = release.folder / "environment.json"
        self._release = release
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with contextlib.ExitStack() as running:
                template: Any = None
                while not self._ended.wait(_SECONDS):
                    wanted = self._template()
                    if wanted != template:
                        template = wanted
                        running.close()
                        if template is not None:
                            self.environment.write_text(json.dumps(self._release.environment()))
                            running.enter_context(self._release.running())
        except BaseException as failure:
            self._failure = failure

    def _template(self) -> Any:
        """Return the container of the pod, None if there is no StatefulSet."""
        try:
            return self._release.container()
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return None
