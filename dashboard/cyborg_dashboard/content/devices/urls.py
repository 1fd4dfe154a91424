# SPDX-License-Identifier: Apache-2.0
"""The addresses of the panel."""

from django.urls import path

from cyborg_dashboard.content.devices import views

urlpatterns = [
    path("", views.IndexView.as_view(), name="index"),
    path("change/<str:verb>/", views.ChangeView.as_view(), name="change"),
    path("<uuid:uuid>/", views.DetailView.as_view(), name="detail"),
    path("<uuid:uuid>/drain/", views.DrainView.as_view(), name="drain"),
    path("<uuid:uuid>/resume/", views.ResumeView.as_view(), name="resume"),
]
