"""A trained model as a function of images: ``Predictor.from_checkpoint(config, checkpoint)``."""
import base64
import contextlib
import copy
import html
import io
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.device import get_device
from mmengine.registry import MODELS, TRANSFORMS, DefaultScope
from mmengine.runner import load_state_dict
from PIL import Image, ImageOps

from backbones.pretrained import TRUSTED, Match

from ..data.checks import head_classes, leaf_datasets
from ..data.layouts import DETECTION, PANOPTIC, SEGMENTATION
from ..data.loading import REPAIR, is_image_loader, without_truth
from ..data.own import kind_of_experiment, palette, use_data
from ..data.parts import leaves
from ..errors import UserError
from ..scoring.flags import use_tta
from ..scoring.predictions import SHOWN
from ..training.checkpoints import bare, check_fit, check_name, load_from_file, tensors_of
from ..training.launching import read_config, without_sync_bn
from .drawing import draw_labels, draw_objects, instance_colors

# -- what is predicted -------------------------------------------------------------------------

@dataclass
class Prediction:
    """What a model says of an image. In a notebook it shows itself as a picture.

    Attributes:
        image: (H, W, 3) RGB uint8, the image itself.
        meta: 'classes', their names, and 'palette', a colour (R, G, B) of each.
        path: the image's file; None of an array.
    """
    image: np.ndarray = field(repr=False)
    meta: dict = field(repr=False)
    path: str | None
    kind: ClassVar[str]

    def draw(self, score_thr: float = SHOWN) -> np.ndarray:
        """The prediction on the image, (H, W, 3) RGB uint8.

        Args:
            score_thr: boxes of a lower score are left out.
        """
        raise NotImplementedError

    def _repr_html_(self) -> str:
        content = io.BytesIO()
        picture = Image.fromarray(self.draw())
        picture.thumbnail((1024, 1024))
        picture.save(content, 'JPEG', quality=90)
        return ('<img alt="prediction" src="data:image/jpeg;base64,'
                f'{base64.b64encode(content.getvalue()).decode()}"><div>{html.escape(str(self))}'
                '</div>')


@dataclass
class Detections(Prediction):
    """Objects, by falling score.

    Attributes:
        boxes: (N, 4) float32 x1, y1, x2, y2 in pixels of the image.
        scores: (N, ) float32 in 0..1.
        labels: (N, ) class numbers.
        masks: (N, H, W) bool; None of a model without masks.
    """
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: np.ndarray | None
    kind = DETECTION

    @property
    def names(self) -> list[str]:
        """The class of each box."""
        return [self.meta['classes'][label] for label in self.labels]

    def __len__(self):
        return len(self.boxes)

    def __str__(self):
        shown = Counter(name for name, score in zip(self.names, self.scores, strict=True)
                        if score >= SHOWN)
        return ', '.join(f'{count} {name}' for name, count in shown.most_common()) or 'nothing'

    def draw(self, score_thr=SHOWN):
        keep = self.scores >= score_thr
        return draw_objects(
            self.image, self.boxes[keep], None if self.masks is None else self.masks[keep],
            instance_colors(self.labels[keep], self.meta['palette']),
            [f'{name} {100 * score:.0f}' for name, score, kept in
             zip(self.names, self.scores, keep, strict=True) if kept])


@dataclass
class LabelMap(Prediction):
    """A class for each pixel.

    Attributes:
        labels: (H, W) class numbers.
    """
    labels: np.ndarray
    kind = SEGMENTATION

    @property
    def names(self) -> list[str]:
        """The classes that occur, the largest area first."""
        numbers, counts = np.unique(self.labels, return_counts=True)
        return [self.meta['classes'][number] for number in numbers[np.argsort(-counts)]]

    def __str__(self):
        return ', '.join(self.names)

    def draw(self, score_thr=SHOWN):
        return draw_labels(self.image, self.labels, self.meta['classes'], self.meta['palette'])


@dataclass
class Segments(Prediction):
    """Panoptic segmentation: each pixel belongs to one segment, or to none.

    Attributes:
        ids: (H, W) numbers of segments; -1 where nothing was found.
        labels: (N, ) the class number of each segment.
        masks: (N, H, W) bool.
    """
    encoded: np.ndarray = field(repr=False)  # mmdet's own: class + 1000 x number of the thing
    ids: np.ndarray
    labels: np.ndarray
    kind = PANOPTIC

    @classmethod
    def decode(cls, image, meta, path, encoded: np.ndarray):
        from mmdet.evaluation.functional import INSTANCE_OFFSET
        numbers = np.unique(encoded)
        numbers = numbers[numbers % INSTANCE_OFFSET < len(meta['classes'])]
        ids = np.full(encoded.shape, -1)
        for i, number in enumerate(numbers):
            ids[encoded == number] = i
        return cls(image, meta, path, encoded, ids, numbers % INSTANCE_OFFSET)

    @property
    def masks(self) -> np.ndarray:
        return self.ids == np.arange(len(self.labels))[:, None, None]

    @property
    def names(self) -> list[str]:
        """The class of each segment."""
        return [self.meta['classes'][label] for label in self.labels]

    def __len__(self):
        return len(self.labels)

    def __str__(self):
        return ', '.join(f'{count} {name}' for name, count in
                         Counter(self.names).most_common()) or 'nothing'

    def draw(self, score_thr=SHOWN):
        return draw_objects(self.image, None, self.masks,
                            instance_colors(self.labels, self.meta['palette']), self.names)


# -- who predicts ------------------------------------------------------------------------------

class Predictor:
    """A trained model that takes images as they are and gives plain arrays.

    ::

        from downstream import Predictor
        model = Predictor.from_checkpoint('configs/maskrcnn_focalnet_t_1x.py', 'epoch_12.pth')
        result = model('image.jpg')

    Attributes:
        classes: their names, by number.
        kind: 'detection', 'segmentation' or 'panoptic'.
    """

    @classmethod
    def from_checkpoint(cls, config, checkpoint, device=None, tta: bool = False,
                        allow_partial: bool = False):
        """Build a config's model and fill it with a checkpoint. No data set has to be there.

        Args:
            config: path of an experiment's config, or an mmengine Config.
            checkpoint: path, URL or name; read without executing what it holds.
            device: such as 'cuda:1' or 'cpu'; None for the GPU, where there is one.
            tta: test-time augmentation, by the config's tta_model and tta_pipeline.
            allow_partial: take a checkpoint that fits only in part.

        Raises:
            UserError: the config cannot be read, the checkpoint is not the model's or cannot be
                read safely, there is no such device.
        """
        cfg = (copy.deepcopy(config) if isinstance(config, Config) else
               read_config(config, {}, 'model', 'test_dataloader'))
        return cls(cfg, str(checkpoint), device, tta, allow_partial)

    @classmethod
    def from_arguments(cls, cfg: Config, args, device=None, tta: bool = False):
        """:meth:`from_checkpoint` for a command.

        Args:
            cfg: the experiment that its arguments name; fitted to --data.
            args: with checkpoint, data, trust_checkpoint and allow_partial.

        Returns:
            (the predictor, lines to show about --data).
        """
        if args.trust_checkpoint:
            TRUSTED.add(args.checkpoint)
        with tempfile.TemporaryDirectory() as cfg.work_dir:  # for annotations to be put right
            notes = use_data(cfg, args.data) if args.data else []
            return cls.from_checkpoint(cfg, args.checkpoint, device, tta,
                                       args.allow_partial), notes

    def __init__(self, cfg: Config, checkpoint: str, device, tta, allow_partial):
        self.scope, self.kind = cfg.get('default_scope') or 'mmengine', kind_of_experiment(cfg)
        self.notes = []
        if tta and not (cfg.get('tta_model') and cfg.get('tta_pipeline')):
            raise UserError('test-time augmentation: the config has no tta_model and tta_pipeline')
        self.device = usable_device(device)
        if not allow_partial:
            check_name(cfg, checkpoint)
        content = load_from_file(checkpoint)
        heads = {number for _, _, number in head_classes(cfg.model)}
        if tta:
            self.notes = use_tta(cfg)
        with self.in_scope():
            model = MODELS.build(without_sync_bn(cfg.model))
            self.fill(bare(model), content, checkpoint, allow_partial)
            self.model = model.to(self.device).eval()
            self.meta = meta_of(content, cfg, heads)
            pipeline = next(leaves(cfg.test_dataloader.dataset)).pipeline
            first = next((i for i, step in enumerate(pipeline) if is_image_loader(step)), None)
            if first is None:
                raise UserError('the pipeline of the config\'s test_dataloader loads no image')
            self.load = TRANSFORMS.build(pipeline[first])
            self.rest = Compose(without_truth(pipeline[first + 1:]))
        self.classes = self.meta['classes']

    def fill(self, model, content: dict, source: str, allow_partial: bool):
        fit = Match(tensors_of(content['state_dict']), model.state_dict(),
                    optional={name for name, _ in model.named_buffers()})
        check_fit(fit, model, source, content.get('meta') or {}, allow_partial)
        with contextlib.redirect_stdout(io.StringIO()):  # mmengine prints what check_fit has judged
            load_state_dict(model, fit.fits)

    def in_scope(self):
        return DefaultScope.overwrite_default_scope(self.scope)

    def __call__(self, images, batch_size: int = 1):
        """Predict one image or several.

        Args:
            images: a path, a PIL image, or an array (H, W, 3) of uint8 in RGB or (H, W) in grey; or
                a list of such.
            batch_size: so many images at a time. They are padded to a common size, which changes
                what a model computes a little: with 1, as in tools/test.py, nothing is padded
                but to the model's own multiple.

        Returns:
            :class:`Detections`, :class:`LabelMap` or :class:`Segments`; for a list, a list of them.

        Raises:
            UserError: an image is missing, broken, or not an image.
        """
        several = isinstance(images, list | tuple)
        images = list(images) if several else [images]
        results = []
        for start in range(0, len(images), batch_size):
            results += self.predict([self.prepare(image) for image in
                                     images[start:start + batch_size]])
        return results if several else results[0]

    def prepare(self, image) -> tuple[np.ndarray, str | None, dict]:
        """An image through the config's pipeline: (itself in RGB, its path, the model's input)."""
        results = dict(img_id=0, img_path=None)
        with self.in_scope():
            if isinstance(image, str | os.PathLike):
                results['img_path'] = str(image)
                try:
                    results = self.load(results)
                except UserError as error:
                    raise UserError(str(error).removesuffix(f'; {REPAIR}')) from None
            else:
                img = np.ascontiguousarray(as_rgb(image)[..., ::-1])  # BGR, as files are read
                results.update(img=img.astype(np.float32) if self.load.to_float32 else img,
                               img_shape=img.shape[:2], ori_shape=img.shape[:2])
            rgb = np.ascontiguousarray(results['img'][..., ::-1].astype(np.uint8))
            return rgb, results['img_path'], self.rest(results)

    @torch.no_grad()
    def predict(self, prepared: Sequence[tuple]) -> list[Prediction]:
        """Predict what :meth:`prepare` gave, in one batch, or several where sizes have to agree."""
        results = []
        with self.in_scope():
            for part in self.batches(prepared):
                samples = self.model.test_step(pseudo_collate([inputs for _, _, inputs in part]))
                results += [self.result(sample, rgb, path)
                            for sample, (rgb, path, _) in zip(samples, part, strict=True)]
        return results

    def batches(self, prepared) -> Iterator[list[tuple]]:
        """mmseg stacks images without padding them: of one size."""
        part = []
        for entry in prepared:
            if part and self.kind == SEGMENTATION and sizes(entry) != sizes(part[0]):
                yield part
                part = []
            part.append(entry)
        if part:
            yield part

    def result(self, sample, rgb: np.ndarray, path: str | None) -> Prediction:
        own = rgb, self.meta, path
        if self.kind == SEGMENTATION:
            labels = sample.pred_sem_seg.data.reshape(rgb.shape[:2])
            return LabelMap(*own, labels.cpu().numpy().astype(np.int64))
        if self.kind == PANOPTIC:
            return Segments.decode(*own, sample.pred_panoptic_seg.sem_seg[0].cpu().numpy())
        found = sample.pred_instances
        masks = found.get('masks')
        if masks is not None:
            masks = torch.as_tensor(masks).cpu().numpy().astype(bool)
        return Detections(*own, found.bboxes.cpu().numpy(), found.scores.cpu().numpy(),
                          found.labels.cpu().numpy(), masks)


def sizes(entry) -> list[tuple]:
    """The sizes of an image's input, or of its views'."""
    inputs = entry[2]['inputs']
    return [tuple(view.shape) for view in (inputs if isinstance(inputs, list) else [inputs])]


def usable_device(device) -> str:
    device = str(device or get_device())
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f'device {device!r}: {str(error).splitlines()[0]}') from None
    return device


def as_rgb(image) -> np.ndarray:
    """(H, W, 3) RGB uint8 of an array or a PIL image."""
    if isinstance(image, Image.Image):
        return np.asarray(ImageOps.exif_transpose(image).convert('RGB'))
    given = image = np.asarray(image)
    if image.ndim == 2:
        image = np.repeat(image[..., None], 3, -1)
    if image.ndim != 3 or image.shape[-1] != 3 or image.dtype != np.uint8 or not image.size:
        raise UserError('an image is a path, a PIL image or an array (H, W, 3) or (H, W) of uint8, '
                        f'not of {given.dtype} with the shape {given.shape}')
    return image


def meta_of(content: dict, cfg: Config, heads: set[int]) -> dict:
    """Class names and colours: as the checkpoint says, or else the config's data set.

    Args:
        heads: how many classes the model's heads tell apart; what has another number of names is
            not taken.
    """
    meta = content.get('meta') or {}
    recorded = meta.get('dataset_meta') or {  # mmdet 2.x, mmseg 0.x
        key: meta.get(key.upper()) for key in ('classes', 'palette')}
    recorded = {key.lower(): value for key, value in recorded.items() if value is not None}
    try:
        config = dict(leaf_datasets(cfg.test_dataloader.dataset)[0].metainfo)
    except IndexError:  # none of mmengine's data sets
        config = {}
    for found in recorded, config:
        classes = tuple(found.get('classes') or ())
        kinds = [found.get('thing_classes'), found.get('stuff_classes'), classes]
        if classes and (not heads or heads <= {len(kind or ()) for kind in kinds}):
            break
    else:
        found, classes = {}, tuple(f'class {i}' for i in range(max(heads, default=0)))
    colors = found.get('palette') or ()
    if len(colors) < len(classes) and tuple(config.get('classes') or ()) == classes:
        colors = config.get('palette') or ()
    colors = [tuple(color) for color in colors]
    things = {'thing_classes': tuple(found['thing_classes'])} if 'thing_classes' in found else {}
    return dict(classes=classes, **things, palette=colors if len(colors) >= len(classes) else
                palette(len(classes)))
