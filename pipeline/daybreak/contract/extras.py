"""Names the extra, as in `daybreak[serve]`, that brings a module which is not installed.

The base installation has what a night on one machine needs. Code that needs a package of an extra imports it
when it is called; the error that this raises where it is missing becomes the sentence made here.
"""

EXTRAS = {
    "airflow": ("airflow", "supervisor"),
    "estimators": ("lightgbm", "skops", "xgboost"),
    "gcp": ("dvc_gs", "gcsfs", "google", "grpc"),
    "kubernetes": ("kubernetes",),
    "lightning": ("lightning",),
    "lineage": ("openlineage",),
    "peft": ("peft",),
    "postgres": ("asyncpg", "psycopg2"),
    "s3": ("aiobotocore", "boto3", "botocore", "dvc_s3", "s3fs"),
    "search": ("optuna",),
    "serve": ("fastapi", "httptools", "prometheus_client", "uvicorn"),
    "transformers": ("transformers",),
    "vega": ("vl_convert",),
}  # the modules of each


def missing(error: BaseException | None) -> str:
    """Returns a sentence if an error comes from a missing module of an extra; an empty text if it does not.

    >>> missing(ModuleNotFoundError("No module named 'httptools'", name="httptools"))
    "httptools is not installed; pip install 'daybreak[serve]'"
    """
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            module = (error.name or "").partition(".")[0]
            for extra, modules in EXTRAS.items():
                if module in modules:
                    return f"{module} is not installed; pip install 'daybreak[{extra}]'"
        error = error.__cause__
    return ""
