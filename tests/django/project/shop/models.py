"""The models of the shop."""

from django.db import models


class Order(models.Model):
    cents = models.IntegerField()
    shipped = models.BooleanField(default=False)
