# SPDX-License-Identifier: Apache-2.0
"""The addresses of the panel."""

from django.urls import path

from cyborg_dashboard.content.drivers import views

urlpatterns = [
    path("", views.IndexView.as_view(), name="index"),
    path("install/", views.InstallView.as_view(), name="install"),
    path("<uuid:uuid>/update/", views.UpdateView.as_view(), name="update"),
    path("<uuid:uuid>/uninstall/", views.UninstallView.as_view(), name="uninstall"),
]
