"""A Hugging Face text classifier of which only LoRA's matrices are trained and sent.

    python examples/torch_text_lora.py

The model is made from a config with random weights, so nothing is downloaded; with a pretrained one
(`AutoModelForSequenceClassification.from_pretrained`) the rest stays the same. Frozen weights are
those of every node: they never travel.
"""

import torch
from flwr.app import Context, Message
from peft import LoraConfig, get_peft_model
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from privet.client_apps import LoopParticipant, initial_arrays
from privet.sim import InlineGrid, quiet
from privet.strategies import FedDyn

NODES, TEXTS = 3, 96
GOOD, BAD = ["fine", "warm", "kind", "bright"], ["cold", "rude", "late", "broken"]
WORDS = [*GOOD, *BAD, *["the", "was", "room", "staff", "food", "trip", "very", "and"]]


def network() -> torch.nn.Module:
    """Return the classifier: the same frozen weights on every node, fresh LoRA matrices."""
    torch.manual_seed(0)
    config = DistilBertConfig(
        vocab_size=len(WORDS), dim=32, n_layers=2, n_heads=2, hidden_dim=64, num_labels=2
    )
    lora = LoraConfig(
        task_type="SEQ_CLS", r=4, lora_alpha=16, target_modules=["q_lin", "v_lin", "lin1"]
    )
    return get_peft_model(DistilBertForSequenceClassification(config), lora)


def reviews(node: int) -> dict[str, torch.Tensor]:
    """Return a batch of texts as a tokenizer gives it, with labels: four words of eight decide."""
    generator = torch.Generator().manual_seed(node)
    labels = torch.arange(TEXTS) % 2
    ids = torch.randint(len(GOOD) + len(BAD), len(WORDS), (TEXTS, 8), generator=generator)
    telling = torch.randint(len(GOOD), (TEXTS, 4), generator=generator)
    ids[:, ::2] = telling + len(GOOD) * (1 - labels[:, None])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


participant = LoopParticipant("fed-dyn", network, lambda context: TEXTS)
app = participant.app()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train LoRA's matrices on this node's texts; frozen weights have no gradient."""
    texts = reviews(int(context.node_config["partition-id"]))
    model = network().train()
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01)
    with participant.round(message, context, model, hook=True) as local:
        for rows in torch.randperm(TEXTS).split(16):
            optimizer.zero_grad()
            model(**{name: part[rows] for name, part in texts.items()}).loss.backward()
            optimizer.step()
    return local.reply()


def main() -> None:
    """Train the federation, and test it on texts of a node that took no part."""
    quiet()
    start = initial_arrays(network())
    strategy = FedDyn(num_agents=NODES, fed_dyn_alpha=0.01)
    result = strategy.start(InlineGrid(app, NODES), start, num_rounds=8)
    model = network().eval()
    model.load_state_dict(result.arrays.to_torch_state_dict(), strict=False)
    texts = reviews(99)
    labels = texts.pop("labels")
    with torch.no_grad():
        accuracy = (model(**texts).logits.argmax(1) == labels).float().mean()
    sent = sum(array.numpy().size for array in start.values())
    whole = sum(each.numel() for each in model.parameters())
    print(f"{sent} of {whole} weights travel, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
