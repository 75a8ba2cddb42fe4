"""Writes dvc.yaml from the stages: what each reads and writes, by its signature and by `STAGES`.

    python -m daybreak.dvc_file

Of Daybreak's own code a cached stage depends on the rooms that it imports from, directly or not, or on one
digest of all where Daybreak is installed elsewhere; of a team's, on the digest of the workload's source
files.
"""

import typing
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from daybreak import hooks, stages
from daybreak.contract import records
from daybreak.contract.backend import Backend
from daybreak.contract.code_path import SOURCE, source_of
from daybreak.contract.data_source import Source
from daybreak.contract.record_parts import Record
from daybreak.contract.sections import Params, Section, Sections
from daybreak.contract.workload import Workload
from daybreak.runner import written_by
from daybreak.stages import STAGES
from daybreak.storage.source_code import imported_files

FILE = Path("dvc.yaml")
HEAD = """\
# Written by `python -m daybreak.dvc_file`; a test holds it against the stages.
# data/run/workload.txt is the digest of the workload's source files and of lock files, wherever they are;
# data/run/extensions.txt that of what Daybreak's table of extensions names.
# Frozen stages change the world, so DVC does not cache them: they run every time they are asked to,
# and `dvc commit` records what they brought.
"""
PLUGS = {Source: "source", Workload: "workload", Backend: "backend"}


def sections(name: str) -> list[str]:
    """Returns the sections of params.yaml that a stage reads, by its signature."""
    aliases = {key: field.alias or key for key, field in Params.model_fields.items()}
    of_type = {field.annotation: aliases[key] for key, field in Params.model_fields.items()}
    named: list[str] = []
    for kind in typing.get_type_hints(STAGES[name].function).values():
        if kind in PLUGS:
            named.append(PLUGS[kind])
        elif isinstance(kind, type) and issubclass(kind, Sections):
            named += [aliases[key] for key in kind.model_fields]
        elif isinstance(kind, type) and issubclass(kind, Section):
            named.append(of_type[kind])
    return sorted(set(named), key=list(aliases.values()).index)


def rooms(name: str) -> list[str]:
    """Returns the folders of Daybreak's code that a stage runs, and the table of extensions if it asks it."""
    modules = imported_files(STAGES[name].path.partition(":")[0], below="daybreak.")
    folders = {"/".join([SOURCE, *module.split(".")[:2]]) for module in modules if module.count(".") > 1}
    return sorted(folders | ({f"{SOURCE}/daybreak/hooks.py"} if hooks.__name__ in modules else set()))


def _written_by(name: str) -> type[Record]:
    kind = written_by(name)
    assert kind is not None
    return kind


def text(folder: Path) -> str:
    """Returns dvc.yaml of the home in `folder`."""
    declared: dict[str, Any] = {}
    has_code = source_of(folder) is not None
    for name, stage in STAGES.items():
        if not stage.dvc:
            continue
        hints = typing.get_type_hints(stage.function)
        hints.pop("return")
        read = [kind for kind in hints.values() if isinstance(kind, type) and issubclass(kind, Record)]
        deps = [
            *((rooms(name) if has_code else [stages.FRAME]) if stage.dvc == "cached" else ()),
            *(records.path_of(kind, records.RUN).as_posix() for kind in read),
            *stage.reads,
        ]
        declared[name] = {
            **({"frozen": True} if stage.dvc == "frozen" else {}),
            "cmd": f"daybreak {name}",
            **({"params": sections(name)} if sections(name) else {}),
            **({"deps": deps} if deps else {}),
            "outs": [
                *({path: {"persist": True}} if path in stage.persists else path for path in stage.writes),
                {records.path_of(_written_by(name), records.RUN).as_posix(): {"cache": False}},
            ],
        }
    stream = StringIO()
    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump({"stages": declared}, stream)
    return HEAD + stream.getvalue()


if __name__ == "__main__":
    FILE.write_text(text(Path()))
