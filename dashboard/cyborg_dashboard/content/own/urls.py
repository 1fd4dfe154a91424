# SPDX-License-Identifier: Apache-2.0
"""The addresses of the panel."""

from django.urls import path

from cyborg_dashboard.content.own import views

urlpatterns = [path("", views.IndexView.as_view(), name="index")]
