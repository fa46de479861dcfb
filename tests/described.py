"""A client of the API whose types are generated from the server's own description, and which believes nothing else."""

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx2
from pydantic import BaseModel

BASE = "/api/v1"
JSON, PROBLEM, STREAM = "application/json", "application/problem+json", "text/event-stream"
# No option is about the API: pydantic's models instead of dataclasses, and nothing that differs from run to run.
_OPTIONS = (
    "--input-file-type", "openapi",
    "--output-model-type", "pydantic_v2.BaseModel",
    "--target-python-version", "3.11",
    "--no-formatters",
    "--disable-timestamp",
    "--disable-warnings",
)  # fmt: skip


def generate(document: Any, folder: Path) -> Any:
    """Generate the types of a description, and load them as a module."""
    source, target = folder / "openapi.json", folder / "generated_types.py"
    source.write_text(json.dumps(document))
    command = [sys.executable, "-m", "datamodel_code_generator", "--input", str(source), "--output", str(target)]
    done = subprocess.run([*command, *_OPTIONS], capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    spec = importlib.util.spec_from_file_location(target.stem, target)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[target.stem] = module
    spec.loader.exec_module(module)
    return module


class Client:
    """Asks as a client would that knows the description and nothing more.

    Every answer is read as the type that the description names for it, and must have nothing that the type has not.

    Attributes:
        types: the generated types.
        seen: how often each described answer was seen, by method, path and status.
    """

    def __init__(self, url: str, folder: Path, token: str) -> None:
        self.http = httpx2.Client(base_url=url, timeout=30, headers={"Authorization": f"Bearer {token}"})
        self.document: Any = self.http.get(f"{BASE}/openapi.json").json()
        self.types = generate(self.document, folder)
        self.seen: Counter[tuple[str, str, int]] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def ask(
        self,
        method: str,
        path: str,
        body: BaseModel | None = None,
        *,
        params: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        **places: object,
    ) -> Any:
        """Ask for one path of the description, whose places in braces are given by name; gives what is answered."""
        content = None if body is None else body.model_dump_json(by_alias=True, exclude_unset=True)
        typed = {} if content is None else {"Content-Type": JSON}
        place = path.format(**places)
        answer = self.http.request(method, place, content=content, params=params, headers=typed | (headers or {}))
        return self.read(method, path, answer.status_code, answer.headers["content-type"], answer.json())

    def read(self, method: str, path: str, status: int, media_type: str, body: Any) -> Any:
        """Read an answer as the type that the description names for it."""
        described = self.document["paths"][path][method.lower()]["responses"]
        assert str(status) in described, (method, path, status, body)
        schema = described[str(status)]["content"][media_type]["schema"]
        self.seen[method, path, status] += 1
        return self.read_as(schema["$ref"].rpartition("/")[2], body)

    def read_as(self, name: str, body: Any) -> Any:
        """Read a document as a type."""
        found = getattr(self.types, name).model_validate(body)
        kept = found.model_dump(mode="json", by_alias=True, exclude_unset=True)
        assert _shape(kept) == _shape(body), f"the description of {name} leaves something out"
        return found

    def follow(self, path: str, **places: object) -> Iterator[tuple[str, Any]]:
        """Follow a stream of events to its end: the id and the data of each."""
        with self.http.stream("GET", path.format(**places)) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"].partition(";")[0] == STREAM
            self.seen["GET", path, 200] += 1
            name = ""
            for line in answer.iter_lines():
                field, _, value = line.partition(": ")
                if field == "id":
                    name = value
                if field == "data":
                    yield name, json.loads(value)


def _shape(value: Any) -> Any:
    """Give the names of a document's members, at every depth."""
    if isinstance(value, dict):
        return {name: _shape(one) for name, one in value.items()}
    return [_shape(one) for one in value] if isinstance(value, list) else None
