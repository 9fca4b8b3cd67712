"""The handlers of the shop. Runners find them without any setting."""

from django.db import connection

from runner import handler
from shop.models import Order


@handler("shop.ship", queue="shipping")
def ship(order: int) -> str:
    row = Order.objects.get(pk=order)
    row.shipped = True
    row.save()
    return f"shipped for {row.cents}"


@handler("shop.weigh")
async def weigh(order: int) -> int:
    return (await Order.objects.aget(pk=order)).cents


@handler("shop.break")
def break_connection() -> None:
    """Lose the connection as a restart of the database server does."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@handler("shop.break_async")
async def break_connection_async() -> None:
    from asgiref.sync import sync_to_async

    await sync_to_async(break_connection, thread_sensitive=True)()
