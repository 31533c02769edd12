"""Everything people and programs can open."""

from django.urls import include, path

urlpatterns = [path("", include("web.api.routes")), path("", include("web.pages.routes"))]
