"""Serve an exported network with Ray Serve: the service of ``nestling serve`` on as many replicas as the load needs.

    pip install 'nestling[serve]' 'ray[serve]'
    nestling export runs/digits --all-widths --out digits.onnx
    python examples/ray_serve.py digits.onnx --most 4

Each replica is the whole service: it answers the Open Inference Protocol and ``POST /predict``, and narrows by itself
when requests wait. Ray starts another replica when requests still wait after that, and stops it again when few come.
"""

from contextlib import suppress
from pathlib import Path

import ray
import tyro
from ray import serve

from nestling.service import FileEngine, Serving, application


def main(
    file: tyro.conf.Positional[Path],
    *,
    fewest: int = 1,
    most: int = 4,
    waiting: float = 8.0,
    host: str = "127.0.0.1",
    port: int = 8000,
) -> None:
    """Serve a file until Ctrl-C.

    Args:
        file: What `nestling export RUN --all-widths` wrote.
        fewest: Replicas that are always there.
        most: The most replicas.
        waiting: How many requests a replica should have open on average; with more of them Ray starts another.
        host: The address to listen on.
        port: The port to listen on.
    """
    path, name = file.resolve(), file.stem

    def build() -> object:  # in each replica, since an open file can't be sent from one process to another
        return application(FileEngine(path, threads=1), name=name, options=Serving(threads=1))

    scaling = {"min_replicas": fewest, "max_replicas": most, "target_ongoing_requests": waiting}
    deployment = serve.deployment(
        serve.ingress(build)(),
        name=name,
        autoscaling_config=scaling,
        max_ongoing_requests=Serving().max_requests,
        ray_actor_options={"num_cpus": 1},
    )
    ray.init(include_dashboard=False)
    serve.start(http_options={"host": host, "port": port})
    with suppress(KeyboardInterrupt):
        serve.run(deployment.bind(), name=name, blocking=True)


if __name__ == "__main__":
    tyro.cli(main)
