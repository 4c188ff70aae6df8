"""List the models of a server with several, and load those of the start."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from plumbline.server.loading.catalog import Catalog, ModelSource
from plumbline.server.loading.planned import PlannedModel, ServerPlan
from plumbline.server.loading.served_model import ServedModel, load
from plumbline.server.settings import OptionError, Settings

__all__ = ["several"]


def several(
    plan: ServerPlan,
    settings: Settings,
    loading: Callable[[str], None],
    load: Callable[[Settings], ServedModel] = load,
) -> Catalog:
    """Return the models of `--model` and `--model-dir`.

    The models of `--model` are loaded in their order as long as the memory suffices, so that a wrong one ends the
    start. The others are loaded when requests name them.

    Args:
        plan: the models.
        settings: the settings.
        loading: is called with the name of each model before it is loaded.
        load: loads a model.

    Raises:
        SettingsError: a model of `--model` cannot be used, or two models have one name.
        Exception: a model that is loaded cannot be served; see `load`.
    """
    _check_names([*plan.given, *plan.listed], settings)
    loaded: dict[str, ServedModel] = {}
    left = plan.capacity
    sources = {
        model.name: ModelSource((model.name,), partial(load, model.settings), model.size)
        for model in (*plan.given, *plan.listed)
    }
    for model in plan.given:
        if model.size > plan.capacity:
            raise OptionError(
                "--models-memory-bytes",
                f"must be at least {model.size}, the estimate for '{model.name}', and is {plan.capacity}: give more, a "
                "smaller --kv-cache-bytes, or a smaller model",
            )
        if model.size <= left:
            loading(model.name)
            loaded[model.name] = sources[model.name].load()
            left -= model.size
    return Catalog(
        sources=tuple(sources.values()),
        default=sources[plan.given[0].name] if plan.given else None,
        loaded=loaded,
        capacity=plan.capacity,
        shows_status=True,
    )


def _check_names(models: list[PlannedModel], settings: Settings) -> None:
    names = [model.name for model in models]
    for name in names:
        if names.count(name) > 1:
            option = "--model-dir" if settings.model_dir else "--model"
            raise OptionError(option, f"gives two models the name '{name}': name one with --model NAME=PATH")
