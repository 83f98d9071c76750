"""Tables with categorical columns: an MLP with embeddings, trained over three hospitals.

    python examples/torch_tabular.py

The data are made up: a diagnosis depends on age, dose, ward and blood group. What a node does with
its table - categories to integers, embeddings, dropout, AdamW - is its own; the numbers of
categories are public, so that the model has the same shape everywhere.
"""

import numpy as np
import torch
from flwr.app import Context, Message
from torch import nn

from privet.client_apps import LoopParticipant, initial_arrays
from privet.sim import InlineGrid, quiet
from privet.strategies import FedDyn

HOSPITALS, ROWS, WARDS, GROUPS = 3, 300, 12, 4


class Table(nn.Module):
    """Embeddings of the categories beside the numbers, then a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(WARDS, 4), nn.Embedding(GROUPS, 2)])
        self.layers = nn.Sequential(
            nn.Linear(2 + 4 + 2, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1)
        )

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        """Return the logit of a diagnosis, one a row."""
        found = [embed(categories[:, k]) for k, embed in enumerate(self.embeddings)]
        return self.layers(torch.cat([numbers, *found], dim=1)).squeeze(1)


def patients(hospital: int, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return numbers, categories and diagnoses; every hospital has wards of its own."""
    rng = np.random.default_rng(hospital)
    numbers = rng.normal(size=(rows, 2))
    wards = rng.choice(WARDS, rows, p=rng.dirichlet([0.3] * WARDS))
    groups = rng.integers(GROUPS, size=rows)
    score = numbers @ [1.0, -1.5] + np.sin(wards) * 2 + (groups == 2)
    diagnoses = rng.random(rows) < 1 / (1 + np.exp(-3 * score))
    categories = torch.tensor(np.stack([wards, groups], axis=1))
    return torch.tensor(numbers).float(), categories, torch.tensor(diagnoses).float()


participant = LoopParticipant("fed-dyn", Table, lambda context: ROWS)
app = participant.app()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this hospital's patients for two epochs."""
    numbers, categories, diagnoses = patients(int(context.node_config["partition-id"]))
    model = Table()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with participant.round(message, context, model, hook=True) as local:
        for _ in range(2):
            for rows in torch.randperm(ROWS).split(50):
                optimizer.zero_grad()
                logits = model(numbers[rows], categories[rows])
                nn.functional.binary_cross_entropy_with_logits(logits, diagnoses[rows]).backward()
                optimizer.step()
    return local.reply()


def main() -> None:
    """Train the federation and say how often the model is right on patients nobody trained on."""
    quiet()
    torch.manual_seed(0)
    strategy = FedDyn(num_agents=HOSPITALS, fed_dyn_alpha=0.01)
    result = strategy.start(InlineGrid(app, HOSPITALS), initial_arrays(Table()), num_rounds=15)
    model = Table().eval()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    right = []
    for hospital in range(100, 110):
        numbers, categories, diagnoses = patients(hospital)
        right.append(((model(numbers, categories) > 0) == (diagnoses > 0)).float().mean())
    print(f"accuracy on patients of other hospitals: {torch.stack(right).mean():.3f}")


if __name__ == "__main__":
    main()
