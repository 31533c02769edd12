"""Routes of login and logout; the login page of the admin redirects here."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.views import LoginView, LogoutView
from django.core.exceptions import PermissionDenied
from django.http.response import HttpResponseBase
from django.urls import path
from django.utils.translation import gettext as _
from django.views.generic import RedirectView

from .login import set_device_cookie


class SignIn(LoginView):
    """Login page."""

    template_name = "access/login.html"
    redirect_authenticated_user = True
    http_method_names = ["get", "head", "post", "options"]

    def form_valid(self, form: Any) -> Any:
        response = super().form_valid(form)
        set_device_cookie(response, self.request, form.cleaned_data["username"])
        return response

    def get_context_data(self, **more: Any) -> dict[str, Any]:
        return super().get_context_data(**more, oidc=settings.HETSCHED_OIDC_NAME, passwords=settings.HETSCHED_PASSWORDS)


class LoginRedirect(RedirectView):
    """Replacement for the admin's login: redirects anonymous users to the login page and refuses other users."""

    pattern_name = "login"
    query_string = True
    http_method_names = ["get", "head", "options"]

    def get(self, request: Any, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.user.is_authenticated:
            raise PermissionDenied(
                _("The administration pages require the administrator role. Ask an administrator for access.")
            )
        return super().get(request, *args, **kwargs)


urlpatterns = [
    path("login/", SignIn.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    *([path("admin/login/", LoginRedirect.as_view())] if settings.HETSCHED_ADMIN else []),
]
if settings.HETSCHED_OIDC_ISSUER:
    from .oidc import complete_sign_in, start_sign_in

    urlpatterns += [
        path("login/oidc/", start_sign_in, name="oidc"),
        path("login/oidc/callback/", complete_sign_in, name="oidc-callback"),
    ]
