"""Root URL configuration."""

from django.urls import include, path

urlpatterns = [path("", include("web.api.routes")), path("", include("web.pages.routes"))]
