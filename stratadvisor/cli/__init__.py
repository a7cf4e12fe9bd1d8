"""The commands, and the one place where errors become a sentence and an exit code."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import traceback
from typing import Any

INTERNAL_ERROR_EXIT = 70
INTERRUPTED_EXIT = 130
DISTRIBUTIONS = {"pynvml": "nvidia-ml-py", "yaml": "pyyaml", "vl_convert": "vl-convert-python"}
"""What to install where a module is called otherwise."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and end the process with a documented exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal's encoding lacks is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    _end_like_ctrl_c()
    gc.set_threshold(50_000, 20, 20)  # a command that ends soon makes little garbage; looking for it took a tenth of it
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def _end_like_ctrl_c() -> None:
    """Let SIGTERM and SIGHUP (a scheduler, a lost terminal) clean up as Ctrl-C does; nohup's choice is kept."""

    def interrupt(_number: int, _frame: object) -> None:
        for name in names:  # a second one while cleaning up changes nothing: SIGKILL is there for the impatient
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        raise KeyboardInterrupt

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    names = [name for name in names if signal.getsignal(getattr(signal, name)) == signal.SIG_DFL]
    for name in names:
        signal.signal(getattr(signal, name), interrupt)


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; nothing is raised."""
    from stratadvisor.cli.console import show_error
    from stratadvisor.errors import StratadvisorError

    try:
        from stratadvisor.cli.app import command

        result = command().main(args=arguments, prog_name="stratadvisor", standalone_mode=False)
        if result == INTERRUPTED_EXIT:  # so typer hands on a Ctrl-C
            raise KeyboardInterrupt
    except StratadvisorError as error:
        show_error(error.message, error.hint)
        return error.exit_code
    except KeyboardInterrupt:
        show_error("interrupted", "what was complete has been kept; no file is half written")
        return INTERRUPTED_EXIT
    except BrokenPipeError:
        # the reader (head, less) has gone: stay silent, as Unix tools do
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # a name too long, a disk that went away: the system says what, and of which file
        name = f"{error.filename}: " if error.filename else ""
        show_error(f"{name[-300:]}{error.strerror or error}", "")
        return 1
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "stratadvisor"):
            return _fault(error)
        show_error(
            f"this command needs the package {package}, which is not installed for {sys.executable}",
            f"install it there: {sys.executable} -m pip install {DISTRIBUTIONS.get(package, package)}",
        )
        return 1
    except Exception as error:  # the last line of defence: a person gets a sentence, not a traceback
        if hasattr(error, "format_message"):
            context = getattr(error, "ctx", None)
            if context is not None and type(error).__name__ == "NoArgsIsHelpError":
                print(context.get_help())  # noqa: T201
                return 0
            show_error(error.format_message(), *_usage_hints(context))
            return int(getattr(error, "exit_code", 2))
        if type(error).__name__ == "Abort":
            show_error("aborted", "")
            return 1
        return _fault(error)
    return result if isinstance(result, int) else 0


def _fault(error: Exception) -> int:
    from stratadvisor.cli.console import show_error

    if os.environ.get("STRATADVISOR_TRACEBACK"):
        traceback.print_exception(error)
    show_error(
        f"a fault of stratadvisor itself: {type(error).__name__}: {error}",
        "set STRATADVISOR_TRACEBACK=1, run it again and report what it prints",
    )
    return INTERNAL_ERROR_EXIT


def _usage_hints(context: Any) -> tuple[str, ...]:
    if context is None:
        return ()
    example = getattr(context.command, "epilog", None) or ""
    shown = f"{context.command_path} --help shows the options"
    return (example, shown) if example.startswith("Example") else (shown,)
