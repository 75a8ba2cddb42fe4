"""Do the tests bite? One place of a module that decides is changed at a time, and its fast tests must fail.

    operators    < becomes <= or >=, `and` becomes `or`, `not` is dropped, + becomes -, min becomes max
    numbers      one more, twice as much; True becomes False
    returns      None, or the opposite of a condition
    conditions   always true, always false
    statements   a call, an assignment or a raise is left out

A seeded sample of 60 mutants a module, each judged by the module's nearest fast tests alone, in a clone of
HEAD. A mutant that no test can tell from the original counts as a survivor too. Log lines are left alone. The
tests of a module are collected once, and each mutant is a fork of that process: to import other people's
packages takes longer than to test. Survivors are printed, so that the tests that are missing can be written.

QUICK=1 takes 10 mutants a module; words after the file's name are the only modules to take.
"""

import ast
import contextlib
import copy
import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from benchmarks import frame

NUM_MUTANTS = 10 if frame.QUICK else 60
ENDED = ("--timeout=20", "--timeout-method=thread")  # a test without an end, and its process with it
TESTS = {
    "pipeline/daybreak/gate/verdict.py": ["tests/gate/test_judge.py"],
    "pipeline/daybreak/gate/judge.py": ["tests/gate/test_judge.py"],
    "pipeline/daybreak/rollout/saga.py": ["tests/rollout/test_saga.py"],
    "pipeline/daybreak/planning/search.py": ["tests/planning/test_search.py"],
    "pipeline/daybreak/jobs/escalation.py": ["tests/jobs/test_escalation.py"],
    "pipeline/daybreak/jobs/remaining_work.py": ["tests/jobs/test_escalation.py"],
    "pipeline/daybreak/extensions/spot/policies.py": ["tests/extensions/spot/test_policies.py"],
    "pipeline/daybreak/training/checkpoint.py": ["tests/training/test_checkpoint.py"],
    "pipeline/daybreak/training/sample_audit.py": ["tests/training/test_sample_audit.py"],
    "pipeline/daybreak/prediction/costs.py": ["tests/prediction/test_costs.py"],
    "pipeline/daybreak/data/drift.py": ["tests/data/test_drift.py"],
}
TARGETS = {"killed": (">=", 0.9)}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # a pool of them does not survive a fork
HEAVY = ("hypothesis", "numpy", "pandas", "pydantic", "safetensors.torch", "scipy.spatial", "scipy.stats")

SWAPS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.Mult,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
}
EXTREMES = {"min": "max", "max": "min"}
NOT_RUN = ("annotation", "returns", "decorator_list")  # fields of types, and of what is seen by its effect
DROPPED = (ast.Assign, ast.AugAssign, ast.Raise)

Mutant = tuple[int, str, str]  # line, what is changed, and the source


def mutants(source: str) -> Iterator[Mutant]:
    """Yields every mutant of a module."""
    tree = ast.parse(source)
    for holder, at, node, in_function in _places(tree, in_function=False):
        for changed in _changed(node, in_function=in_function):
            before, after = (ast.unparse(one).partition("\n")[0] for one in (node, changed))
            holder[at] = changed
            text = ast.unparse(tree)
            holder[at] = node
            line = getattr(node, "lineno", None) or node.target.lineno  # a comprehension has none of its own
            yield line, f"{before}  ->  {after}", text


def _places(node: ast.AST, *, in_function: bool) -> Iterator[tuple[Any, Any, Any, bool]]:
    """Yields every node below a node, with its container (a list, or the parent's fields) and place."""
    in_function |= isinstance(node, ast.FunctionDef)
    for field, value in ast.iter_fields(node):
        if field in NOT_RUN:
            continue
        holder, keys = (value, range(len(value))) if isinstance(value, list) else (vars(node), [field])
        for at in keys:
            child = holder[at]
            if isinstance(child, ast.AST) and not _is_aside(child):
                yield holder, at, child, in_function
                yield from _places(child, in_function=in_function)


def _is_aside(node: ast.AST) -> bool:
    """Whether nothing is decided there: a line of a log, or what only mypy reads."""
    text = ast.unparse(node) if isinstance(node, ast.Expr | ast.If) else ""
    return text.startswith(("log.", "_step(", "if TYPE_CHECKING"))


def _changed(node: ast.AST, *, in_function: bool) -> Iterator[ast.AST]:
    """Yields what may stand in place of a node."""
    yield from _other_operators(node)
    yield from _other_values(node)
    yield from _other_conditions(node)
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if in_function and (called or isinstance(node, DROPPED)):
        yield ast.Pass()


def _other_operators(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=ops):
            for at, operator in enumerate(ops):
                for other in SWAPS.get(type(operator), ()):
                    yield _with(node, ops=[*ops[:at], other(), *ops[at + 1 :]])
        case ast.BoolOp() | ast.BinOp() | ast.AugAssign():
            yield from (_with(node, op=other()) for other in SWAPS.get(type(node.op), ()))
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.Call(func=ast.Name(id="min" | "max" as name)):
            yield _with(node, func=ast.Name(EXTREMES[name]))


def _other_values(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield from (ast.Constant(other) for other in {value + 1, value * 2} - {value})
        case ast.Return(value=ast.expr() as given) if ast.unparse(given) != "None":
            yield ast.Return(ast.Constant(None))
            if isinstance(given, ast.Compare | ast.BoolOp):
                yield ast.Return(ast.UnaryOp(ast.Not(), given))


def _other_conditions(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.If() | ast.IfExp():
            yield from (_with(node, test=ast.Constant(always)) for always in (True, False))
        case ast.While():
            yield _with(node, test=ast.Constant(False))
        case ast.comprehension(ifs=[_, *_]):
            yield from (_with(node, ifs=[ast.Constant(always)]) for always in (True, False))


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def judge(module: str) -> None:
    """Prints a line of JSON for each mutant of a module of the current folder, whether its tests fail."""
    import pytest
    from hypothesis import Phase, settings

    path, words = Path(module), ["-q", "--assert=plain", "-m", "not (slow or gpu or matrix)", *TESTS[module]]
    source = path.read_text()
    every = list(mutants(source))
    chosen = sorted(random.Random(module).sample(range(len(every)), min(NUM_MUTANTS, len(every))))
    for name in HEAVY:
        import_module(name)
    # A failure is not made simpler, and the same examples come to all.
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", deadline=None, derandomize=True, database=None, phases=phases)
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", *words])
    Path(cache_from_source(module)).unlink(missing_ok=True)
    sys.dont_write_bytecode = True  # Python takes source of the same second and size for unchanged
    if not _pass(words):
        raise SystemExit(f"the tests of {module} fail without a mutant; run pytest {' '.join(TESTS[module])}")
    for number in chosen:
        line, change, text = every[number]
        path.write_text(text)
        print(json.dumps({"line": line, "change": change, "killed": not _pass(words)}), flush=True)
    path.write_text(source)


def _pass(words: list[str]) -> bool:
    """Whether the tests pass in a fork that reads our own modules anew."""
    import pytest

    child = os.fork()
    if not child:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        for name in [name for name in sys.modules if name.partition(".")[0] in ("daybreak", "tests")]:
            del sys.modules[name]
        status = 1
        try:
            status = pytest.main(["-x", *ENDED, "--hypothesis-profile=mutants", *words])
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def main() -> None:
    shares: dict[str, float] = {}
    outcomes = []
    with frame.home() as folder:
        environment = {**frame.environment(folder), **ONE_THREAD}
        environment.pop("DAYBREAK_HOME")
        for module in sys.argv[1:] or TESTS:
            code = f"from benchmarks.bench_mutants import judge; judge({module!r})"
            done = subprocess.run(
                [sys.executable, "-c", code],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            judged = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            for one in judged:
                if not one["killed"]:
                    print(f"{module}:{one['line']} survives: {one['change']}", flush=True)
            shares[f"killed, {Path(module).stem}"] = sum(one["killed"] for one in judged) / len(judged)
            outcomes += judged
    killed = sum(one["killed"] for one in outcomes) / len(outcomes)
    frame.finish("mutants", {"killed": killed, "mutants": len(outcomes), **shares}, TARGETS)


if __name__ == "__main__":
    main()
