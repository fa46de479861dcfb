"""All of it in one process, embedded: to try the product out without an account, a server or a configuration."""

import fcntl
import json
import shlex
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from rich.console import Console
from rich.text import Text

from dispatch.aws.embedded import aws_pid, embedded_aws, end_aws_at_once
from dispatch.aws.sandbox import Sandbox
from dispatch.aws.session import Session
from dispatch.items import Item
from dispatch.run import Cancellation
from ledger import clock
from ledger.embedded import end_postgres_at_once, postgres_pid
from ledger.errors import BusyError, CancelledError, DispatchLedgerError, InputError, UnavailableError
from ledger.instants import Window
from ledger.processes import kill_descendants
from ledger.settings import Settings, env_name
from ops import samples, schedule, wiring
from ops.api import server
from ops.jobs import worker as workers

_BUCKET = "dispatch-ledger-up"
_FOLDER = "up"
_NAME_WIDTH = 10
_END_S = 30.0
_LOOK_S = 0.5
_ANY_KEY = "embedded"  # the emulator takes any credentials


@dataclass
class Scene:
    """What the parts share: how this world is configured, and what is there so far.

    Attributes:
        settings: the user's, pointed at what is embedded.
        left_alone: keys of the user's settings that name something real, which is not touched.
        window: the hour to look at, closed already.
        sampled: whether the seed records are wanted in a table that is empty.
        postgres, aws: the process ids of the two servers.
    """

    settings: Settings
    left_alone: list[str]
    window: Window
    console: Console
    sampled: bool
    cancellation: Cancellation = field(default_factory=Cancellation)
    database_url: str | None = None
    endpoint_url: str | None = None
    postgres: int | None = None
    aws: int | None = None
    region: str = ""
    samples: int = 0
    summary: schedule.Summary = field(default_factory=schedule.Summary)

    @property
    def home(self) -> Path:
        """Where everything is kept."""
        return self.settings.state_dir

    @property
    def document(self) -> dict[str, Any]:
        """The document of `up --json`; what had not been started is null."""
        return {
            "state_dir": str(self.home),
            "database_url": self.database_url,
            "endpoint_url": self.endpoint_url,
            "table": self.settings.source.table,
            "bucket": self.settings.objects.bucket,
            "window": self.window.name,
            "samples": self.samples,
            **self.summary.document,
        }

    def say(self, name: str, text: str) -> None:
        """Print one line: what, and where it is."""
        line = Text.assemble((f"{name:<{_NAME_WIDTH}}", "bold"), text)
        self.console.print(line, soft_wrap=True)

    def say_command(self, *words: str) -> None:
        """Print a line to be typed."""
        self.console.print(Text(f"  {' '.join(words)}", style="cyan"), soft_wrap=True)


Part: TypeAlias = Callable[[Scene], AbstractContextManager[None]]


@contextmanager
def scene_of(settings: Settings, console: Console, *, sampled: bool) -> Iterator[Scene]:
    """Yield a scene of which nothing is started, alone in its place.

    Raises:
        BusyError: when another one runs in the same place.
        InputError: when the place cannot be written to.
    """
    window = samples.last_closed_window(clock.utc_now())
    left_alone = _named_real(settings)
    home = settings.state_dir / _FOLDER if left_alone else settings.state_dir
    own = _embedded_settings(settings, home, window)
    with _only_one(home):
        yield Scene(own, left_alone, window, console, sampled)


def play(scene: Scene, cancellation: Cancellation) -> None:
    """Start every part in order, wait for a signal, and end the parts in reverse order.

    Raises:
        InputError: when the settings name what cannot be used together.
        UnavailableError: when a part does not start or end, or a server that the others need has ended by itself.
    """
    scene.cancellation = cancellation
    with ExitStack() as started, suppress(CancelledError):
        _start_and_wait(scene, started)
    scene.console.print(f"Ended. All of it is kept in {scene.home} for the next time.", soft_wrap=True)


def _start_and_wait(scene: Scene, started: ExitStack) -> None:
    """Start every part, and wait until a signal asks for the end, or a server that the parts need has ended.

    Raises:
        UnavailableError: when one has; nothing that runs here can go on with another one.
    """
    cancellation = scene.cancellation
    try:
        for part in PARTS:
            cancellation.check()
            started.enter_context(part(scene))
        while not clock.wait_s(_LOOK_S, cancellation.asked):
            if gone := _gone(scene):
                raise UnavailableError(gone)
    except DispatchLedgerError as error:
        if cancellation.is_asked or not (gone := _gone(scene)):
            raise
        cancellation.ask(signal.SIGTERM)  # what is at work stops at its next safe point
        raise UnavailableError(gone) from error


def _gone(scene: Scene) -> str:
    """Say which server has ended, and what to do; nothing while each is the one that was started.

    Another one in its place, made by whoever needed it first, does not have what this one had in memory.
    """
    if scene.postgres != (scene.postgres and postgres_pid(scene.home)):
        return "the embedded PostgreSQL has ended; run `dispatch-ledger up` again, it recovers what was begun"
    if scene.aws != (scene.aws and aws_pid(scene.home)):
        return (
            "the embedded AWS has ended; run `dispatch-ledger up` again, it begins with the tables and queues of the "
            "last orderly end"
        )
    return ""


def end_at_once(scene: Scene) -> None:
    """End every process that this one runs, within seconds and without a word; safe inside a signal handler."""
    with suppress(Exception):
        end_postgres_at_once(scene.home)
    with suppress(Exception):
        end_aws_at_once(scene.home)
    kill_descendants()


# --- the place ----------------------------------------------------------------------------------------------------


def _named_real(settings: Settings) -> list[str]:
    """Return the keys that name something real; an embedded ledger of a real bucket's windows is real as well."""
    named = [] if settings.ledger.database_url in {None, wiring.EMBEDDED} else ["ledger.database_url"]
    if settings.aws.endpoint_url is None:
        return named + (["objects.bucket"] if settings.objects.bucket else [])
    return named + ([] if settings.aws.endpoint_url == wiring.EMBEDDED else ["aws.endpoint_url"])


def _embedded_settings(settings: Settings, home: Path, window: Window) -> Settings:
    """Return the user's settings, pointed at what is embedded; with paging on, unless they say otherwise."""
    chosen = settings.model_dump()
    chosen["ledger"]["database_url"] = chosen["aws"]["endpoint_url"] = wiring.EMBEDDED
    chosen["objects"]["bucket"] = settings.objects.bucket or _BUCKET
    if "pagination_enabled" not in settings.dispatch.model_fields_set:
        chosen["dispatch"]["pagination_enabled"] = True
    for route in chosen["routes"].values():
        route["queue"] = route["queue"].rstrip("/").rsplit("/", 1)[-1]
    if settings.schedule.not_before is not None:
        chosen["schedule"]["not_before"] = min(settings.schedule.not_before, window.start)
    return Settings.model_validate(chosen, context={"state_dir": home})


@contextmanager
def _only_one(home: Path) -> Iterator[None]:
    """Be the only one in this place; the system drops the lock of one that was killed."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / "up.lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{home} cannot be written to: {error.strerror}; go to another folder") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"dispatch-ledger up runs in {home} already: end it with Ctrl-C where it runs, or look at it from here "
                f"after: . {shlex.quote(str(_terminal_file(home)))}"
            ) from None
        yield


# --- the parts, each with the lines that say where it is -----------------------------------------------------------


@contextmanager
def _ledger(scene: Scene) -> Iterator[None]:
    if scene.left_alone:
        scene.say("untouched", f"what {' and '.join(scene.left_alone)} name: up has a ledger and an AWS of its own")
    scene.say("place", f"{scene.home}, kept for the next time")
    with wiring.database(scene.settings) as url, wiring.ledger(scene.settings):  # the second brings the schema up
        scene.database_url, scene.postgres = url, postgres_pid(scene.home)
        scene.say("ledger", url)
        yield


@contextmanager
def _aws(scene: Scene) -> Iterator[None]:
    with embedded_aws(scene.home) as endpoint:
        scene.endpoint_url, scene.aws = endpoint, aws_pid(scene.home)
        session = Session(endpoint, scene.settings.aws.region, embedded=True)
        scene.region = session.region
        bucket = scene.settings.objects.bucket or _BUCKET
        sandbox = Sandbox(session, scene.settings, bucket, samples.KEY_NAME)
        sandbox.create()
        scene.say("AWS", f"{endpoint}  (DynamoDB, S3 and SQS, emulated; region {session.region}, any credentials)")
        scene.say("table", f"{scene.settings.source.table}, {_filled(scene, sandbox)}")
        scene.say("bucket", bucket)
        scene.say("queues", ", ".join(sandbox.queue_names()))
        yield


def _filled(scene: Scene, sandbox: Sandbox) -> str:
    """Put the seed records into an empty table, and say what is in it."""
    if not sandbox.is_empty():
        return "as the last time left it"
    if not scene.sampled:
        return "empty"
    if not samples.fit(scene.settings):
        return "empty: the seed records do not have the attributes and routes of this configuration"
    items = list(samples.seed_items_for(scene.window))
    sandbox.load(items)
    scene.samples = len(items)
    return f"{len(items)} seed records, booked around {scene.window}"


@contextmanager
def _second_terminal(scene: Scene) -> Iterator[None]:
    """Write the file that points another terminal here, and say how to use it."""
    path = _terminal_file(scene.home)
    path.write_text(_terminal_text(scene), encoding="utf-8")
    path.chmod(0o600)
    window = scene.window.name
    scene.console.print("\nIn a second terminal, while this runs:")
    scene.say_command(".", shlex.quote(str(path)))
    scene.say_command("dispatch-ledger report windows")
    scene.say_command("dispatch-ledger show window", window)
    scene.console.print("A record of your own there, and the run that sends it:")
    scene.say_command(_put_command(scene))
    scene.say_command("dispatch-ledger dispatch --window", window)
    scene.console.print()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _terminal_file(home: Path) -> Path:
    return home / "up.env"


def _terminal_text(scene: Scene) -> str:
    settings = scene.settings
    routes = {name: route.model_dump() for name, route in settings.routes.items()}
    variables = {
        env_name("ledger.database_url"): scene.database_url,
        env_name("aws.endpoint_url"): scene.endpoint_url,
        env_name("aws.region"): scene.region,
        env_name("objects.bucket"): settings.objects.bucket,
        env_name("routes"): json.dumps(routes),
        env_name("dispatch.pagination_enabled"): json.dumps(settings.dispatch.pagination_enabled),
        "AWS_ENDPOINT_URL": scene.endpoint_url,
        "AWS_REGION": scene.region,
        "AWS_DEFAULT_REGION": scene.region,
        "AWS_ACCESS_KEY_ID": _ANY_KEY,
        "AWS_SECRET_ACCESS_KEY": _ANY_KEY,
    }
    if settings.schedule.not_before is not None:
        variables[env_name("schedule.not_before")] = settings.schedule.not_before.isoformat()
    lines = [f"export {name}={shlex.quote(value or '')}" for name, value in variables.items()]
    return "\n".join(
        ["# Points a shell at what `dispatch-ledger up` runs.", "unset AWS_PROFILE AWS_SESSION_TOKEN", *lines, ""]
    )


def _put_command(scene: Scene) -> str:
    """Return a line that puts one record in, with the tool that is there."""
    table, item = scene.settings.source.table, json.dumps(_record_of_your_own(scene))
    if shutil.which("aws"):
        return f"aws dynamodb put-item --table-name {shlex.quote(table)} --item {shlex.quote(item)}"
    code = f'import boto3; boto3.client("dynamodb").put_item(TableName={json.dumps(table)}, Item={item})'
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}"


def _record_of_your_own(scene: Scene) -> Item:
    source, time = scene.settings.source, f"{scene.window.name[:14]}30:00Z"
    route = next(iter(scene.settings.routes))
    texts = {
        samples.KEY_NAME: "mine",
        source.date_attribute: time[:10],
        source.time_attribute: time,
        source.status_attribute: source.due_status,
        source.order_by: time,
        source.route_by: route,
    }
    return {name: {"S": "1"} for name in source.group_by} | {name: {"S": text} for name, text in texts.items()}


@contextmanager
def _jobs(scene: Scene) -> Iterator[None]:
    lines = scene.settings.schedule
    scene.say("dispatch", f"{lines.dispatch}  (cron, UTC), and now")
    scene.say("reconcile", f"{lines.reconcile}, and now; deep: {lines.deep_reconcile}")
    scene.console.print("Ctrl-C ends all of it.\n")
    with schedule.started(scene.settings, scene.cancellation, scene.console, scene.summary):
        yield


@contextmanager
def _api(scene: Scene) -> Iterator[None]:
    def told(url: str) -> None:
        scene.say("API", f"{url}/api/v1/openapi.json")

    with _beside(scene, "API", lambda asked: server.run(scene.settings, asked, "127.0.0.1", 0, told)):
        yield


@contextmanager
def _worker(scene: Scene) -> Iterator[None]:
    settings, quiet = scene.settings, Console(quiet=True)
    lanes = workers.lanes_of(settings, [])
    with _beside(scene, "worker", lambda asked: workers.run(settings, asked, quiet, lanes, 1, Counter())):
        scene.say("worker", f"for the jobs of {settings.jobs.queue} and {settings.jobs.slow_queue}")
        yield


@contextmanager
def _beside(scene: Scene, name: str, work: Callable[[Cancellation], object]) -> Iterator[None]:
    """Let a service run in a thread for the length of the block; one that fails is told of, and ends nothing else."""
    asked = Cancellation()

    def run() -> None:
        try:
            work(asked)
        except DispatchLedgerError as error:
            scene.say(name, f"failed: {error}")

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        asked.ask(signal.SIGTERM)
        thread.join(_END_S)


PARTS: Final[Sequence[Part]] = (_ledger, _aws, _second_terminal, _api, _worker, _jobs)
