"""The page of what goes on inside a backbone. docs/look_inside.md"""
import re
from collections.abc import Sequence
from pathlib import Path

import cv2
import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from ..errors import UserError
from .charts import bar_chart, line_chart
from .inputs import Input
from .inside import Field, Insider, Look, Map, blocks_of, chosen, kernels_of, resized, upsampled
from .pages import data_uri, save_page, template

LONGEST = 640  # pixels of a picture's longer side
COLORS, SIGNED = 'inferno', 'RdBu_r'
COVER = 0.65  # how much of the colours covers the image
DECADES = 3  # of a receptive field's colours
SHARES = 0.5, 0.95  # of a receptive field that are told in words
KERNELS = 5  # a side of the square of single kernels
POINT = (60, 220, 90)


# -- pictures ------------------------------------------------------------------------------------

def colored(values: np.ndarray, low: float, high: float, name: str = COLORS) -> np.ndarray:
    """Numbers (H, W) as colours (H, W, 3) uint8; one number everywhere has the lowest colour."""
    share = (values - low) / max(high - low, 1e-30)
    return (255 * matplotlib.colormaps[name](share.clip(0, 1))[..., :3]).round().astype(np.uint8)


def with_scale(picture: np.ndarray, low: str, high: str, name: str = COLORS) -> np.ndarray:
    """A picture with the colours' scale below: what its two ends stand for."""
    width = picture.shape[1]
    letters = LONGEST // 25  # pixels; a page shows pictures at less than half their size
    font = ImageFont.load_default(size=letters)
    canvas = Image.new('RGB', (width, picture.shape[0] + 2 * letters), 'white')
    canvas.paste(Image.fromarray(picture))
    pen, middle = ImageDraw.Draw(canvas), picture.shape[0] + letters
    ends = [pen.textlength(text, font=font) for text in (low, high)]
    pen.text((4, middle), low, 'black', font, 'lm')
    pen.text((width - 4, middle), high, 'black', font, 'rm')
    left, right = 10 + round(ends[0]), width - 10 - round(ends[1])
    if right > left:
        bar = colored(np.linspace(0, 1, right - left)[None].repeat(letters, 0), 0, 1, name)
        canvas.paste(Image.fromarray(bar), (left, middle - letters // 2))
    return np.asarray(canvas)


def scale_of(maps: Sequence[Map]) -> tuple[float, float]:
    """The numbers that the colours of several maps go from and to."""
    if maps[0].limits:
        return maps[0].limits
    low = min(each.values.min().item() for each in maps)
    high = max(each.values.max().item() for each in maps)
    if maps[0].signed:
        high = max(abs(low), abs(high))
        low = -high
    return low, high


def ringed(picture: np.ndarray, point: tuple[float, float]) -> np.ndarray:
    """A picture with a ring around a point (x, y)."""
    picture, centre = picture.copy(), tuple(round(at) for at in point)
    for color, line in ((0, 0, 0), 4), (POINT, 2):
        cv2.circle(picture, centre, max(picture.shape[:2]) // 50 + 3, color, line, cv2.LINE_AA)
    return picture


class Canvas:
    """An image in grey at the size of a page's pictures, to lay colours over."""

    def __init__(self, look: Look):
        height, width = look.image.shape[:2]
        self.scale = LONGEST / max(height, width)
        self.size = max(1, round(width * self.scale)), max(1, round(height * self.scale))
        self.look, self.color = look, resized(look.image, self.size)
        self.grey = cv2.cvtColor(self.color, cv2.COLOR_RGB2GRAY)[..., None].repeat(3, -1)
        self.point = tuple(at * self.scale for at in look.point)

    def over(self, each: Map, low: float, high: float) -> np.ndarray:
        height, width = self.look.image.shape[:2]
        values = upsampled(each.values, self.look.padded)[:height, :width].cpu().numpy()
        name = SIGNED if each.signed else COLORS
        colors = colored(resized(values, self.size), low, high, name)
        picture = ((1 - COVER) * self.grey + COVER * colors).astype(np.uint8)
        if 'of the point' in each.name:
            picture = ringed(picture, self.point)
        return with_scale(picture, f'{low:.3g}', f'{high:.3g}', name)

    def field(self, field: Field) -> np.ndarray:
        """A receptive field: the gradient's order of magnitude, below its highest."""
        height, width = self.look.image.shape[:2]
        values = resized(field.gradient[:height, :width].astype(np.float32), self.size)
        with np.errstate(divide='ignore', invalid='ignore'):
            values = np.nan_to_num(np.log10(values / values.max()), nan=-DECADES, neginf=-DECADES)
        # the image shows where there is little to see
        cover = (0.3 + (0.9 - 0.3) * (1 + values / DECADES).clip(0, 1))[..., None]
        colors = colored(values, -DECADES, 0)
        picture = ((1 - cover) * self.grey + cover * colors).astype(np.uint8)
        for share in SHARES:
            side = field.side(share)
            corners = [tuple(round((at + sign * side / 2) * self.scale)
                             for at in field.centre[::-1]) for sign in (-1, 1)]
            cv2.rectangle(picture, *corners, (255, 255, 255), 2)
        return with_scale(picture, f'1/{10**DECADES}', '1')


def kernel_picture(kernels: torch.Tensor) -> np.ndarray:
    """The mean of kernels (C, k, k), and the largest of them; blue is below zero, red above."""
    def tile(kernel, side):
        most = kernel.abs().max().item() or 1.
        return cv2.resize(colored(kernel.cpu().numpy(), -most, most, SIGNED), (side, side),
                          interpolation=cv2.INTER_NEAREST)
    small, gap = 46, 4
    side = KERNELS * (small + gap) - gap
    picture = np.full((side, 2 * side + 4 * gap, 3), 255, np.uint8)
    picture[:, :side] = tile(kernels.float().mean(0), side)
    largest = kernels.float().flatten(1).norm(dim=1).argsort(descending=True)[:KERNELS**2]
    for number, index in enumerate(largest.tolist()):
        y, x = (place * (small + gap) for place in divmod(number, KERNELS))
        x += side + 4 * gap
        picture[y:y + small, x:x + small] = tile(kernels[index].float(), small)
    return picture


# -- the page ------------------------------------------------------------------------------------

class Pictures:
    """Writes pictures as files, and gives them to the page."""

    def __init__(self, folder: Path, flag: str):
        self.folder, self.flag = folder, flag

    def add(self, picture: np.ndarray, *names: str) -> str:
        """Names are those of folders, and what is shown."""
        path = self.folder.joinpath(*names[:-1], re.sub(r'\W+', '_', names[-1]) + '.png')
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(path)
        except OSError as error:
            raise UserError(f'{self.flag} {path} cannot be written: {error.strerror}') from None
        return data_uri(picture, LONGEST)


def field_words(number: int, field: Field) -> str:
    sides = ', '.join(f'{share:.0%} within {field.side(share):.0f} px' for share in SHARES)
    return f'map {number + 1}, stride {field.stride:g}: {sides}'


def number_charts(look: Look) -> list:
    """The numbers of all blocks, one beside the other."""
    rows = {name: numbers for name, (_, numbers) in look.blocks.items() if numbers}
    labels = list(dict.fromkeys(label for numbers in rows.values() for label in numbers))
    if not labels:
        return []
    if labels[0].startswith('gate'):
        lines = {label: zip(*((number, numbers[label]) for number, numbers in
                              enumerate(rows.values(), 1) if label in numbers), strict=True)
                 for label in labels}
        return [line_chart('Mean absolute gate of each level, by block',
                           {label: tuple(line) for label, line in lines.items()}, xlabel='block')]
    values = {label: [numbers.get(label, 0.) for numbers in rows.values()] for label in labels}
    return [bar_chart('Balance of the affinities: 0 all static, 1 all dynamic', list(rows), values)]


def field_chart(fields: list[Field]):
    lines = {}
    for number, field in enumerate(fields):
        sides, shares = field.within()
        kept = np.unique(np.linspace(0, len(sides) - 1, 200).round().astype(int))
        lines[f'map {number + 1}, stride {field.stride:g}'] = sides[kept], 100 * shares[kept]
    return line_chart('Share of the gradient in a square around the unit', lines,
                      xlabel='side of the square, pixels', ylabel='%')


def image_part(look: Look, name: str, names: list[str], pictures: Pictures) -> dict:
    """What the page shows of an image.

    Args:
        names: the blocks to show.
    """
    canvas, blocks = Canvas(look), {}
    fields = [(field_words(number, field), pictures.add(
        canvas.field(field), name, f'receptive_field_{number + 1}'))
        for number, field in enumerate(look.fields)]
    for block in names:
        maps, _ = look.blocks[block]
        groups = {each.name: [other for other in maps if other.group == each.group] if each.group
                  else [each] for each in maps}
        size = ' x '.join(map(str, reversed(maps[-1].values.shape)))
        blocks[f'{block}, {size}'] = [
            (each.name, pictures.add(canvas.over(each, *scale_of(groups[each.name])), name, block,
                                     each.name)) for each in maps]
    x, y = look.point
    return dict(
        name=name, fields=fields, blocks=blocks, charts=[field_chart(look.fields),
                                                         *number_charts(look)],
        picture=pictures.add(ringed(canvas.color, canvas.point), name, 'image'),
        words=f'{look.image.shape[1]} x {look.image.shape[0]} pixels to the network; the ring is '
              f'the point, there at {x:.0f}, {y:.0f}')


def write_inside(insider: Insider, name: str, checkpoint: str, images: Sequence[Input],
                 point: tuple[float, float] | None, every_block: bool, out: Path) -> Path:
    """Write the page, and its pictures as files.

    Args:
        insider: the model.
        name: of the experiment.
        checkpoint: what the model was filled with.
        images: to look at.
        point: x, y in pixels of the images, whose affinities are shown; None is the middle.
        every_block: show all blocks, and not the last of each stage alone.
        out: folder for index.html and pictures/.

    Returns:
        The page.

    Raises:
        UserError: an image cannot be read, the point is not in it, or ``out`` cannot be written.
    """
    pictures, parts, names = Pictures(out / 'pictures', '--out'), [], []
    for image in images:
        look = insider.look(image.path, point)
        names = list(look.blocks)
        names = names if every_block else chosen(insider.backbone, names)
        parts.append(image_part(look, image.stem, names, pictures))
    blocks = blocks_of(insider.backbone)
    kernels = {block: [(f'{kernel}: {len(values)} of {values.shape[-1]} x {values.shape[-1]}',
                        pictures.add(kernel_picture(values), 'kernels', block, kernel))
                       for kernel, values in kernels_of(blocks[block]).items()] for block in names}
    facts = {'backbone': f'{type(insider.backbone).__name__}: {insider.variant}',
             'weights': checkpoint, 'computed on': insider.device}
    text = template('inside.html.j2').render(
        name=name, facts=facts, notes=insider.notes, images=parts, kernels=kernels,
        family=family(insider.backbone), shares=SHARES, decades=DECADES, single=KERNELS**2,
        every=every_block)
    return save_page(text, out, '--out')


def family(backbone) -> str:
    """Whose maps they are: FocalNet's, Container's, LocalViT's, or '' of another backbone."""
    if not blocks_of(backbone):
        return ''
    return re.match('FocalNet|Container|LocalViT|', type(backbone).__name__)[0]
