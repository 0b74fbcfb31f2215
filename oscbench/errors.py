"""The ways a command ends badly; the CLI prints each as one line and exits with its code."""


class OscbenchError(Exception):
    """Something failed that the user can act on: damaged file, full disk, lost worker (exit code 1)."""

    exit_code = 1


class UsageError(OscbenchError, ValueError):
    """The request itself is wrong: unknown name, bad value, missing input (exit code 2).

    The message names the value, the place it came from and the way out, in one line.
    """

    exit_code = 2


class BusyError(OscbenchError):
    """Another process holds what is needed; the message says who."""


class StoppedError(OscbenchError):
    """The user stopped it, by Ctrl-C or by answering no; the message says what is kept (exit code 130)."""

    exit_code = 130
