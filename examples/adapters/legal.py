"""An adapter of examples/adapters.yaml as a package that carries it."""

from examples.adapters import adapters


def get_model_path() -> str:
    """The folder of its files."""
    return str(adapters() / "legal")
