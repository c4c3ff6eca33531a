"""Registration hooks, which are called once, when a run looks up a plugin by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compatkit.hooks.markers import hookspec


class Register:
    """Callback passed to registration hooks: ``register(name, factory)``."""

    def __call__(self, name: str, factory: Callable[..., Any]) -> None:
        """Register ``factory`` under a name for runs; settings are its keyword arguments."""
        raise NotImplementedError


class Registration:
    """Registration hooks, with which a package offers plugins. Each receives ``register`` and returns None."""

    @hookspec
    def compatkit_regularizers(self, register: Register) -> None:
        """Offer regularizers: factories of objects that implement the training hooks.

        Example::

            @compatkit.hookimpl
            def compatkit_regularizers(register):
                register("feature_norm", FeatureNorm)
        """

    @hookspec
    def compatkit_metrics(self, register: Register) -> None:
        """Offer metrics: factories of objects with ``init``, ``update``, ``merge`` and ``finalize``.

        Example::

            @compatkit.hookimpl
            def compatkit_metrics(register):
                register("confidence", Confidence)
        """

    @hookspec
    def compatkit_builders(self, register: Register) -> None:
        """Offer builders of networks: ``factory(model, **kwargs) -> torch.nn.Module``.

        The same name and keyword arguments (JSON values) must give the same modules in every process, with weights
        drawn by torch alone. A factory must not read files: name and arguments may come from an untrusted manifest.

        Example::

            @compatkit.hookimpl
            def compatkit_builders(register):
                register("mynets", build)
        """

    @hookspec
    def compatkit_data_sets(self, register: Register) -> None:
        """Offer data sets: ``factory(root=None, download=False) -> compatkit.data.DataSet``.

        Example::

            @compatkit.hookimpl
            def compatkit_data_sets(register):
                register("my-digits", load)
        """

    @hookspec
    def compatkit_loaders(self, register: Register) -> None:
        """Offer loaders: ``factory(split, data, batch_size) -> torch.utils.data.DataLoader``, or the like.

        ``split`` has the training images of the task's data set, without held-out ones; ``data`` has size, channels,
        mean, standard deviation and classes. Further arguments are settings: ``loader = {name = "mine", workers = 4}``.

        Example::

            @compatkit.hookimpl
            def compatkit_loaders(register):
                register("mine", lambda split, data, batch_size: DataLoader(Mine(split, data), batch_size))
        """

    @hookspec
    def compatkit_loggers(self, register: Register) -> None:
        """Offer loggers of a run: ``factory(folder) -> LoggerLike``, which must not write before ``begin``.

        Further arguments are settings: ``Trainer(loggers={"mine": {"folder": "runs", "project": "digits"}})``. Runs of
        a sweep have a folder each below that of the logger, or share it if ``factory.one_folder`` is True.

        Example::

            @compatkit.hookimpl
            def compatkit_loggers(register):
                register("mine", MyLogger)
        """

    @hookspec
    def compatkit_remotes(self, register: Register) -> None:
        """Offer remotes: ``factory(address, **options) -> compatkit.registry.remotes.objectstore.ObjectStore``.

        The name is the scheme of the addresses: ``lab`` opens ``lab://...``. A factory may also return a
        ``compatkit.registry.remotes.packages.PackageStore``, or the ``pathlib.Path`` of a folder. Nothing should be
        read before the first call.

        Example::

            @compatkit.hookimpl
            def compatkit_remotes(register):
                register("lab", LabStore)
        """

    @hookspec
    def compatkit_exporters(self, register: Register) -> None:
        """Offer exporters: ``factory(file, module, inputs, description)`` writes a network to ``file``.

        ``module`` is in eval mode, ``inputs`` are example arguments with a batch of two, ``description`` is JSON: kind,
        contract, class names, preprocessing. Further arguments are settings.

        Example::

            @compatkit.hookimpl
            def compatkit_exporters(register):
                register("onnx", export)
        """

    @hookspec
    def compatkit_studies(self, register: Register) -> None:
        """Offer studies: ``factory() -> compatkit.experiments.studies.Study``, each under its number.

        Example::

            @compatkit.hookimpl
            def compatkit_studies(register):
                register("mine.1", lambda: STUDY)
        """

    @hookspec
    def compatkit_rungs(self, register: Register) -> None:
        """Offer rungs of bridges: ``factory(inputs) -> RungFit`` joins a head to an extractor that it does not know.

        ``inputs``, a ``compatkit.components.bridges.rungs.RungInputs``, has features of both sides and a copy of the
        head.

        Example::

            @compatkit.hookimpl
            def compatkit_rungs(register):
                register("mine", lambda inputs: RungFit(inputs.project(ridge(inputs.moments, 0.1))))
        """

    @hookspec
    def compatkit_launchers(self, register: Register) -> None:
        """Offer launchers of sweeps: factories of objects that are called with ``(work, jobs, workers)``.

        The call is a generator. It runs ``work(job)`` for each job, a string, in some process, at most ``workers`` at a
        time (None: as many as fit). As soon as a job ends, it yields the job's position with the result, a string, or
        with the error that ended its process. ``work`` is a function of an importable module.

        Example::

            @compatkit.hookimpl
            def compatkit_launchers(register):
                register("mine", Launcher)
        """
