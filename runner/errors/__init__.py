"""Everything that `runner` raises, as one tree.

    RunnerError
    ├── InvalidInput            what somebody typed or passed
    │   ├── InvalidDuration  InvalidMoment  InvalidRetryPlan  InvalidFilter  InvalidSort
    │   ├── InvalidPayload  PayloadTooLarge  InvalidTask
    │   └── InvalidEdit  NoScript
    ├── ConfigurationError      how the program was set up
    │   ├── InvalidSettings  InvalidUrl  PasswordInArguments  UnknownProfile
    │   ├── DuplicateHandler  InvalidHandler  UnknownHandler  HandlersNotFound
    │   └── WouldBlock  UnknownConnection  CommitsByItself  WrongForm
    ├── StoreError              what the database said
    │   ├── DatabaseAway  DatabaseRefused (ContentRefused)
    │   ├── SchemaTooOld  SchemaTooNew  SchemaMissing  SchemaUnmarked
    │   ├── TaskNotFound  TaskMovedOn  DuplicateTask  FencedOut
    │   ├── AlreadyDone  NoTransaction  TransactionOpen  TransactionEnded
    │   └── UnsafeFile
    ├── NoResult                why a task that was waited for has none
    │   ├── TaskFailed  TaskCancelled  TimedOut
    │   └── ResultNotKept  InvalidResult
    ├── CountChanged            more or fewer tasks match than were confirmed
    └── BenchFailed             nothing could be measured

A class's docstring is its message: the fields in braces are its keyword arguments. It says what happened, which value,
and what to do next.
"""

from runner.errors.configuration import (
    CommitsByItself,
    ConfigurationError,
    DuplicateHandler,
    HandlersNotFound,
    InvalidHandler,
    InvalidSettings,
    InvalidUrl,
    PasswordInArguments,
    UnknownConnection,
    UnknownHandler,
    UnknownProfile,
    WouldBlock,
    WrongForm,
)
from runner.errors.input import (
    InvalidDuration,
    InvalidEdit,
    InvalidFilter,
    InvalidInput,
    InvalidMoment,
    InvalidPayload,
    InvalidRetryPlan,
    InvalidSort,
    InvalidTask,
    NoScript,
    PayloadTooLarge,
)
from runner.errors.result import InvalidResult, NoResult, ResultNotKept, TaskCancelled, TaskFailed, TimedOut
from runner.errors.root import BenchFailed, CountChanged, RunnerError
from runner.errors.store import (
    AlreadyDone,
    ContentRefused,
    DatabaseAway,
    DatabaseRefused,
    DuplicateTask,
    FencedOut,
    NoTransaction,
    SchemaMissing,
    SchemaTooNew,
    SchemaTooOld,
    SchemaUnmarked,
    StoreError,
    TaskMovedOn,
    TaskNotFound,
    TransactionEnded,
    TransactionOpen,
    UnsafeFile,
)

__all__ = [
    "AlreadyDone",
    "BenchFailed",
    "CommitsByItself",
    "ConfigurationError",
    "ContentRefused",
    "CountChanged",
    "DatabaseAway",
    "DatabaseRefused",
    "DuplicateHandler",
    "DuplicateTask",
    "FencedOut",
    "HandlersNotFound",
    "InvalidDuration",
    "InvalidEdit",
    "InvalidFilter",
    "InvalidHandler",
    "InvalidInput",
    "InvalidMoment",
    "InvalidPayload",
    "InvalidResult",
    "InvalidRetryPlan",
    "InvalidSettings",
    "InvalidSort",
    "InvalidTask",
    "InvalidUrl",
    "NoResult",
    "NoScript",
    "NoTransaction",
    "PasswordInArguments",
    "PayloadTooLarge",
    "ResultNotKept",
    "RunnerError",
    "SchemaMissing",
    "SchemaTooNew",
    "SchemaTooOld",
    "SchemaUnmarked",
    "StoreError",
    "TaskCancelled",
    "TaskFailed",
    "TaskMovedOn",
    "TaskNotFound",
    "TimedOut",
    "TransactionEnded",
    "TransactionOpen",
    "UnknownConnection",
    "UnknownHandler",
    "UnknownProfile",
    "UnsafeFile",
    "WouldBlock",
    "WrongForm",
]
