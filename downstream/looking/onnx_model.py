"""An exported model as a function of images: :class:`OnnxPredictor`, on onnxruntime."""
import json
from collections.abc import Sequence

import mmcv
import numpy as np
from mmengine.registry import TRANSFORMS

from ..data.layouts import DETECTION, SEGMENTATION
from ..errors import UserError
from .exporting import need, open_session
from .predictor import Detections, LabelMap, Prediction, Predictor


class OnnxPredictor(Predictor):
    """What ``tools/export.py`` wrote, called as a :class:`Predictor` and with its results.

    There is no torch model in it: onnxruntime computes, on the CPU.

    Args:
        path: of the ONNX file.
        threads: of onnxruntime; None for as many as torch has.

    Raises:
        UserError: the file is missing, no ONNX model, or none that ``tools/export.py`` wrote.
    """

    def __init__(self, path, threads: int | None = None):
        need('onnxruntime')
        try:
            self.session = open_session(path, threads)
        except Exception as error:  # onnxruntime has a class for each kind of trouble
            raise UserError(f'{path} cannot be read as an ONNX model: '
                            f'{str(error).splitlines()[0]}') from None
        known = self.session.get_modelmeta().custom_metadata_map
        try:
            told = {key: json.loads(known[key]) for key in
                    ('kind', 'classes', 'palette', 'resize', 'values', 'least_side')}
        except (KeyError, ValueError):
            raise UserError(f'{path} does not say all of its classes and its resizing: it was not '
                            'written by this tools/export.py') from None
        self.kind, self.classes, self.resize = told['kind'], tuple(told['classes']), told['resize']
        if self.kind not in (DETECTION, SEGMENTATION):
            raise UserError(f'{path} is a backbone alone, which predicts nothing')
        self.meta = dict(classes=self.classes, palette=[tuple(c) for c in told['palette']])
        self.values = told['values'] and np.array(told['values'], np.uint8)
        self.least_side = told['least_side']
        self.scope, self.notes = 'mmengine', []
        self.load = TRANSFORMS.build(dict(type='LoadImageFromFile'))
        self.rest = self.resized

    def resized(self, results: dict) -> dict:
        """What the experiment's Resize does: ``inputs`` (1, 3, H, W) float32 RGB, ``scale``."""
        image = results['img']
        height, width = image.shape[:2]
        if self.resize:
            to = mmcv.imrescale if self.resize['keep_ratio'] else mmcv.imresize
            image = to(image, tuple(self.resize['scale']))
        if min(image.shape[:2]) < self.least_side:
            raise UserError(f'{results["img_path"] or "the image"}: {image.shape[1]} x '
                            f'{image.shape[0]} pixels, but this file takes no side below '
                            f'{self.least_side}')
        scale = np.float32([image.shape[1] / width, image.shape[0] / height])
        image = np.ascontiguousarray(image[..., ::-1].transpose(2, 0, 1)[None], np.float32)
        return dict(inputs=image, scale=scale)

    def predict(self, prepared: Sequence[tuple]) -> list[Prediction]:
        """Predict what :meth:`prepare` gave, one image after the other."""
        return [self.one(*entry) for entry in prepared]

    def one(self, rgb: np.ndarray, path: str | None, results: dict) -> Prediction:
        own = rgb, self.meta, path
        if self.kind == SEGMENTATION:
            labels, = self.session.run(None, dict(
                image=results['inputs'], size=np.array(rgb.shape[:2], np.int64)))
            return LabelMap(*own, labels[0])
        boxes, scores, labels = self.session.run(None, dict(image=results['inputs']))
        return Detections(*own, boxes / np.tile(results['scale'], 2), scores, labels, None)


# Options of tools/predict.py that speak of a config or of PyTorch.
OTHERS = 'device', 'tta', 'data', 'cfg_options', 'trust_checkpoint', 'allow_partial'


def of_onnx(args):
    """Of the arguments of tools/predict.py: the predictor, the values of label maps, and notes.

    Raises:
        UserError: an option says what an exported model cannot do, or the file is none.
    """
    idle = [f'--{name.replace("_", "-")}' for name in OTHERS if getattr(args, name)]
    if args.batch > 1:
        idle.append('--batch')
    if idle:
        raise UserError(f'{", ".join(idle)}: not with {args.checkpoint}, which has its config in '
                        'it, takes one image at a time and runs on the CPU')
    predictor = OnnxPredictor(args.checkpoint)
    return predictor, predictor.values, []
