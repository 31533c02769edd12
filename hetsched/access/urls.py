"""Login and logout; the admin's own login page leads here too, so that there is one door."""

from __future__ import annotations

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path
from django.views.generic import RedirectView

urlpatterns = [
    path(
        "login/",
        LoginView.as_view(template_name="access/login.html", redirect_authenticated_user=True),
        name="login",
    ),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("admin/login/", RedirectView.as_view(pattern_name="login", query_string=True)),
]
