# One image for Airflow, MLflow and serving: the command says which.
FROM python:3.11.14-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc git libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/venv && /opt/venv/bin/python -m pip install --no-cache-dir pip==26.3 uv==0.13.8
ENV PATH=/opt/venv/bin:$PATH UV_LINK_MODE=copy
ARG TORCH="torch==2.13.0"
RUN python -m pip install --no-cache-dir "$TORCH"
WORKDIR /src
COPY pyproject.toml constraints.txt README.md ./
COPY pipeline/__init__.py pipeline/
# The dependencies only: the code is the checkout that PIPELINE_HOME mounts, one commit per night.
RUN uv pip install --no-cache --python /opt/venv/bin/python '.[gcp,postgres]' -c constraints.txt \
    && uv pip uninstall --python /opt/venv/bin/python daybreak

FROM python:3.11.14-slim-bookworm
RUN apt-get update && apt-get install --yes --no-install-recommends git libgomp1 tini \
    && rm -rf /var/lib/apt/lists/*
ARG UID=1000
RUN useradd --create-home --uid "$UID" daybreak && install --directory --owner daybreak /airflow
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    PIPELINE_HOME=/daybreak \
    AIRFLOW_HOME=/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/daybreak/dags \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    MLFLOW_DISABLE_TELEMETRY=true \
    MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false \
    GX_ANALYTICS_ENABLED=false
USER daybreak
WORKDIR /daybreak
# On a rented machine nothing is mounted: what fetches a night's code from the bucket comes with the image.
COPY pipeline pipeline
ENTRYPOINT ["tini", "--"]
CMD ["python", "-m", "pipeline", "--help"]
