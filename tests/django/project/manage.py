"""The program of the project, as `django-admin startproject` makes it."""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project_settings")
    execute_from_command_line(sys.argv)
