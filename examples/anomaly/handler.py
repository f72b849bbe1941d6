"""How surprising each step of a series of measurements is: a torch module of one's own.

The state after a step is taken for a guess of the next one, and a score is how far off it was.
"""

import torch
from torch.nn.functional import pad

from batchedmodel_model_server.api.handler import Handler, Spec


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = torch.nn.GRU(4, 4, batch_first=True)

    def forward(self, x):
        return pad((x[:, 1:] - self.steps(x)[0][:, :-1]).norm(dim=-1), (1, 0))


class Anomaly(Handler):
    inputs = {"x": Spec("FP32", ("L", 4), max=512, min=2)}
    outputs = {"score": Spec("FP32", ("L",))}

    def load(self, path, device):
        torch.manual_seed(0)  # with weights: load_module(Net, path / "net.safetensors", device)
        self.net = Net().eval().to(device)

    def forward(self, batch):
        return {"score": self.net(batch["x"])}
