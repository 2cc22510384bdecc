"""A loop that feeds meters of a class of its own, and shows them now and then."""

import time

import torch


class AverageMeter:
    def __init__(self, name, fmt=":f"):
        self.name, self.fmt = name, fmt
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self):
        return ("{name} {val" + self.fmt + "} ({avg" + self.fmt + "})").format(**self.__dict__)


class ProgressMeter:
    def __init__(self, meters):
        self.meters = meters

    def display(self, batch):
        print(batch, *[str(meter) for meter in self.meters])


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]


def train(train_loader, model, criterion, optimizer, args):
    batch_time = AverageMeter("Time", ":6.3f")
    losses = AverageMeter("Loss", ":.4e")
    top1 = AverageMeter("Acc@1", ":6.2f")
    top5 = AverageMeter("Acc@5", ":6.2f")
    progress = ProgressMeter([losses, top1, top5])
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(train_loader):
        output = model(images)
        loss = criterion(output, target)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        losses.update(loss.item(), images.size(0))
        top1.update(acc1[0], images.size(0))
        top5.update(acc5[0], images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            progress.display(i + 1)


def validate(loader, model, criterion):
    losses = AverageMeter("Loss", ":.4e")
    with torch.no_grad():
        for images, target in loader:
            losses.update(criterion(model(images), target).item(), images.size(0))
    return losses.avg


class Args:
    print_freq = 3


torch.manual_seed(0)
model = torch.nn.Linear(4, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = torch.nn.CrossEntropyLoss()
loader = [(torch.randn(5 - n % 2, 4), torch.randint(0, 8, (5 - n % 2,))) for n in range(8)]
for _ in range(2):
    train(loader, model, criterion, optimizer, Args)
    print(validate(loader, model, criterion))
