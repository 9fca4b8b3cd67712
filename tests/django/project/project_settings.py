"""The settings of a Django project with tasks. DJANGO_DATABASE and DJANGO_RUNNER have values as JSON."""

import json
import os

import django

DATABASES = {"default": json.loads(os.environ["DJANGO_DATABASE"])}
DATABASES["default"]["CONN_MAX_AGE"] = None
SECRET_KEY = "secret"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "runner.django",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "shop.urls"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
TASKTUI = {"THREADS": 1, "LOG_LEVEL": "warning", "RETRY": "never", **json.loads(os.environ.get("DJANGO_RUNNER", "{}"))}
if django.VERSION >= (6, 0):
    TASKTUI["HANDLERS"] = ["shop.background"]
    OPTIONS = {"max_attempts": 2, "retry": "0s"}
    TASKS = {"default": {"BACKEND": "runner.django.TaskBackend", "QUEUES": ["default", "mail"], "OPTIONS": OPTIONS}}
