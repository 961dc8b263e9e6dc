"""A page of training samples as an experiment's network gets them: augmented, with their labels.

docs/own_data.md
"""
import copy
import random
from pathlib import Path

import cv2
import numpy as np
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import DATASETS, init_default_scope
from mmengine.runner import set_random_seed

from ..data.loading import type_name
from ..data.own import kind_of_experiment, palette
from ..data.parts import leaves
from ..errors import UserError
from .drawing import draw_labels, draw_objects, instance_colors
from .pages import data_uri, save_page, template

LONGEST = 640  # pixels of a picture's longer side
DRAWS = 3  # of each image
SEED = 0


class Samples:
    """The training set of an experiment.

    Args:
        cfg: the experiment; its data is there.

    Raises:
        UserError: there is no image to train on, or the pipeline packs nothing that can be drawn.
    """

    def __init__(self, cfg: Config):
        init_default_scope(cfg.get('default_scope') or 'mmengine')
        said = copy.deepcopy(cfg.train_dataloader.dataset)
        self.dataset = DATASETS.build(said)
        if not len(self.dataset):
            raise UserError('the config\'s training set has no image, or filter_cfg leaves none')
        # The wrapper of mosaics and the like has the rest of the pipeline.
        steps = [*next(leaves(said)).get('pipeline', ()), *(
            said.get('pipeline', ()) if 'dataset' in said else ())]
        self.steps = [step if isinstance(step, dict) else {'type': 'list'} for step in steps]
        if not any(type_name(step).startswith('Pack') for step in self.steps):
            raise UserError('the pipeline of the config\'s training set has no step that packs its '
                            'results (PackDetInputs, PackSegInputs)')
        plain = [step for step in self.steps if type_name(step).startswith(('Load', 'Pack'))]
        self.plain = Compose([{**step, 'meta_keys': ('img_path', 'ori_shape')}
                              if type_name(step).startswith('Pack') else step for step in plain])
        self.classes = list(self.dataset.metainfo.get('classes') or ())
        colors = self.dataset.metainfo.get('palette') or ()
        self.palette = ([tuple(color) for color in colors] if len(colors) >= len(self.classes)
                        else palette(len(self.classes)))
        self.normalize = next((step for step in self.steps if type_name(step) == 'Normalize'), None)

    def original(self, index: int) -> tuple[str, np.ndarray]:
        """An image as it is, with its labels."""
        packed = self.plain(copy.deepcopy(self.dataset.get_data_info(index)))
        sample = packed['data_samples']
        return (f'{Path(sample.img_path).name}, as it is: {size_of(packed)}',
                self.draw(packed, normalized=False))

    def augmented(self, index: int) -> tuple[str, np.ndarray]:
        """An image as the pipeline hands it on, with its labels; another draw each time."""
        packed = self.dataset[index]
        sample = packed['data_samples']
        words = size_of(packed)
        if sample.get('flip'):
            words += f', flipped ({sample.get("flip_direction")})'
        if 'gt_instances' in sample:
            count = len(sample.gt_instances)
            words += f', {count} object' + 's' * (count != 1)
        # mmengine takes another image where a step gives up.
        path = sample.get('img_path')
        if path and Path(path) != Path(self.dataset.get_data_info(index)['img_path']):
            words += f': {Path(path).name}, since a step of the pipeline left nothing of this image'
        return words, self.draw(packed, normalized=self.normalize is not None)

    def pixels(self, inputs, normalized: bool) -> np.ndarray:
        """(3, H, W) of the pipeline as (H, W, 3) RGB uint8."""
        image = inputs.permute(1, 2, 0).numpy()
        if normalized:
            image = image * np.array(self.normalize['std']) + np.array(self.normalize['mean'])
        if not (normalized and self.normalize.get('to_rgb', True)):
            image = image[..., ::-1]  # OpenCV's order
        return np.ascontiguousarray(image.clip(0, 255).astype(np.uint8))

    def draw(self, packed: dict, normalized: bool) -> np.ndarray:
        image, sample = self.pixels(packed['inputs'], normalized), packed['data_samples']
        scale = min(1., LONGEST / max(image.shape[:2]))
        size = [max(1, round(side * scale)) for side in image.shape[1::-1]]
        picture = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        if 'gt_sem_seg' in sample:
            picture = self.draw_map(picture, sample.gt_sem_seg)
        if 'gt_instances' in sample:
            picture = self.draw_instances(picture, sample.gt_instances, scale,
                                          masks='gt_sem_seg' not in sample)
        return picture

    def draw_map(self, picture, sem_seg) -> np.ndarray:
        """What counts as not labelled (255, in mmseg and mmdet) is grey."""
        data = sem_seg.get('sem_seg') if 'sem_seg' in sem_seg else sem_seg.data
        labels = cv2.resize(data.reshape(data.shape[-2:]).numpy().astype(np.int32),
                            picture.shape[1::-1], interpolation=cv2.INTER_NEAREST_EXACT)
        count = len(self.classes)
        labels[(labels < 0) | (labels >= count)] = count
        return draw_labels(picture, labels, [*self.classes, 'not labelled'],
                           [*self.palette[:count], (120, 120, 120)])

    def draw_instances(self, picture, instances, scale: float, masks: bool) -> np.ndarray:
        boxes, labels = instances.bboxes, instances.labels.numpy()
        boxes = np.asarray(getattr(boxes, 'tensor', boxes)) * scale
        stacked = None
        if masks and 'masks' in instances and len(labels):
            stacked = np.stack([cv2.resize(mask, picture.shape[1::-1],
                                           interpolation=cv2.INTER_NEAREST_EXACT)
                                for mask in instances.masks.to_ndarray()]).astype(bool)
        return draw_objects(picture, boxes, stacked, instance_colors(labels, self.palette),
                            [self.classes[label] for label in labels])


def size_of(packed: dict) -> str:
    height, width = packed['inputs'].shape[-2:]
    return f'{width} x {height}'


def facts(cfg: Config, samples: Samples) -> dict[str, str]:
    """What happens between these samples and the network, as the config says."""
    said = cfg.model.get('data_preprocessor') or {}
    normalize = samples.normalize or (said if said.get('mean') else None)
    turned = (normalize or said).get('to_rgb' if samples.normalize else 'bgr_to_rgb',
                                     samples.normalize is not None)
    rows = {'images': f'{len(samples.dataset):,} to train on',
            'a batch': f'{cfg.train_dataloader.get("batch_size", 1)} images a process',
            'steps': ', '.join(type_name(step) for step in samples.steps),
            'channels': 'RGB' if turned else 'BGR, as OpenCV reads them'}
    if normalize:
        by = 'the pipeline' if samples.normalize else 'data_preprocessor'
        numbers = [', '.join(f'{number:g}' for number in normalize[key]) for key in ('mean', 'std')]
        rows['pixels'] = (f'({by}) less the mean {numbers[0]}, divided by {numbers[1]}; '
                          'drawn here as they were before')
    else:
        rows['pixels'] = '0 to 255'
    if said.get('size'):
        rows['padding'] = f'to {said["size"][1]} x {said["size"][0]}'
    elif said.get('size_divisor') or said.get('pad_size_divisor', 1) > 1:
        rows['padding'] = ('to the largest of the batch, its sides multiples of '
                           f'{said.get("size_divisor") or said.get("pad_size_divisor")}')
    for augment in said.get('batch_augments') or ():
        rows['changed with the whole batch'] = f'{type_name(augment)}, not drawn here'
    return rows


def write_samples(cfg: Config, name: str, notes: list[str], out: Path, images: int) -> Path:
    """Write the page of an experiment's training samples.

    Args:
        cfg: the experiment; its data is there.
        name: of the experiment.
        notes: what was understood of the data, to show.
        images: so many, at random, each of them drawn anew a few times.

    Returns:
        The page, index.html in ``out``.

    Raises:
        UserError: as :class:`Samples`; an image cannot be loaded; ``out`` cannot be written.
    """
    samples = Samples(cfg)
    set_random_seed(SEED)
    chosen = random.sample(range(len(samples.dataset)), min(images, len(samples.dataset)))
    rows = [[(words, data_uri(picture, LONGEST)) for words, picture in
             [samples.original(index), *(samples.augmented(index) for _ in range(DRAWS))]]
            for index in chosen]
    text = template('samples.html.j2').render(
        name=name, kind=kind_of_experiment(cfg), facts=facts(cfg, samples), notes=notes, rows=rows,
        draws=DRAWS)
    return save_page(text, out, '--report')
