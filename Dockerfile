# One image for all processes: web, workers and beat differ only in their command.
# The image runs as an unprivileged user with a read-only root file system; processes write only to /data and /tmp.
# docs/how-to/releases.md shows how to build it for other platforms and on another base.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# Compilers for a platform on which some packages have no wheel, for example riscv64.
ARG BUILD_PACKAGES=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN if [ -n "$BUILD_PACKAGES" ]; then \
      apt-get update && apt-get install --yes --no-install-recommends $BUILD_PACKAGES; \
    fi
RUN python -m venv /opt/hetsched
ENV PATH=/opt/hetsched/bin:$PATH
WORKDIR /app
# A separate layer for packages, because the locks change less often than the sources.
COPY requirements/ requirements/
RUN pip install --require-hashes -r requirements/runtime.lock \
 && pip install --require-hashes --target /opt/build -r requirements/build.lock
COPY . .
# An editable install refers to /app, which has the same path in the final image.
RUN PYTHONPATH=/opt/build pip install --no-deps --no-build-isolation --editable . \
 && HETSCHED_DATA=/tmp/data HETSCHED_STATIC=/app/staticfiles python manage.py collectstatic --noinput \
 && python -m compileall -q /app

FROM ${PYTHON_IMAGE}
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /data hetsched \
 && install -d -o hetsched -g hetsched /data
COPY --from=build /opt/hetsched /opt/hetsched
COPY --from=build /app /app
ENV PATH=/opt/hetsched/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/tmp/numba \
    HETSCHED_DATA=/data \
    HETSCHED_STATIC=/app/staticfiles
WORKDIR /app
USER 10001:10001
VOLUME /data
EXPOSE 8000
CMD ["python", "-m", "hetsched.project.web_server", "--host", "0.0.0.0", "--port", "8000"]
