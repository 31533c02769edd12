from django.apps import AppConfig


class ProjectConfig(AppConfig):
    name = "hetsched.project"
    verbose_name = "Project"

    def ready(self) -> None:
        from . import celery, checks  # noqa: F401  (both register themselves)
