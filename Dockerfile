# The Triton container with this project installed for its Python. Built by `docker compose build`.
# Weights are not in the image: they are mounted at /checkpoint.
ARG BASE=nvcr.io/nvidia/tritonserver:25.06-py3
FROM ${BASE}

# The base image's own Python is the one that its Python backend embeds.
ENV PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1

WORKDIR /opt/minimax-h3
COPY pyproject.toml README.md LICENSE ./
COPY python_backends python_backends
COPY client client
COPY build_engines build_engines
RUN pip install .
COPY model_repository model_repository

RUN useradd --create-home --uid 10001 h3 && install --directory --owner=h3 /var/lib/minimax-h3
USER h3

EXPOSE 8000 8001 8002
# The health route stays 200 when a model's process has died: every model is asked.
HEALTHCHECK --interval=30s --timeout=60s --retries=3 --start-period=15m CMD ["h3", "health"]
CMD ["h3", "serve", "--tritonserver=/opt/tritonserver/bin/tritonserver", \
     "--model-repository=/opt/minimax-h3/model_repository", "--run-dir=/var/lib/minimax-h3", \
     "--checkpoint=/checkpoint", "--host=0.0.0.0", "--log-format=json"]
