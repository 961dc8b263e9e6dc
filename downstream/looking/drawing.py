"""Boxes, masks and names on an image.

mmdet's visualizer draws through matplotlib, which takes seconds for an image with many masks
(docs/predict.md); it and mmseg's paint over what they show and let names leave the image.
"""
import colorsys
from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

MASK, MAP = 0.45, 0.55  # how much of the colour covers the image
WRONG, BESIDE, OUTSIDE = (225, 30, 50), (235, 235, 235), (110, 110, 110)
LEAST = 0.003  # the share of the image that a region has at least to be named


def instance_colors(labels: np.ndarray, palette: Sequence) -> np.ndarray:
    """(N, 3) uint8: the class's colour, another lightness for each further object of the class."""
    seen, colors = {}, []
    for label in labels.tolist():
        number = seen[label] = seen.get(label, -1) + 1
        hue, light, saturation = colorsys.rgb_to_hls(*(c / 255 for c in palette[label]))
        light = min(max(light, 0.35), 0.75) + (0, 0.12, -0.12)[number % 3]
        colors.append([255 * c for c in colorsys.hls_to_rgb(
            (hue + 0.025 * (number // 3 % 5)) % 1, light, saturation)])
    return np.array(colors, np.float32).reshape(-1, 3).round().astype(np.uint8)


def draw_objects(image: np.ndarray, boxes, masks, colors: np.ndarray,
                 names: Sequence[str]) -> np.ndarray:
    """Objects on an image, (H, W, 3) RGB uint8; the small ones in front.

    Args:
        image: (H, W, 3) RGB uint8.
        boxes: (N, 4) x1, y1, x2, y2 in pixels, or None: names then stand in the masks.
        masks: (N, H, W) bool, or None.
        colors: (N, 3) uint8.
        names: what to write at each.
    """
    picture, line = image.copy(), max(1, round(max(image.shape[:2]) / 500))
    areas = (masks.sum((1, 2)) if masks is not None else
             (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))
    order, written = np.argsort(-areas, kind='stable'), []
    for i in order:
        color = tuple(map(int, colors[i]))
        if masks is not None:
            mask = masks[i]
            picture[mask] = ((1 - MASK) * picture[mask] + MASK * colors[i]).astype(np.uint8)
            outlines, _ = cv2.findContours(mask.view(np.uint8), cv2.RETR_LIST,
                                           cv2.CHAIN_APPROX_NONE)
            cv2.drawContours(picture, outlines, -1, color, line, cv2.LINE_AA)
        if boxes is not None:
            x1, y1, x2, y2 = boxes[i].round().astype(int).tolist()
            cv2.rectangle(picture, (x1, y1), (x2, y2), color, line, cv2.LINE_AA)
            written.append((names[i], (x1, y1), color))
        elif areas[i] >= LEAST * image[..., 0].size:
            written.append((names[i], middle(masks[i]), color))
    return write(picture, written, centered=boxes is None)


def point_out(image: np.ndarray, boxes: np.ndarray, names: Sequence[str],
              others: np.ndarray) -> np.ndarray:
    """Boxes that something is wrong with, in red, beside others; those may leave the image.

    Args:
        image: (H, W, 3) RGB uint8; a margin is added where boxes leave it.
        boxes: (N, 4) x1, y1, x2, y2 in pixels.
        names: what to write at each.
        others: (M, 4) as ``boxes``.
    """
    size = np.array(image.shape[1::-1])
    line = max(2, round(max(size) / 200))
    most = size // 2  # a box may end a million pixels away
    left, top = np.clip(-boxes[:, :2].min(0, initial=0), 0, most).astype(int) + line
    right, bottom = np.clip(boxes[:, 2:].max(0, initial=0) - size, 0, most).astype(int) + line
    picture = cv2.copyMakeBorder(image, top, bottom, left, right, cv2.BORDER_CONSTANT,
                                 value=OUTSIDE)
    limit = np.array(picture.shape[1::-1]) - 1

    def corners(box):
        box = np.clip(box.reshape(2, 2) + (left, top), 0, limit).round().astype(int)
        return [tuple(corner) for corner in box.tolist()]

    for box in others:
        cv2.rectangle(picture, *corners(box), BESIDE, 1, cv2.LINE_AA)
    written = []
    for box, name in zip(boxes, names, strict=True):
        (x1, y1), (x2, y2) = corners(box)
        cv2.rectangle(picture, (x1, y1), (x2, y2), WRONG, line, cv2.LINE_AA)
        if min(x2 - x1, y2 - y1) < 4 * line:  # hard to see: a ring around it
            axes = (x2 - x1) // 2 + 6 * line, (y2 - y1) // 2 + 6 * line
            cv2.ellipse(picture, ((x1 + x2) // 2, (y1 + y2) // 2), axes, 0, 0, 360, WRONG, line,
                        cv2.LINE_AA)
            y1 = max(y1 - 6 * line, 0)
        written.append((name, (x1, y1), WRONG))
    return write(picture, written, centered=False)


def draw_labels(image: np.ndarray, labels: np.ndarray, classes: Sequence[str],
                palette: Sequence) -> np.ndarray:
    """A label map (H, W) on an image, (H, W, 3) RGB uint8, with names in the larger regions."""
    colors = np.array(palette, np.float32)
    picture = ((1 - MAP) * image + MAP * colors[labels]).astype(np.uint8)
    edges = np.zeros(labels.shape, bool)
    edges[:, 1:] |= labels[:, 1:] != labels[:, :-1]
    edges[1:] |= labels[1:] != labels[:-1]
    picture[edges] = 255
    written = []
    for label in np.unique(labels).tolist():
        mask = labels == label
        if mask.mean() >= LEAST:
            written.append((classes[label], middle(mask), tuple(map(int, colors[label]))))
    return write(picture, written, centered=True)


def middle(mask: np.ndarray) -> tuple[int, int]:
    """x, y of the point of a mask that is farthest from its border, the image's among it."""
    padded = np.pad(mask.view(np.uint8), 1)
    distance = cv2.distanceTransform(padded, cv2.DIST_L2, 3)
    y, x = np.unravel_index(distance.argmax(), distance.shape)
    return int(x) - 1, int(y) - 1


def write(picture: np.ndarray, written: list[tuple], centered: bool) -> np.ndarray:
    """Names on plates of their colours, inside the picture.

    Args:
        written: (text, (x, y), colour); the point is the plate's middle, or a box's upper left
            corner, above which the plate stands if there is room.
    """
    height, width = picture.shape[:2]
    font = ImageFont.load_default(size=max(10, round(min(height, width) / 40)))
    canvas = Image.fromarray(picture)
    pen = ImageDraw.Draw(canvas)
    for text, (x, y), color in written:
        left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
        wide, high = right - left + 6, bottom - top + 4
        x, y = (x - wide // 2, y - high // 2) if centered else (x, y - high if y >= high else y)
        x, y = min(max(x, 0), max(width - wide, 0)), min(max(y, 0), max(height - high, 0))
        pen.rectangle((x, y, x + wide - 1, y + high - 1), fill=color)
        dark = color[0] * 0.299 + color[1] * 0.587 + color[2] * 0.114 < 140
        pen.text((x + 3 - left, y + 2 - top), text, font=font, fill='white' if dark else 'black')
    return np.asarray(canvas).copy()
