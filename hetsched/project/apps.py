import gc
from types import ModuleType

from django.apps import AppConfig


class ProjectConfig(AppConfig):
    name = "hetsched.project"
    verbose_name = "Project"

    def __init__(self, app_name: str, app_module: ModuleType | None) -> None:
        super().__init__(app_name, app_module)
        # Exclude the models from garbage collection, because they live as long as the process: collection is off while
        # Django imports them, and `ready` freezes them.
        gc.disable()

    def ready(self) -> None:
        from . import celery, checks  # noqa: F401  (both register themselves)

        gc.freeze()
        gc.enable()
