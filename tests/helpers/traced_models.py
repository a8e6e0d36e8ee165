"""Models that are no lists of layers, and a job for each: ``job([name])``."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import pipe_split

from holdfast import Job


class Residual(nn.Module):
    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(num_in, num_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(num_out)
        self.conv2 = nn.Conv2d(num_out, num_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(num_out)
        self.shortcut = nn.Identity()
        if stride != 1 or num_in != num_out:
            projection = nn.Conv2d(num_in, num_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(num_out))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


class ResNet18(nn.Module):
    """Two blocks in each of four groups, as the original, but narrow."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.layer1 = self._group(width, width, 1)
        self.layer2 = self._group(width, 2 * width, 2)
        self.layer3 = self._group(2 * width, 4 * width, 2)
        self.layer4 = self._group(4 * width, 8 * width, 2)
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(8 * width, 10)

    @staticmethod
    def _group(num_in: int, num_out: int, stride: int) -> nn.Sequential:
        return nn.Sequential(Residual(num_in, num_out, stride), Residual(num_out, num_out, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.drop(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)))


class ViT(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 5, width) * 0.02)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 2, 32, dropout=0.1, batch_first=True), 3
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(x.shape[0], -1, -1), tokens], dim=1)
        return self.head(self.encoder(tokens + self.positions)[:, 0])


class UNet(nn.Module):
    """What goes down is needed again on the way up: several tensors cross a cut."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, 1, 1) for a, b in ((3, 4), (4, 8), (8, 8)))
        self.up = nn.ModuleList(nn.Conv2d(a, b, 3, 1, 1) for a, b in ((16, 4), (8, 4)))
        self.out = nn.Conv2d(4, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = []
        for conv in self.down:
            x = F.relu(conv(x))
            skipped.append(x)
            x = F.max_pool2d(x, 2)
        x = skipped.pop()
        for conv in self.up:
            x = torch.cat([F.interpolate(x, scale_factor=2.0), skipped.pop()], dim=1)
            x = F.relu_(conv(x))
        return self.out(x).mean((2, 3))


class Towers(nn.Module):
    """Numbers and picture go through a tower each; the second input is wanted first."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 8)
        self.text = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.image = nn.ModuleList([nn.Linear(192, 8), nn.Linear(8, 8)])
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8), persistent=False)

    def forward(self, words: Tensor, picture: Tensor) -> Tensor:
        seen = picture.flatten(1)
        for layer in self.image:
            seen = torch.tanh(layer(seen))
        read = self.words(words).mean(1) * self.scale + torch.arange(8) / 8
        for layer in self.text:
            read = read + F.dropout(layer(read), 0.1, self.training)
        both, _ = torch.stack([seen, read]).max(0)
        return self.head(both * torch.tensor(2.0))


class Functional(nn.Module):
    """A transformer that is all in one forward, and says itself where it may be cut."""

    def __init__(self, width: int = 8, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, width)
        self.qkv = nn.ParameterList(torch.randn(3 * width, width) * 0.3 for _ in range(depth))
        self.mlp = nn.ParameterList(torch.randn(width, width) * 0.3 for _ in range(depth))
        self.norm = nn.LayerNorm(width)  # the same one in every block

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for qkv, mlp in zip(self.qkv, self.mlp, strict=True):
            pipe_split()
            q, k, v = F.linear(self.norm(x), qkv).chunk(3, dim=-1)
            x = x + F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
            x = x + F.gelu(F.linear(self.norm(x), mlp))
        pipe_split()
        return F.linear(self.norm(x), self.embed.weight).mean(1)


class Samples:
    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[object, int]:
        picture = (torch.arange(192.0) * (index + 1) * 0.37).sin().reshape(3, 8, 8)
        words = (torch.arange(6) * (index + 3)) % 10
        found = tuple({"picture": picture, "words": words}[kind] for kind in self._kinds)
        return found if len(found) > 1 else found[0], index % 10


MODELS = {
    "resnet": (ResNet18, ("picture",)),
    "vit": (ViT, ("picture",)),
    "unet": (UNet, ("picture",)),
    "towers": (Towers, ("words", "picture")),
    "functional": (Functional, ("words",)),
}


def job(args: list[str]) -> Job:
    make, kinds = MODELS[args[0]]
    return Job(
        model=make(),
        loss=F.cross_entropy,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
        data=Samples(*kinds),
        microbatch_size=4,
        clip_norm=1.0,
    )
