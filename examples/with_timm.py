"""Fine-tunes a timm model on a folder of images, with its own preprocessing, MixUp and soft targets.

    python examples/with_timm.py path/to/train --model resnet50 --pretrained
    python examples/with_timm.py path/to/train --model vit_small_patch16_224 --epochs 30 --workers 8

timm says which size and normalisation the model wants. Augmentation runs natively in the workers as far as it
depends on single images, and on the model's device from there on, where batches arrive one ahead.
"""

import argparse

import timm
import torch
from timm.data import resolve_model_data_config
from timm.loss import SoftTargetCrossEntropy

import rekindle as rk

T = rk.transforms


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="a folder with a folder of images for each class")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--pretrained", action="store_true", help="start from published weights (downloads)")
    parser.add_argument("--size", type=int, help="pixels; by default what the model was made for")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    classes = len(rk.open(options.data).classes)
    model = timm.create_model(options.model, pretrained=options.pretrained, num_classes=classes).to(device)
    config = resolve_model_data_config(model)
    images = rk.open(
        options.data,
        transform=[
            T.RandomResizedCrop(options.size or config["input_size"][-1], scale=(0.5, 1)),
            T.RandomHorizontalFlip(),
            T.ToTensor(),
            T.Normalize(config["mean"], config["std"]),
            T.RandomErasing(0.25),
        ],
        place="ToTensor",  # from here on, on the device: workers send bytes, a quarter of what floats take
    )
    loader = rk.DataLoader(
        images,
        options.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=options.workers,
        seed=0,
        device=device,
        batch_transform=T.MixUp(num_classes=classes, alpha=0.2),  # labels become probabilities
    )
    criterion = SoftTargetCrossEntropy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=options.epochs * len(loader))
    for epoch in range(options.epochs):
        losses = []
        for batch, targets in loader:
            loss = criterion(model(batch), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}")
    print(loader.report())


if __name__ == "__main__":
    main()
