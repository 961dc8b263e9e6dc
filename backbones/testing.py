"""Does a backbone keep what detectors and segmentors expect of it? ``check_backbone(NET)``.

Each check is a function of a ``Subject`` that raises AssertionError where the contract is broken;
``CHECKS`` has them by name. The project's own tests run the same ones.
"""
import copy
import inspect
import io
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from mmengine.registry import MODELS
from rich.box import ASCII
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .base import maps_of

# Even and odd sides, less than the coarsest stride, a single pixel.
SIZES = (64, 96), (75, 101), (33, 31), (4, 200), (1, 1)


class NotChecked(Exception):
    """A check does not concern this backbone. Says why."""


class Subject:
    """A backbone to check, built anew as often as a check wants one.

    Args:
        backbone: a config (``dict(type=...)``) or a function ``make(**arguments)``, so that checks
            can set frozen_stages and the like; or a module, of which copies are taken.
        channels, strides: of its maps; None: as its attributes of that name, or as it does.
        frozen_steps: how far frozen_stages goes; None: not known.
    """

    def __init__(self, backbone: nn.Module | dict | Callable, channels: Sequence[int] | None = None,
                 strides: Sequence[int] | None = None, frozen_steps: int | None = None):
        self.backbone = backbone
        if channels is None or strides is None:
            net = self.build().to('meta')
            parts = getattr(net, 'parts', None)  # of a Wrapped
            frozen_steps = frozen_steps or (len(parts) - 1 if parts else None)
            seen = zip(*maps_of(net), strict=True)
            channels, strides = (getattr(net, name, None) or found for name, found in
                                 zip(('channels', 'strides'), seen, strict=True))
        self.channels, self.strides = tuple(channels), tuple(strides)
        self.frozen_steps = frozen_steps

    def build(self, **arguments) -> nn.Module:
        """A new backbone, as it begins.

        Raises:
            NotChecked: it does not take these arguments.
        """
        torch.manual_seed(0)
        if isinstance(self.backbone, nn.Module):
            if arguments:
                raise NotChecked(f'{", ".join(arguments)} can be set where a config is given')
            return copy.deepcopy(self.backbone)
        make = self.backbone
        if isinstance(make, dict):
            cls = MODELS.get(make['type'])
            for name in arguments:
                if cls and name not in inspect.signature(cls).parameters:
                    raise NotChecked(f'it has no argument {name}')
            return MODELS.build({**make, **arguments})
        return make(**arguments)

    def make(self, **arguments) -> nn.Module:
        """A new backbone with weights that all count (``fill_``), nothing dropped at random."""
        net = fill_(self.build(**arguments))
        net.train = partial(train_without_drops, net, net.train)
        return net.train()


def train_without_drops(net: nn.Module, train: Callable, mode: bool = True) -> nn.Module:
    """``train``, in which Dropout and DropPath stay in eval mode."""
    train(mode)
    for module in net.modules():
        if 'drop' in type(module).__name__.lower():
            module.eval()
    return net


def rule_value(key: str, shape) -> Tensor:
    """A value for a state-dict entry, which follows from its name alone."""
    r = torch.randn(tuple(shape), generator=torch.Generator().manual_seed(zlib.crc32(key.encode())))
    leaf = key.rsplit('.', 1)[-1]
    if leaf == 'running_var':
        return 1 + 0.1 * r.abs()
    if leaf == 'weight':
        return r / r[0].numel()**0.5 if r.ndim >= 2 else 1 + 0.1 * r
    return 0.1 * r


def fill_(model: nn.Module) -> nn.Module:
    """Give parameters and BatchNorm's statistics values of moderate size.

    None is 0, as layer scales and last layers begin: each shows in outputs and gradients.
    """
    tables = {key for key, _ in model.named_buffers() if 'running_' not in key}  # masks and such
    model.load_state_dict({
        key: rule_value(key, value.shape)
        if value.is_floating_point() and key not in tables else value
        for key, value in model.state_dict().items()
    }, assign=True)  # the model may lie on the meta device
    return model


def loss_of(outs) -> Tensor:
    """A fixed random projection: the mean square of a normalised map would hardly depend on it."""
    generator = torch.Generator().manual_seed(3)
    return sum((out.float() * torch.randn(out.shape, generator=generator)).mean() for out in outs)


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor | None]:
    """Of every trainable parameter; None: nothing depends on it."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(loss_of(model(x)), list(parameters.values()), allow_unused=True)
    return dict(zip(parameters, grads, strict=True))


def statistics(model: nn.Module) -> dict[str, Tensor]:
    return {name: b.clone() for name, b in model.named_buffers() if 'running' in name}


def images(batch: int = 2, height: int = 64, width: int = 96, **kwargs) -> Tensor:
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(7),
                       **kwargs)



# -- the checks --------------------------------------------------------------------------------

def any_image_size(subject: Subject):
    """Maps (N, C, ceil(H / stride), ceil(W / stride)), whole in memory, for any H and W."""
    net = subject.make().eval()
    for height, width in SIZES:
        with torch.no_grad():
            outs = net(images(2, height, width))
        assert isinstance(outs, tuple), f'it returns a {type(outs).__name__}, not a tuple'
        assert len(outs) == len(subject.strides), f'{len(outs)} maps, not {len(subject.strides)}'
        for i, (out, dim, stride) in enumerate(zip(outs, subject.channels, subject.strides,
                                                   strict=True)):
            wanted = 2, dim, -(-height // stride), -(-width // stride)
            assert out.shape == wanted, (f'map {i} of images of {height} x {width} is '
                                         f'{tuple(out.shape)}, not {wanted}')
            assert out.is_contiguous(), f'map {i} is not contiguous'
            assert out.isfinite().all(), f'map {i} of images of {height} x {width} is not finite'


def images_of_a_batch_do_not_meet(subject: Subject):
    """In eval mode an image's maps do not depend on what else is in the batch."""
    net, x = subject.make().eval(), images(2, 48, 80)
    with torch.no_grad():
        for both, first in zip(net(x), net(x[:1]), strict=True):
            torch.testing.assert_close(both[:1], first, rtol=1e-4, atol=1e-5)


def batch_of_one(subject: Subject):
    """Its gradients are those of the same image twice. (On the CPU torch 2.13 has a BatchNorm
    gradient that is wrong for some strides, which only a batch of one can have.)"""
    x = images(1, dtype=torch.float64)
    for training in (False, True):
        net = subject.make().double().train(training)
        weights = [torch.randn(out.shape, dtype=torch.float64) for out in net(x)]
        grads = []
        for batch in (x, x.repeat(2, 1, 1, 1)):
            net.zero_grad()
            sum((out * weight).sum() for out, weight in zip(net(batch), weights, strict=True)
                ).div(len(batch)).backward()
            grads.append({key: p.grad for key, p in net.named_parameters() if p.grad is not None})
        # some networks have float32 in them
        torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-5)


def height_and_width_are_not_confused(subject: Subject):
    """What changes in the right third of an image changes the right third of its maps."""
    net, generator = subject.make().eval(), torch.Generator().manual_seed(1)
    x = torch.randn(1, 3, 64, 192, generator=generator)
    changed = x.clone()
    changed[..., 128:] = torch.randn(1, 3, 64, 64, generator=generator)
    with torch.no_grad():
        for i, (a, b) in enumerate(zip(net(x), net(changed), strict=True)):
            change = (a - b).abs().mean((0, 1))  # (H, W)
            third = change.shape[1] // 3
            left, right = change[:, :third], change[:, -third:]
            assert right.mean() > 2 * left.mean(), f'map {i} changes in other places'
            assert right.mean(1).min() > left.mean(1).max(), f'map {i} changes in other rows'


def gradients_reach_all(subject: Subject):
    """Every parameter that is to be trained has a finite gradient (DDP waits for all)."""
    for key, grad in gradients(subject.make(), images()).items():
        assert grad is not None, f'{key} gets no gradient: requires_grad should be False'
        assert grad.isfinite().all(), f"{key}'s gradient is not finite"


def behind_the_last_map(subject: Subject):
    """With the first map alone (out_indices) what lies behind it is not trained."""
    indices = getattr(subject.build(), 'out_indices', None)
    if not indices or len(indices) < 2:
        raise NotChecked('it has no out_indices, or one map')
    net = subject.make(out_indices=tuple(indices[:1]))
    assert len(net(images())) == 1, 'out_indices of one stage gives more than one map'
    for key, grad in gradients(net, images()).items():
        assert grad is not None, f'{key} lies behind the last map and is trained'

    def trained(model):
        return sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained(net) < trained(subject.build())


def checkpointing(subject: Subject):
    """use_checkpoint changes nothing but memory: neither gradients nor BatchNorm's statistics."""
    results = []
    for use_checkpoint in (False, True):
        net = fill_(subject.build(use_checkpoint=use_checkpoint)).train()
        torch.manual_seed(1)  # the same paths are dropped, and again in the recomputation
        results.append((gradients(net, images()), statistics(net)))
    for plain, checkpointed in zip(*results, strict=True):
        for key, value in plain.items():
            torch.testing.assert_close(value, checkpointed[key],
                                       msg=lambda text, key=key: f'{key}: {text}')


def freezing(subject: Subject):
    """Each step of frozen_stages freezes more, up to all; what is frozen stays as it is."""
    x, steps = images(), subject.frozen_steps
    free = [sum(p.requires_grad for p in subject.build(frozen_stages=k).parameters())
            for k in range(-1, (steps or 1) + 1)]
    rising = [b - a for a, b in zip(free[1:], free[:-1], strict=True)]
    assert min(rising) >= 0 and rising[-1] > 0, f'parameters left to train, step by step: {free}'
    assert not steps or free[-1] == 0, f'{free[-1]} parameters are trained with all frozen'
    net = fill_(subject.build(frozen_stages=1)).train()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    loss_of(net(x)).backward()
    torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=1.).step()
    moved = {key for key, value in net.state_dict().items() if not value.equal(before[key])}
    trained = {key for key, p in net.named_parameters() if p.requires_grad}
    # A bias that BatchNorm takes away has a gradient of rounding errors.
    still = {key for key, p in net.named_parameters()
             if p.requires_grad and p.grad is not None and p.grad.abs().max() > 1e-6} - moved
    assert not still, f'not trained: {sorted(still)[:3]}'
    for key in moved - trained:  # statistics of what is not frozen
        owner = net.get_submodule(key.rpartition('.')[0])
        assert isinstance(owner, _BatchNorm) and owner.weight.requires_grad, f'{key} is frozen ' \
            'and changes'
    for name, module in net.named_modules():
        if isinstance(module, _BatchNorm) and module.affine and not module.weight.requires_grad:
            assert not module.training, f'{name} is frozen, and its statistics are not'


def norm_eval(subject: Subject):
    """With norm_eval BatchNorm's statistics stay; without, they move."""
    if not statistics(subject.build()):
        raise NotChecked('it has no BatchNorm')
    for keep in (False, True):
        net = subject.build(norm_eval=keep).train()
        before = statistics(net)
        net(images())
        for key, value in statistics(net).items():
            assert value.equal(before[key]) is keep, f'{key} {"moves" if keep else "stays"}'


def modes_and_determinism(subject: Subject):
    """Eval mode gives the same twice, also after training; train mode the same with one seed."""
    net, x = subject.make().eval(), images()
    with torch.no_grad():
        first = net(x)
        assert all(map(torch.equal, first, net(x))), 'eval mode gives something else each time'
    training, results = fill_(subject.build()).train(), []
    assert training.training, 'train() leaves it in eval mode'
    state = copy.deepcopy(training.state_dict())
    for _ in range(2):
        training.load_state_dict(state)
        torch.manual_seed(1)
        results.append(gradients(training, x))
    for key, value in results[0].items():
        assert value is None or value.equal(results[1][key]), f'{key}: another gradient each time'
    training.load_state_dict(state)
    training.eval()
    with torch.no_grad():
        for a, b in zip(training(x), first, strict=True):
            torch.testing.assert_close(a, b)


def mixed_precision(subject: Subject, dtype: torch.dtype = torch.bfloat16):
    """Under autocast gradients are finite, of float32 and near the exact ones."""
    net, x = subject.make(), images()
    exact = gradients(net, x)
    with torch.autocast('cpu', dtype=dtype):
        mixed = gradients(net, x)
    pairs = [(exact[key], grad) for key, grad in mixed.items() if grad is not None]
    for key, grad in mixed.items():
        if grad is not None:
            assert grad.isfinite().all(), f"{key}'s gradient is not finite"
            assert grad.dtype == torch.float32, f"{key}'s gradient is {grad.dtype}"
    a, b = (torch.cat([g.flatten() for g in side]) for side in zip(*pairs, strict=True))
    similar = torch.cosine_similarity(a, b, 0).item()
    # bfloat16 has 8 bits: a ReLU behind a BatchNorm of few pixels opens or closes differently
    least = 0.85 if dtype == torch.bfloat16 else 0.98
    assert similar > least, f'gradients point elsewhere (cosine {similar:.3f} with the exact ones)'


def half_precision(subject: Subject):
    """The same with float16."""
    mixed_precision(subject, torch.float16)


def compiles(subject: Subject):
    """torch.compile without graph breaks, with the same maps and gradients."""
    net, x = subject.make(), images(2, 48, 80)
    compiled = torch.compile(net, fullgraph=True, backend='aot_eager')
    for a, b in zip(net(x), compiled(x), strict=True):
        torch.testing.assert_close(a, b)
    for (key, a), b in zip(gradients(net, x).items(), gradients(compiled, x).values(),
                           strict=True):
        torch.testing.assert_close(a, b, msg=lambda text, key=key: f'{key}: {text}')


def exports(subject: Subject):
    """torch.export, with the same maps."""
    net, x = subject.make().eval(), images(1, 48, 80)
    exported = torch.export.export(net, (x, )).module()
    for a, b in zip(net(x), exported(x), strict=True):
        torch.testing.assert_close(a, b)


CHECKS = {check.__name__: check for check in (
    any_image_size, images_of_a_batch_do_not_meet, batch_of_one, height_and_width_are_not_confused,
    gradients_reach_all, behind_the_last_map, checkpointing, freezing, norm_eval,
    modes_and_determinism, mixed_precision, half_precision, exports, compiles)}
SLOW = ('compiles', )


# -- the report --------------------------------------------------------------------------------

@dataclass
class Row:
    check: str
    outcome: str  # 'passed', 'failed' or 'not checked'
    why: str


@dataclass
class Report:
    """What came out. ``print(report)`` shows a table; ``report.require()`` is for tests."""

    name: str
    channels: tuple[int, ...]
    strides: tuple[int, ...]
    rows: list[Row]

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row.outcome == 'failed']

    def require(self):
        """Raise AssertionError, with the table, if a check has failed."""
        assert not self.failed, str(self)

    def __str__(self):
        table = Table('check', 'outcome', 'why', box=ASCII)
        for row in self.rows:
            table.add_row(row.check.replace('_', ' '), row.outcome, escape(row.why))
        console = Console(file=io.StringIO(), width=120)
        console.print(table)
        return (f'{self.name}: maps of {", ".join(map(str, self.channels))} channels, strides '
                f'{", ".join(map(str, self.strides))}\n{console.file.getvalue()}'
                f'{len(self.failed)} failed of {len(self.rows)}')


def check_backbone(backbone: nn.Module | dict | Callable, compile: bool = False,
                   only: Sequence[str] = ()) -> Report:
    """Check a backbone against what the heads, the runner and DDP expect of one.

    Args:
        backbone: a config, so that frozen_stages, use_checkpoint, norm_eval and out_indices can be
            checked; or a module. A small variant takes seconds.
        compile: check torch.compile too (slow).
        only: names in ``CHECKS``; all by default.

    Returns:
        What passed, what failed and why.

    Raises:
        ValueError: an unknown check, or a backbone that gives no maps at all.
    """
    unknown = [name for name in only if name not in CHECKS]
    if unknown:
        raise ValueError(f'there is no check {unknown[0]}; there are {", ".join(CHECKS)}')
    subject, rows = Subject(backbone), []
    for name, check in CHECKS.items():
        if name not in only if only else name in SLOW and not compile:
            continue
        try:
            check(subject)
            rows.append(Row(name, 'passed', ''))
        except NotChecked as reason:
            rows.append(Row(name, 'not checked', str(reason)))
        except Exception as error:  # whatever it raises is what is looked for
            kind = '' if isinstance(error, AssertionError) else f'{type(error).__name__}: '
            rows.append(Row(name, 'failed', kind + ' '.join(str(error).split())[:400]))
    name = type(subject.build()).__name__
    return Report(name, subject.channels, subject.strides, rows)
