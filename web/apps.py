from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class WebConfig(AppConfig):
    name = "web"
    verbose_name = _("Web")

    def ready(self) -> None:
        from .api import documents  # noqa: F401  (teaches the OpenAPI generator our structs)
