"""A training that loses its numbers: steps are skipped, and after some in a row it is stopped."""
import functools
import math
from pathlib import Path

import torch
from mmengine.dist import all_reduce, get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from torch import Tensor, nn

from ..errors import UserError
from .checkpoints import bare
from .resuming import NONFINITE
from .seeds import seed_everything

STATISTICS = 'running_mean', 'running_var', 'num_batches_tracked'
LEAST_SCALE = 1.  # of a loss in float16: gradients beyond 65504 at a scale below are no accident


class SkipNonFinite(Hook):
    """Leaves out the steps whose gradients are not finite; stops after ``limit`` in a row.

    A step that is left out changes nothing: neither weights, nor the optimizer's state, nor
    BatchNorm's statistics. Under mixed precision mmengine's scaler leaves out steps itself,
    whenever gradients overflow float16, and lowers its scale: that is told from a loss that is not
    finite, and stops the run only if no scale is small enough.

    Raises:
        UserError: after ``limit`` steps in a row, with what they were computed from and the first
            layer that was not finite. The run is saved as it was before the last of them, so that
            ``--resume`` with that file repeats it.
    """
    priority = 'LOWEST'  # the last to act: whatever else happens in an iteration has happened

    def __init__(self, limit: int = 10):
        self.limit = limit
        self.count = 0
        self.refused = False

    def before_train(self, runner):
        self.wrapper = runner.optim_wrapper
        self.statistics = [buffer for name, buffer in bare(runner.model).named_buffers()
                           if name.endswith(STATISTICS)]
        self.scaler = getattr(self.wrapper, 'loss_scaler', None)
        if isinstance(self.wrapper, OptimWrapper):
            # (Of the object: a schedule has wrapped it, too. AmpOptimWrapper's class has its own.)
            step = self.wrapper.step
            self.wrapper.step = functools.wraps(step)(functools.partial(self.step, step, runner))

    def step(self, step, runner, **kwargs):
        """In place of the wrapper's step."""
        if self.scaler is None or not self.scaler.is_enabled():
            if not self.finite_gradients(runner):
                self.refused = True
                return
            step(**kwargs)
            return
        scale = self.scaler.get_scale()
        step(**kwargs)
        self.refused = self.scaler.get_scale() < scale

    def finite_gradients(self, runner) -> bool:
        gradients = [p.grad for group in self.wrapper.optimizer.param_groups
                     for p in group['params'] if p.grad is not None]
        finite = torch.isfinite(torch.nn.utils.get_total_norm(gradients)).float()
        if hasattr(runner.model, 'clip_grad_norm_'):  # FSDP: each process has a part
            all_reduce(finite, 'min')
        return bool(finite)

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.kept = [buffer.clone() for buffer in self.statistics]

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if not self.refused:
            if self.wrapper._inner_count % self.wrapper._accumulative_counts == 0:
                self.count = 0
            return
        self.refused = False
        self.restore()
        losses = {name: float(value) for name, value in outputs.items()}
        strange = {name: value for name, value in losses.items() if not math.isfinite(value)}
        nan = torch.tensor(float(bool(strange)), device=next(runner.model.parameters()).device)
        if get_world_size() > 1:
            all_reduce(nan, 'max')
        if self.scaler is not None and not nan:
            scale = self.scaler.get_scale()
            runner.logger.info(f'Gradients overflow float16: this step is left out, the loss scale '
                               f'is {scale:g} now')
            self.count = 0
            if scale >= LEAST_SCALE:
                return
            self.count = self.limit  # it cannot be helped
        self.count += 1
        if self.count < self.limit:
            runner.logger.warning(
                f'Iteration {runner.iter + 1} is left out ({self.count} in a row): '
                f'{words(strange)} not finite. Images: {", ".join(images_of(data_batch))}')
            return
        where = first_nonfinite(runner, data_batch)
        self.restore()
        runner.save_checkpoint(runner.work_dir, NONFINITE, by_epoch=False,
                               meta=dict(epoch=runner.epoch, iter=runner.iter))
        file = Path(runner.work_dir, NONFINITE)
        raise UserError(message(runner, losses, where, images_of(data_batch), file, self))

    def restore(self):
        with torch.no_grad():
            for buffer, kept in zip(self.statistics, self.kept, strict=True):
                buffer.copy_(kept)


def message(runner, losses, where, images, file, hook) -> str:
    terms = ', '.join(f'{name} {value:g}' for name, value in losses.items())
    rates = sorted({group['lr'] for group in runner.optim_wrapper.param_groups})
    if hook.scaler is not None and math.isfinite(losses.get('loss', math.nan)):
        what = (f'the gradients overflow float16 at any scale of the loss (now '
                f'{hook.scaler.get_scale():g})')
    else:
        what = f'{hook.limit} steps in a row were not finite'
    return (f'{what}; iteration {runner.iter + 1} was the last.\n'
            f'  losses: {terms}\n'
            f'  images: {", ".join(images)}\n'
            f'  first: {where}\n'
            f'  learning rate: {rates[-1]:g}\n'
            f'The weights are still finite where these steps were left out. Try a lower learning '
            'rate (optim_wrapper.optimizer.lr), a longer warm-up, clipped gradients '
            '(optim_wrapper.clip_grad.max_norm=1'
            + ('), no --amp' if hook.scaler is not None else ')')
            + '; look at the images and their labels (tools/check_data.py). '
            f'--resume {file} repeats the last of these iterations, the same images, sizes and '
            'flips; --cfg-options max_nonfinite=N sets how many are let pass')


def words(strange: dict) -> str:
    return ', '.join(strange) + (' is' if len(strange) == 1 else ' are') if strange else (
        'gradients are')


def images_of(batch) -> list[str]:
    """The names of a batch's images, as far as they have any."""
    samples = batch.get('data_samples', ()) if isinstance(batch, dict) else ()
    return [str(sample.metainfo.get('img_path', '?')) for sample in samples]


def first_nonfinite(runner, batch) -> str:
    """Which layer's output, or else which gradient, is the first that is not finite.

    The iteration is computed again, with the same random draws. Several processes come here
    together (layers such as SyncBN wait for each other).
    """
    model = bare(runner.model)
    found, hooks = [], []

    def forward(name, module, args, output):
        inputs, outputs = list(tensors(args)), list(tensors(output))
        if not found and not finite(outputs):
            kind = type(module).__name__
            found.append(
                f'the output of {name} ({kind})' if finite([*inputs, *module.parameters()])
                else f'{name} ({kind}): its weights' if finite(inputs) else
                f'what {name} ({kind}) is given')
        for tensor in outputs:
            if tensor.requires_grad:
                hooks.append(tensor.register_hook(functools.partial(backward, name, module)))

    def backward(name, module, gradient):
        if not found and not finite([gradient]):
            found.append(f'the gradient at the output of {name} ({type(module).__name__})')

    for name, module in model.named_modules():
        if not any(module.children()):
            hooks.append(module.register_forward_hook(functools.partial(forward, name)))
    seed_everything(runner.seed, 0, runner.iter, get_rank())
    try:
        with runner.optim_wrapper.optim_context(model):
            data = model.data_preprocessor(batch, True)
            losses = model._run_forward(data, mode='loss')
            total, terms = model.parse_losses(losses)
        bad = {name: value for name, value in terms.items() if not math.isfinite(value)}
        if bad and not found:
            found.append(f'{words(bad)} not finite, while the outputs of all layers are')
        if not found:
            total.backward()
        for name, p in model.named_parameters():
            if not found and p.grad is not None and not finite([p.grad]):
                found.append(f'the gradient of {name}')
    except torch.OutOfMemoryError:
        return 'not looked for: a second graph has no room in memory'
    finally:
        for hook in hooks:
            hook.remove()
        model.zero_grad(set_to_none=True)
    return found[0] if found else 'nothing, when the iteration was computed again'


def tensors(value):
    """The tensors in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from tensors(each)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))


def finite(values: list[Tensor] | list[nn.Parameter]) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in values if value.is_floating_point())
