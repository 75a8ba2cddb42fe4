# Three images, each with no more than it needs, all of one set of versions (constraints.txt), whose files must have
# the hashes that PyPI had for them then (hashes.txt); torch for another device is of another index, and has none:
#   docker build --target trainer .   jobs on rented machines: torch, and what reads a bucket
#   docker build --target serving .   models to users: MLflow, FastAPI
#   docker build .                    nights: Airflow, MLflow, DVC, the clients of the cloud
# --build-arg EXTRAS=gcp,kubernetes,kubernetes-executor,lineage,login,postgres adds what deploy/kubernetes-executor needs.
# --build-arg DEVICE=cpu takes torch without CUDA, some gigabytes less; DEVICE=cu126 the one for CUDA 12.6, which
# runs on drivers from 525 on, where that of PyPI, for CUDA 13.0, needs 580; DEVICE=tpu, for the trainer, takes
# torch_xla and the torch that it was built for.
# The digest is that of the index of all platforms: docker buildx imagetools inspect python:3.11.14-slim-bookworm
ARG PYTHON=3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d

FROM python:${PYTHON} AS build
# Not pinned: Debian's archive keeps only the newest build of a package, so a pin breaks the image in weeks.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc git libc6-dev \
    && rm -rf /var/lib/apt/lists/*
# What is built here is built by the setuptools of hashes.txt: an isolated build would fetch another without a hash.
ENV PATH=/opt/venv/bin:$PATH UV_LINK_MODE=copy UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1 UV_PYTHON=/opt/venv/bin/python \
    UV_NO_BUILD_ISOLATION=1
WORKDIR /src
COPY pyproject.toml constraints.txt hashes.txt README.md ./
RUN python -m venv /opt/venv && sed -nE '/^(pip|setuptools|uv)==/,/[^\\]$/p' hashes.txt > /tmp/tools.txt \
    && /opt/venv/bin/python -m pip install --no-cache-dir --require-hashes --no-deps -r /tmp/tools.txt
ARG TORCH="torch==2.13.0" XLA="2.9.0" DEVICE=cuda
RUN sed '/^torch==/,/[^\\]$/d' hashes.txt > without_torch.txt; case "$DEVICE" in \
      cuda) uv pip install "$TORCH" -c hashes.txt ;; \
      cpu|cu[0-9]*) uv pip install "$TORCH" --torch-backend "$DEVICE" -c without_torch.txt ;; \
      tpu) uv pip install "torch==$XLA+cpu" "torch_xla[tpu]==$XLA" \
             --extra-index-url https://download.pytorch.org/whl/cpu --index-strategy unsafe-best-match \
             -c without_torch.txt \
           && sed -i "s/^torch==.*/torch==$XLA+cpu/" constraints.txt \
           && mv without_torch.txt hashes.txt ;; \
      *) echo "DEVICE is $DEVICE; choose cpu, cuda, cu126 or tpu" >&2; exit 1 ;; \
    esac

FROM build AS build-trainer
RUN uv pip install --group trainer -c constraints.txt -c hashes.txt

FROM build AS build-serving
RUN uv pip install --group serving -c constraints.txt -c hashes.txt

FROM build AS build-airflow
COPY setup.py ./
COPY pipeline/daybreak/__init__.py pipeline/daybreak/
COPY dags dags
# The dependencies only: the code is the checkout that DAYBREAK_HOME mounts, one commit per night.
ARG EXTRAS=gcp,kubernetes,lineage,login,postgres
RUN uv pip install ".[airflow,serve,$EXTRAS]" -c constraints.txt -c hashes.txt && uv pip uninstall daybreak

FROM python:${PYTHON} AS run
# git: the ledger. g++: torch.compile writes C++ and calls it. Not pinned, as above.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ git libgomp1 tini \
    && rm -rf /var/lib/apt/lists/*
ARG UID=1000
RUN useradd --create-home --uid "$UID" daybreak \
    && install --directory --owner daybreak /airflow /daybreak /login
ENV PATH=/opt/venv/bin:$PATH DAYBREAK_HOME=/daybreak PYTHONPATH=/daybreak/pipeline PYTHONSAFEPATH=1
USER $UID
WORKDIR /daybreak
# On a rented machine nothing is mounted: what fetches a night's code from the bucket comes with the image.
COPY pipeline pipeline
ENTRYPOINT ["tini", "--"]
CMD ["python", "-m", "daybreak", "--help"]

FROM run AS trainer
# GKE, and Vertex AI on it, mount the NVIDIA driver here and nowhere else; without it torch trains on the CPU.
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64
COPY --from=build-trainer /opt/venv /opt/venv

FROM run AS serving
ENV MLFLOW_DISABLE_TELEMETRY=true
COPY --from=build-serving /opt/venv /opt/venv

FROM run AS airflow
ENV AIRFLOW_HOME=/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/daybreak/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=/daybreak/dags/plugins \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    MLFLOW_DISABLE_TELEMETRY=true \
    MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false \
    GX_ANALYTICS_ENABLED=false
COPY --from=build-airflow /opt/venv /opt/venv
