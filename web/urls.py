"""Everything people and programs can open."""

import importlib.util

from django.urls import include, path

urlpatterns = [path("", include("web.api.routes"))]
if importlib.util.find_spec("web.pages.routes"):
    urlpatterns.append(path("", include("web.pages.routes")))
