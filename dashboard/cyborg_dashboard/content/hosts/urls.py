# SPDX-License-Identifier: Apache-2.0
"""The addresses of the panel."""

from django.urls import path

from cyborg_dashboard.content.hosts import views

urlpatterns = [
    path("", views.IndexView.as_view(), name="index"),
    path("discover/", views.DiscoverView.as_view(), name="discover"),
    path("<uuid:uuid>/drain/", views.DrainView.as_view(), name="drain"),
    path("<uuid:uuid>/resume/", views.ResumeView.as_view(), name="resume"),
    path("<uuid:uuid>/<str:verb>/", views.ChangeView.as_view(), name="change"),
]
