"""Random draws that do not depend on when a run was stopped and resumed."""
import random
from functools import partial

import numpy as np
import torch
from mmengine.dist import get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.runner import IterBasedTrainLoop

from .resuming import done_in_epoch


class SameDraws(Hook):
    """Seeds the draws of each iteration and of each training sample by their numbers.

    mmengine resumes weights, optimizer, schedules and messages, but no random number generator: a
    resumed run draws other flips, crops, dropped paths and sampled boxes than one that was not
    stopped, and, where the config has no seed, another order of the images. With this hook a
    resumed run has the losses of one that was not stopped, however many workers load its data.
    """

    def before_train_epoch(self, runner):
        loader = runner.train_loop.dataloader
        batches = getattr(loader.batch_sampler, 'batches', loader.batch_sampler)
        if not isinstance(batches.sampler, NumberedSampler):
            batches.sampler = NumberedSampler(batches.sampler)
            loader.dataset.__getitems__ = partial(seeded_samples, loader.dataset, runner.seed)
        sampler = batches.sampler.sampler
        if hasattr(sampler, 'seed'):
            sampler.seed = runner.seed  # it was built before the checkpoint told the seed
        # In training by iterations mmengine goes through the indices again, if it cannot skip them.
        begun = runner.iter
        if isinstance(runner.train_loop, IterBasedTrainLoop):
            begun *= hasattr(loader.sampler, 'skip')
        else:
            begun -= done_in_epoch(runner.train_loop)  # those are drawn again, and left out
        batches.sampler.number = begun * batches.batch_size

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        seed_everything(runner.seed, 0, runner.iter, get_rank())  # each process draws its own


class NumberedSampler:
    """A sampler whose indices know how many were drawn before them, in all processes together."""

    def __init__(self, sampler):
        self.sampler = sampler
        self.number = 0

    def __iter__(self):
        for index in self.sampler:
            yield NumberedIndex(index, self.number * get_world_size() + get_rank())
            self.number += 1

    def __len__(self):
        return len(self.sampler)

    def __getattr__(self, name):  # mmdet's batch sampler asks for its dataset
        return getattr(self.sampler, name)


class NumberedIndex(int):
    """An index into a data set, with its number in the order of the training."""

    def __new__(cls, index, number):
        self = super().__new__(cls, index)
        self.number = number
        return self

    def __reduce__(self):  # on its way to a worker
        return NumberedIndex, (int(self), self.number)


def seeded_samples(dataset, seed, indices):
    """The samples of a batch, as torch's data loader asks for them."""
    samples = []
    for index in indices:
        if isinstance(index, NumberedIndex):  # a batch sampler may make indices of its own
            seed_everything(seed, 1, index.number)
        samples.append(dataset[index])
    return samples


def seed_everything(*numbers):
    """Seed every generator that models and transforms draw from."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
