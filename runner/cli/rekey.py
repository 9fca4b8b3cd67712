"""`runner rekey`: encrypt tasks again with the first key."""

from functools import partial

from runner.cli.handlers import Modules, load_handlers
from runner.cli.operate import Change, Targets, change_targets
from runner.cli.operation_output import CHANGE_DOCUMENTS
from runner.cli.options import DEFAULT_CONNECTION, NO_OPTIONS, ChangeOptions, Connection, open_database, read_targets
from runner.handlers.keyring import Keyring
from runner.operations.rekey import rekey as apply_rekey
from runner.operations.rekey import rekey_objections

DOCUMENTS = CHANGE_DOCUMENTS


async def rekey(
    *targets: Targets,
    handlers: Modules = (),
    options: ChangeOptions = NO_OPTIONS,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Encrypt tasks again with the first key, after a rotation of codec_keys.

    Payloads, results, checkpoints, errors and log lines of waiting and finished
    tasks are decrypted and encrypted with the first key. Plain payloads of handlers
    with a codec are encrypted. Running tasks are skipped: run it again later. There
    is no undo. On PostgreSQL, run it as the owner of the tables.

      runner rekey handler:pay.card --dry-run

    Args:
        targets: Task ids, or a filter.
        handlers: A module with handlers whose codec is your own; may be repeated.
        options: Confirmation.
        connection: The database.
    """
    tasks, settings = read_targets(targets), connection.settings(handlers=handlers or None)
    load_handlers(settings)
    keyring = Keyring(settings)
    objections = partial(rekey_objections, keyring=keyring)
    change = Change("rekey", partial(apply_rekey, keyring=keyring), final=True, objections=objections)
    async with open_database(settings) as database:
        return await change_targets(database, change, tasks, options, settings)
