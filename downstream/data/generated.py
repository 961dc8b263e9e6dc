"""Draw a small data set for detection, panoptic and semantic segmentation.

Each image shows two to six shapes (THINGS) lying on two or three kinds of ground (STUFF). Shapes
differ by outline, grounds by texture; colour is a hint, as it is outside, but classes overlap in
it. The same images are written in the layouts of COCO 2017 (instances and panoptic) and of ADE20K:

    OUT/coco/{train,val}2017/000000000001.jpg
    OUT/coco/annotations/{instances,panoptic}_{train,val}2017.json
    OUT/coco/annotations/panoptic_{train,val}2017/000000000001.png
    OUT/ade/ADEChallengeData2016/{images,annotations}/{training,validation}/ADE_train_00000001.*
    OUT/demo.json

COCO category ids and ADE labels are the same numbers: THINGS are 1..4, STUFF are 5..7.
"""
import colorsys
import json
import shutil
import time
from pathlib import Path

import cv2
import numpy as np
from pycocotools import mask as rle

THINGS = ('disc', 'square', 'triangle', 'star')
STUFF = ('grass', 'water', 'sand')

VERSION = 6
FIRST_VAL_ID = 100001  # fixed, so that val does not depend on how many train images there are
INSTANCE = 1000  # a panoptic id is category + INSTANCE * k; k = 0 for stuff, 1, 2, ... for things
HUES = dict(zip(THINGS, (0, 60, 280, 180), strict=True))  # degrees, with a wide spread
MIN_VISIBLE = 0.5  # of a shape's area: less would hide what it is
MIN_PIXELS = 40


# ---------------------------------------------------------------------------------- drawing

def draw_scene(seed, image_id, size):
    """Draw one image and its panoptic ids.

    Returns:
        image: (size, size, 3) uint8, RGB.
        ids: (size, size) int32, `category + INSTANCE * k` at every pixel. Later things lie over
            earlier ones, so k also orders them from back to front.
    """
    rng = np.random.default_rng([seed, image_id])
    image, ids = draw_ground(rng, size)
    areas = {}  # panoptic id -> area of the whole shape, px
    wanted = rng.integers(2, 7)
    for _ in range(100):  # a crowded image may end with fewer things than wanted
        if len(areas) == wanted:
            break
        category = 1 + int(rng.integers(len(THINGS)))
        alpha, area = draw_shape(rng, THINGS[category - 1], size)
        new = category + INSTANCE * (len(areas) + 1)
        after = np.where(alpha >= 0.5, new, ids).astype(np.int32)
        if all(np.count_nonzero(after == i) >= max(MIN_PIXELS, MIN_VISIBLE * a)
               for i, a in (areas | {new: area}).items()):
            areas[new], ids = area, after
            image = paint(rng, image, alpha, THINGS[category - 1])
    return expose(rng, image), ids


def draw_ground(rng, size):
    """Two or three stuff regions side by side: (size, size, 3) float RGB in [0, 1], and ids."""
    kinds = rng.permutation(len(STUFF))[:rng.integers(2, 4)]
    across, along = axes(rng.uniform(0, 2 * np.pi), size)
    wave = sum(rng.uniform(0.01, 0.05) * np.sin(2 * np.pi * (f * along + rng.random()))
               for f in (0.8, 1.9))
    cuts = rng.uniform(-0.08, 0.08) + (np.arange(len(kinds) - 1) - (len(kinds) - 2) / 2) * 0.36
    region = sum((across + wave > cut).astype(int) for cut in cuts)

    image = np.empty((size, size, 3))
    for i, kind in enumerate(kinds):
        image[region == i] = texture(rng, STUFF[kind], size)[region == i]
    return image, (len(THINGS) + 1 + kinds[region]).astype(np.int32)


def texture(rng, kind, size):
    """A (size, size, 3) patch of ground; the three kinds differ in orientation and frequency."""
    if kind == 'grass':  # thin upright blades
        pattern, hue = noise(rng, size, 0.7, 4), 105
    elif kind == 'water':  # long level ripples, bent a little
        _, y = np.meshgrid(np.arange(size), np.arange(size))
        bend = noise(rng, size, 14, 5)
        pattern, hue = 1.3 * np.sin(2 * np.pi * y / rng.uniform(7, 11) + 1.2 * bend), 205
    else:  # sand: round dark pebbles on a fine grain
        pebbles = noise(rng, size, 1.6, 1.6) > 1.1
        pattern, hue = 0.7 - 2.6 * cv2.GaussianBlur(pebbles * 1.0, (0, 0), 0.6), 42
        pattern += 0.35 * noise(rng, size, 0.5, 0.5)
    base = colour(rng.normal(hue, 25), rng.uniform(0.2, 0.5), rng.uniform(0.5, 0.8))
    light = rng.uniform(0.12, 0.2) * pattern + 0.04 * noise(rng, size, size / 8, size / 8)
    return base * (1 + light[..., None])


def draw_shape(rng, name, size):
    """One shape at a random place: its (size, size) coverage in [0, 1] and its area in px."""
    radius = size / 2 * rng.uniform(1 / 5, 1 / 2.5)
    centre = rng.uniform(0.7 * radius, size - 0.7 * radius, 2)  # some reach over the edge
    corners = {'disc': 64, 'square': 4, 'triangle': 3, 'star': 10}[name]
    # upright, more or less: triangle and star point up, the square stands on a side
    upright = np.pi / 4 if name == 'square' else -np.pi / 2
    tilt = np.deg2rad(rng.uniform(-20, 20))
    angle = upright + tilt + 2 * np.pi * np.arange(corners) / corners
    reach = np.full(corners, radius)
    if name == 'star':
        reach[1::2] *= 0.45
    points = centre + reach[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)

    fine = 4  # samples per pixel and axis, for smooth edges
    canvas = np.zeros((size * fine, size * fine), np.uint8)
    cv2.fillPoly(canvas, [np.rint(points * fine).astype(np.int32)], 255)
    alpha = cv2.resize(canvas, (size, size), interpolation=cv2.INTER_AREA) / 255
    return alpha, cv2.contourArea(points.astype(np.float32))


def paint(rng, image, alpha, name):
    """Lay a shape over `image`: its colour, stripes and grain, a dark rim and a shadow."""
    size = len(alpha)
    shift = np.float32([[1, 0, size / 80], [0, 1, size / 80]])
    shadow = cv2.GaussianBlur(cv2.warpAffine(alpha, shift, (size, size)), (0, 0), size / 80)
    stripes, _ = axes(rng.uniform(0, 2 * np.pi), size)
    stripes = np.sin(2 * np.pi * stripes * size / rng.uniform(4, 12))
    light = rng.uniform(0, 0.05) * stripes + 0.03 * rng.standard_normal((size, size))
    inner = cv2.erode(alpha, np.ones((3, 3)))  # darker towards the rim: outlines stay readable
    light = (1 + light) * (0.55 + 0.45 * inner)
    face = colour(rng.normal(HUES[name], 25), rng.uniform(0.65, 1), rng.uniform(0.6, 1))
    under = image * (1 - 0.4 * shadow[..., None])
    return under + alpha[..., None] * (face * light[..., None] - under)


def expose(rng, image):
    """The camera: brightness, a gradient of light over the image and sensor noise; to uint8."""
    slope, _ = axes(rng.uniform(0, 2 * np.pi), len(image))
    image = image * (rng.uniform(0.8, 1.15) + rng.uniform(0, 0.3) * slope[..., None])
    image = image + rng.uniform(0.01, 0.03) * rng.standard_normal(image.shape)
    return np.rint(255 * image.clip(0, 1)).astype(np.uint8)


def axes(angle, size):
    """Two perpendicular coordinates of every pixel, in image sides from the centre."""
    x, y = np.meshgrid(*2 * [(np.arange(size) + 0.5) / size - 0.5])
    return x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)


def noise(rng, size, sigma_x, sigma_y):
    """Smooth (size, size) noise of unit deviation; the sigmas are in px."""
    field = cv2.GaussianBlur(rng.standard_normal((size, size)), (0, 0), sigma_x, sigmaY=sigma_y)
    return field / field.std()


def colour(hue, saturation, value):
    """RGB in [0, 1] of a hue in degrees."""
    return np.array(colorsys.hsv_to_rgb(hue / 360 % 1, saturation, value))


# ---------------------------------------------------------------------------------- writing

def make_demo_data(out, train=480, val=60, size=160, seed=0):
    """Write the data set under `out`, unless it is there already.

    Args:
        out: folder; made if missing.
        train, val: images in each split.
        size: image side, px.
        seed: image i of a split depends on seed, size and i alone.

    Raises:
        ValueError: an argument is out of range, or `out` holds data that this tool did not make.
        OSError: `out` cannot be written.
    """
    out = Path(out)
    if size < 32:
        raise ValueError(f'size is {size} px; shapes need at least 32')
    if min(train, val, seed) < 0:
        raise ValueError('train, val and seed must not be negative')
    if train >= FIRST_VAL_ID:
        raise ValueError(f'train is {train}; at most {FIRST_VAL_ID - 1} image ids are free')
    if out.exists() and not out.is_dir():
        raise ValueError(f'{out} is a file, not a folder')

    manifest = dict(tool='make_demo_data', version=VERSION, train=train, val=val, size=size,
                    seed=seed, complete=True)
    found = read_manifest(out)
    splits = [Split(out, 'train', 'training', 1, train),
              Split(out, 'val', 'validation', FIRST_VAL_ID, val)]
    if found == manifest and all(f.is_file() for s in splits for f in s.files()):
        print(f'{out} already holds this data set')
        return
    # data/coco may well be the real COCO: delete nothing without our own manifest beside it
    if found is None:
        for path in (out / 'coco', out / 'ade', out / 'demo.json'):
            if path.exists():
                raise ValueError(f'{path} exists and was not made by this tool; choose another OUT')

    start = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / 'demo.json', manifest | dict(complete=False))
    for folder in (out / 'coco', out / 'ade'):
        if folder.exists():
            shutil.rmtree(folder)
    for split in splits:
        split.write(seed, size)
    write_json(out / 'demo.json', manifest)
    print(f'{out}: {train} train and {val} val images of {size} px, '
          f'{time.perf_counter() - start:.1f} s')


class Split:
    """The places of one split's files, and how to fill them."""

    def __init__(self, out, name, ade_name, first_id, count):
        annotations, ade = out / 'coco/annotations', out / 'ade/ADEChallengeData2016'
        self.images = out / f'coco/{name}2017'
        self.panoptic = annotations / f'panoptic_{name}2017'
        self.ade_images = ade / 'images' / ade_name
        self.ade_labels = ade / 'annotations' / ade_name
        self.instances_json = annotations / f'instances_{name}2017.json'
        self.panoptic_json = annotations / f'panoptic_{name}2017.json'
        self.name, self.first_id, self.count = name, first_id, count

    def image_files(self, index):
        """Paths of image `index`: COCO image and panoptic map, ADE image and label map."""
        coco = f'{self.first_id + index:012d}'
        ade = f'ADE_{self.name}_{index + 1:08d}'
        return (self.images / f'{coco}.jpg', self.panoptic / f'{coco}.png',
                self.ade_images / f'{ade}.jpg', self.ade_labels / f'{ade}.png')

    def files(self):
        yield from (self.instances_json, self.panoptic_json)
        for index in range(self.count):
            yield from self.image_files(index)

    def write(self, seed, size):
        for folder in (self.images, self.panoptic, self.ade_images, self.ade_labels):
            folder.mkdir(parents=True)
        images, instances, panoptic = [], [], []
        for index in range(self.count):
            image_id = self.first_id + index
            image, ids = draw_scene(seed, image_id, size)
            coco_image, coco_panoptic, ade_image, ade_label = self.image_files(index)

            jpg = encode('.jpg', image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 95])
            coco_image.write_bytes(jpg)
            ade_image.write_bytes(jpg)
            ade_label.write_bytes(encode('.png', (ids % INSTANCE).astype(np.uint8)))
            # id = R + 256 G + 256^2 B, and OpenCV stores BGR
            bgr = np.stack([ids >> 16, ids >> 8 & 255, ids & 255], -1).astype(np.uint8)
            coco_panoptic.write_bytes(encode('.png', bgr))

            segments = describe(ids)
            images.append(dict(id=image_id, file_name=coco_image.name, width=size, height=size))
            panoptic.append(dict(image_id=image_id, file_name=coco_panoptic.name,
                                 segments_info=segments))
            for segment in segments:
                k = segment['id'] // INSTANCE
                if k:  # at most 6 things an image, so 10 ids each are enough
                    instances.append(segment | dict(id=10 * image_id + k, image_id=image_id,
                                                    segmentation=encode_mask(ids == segment['id'])))

        categories = [dict(id=i, name=name, supercategory='shape', isthing=1)
                      for i, name in enumerate(THINGS, 1)]
        categories += [dict(id=i, name=name, supercategory='ground', isthing=0)
                       for i, name in enumerate(STUFF, len(THINGS) + 1)]
        common = dict(info=dict(description=f'demo shapes, version {VERSION}'), licenses=[],
                      images=images)
        things = [dict(id=c['id'], name=c['name'], supercategory=c['supercategory'])
                  for c in categories if c['isthing']]
        write_json(self.instances_json, common | dict(annotations=instances, categories=things))
        write_json(self.panoptic_json, common | dict(annotations=panoptic, categories=categories))


def describe(ids):
    """COCO's segments_info of a panoptic id map: what is visible of each thing and ground."""
    segments = []
    for i in np.unique(ids).tolist():
        mask = (ids == i).astype(np.uint8)
        segments.append(dict(id=i, category_id=i % INSTANCE, area=int(mask.sum()),
                             bbox=list(cv2.boundingRect(mask)), iscrowd=0))  # bbox: x, y, w, h
    return segments


def encode_mask(mask):
    """COCO's compressed run lengths of an (H, W) bool mask; unlike polygons they lose nothing."""
    code = rle.encode(np.asfortranarray(mask, np.uint8))
    return dict(size=code['size'], counts=code['counts'].decode('ascii'))


def encode(suffix, array, params=()):
    return cv2.imencode(suffix, np.ascontiguousarray(array), params)[1].tobytes()


def write_json(path, content):
    path.write_text(json.dumps(content, separators=(',', ':')) + '\n')


def read_manifest(out):
    """The content of out/demo.json, or None where this tool has not written it."""
    try:
        content = json.loads((out / 'demo.json').read_text())
    except (FileNotFoundError, ValueError):
        return None
    ours = isinstance(content, dict) and content.get('tool') == 'make_demo_data'
    return content if ours else None
