"""Training a model that one GPU cannot hold: mmengine's FSDP, put right (docs/distributed.md)."""
import re
from functools import partial

import torch
from mmengine._strategy import FSDPStrategy
from mmengine.device import get_device
from mmengine.registry import RUNNERS, STRATEGIES
from mmengine.runner import CheckpointLoader, FlexibleRunner
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import OptimStateKeyType
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy

from ..errors import UserError


@RUNNERS.register_module()
class FSDPRunner(FlexibleRunner):
    """mmengine's FlexibleRunner, resuming after the epoch that was the last."""

    def save_checkpoint(self, *args, meta=None, **kwargs):
        self._stated = dict(meta or {})
        super().save_checkpoint(*args, meta=meta, **kwargs)

    def call_hook(self, fn_name, **kwargs):
        if fn_name == 'before_save_checkpoint':
            # FlexibleRunner counts one more than what the hook for checkpoints states. After a
            # validation with the best score until then, that is one too many.
            kwargs['checkpoint']['meta'].update(self._stated)
        super().call_hook(fn_name, **kwargs)


@STRATEGIES.register_module()
class PlainFSDPStrategy(FSDPStrategy):
    """Parameters, gradients and optimizer state are shared out among the processes.

    Checkpoints are those of training without it, the optimizer's state included: one file, which
    any number of processes can resume, with FSDP or without.

    Args:
        blocks: regular expression. Modules with a class name in which it is found are gathered for
            their own forward and backward pass only; they may be used only by being called.

    Raises:
        UserError: the model has a parameter without dimensions; FSDP cannot share that out.
    """

    def __init__(self, *, blocks: str, **kwargs):
        super().__init__(state_dict_cfg='full', **kwargs)
        is_block = partial(lambda_auto_wrap_policy,
                           lambda_fn=lambda module: re.search(blocks, type(module).__name__))
        self.model_wrapper = dict(type='MMFullyShardedDataParallel', auto_wrap_policy=is_block,
                                  backward_prefetch='BACKWARD_PRE')
        if get_device() == 'cpu':  # mmengine gives the number of a GPU
            self.model_wrapper['device_id'] = torch.device('cpu')
            # FSDP would save memory that it has freed or filled anew, taking it for a copy.
            self.state_dict_config.offload_to_cpu = False
            self.optim_state_dict_config.offload_to_cpu = False

    def build_model(self, model):
        model = super().build_model(model)
        # Wrapped, a parameter has the shape of this process's share. These are the whole ones; one
        # with several names is one here, too.
        blanks = {p: torch.empty(p.shape, device='meta') for p in model.parameters()}
        self.whole = {name: blanks[p] for name, p in model.named_parameters(remove_duplicate=False)}
        single = [name for name, blank in self.whole.items() if not blank.shape]
        if single:
            raise UserError(f'FSDP cannot share out parameters that are single numbers: '
                            f'{", ".join(single)}; train this model without it')
        return model

    def build_optim_wrapper(self, optim_wrapper, model=None):
        wrapper = super().build_optim_wrapper(optim_wrapper, model)
        if getattr(wrapper, 'clip_func', None) is torch.nn.utils.clip_grad_norm_:
            # It would clip each process's share by the norm of that share.
            wrapper.clip_func = lambda _, **limits: model.clip_grad_norm_(**limits)
        return wrapper

    def optim_state_dict(self):
        """The whole state by number of the parameter, as without FSDP; empty but in rank 0."""
        optimizer = self.optim_wrapper.optimizer
        state = FSDP.optim_state_dict(self.model, optimizer)
        if not state:
            return state
        return {**self.optim_wrapper.state_dict(),  # with what AMP adds
                **FSDP.rekey_optim_state_dict(state, OptimStateKeyType.PARAM_ID, self.model,
                                              optim=optimizer)}

    def load_optim_state_dict(self, state_dict):
        optimizer = self.optim_wrapper.optimizer
        state = {key: state_dict[key] for key in ('state', 'param_groups')}
        state = FSDP.rekey_optim_state_dict(state, OptimStateKeyType.PARAM_NAME, self.model,
                                            optim=optimizer)
        # (mmengine has these arguments in the order of torch 2.0.)
        state = FSDP.optim_state_dict_to_load(self.model, optimizer, state)
        self.optim_wrapper.load_state_dict({**state_dict, **state})

    def load_checkpoint(self, filename, *, callback=None, **kwargs):
        """As without FSDP, from a bare state dict too. No GPU has room for all that is in the file.
        """
        self.logger.info(f'Load checkpoint from {filename}')
        checkpoint = CheckpointLoader.load_checkpoint(filename, map_location='cpu')
        if callback is not None:
            callback(checkpoint)
        if 'state_dict' not in checkpoint:
            checkpoint = {'state_dict': checkpoint}
        self.load_model_state_dict(checkpoint.pop('state_dict'))
        return checkpoint

    def load_model_state_dict(self, state_dict, **kwargs):
        """As without FSDP: what does not fit is logged, and stays what it was."""
        state = {re.sub(r'^module\.', '', name): value for name, value in state_dict.items()}
        wrong = [name for name, value in state.items()
                 if name in self.whole and self.whole[name].shape != value.shape]
        result = self.model.load_state_dict(
            {name: value for name, value in state.items() if name not in wrong}, strict=False)
        if wrong or result.missing_keys or result.unexpected_keys:
            self.logger.warning('The model and loaded state dict do not match exactly: of another '
                                f'shape {wrong}, missing {result.missing_keys}, unexpected '
                                f'{result.unexpected_keys}')
