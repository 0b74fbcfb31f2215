"""Options that several verbs share, and how help pages end and results are printed."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from oscbench.errors import StoppedError, UsageError

if TYPE_CHECKING:
    from oscbench.distributed.cluster import Dashboard
    from oscbench.stages.runner import Runner, Session
    from oscbench.stages.scores import Scores
    from oscbench.stages.search import Tune
    from oscbench.stages.stage import Step
    from oscbench.stages.training import TrainingOptions

S = TypeVar("S", "Scores", "Tune")


def _local_folder(runs: Path) -> Path:
    from oscbench.store import check_local

    return check_local(runs)


ProtocolOption = Annotated[str, typer.Option("--protocol", "-p", help="1, 2, 3, or a protocol file of one's own.")]
DataOption = Annotated[str, typer.Option("--data", help="Image folder, or 'demo' for the embedded data.")]
RunsOption = Annotated[Path, typer.Option("--runs", help="Folder that receives all results.", callback=_local_folder)]
NameOption = Annotated[str | None, typer.Option("--name", help="Name of the data below the runs folder.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of everything random in this stage.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print every stage with what there is of it and the time it takes, and stop.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Answer the questions with yes.")]
AddressOption = Annotated[
    str | None, typer.Option("--address", help="An existing Ray cluster; default: start Ray here.")
]
LocalOption = Annotated[bool, typer.Option("--local", help="Run everything in this process, without Ray.")]
NumWorkersOption = Annotated[
    int,
    typer.Option(
        "--num-workers", min=1, help="Workers of a training that is not there yet, and of a trial that trains."
    ),
]
CpusPerWorkerOption = Annotated[
    int | None, typer.Option("--cpus-per-worker", min=1, help="CPUs of each worker; default: an equal share.")
]
GpusPerWorkerOption = Annotated[
    float | None, typer.Option("--gpus-per-worker", min=0, help="GPUs of each worker; default: 1 where there are.")
]
LoaderOption = Annotated[
    Literal["auto", "ffcv", "pil"], typer.Option("--loader", help="Image loader; auto: FFCV where it works.")
]


def training_options(
    num_workers: int, cpus_per_worker: int | None, gpus_per_worker: float | None, loader: Literal["auto", "ffcv", "pil"]
) -> TrainingOptions:
    """The four options that every verb hands on to trainings and extractions."""
    from oscbench.resources import WorkerAsk
    from oscbench.stages.training import TrainingOptions

    ask = WorkerAsk(cpus=cpus_per_worker, gpus=gpus_per_worker)
    return TrainingOptions(workers=num_workers, ask=ask, loader=loader)


def open_session(address: str | None, local: bool, tell: Callable[[Dashboard], None] | None = None) -> Session:
    """Who executes the command's stages; nothing is started before a stage needs it.

    Args:
        address: A Ray cluster to join.
        local: This process instead of Ray.
        tell: Told where the cluster can be watched.
    """
    from oscbench.stages.runner import Session

    if not local:

        def open_runner() -> contextlib.AbstractContextManager[Runner]:
            from oscbench.distributed.runner import open_ray

            return open_ray(address, tell=tell)

        return Session(open_runner, remote=address is not None)
    if address is not None:
        raise UsageError(f"--local runs without Ray, --address {address} names a Ray cluster; give one of them")
    return Session()


def refuse_with_several(alg: str, **options: Any) -> None:
    """Refuses options that belong to one algorithm, by the names of those that were given."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if given:
        raise UsageError(f"{', '.join(given)} goes with one algorithm, and --alg {alg} means several; leave it out")


class Asked:
    """The algorithms that ``--alg`` asks for: one, a list, or a group such as ``posthoc``.

    A member of a group that cannot be used is told in one line and left out; one asked for by its own name is refused.

    Attributes:
        text: As the user wrote it.
        by_name: Each algorithm, and whether it was asked for by its own name.
        left_out: Those that could not be used, each with the reason.
    """

    def __init__(self, names: Sequence[str]) -> None:
        from oscbench.postprocessors.base import expand_algorithms

        self.text = ",".join(names)
        self.by_name = expand_algorithms(names)
        self.left_out: list[dict[str, Any]] = []

    @property
    def has_group(self) -> bool:
        """Whether a group is among them."""
        return not all(self.by_name.values())

    @property
    def several(self) -> bool:
        """Whether the answer is about several, even where only one of them can be used."""
        return len(self.by_name) > 1 or self.has_group

    @contextlib.contextmanager
    def trying(self, algorithm: str) -> Iterator[None]:
        """Leaves a member of a group out that is refused inside."""
        try:
            yield
        except StoppedError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a method raises belongs to it, not to its group
            self._leave_out(algorithm, error)

    def _leave_out(self, algorithm: str, error: Exception, **where: Any) -> None:
        if self.by_name[algorithm]:
            raise error
        text = str(error) if hasattr(error, "exit_code") else f"{type(error).__name__}: {error}"
        reason = " ".join(text.split())
        if {"algorithm": algorithm, **where, "reason": reason} in self.left_out:  # on other features too
            return
        self.left_out.append({"algorithm": algorithm, **where, "reason": reason})
        on = ", ".join(f"{name} {value}" for name, value in where.items() if value != "")
        typer.echo(f"{algorithm} is left out{f' ({on})' if on else ''}: {reason}", err=True)

    def require_some(self, left: Sequence[Any]) -> None:
        """Refuses a group of which nothing is left."""
        if not left:
            reason = self.left_out[0]["reason"] if self.left_out else "there is none"
            raise UsageError(f"no algorithm of --alg {self.text} can be used here; the first: {reason}")

    def ensure(self, stages: Sequence[S], session: Session, *, yes: bool) -> list[S]:
        """Makes the stages, each of an algorithm asked for, and returns those that could be made."""
        from oscbench.stages.stage import ensure

        forgiven = {stage.path for stage in stages if not self.by_name[stage.config.algorithm]}
        with contextlib.redirect_stdout(sys.stderr):  # Ray prints warnings of its own; stdout is for the result
            failed = ensure(stages, session, yes=yes, forgiven=forgiven)
        for stage in stages:
            if stage.path in failed:
                origin = stage.features.origin
                where = {"training": origin.training, "seed": origin.seed or 0}
                self._leave_out(stage.config.algorithm, failed[stage.path], **where)
        return [stage for stage in stages if stage.path not in failed]


def print_plan(steps: Sequence[Step], as_json: bool) -> None:
    """The graph of stages with what there is of each, inputs first."""
    from oscbench.progress import duration

    if as_json:
        print_json(
            [
                {
                    "stage": step.stage.name,
                    "state": step.state,
                    "seconds": step.seconds,
                    "folder": str(step.stage.folder),
                    "fingerprint": step.stage.fingerprint,
                    "inputs": {role: stage.fingerprint for role, stage in step.stage.inputs.items()},
                    "what": step.stage.describe(),
                }
                for step in steps
            ]
        )
        return
    rows = [
        {
            "stage": step.stage.name,
            "state": step.state,
            "about": "" if step.seconds is None else duration(step.seconds),
            "folder": str(step.stage.folder),
            "what": step.stage.describe(),
        }
        for step in steps
    ]
    print_rows(rows)


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Plain columns, wide enough for their content, that cut and awk can read."""
    widths = {name: max(len(name), *(len(str(row[name])) for row in rows)) for name in rows[0]}
    for row in ({name: name for name in widths}, *rows):
        print("  ".join(f"{row[name]!s:<{width}}" for name, width in widths.items()).rstrip())


def examples(*commands: str) -> str:
    """The epilog of a verb's help page: commands that run as they stand."""
    return "Examples:\n\n" + "\n\n".join(f"  {command}" for command in commands)


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(document, indent=1, ensure_ascii=False, default=str))
