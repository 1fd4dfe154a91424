# SPDX-License-Identifier: Apache-2.0
"""The addresses of the panel."""

from django.urls import path

from cyborg_dashboard.content.profiles import views

urlpatterns = [
    path("", views.IndexView.as_view(), name="index"),
    path("create/", views.CreateView.as_view(), name="create"),
    path("check/", views.CheckView.as_view(), name="check"),
    path("<uuid:uuid>/", views.DetailView.as_view(), name="detail"),
    path("<uuid:uuid>/update/", views.UpdateView.as_view(), name="update"),
]
