"""All routes: the admin if enabled, language choice, login, and the routes of the web app."""

from django.conf import settings
from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("hetsched.access.urls")),  # must precede the admin, whose login page it replaces
    *([path("admin/", admin.site.urls)] if settings.HETSCHED_ADMIN else []),
    path("i18n/", include("django.conf.urls.i18n")),
    path("", include("web.urls")),
]

handler400 = "web.pages.errors.bad_request"
handler403 = "web.pages.errors.forbidden"
handler404 = "web.pages.errors.not_found"
handler500 = "web.pages.errors.failed"
