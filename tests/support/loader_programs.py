"""Training programs that set their loaders in three ways, as public ones do."""

from __future__ import annotations

DIGITS = '''"""Learns digits; options by argparse, loader options in dictionaries."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(16, 8)
        self.fc2 = nn.Linear(8, 10)

    def forward(self, x):
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(epoch, batch_idx, loss.item())


def test(model, device, test_loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            correct += (model(data).argmax(1) == target).sum().item()
    print(correct)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--batch-size', type=int, default=8, metavar='N',
                        help='batch size (default: 8)')
    parser.add_argument('--epochs', type=int, default=2)
    parser.add_argument('--no-accel', action='store_true')
    parser.add_argument('--log-interval', type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.no_accel else "cpu")

    train_kwargs = {'batch_size': args.batch_size}
    test_kwargs = {'batch_size': 32}
    if device.type == "cuda" or True:
        cuda_kwargs = {'num_workers': 1,
                       'shuffle': True}
        train_kwargs.update(cuda_kwargs)
        test_kwargs.update(cuda_kwargs)

    digits = TensorDataset(torch.randn(48, 16), torch.randint(10, (48,)))
    train_loader = DataLoader(digits, **train_kwargs)
    test_loader = DataLoader(digits, **test_kwargs)

    model = Net().to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)


if __name__ == '__main__':
    main()
'''

PICTURES = '''"""Learns pictures, or made-up ones; everything by argparse and a worker function."""
import argparse

import torch
import torch.nn as nn
import torch.utils.data

parser = argparse.ArgumentParser(description='training')
parser.add_argument('-j', '--workers', default=0, type=int, metavar='N',
                    help='number of data loading workers (default: 0)')
parser.add_argument('-b', '--batch-size', default=8, type=int)
parser.add_argument('--gpu', default=None, type=int)
parser.add_argument('--dummy', action='store_true', help='use fake data')


class FakePictures(torch.utils.data.Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 8, 8, generator=generator), index % 4


def main():
    args = parser.parse_args()
    main_worker(args.gpu, args)


def main_worker(gpu, args):
    torch.manual_seed(0)
    device = torch.device('cuda') if torch.cuda.is_available() else torch.device('cpu')
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4)).to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    train_dataset = FakePictures(32)
    val_dataset = FakePictures(16)
    train_sampler = None
    train_loader = torch.utils.data.DataLoader(
        train_dataset, batch_size=args.batch_size, shuffle=(train_sampler is None),
        num_workers=args.workers, sampler=train_sampler)
    val_loader = torch.utils.data.DataLoader(
        val_dataset, batch_size=args.batch_size, shuffle=False,
        num_workers=args.workers)
    train(train_loader, model, criterion, optimizer, device)
    validate(val_loader, model, criterion, device)


def train(train_loader, model, criterion, optimizer, device):
    model.train()
    for i, (images, target) in enumerate(train_loader):
        # move data to the same device as model
        images = images.to(device)
        target = target.to(device)
        output = model(images)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(i, loss.item())


def validate(val_loader, model, criterion, device):
    with torch.no_grad():
        for images, target in val_loader:
            print(criterion(model(images.to(device)), target.to(device)).item())


if __name__ == '__main__':
    main()
'''

TEXT = '''"""A small model of bytes; globals that a configurator may override."""
import numpy as np
import torch
import torch.nn as nn

batch_size = 4
block_size = 8
max_iters = 4
device = 'cpu' # 'cuda', 'cuda:0' etc.
config_keys = [k for k, v in globals().items() if not k.startswith('_') and isinstance(v, (int, str))]
exec(open('configurator.py').read()) # overrides from command line or config file

torch.manual_seed(1337)
device_type = 'cuda' if 'cuda' in device else 'cpu'
train_data = np.arange(4096, dtype=np.uint16) % 97

def get_batch(split):
    ix = torch.randint(len(train_data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy((train_data[i:i+block_size]).astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy((train_data[i+1:i+1+block_size]).astype(np.int64)) for i in ix])
    x, y = x.to(device), y.to(device)
    return x, y

model = nn.Sequential(nn.Embedding(97, 16), nn.Linear(16, 97)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
X, Y = get_batch('train')
iter_num = 0
while True:
    loss = nn.functional.cross_entropy(model(X).flatten(0, 1), Y.flatten())
    X, Y = get_batch('train')
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(iter_num, loss.item())
    iter_num += 1
    if iter_num > max_iters:
        break
'''
CONFIGURATOR = "import sys\nfor arg in sys.argv[1:]:\n    exec(open(arg).read())\n"
