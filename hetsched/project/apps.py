import gc
from types import ModuleType

from django.apps import AppConfig


class ProjectConfig(AppConfig):
    name = "hetsched.project"
    verbose_name = "Project"

    def __init__(self, app_name: str, app_module: ModuleType | None) -> None:
        super().__init__(app_name, app_module)
        # Models live as long as the process. They are imported next, and then excluded from garbage collection.
        gc.disable()

    def ready(self) -> None:
        from . import celery, checks  # noqa: F401  (both register themselves)

        gc.freeze()
        gc.enable()
