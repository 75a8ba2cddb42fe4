"""Names a home's module, class and model by its folder, and quotes names of the data."""

import importlib.machinery
import json
import keyword
import re
import sys
from pathlib import Path
from typing import Any

from daybreak.contract.errors import ParamsError


def module_name(folder: str) -> str:
    """Returns the name of the module for a folder: one that nothing else has that Python can import here.

    >>> module_name("card-fraud"), module_name("json"), module_name("2025")
    ('card_fraud', 'json_model', 'model_2025')
    """
    name = re.sub(r"\W+", "_", folder.lower(), flags=re.ASCII).strip("_") or "model"
    name = f"model_{name}" if name[0].isdigit() else name
    paths = [path for path in sys.path if Path(path or ".").resolve() != Path.cwd()]
    taken = importlib.machinery.PathFinder.find_spec(name, paths) or name in sys.stdlib_module_names
    return f"{name}_model" if taken or keyword.iskeyword(name) else name


def registered_name(folder: str) -> str:
    """Returns the name in MLflow of the model of a folder; ParamsError where no letter or digit is left.

    >>> registered_name("card fraud"), registered_name("2025")
    ('card-fraud', '2025')
    """
    name = re.sub(r"[^\w.-]+", "-", folder, flags=re.ASCII)
    if not re.search("[A-Za-z0-9]", name):  # all such folders would be one model
        raise ParamsError(
            f"the folder {folder!r} gives the model no name in MLflow; use letters of A to Z or digits in it"
        )
    return name


def class_name(name: str) -> str:
    """Returns the name of the class in a module.

    >>> class_name("card_fraud")
    'CardFraud'
    """
    return "".join(part.capitalize() for part in name.split("_"))


def literal(value: Any) -> str:
    """Returns a name of the data as a string of Python or YAML: what it holds ends no string, and is not run.

    YAML reads JSON, but not pairs of escapes for letters beyond U+FFFF, so these letters are written plainly.
    Unprintable characters are escaped.
    """
    text = json.dumps(value, ensure_ascii=False)
    return re.sub("[\x7f-\x9f\u2028\u2029\ufeff]", lambda found: f"\\u{ord(found[0]):04x}", text)
