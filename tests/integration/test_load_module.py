"""A module of one's own gets its weights from a safetensors file, or a reason why not."""

from pathlib import Path
from typing import Any

import pytest

from batchedmodel_model_server.api.weights import load_module
from batchedmodel_model_server.errors import CannotLoad

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


_Base: Any = torch.nn.Module


class Net(_Base):  # type: ignore[misc]
    """A layer, dropout and a stored buffer."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(width, 2)
        self.norm = torch.nn.BatchNorm1d(2)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        return self.dropout(self.norm(self.layer(x)))


class Computing(Net):
    """Has a buffer that is no part of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(3), persistent=False)


@pytest.fixture
def weights(tmp_path: Path) -> tuple[Any, Path]:
    from safetensors.torch import save_file

    net = Net().eval()
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    return net, tmp_path / "net.safetensors"


def test_a_loaded_module_answers_as_the_saved_one(weights: tuple[Any, Path]) -> None:
    net, file = weights
    loaded = load_module(Net, file, "cpu")
    x = torch.randn(3, 4)
    # Dropout is off: the module is ready to answer, whatever its author forgot.
    assert torch.equal(loaded(x), net(x))
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Net(width=5), r"does not fit Net: .*size mismatch for layer.weight"),
        (lambda: torch.nn.Linear(4, 2), r"does not fit Linear: .*Missing key"),
        (Computing, "Computing computes table when it is made"),
        (dict, "dict is not a torch.nn.Module"),
    ],
    ids=["other size", "other names", "computed buffer", "no module"],
)
def test_a_module_that_does_not_fit_is_refused(
    weights: tuple[Any, Path], make: Any, message: str
) -> None:
    with pytest.raises(CannotLoad, match=f"(?s){message}"):
        load_module(make, weights[1], "cpu")


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x02}q\x00.", None], ids=["empty", "pickle", "none"]
)
def test_a_file_that_is_no_safetensors_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "net.bin"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CannotLoad, match="net.bin cannot be read as safetensors"):
        load_module(Net, file, "cpu")


def test_a_pickle_is_read_only_if_it_is_trusted(weights: tuple[Any, Path]) -> None:
    net, file = weights
    pickled = file.with_suffix(".pt")
    torch.save(net.state_dict(), pickled)
    with pytest.raises(CannotLoad, match="net.pt is a pickle, .* spec.model.trustRemoteCode: true"):
        load_module(Net, pickled, "cpu")
    loaded = load_module(Net, pickled, "cpu", trusted=True)
    x = torch.randn(3, 4)
    assert torch.equal(loaded(x), net(x))


@pytest.mark.parametrize("content", [b"", b"nothing", None], ids=["empty", "no pickle", "other"])
def test_a_trusted_file_that_holds_no_weights_is_refused(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "net.pt"
    if content is None:
        torch.save([1, 2], file)
    else:
        file.write_bytes(content)
    with pytest.raises(CannotLoad, match="net.pt (cannot be read by torch.load|holds a list)"):
        load_module(Net, file, "cpu", trusted=True)
