"""From a checkpoint to other classes: which of its rows are kept, which layers are made new."""
from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from backbones.pretrained import Match, grouped


def classes_of(checkpoint: dict) -> Sequence[str]:
    """The names that a checkpoint's training recorded; () if none."""
    recorded = (checkpoint.get('meta') or {}).get('dataset_meta') or {}
    return recorded.get('classes') or ()


def for_other_classes(fit: Match, here: Sequence[str], there: Sequence[str],
                      keep: bool) -> tuple[dict[str, Tensor], list[str]]:
    """The entries of a file that a model of other classes takes.

    mmengine would take the same, and dump the shapes of each tensor that does not fit into the log.

    Args:
        fit: of the file and the model.
        here: the model's classes.
        there: the file's.
        keep: whether classes of the same name keep their rows.

    Returns:
        (the entries, the lines to log).
    """
    rows = {}
    if keep:
        rows = {name: value for name in fit.wrong if (value := with_known_classes(
            fit.own[name], fit.state[name], here, there)) is not None}
    state = {name: value for name, value in fit.state.items() if name not in fit.wrong} | rows
    new = [name for name in fit.wrong if name not in rows]
    lines = []
    if rows:
        lines.append(f'of {len(there)} classes the {len(known_classes(here, there))} that are '
                     f'among the {len(here)} here are kept in {grouped(rows)}')
    if new:
        lines.append(f'{grouped(new)} have another shape there (it has {len(there) or "other"} '
                     f'classes, {len(here)} are here) and are made new')
    return state, lines


def known_classes(here: Sequence[str], there: Sequence[str]) -> dict[int, int]:
    """{number of a class here: its number there}, of classes that both have.

    Where no name is the same, one that differs in capitals or spaces at its ends is (Objects365's
    'Wine Glass', COCO's 'wine glass'), unless several do.
    """
    def plain(name):
        return name.strip().casefold()

    counts = Counter(map(plain, there)), Counter(map(plain, here))
    same = {name: place for place, name in enumerate(there)}
    alike = {plain(name): place for place, name in enumerate(there)
             if all(count[plain(name)] <= 1 for count in counts)}
    places = {number: same.get(name, alike.get(plain(name))) for number, name in enumerate(here)}
    return {number: place for number, place in places.items() if place is not None}


def with_known_classes(own: Tensor, theirs: Tensor, here: Sequence[str],
                       there: Sequence[str]) -> Tensor | None:
    """A tensor with a row, or several, for each class: the file's rows where names agree.

    Args:
        own: the model's tensor, whose other rows stay.
        theirs: the file's.
        here, there: the classes' names. Behind their rows there may be one for the background.

    Returns:
        The tensor, or None where the rows are not those of classes.
    """
    if not here or not there or own.shape[1:] != theirs.shape[1:] or own.is_meta:  # FSDP: meta
        return None
    per_class, background = divmod(len(theirs), len(there))
    if not per_class or background > 1 or len(own) != per_class * len(here) + background:
        return None
    result = own.clone()

    def split(tensor: Tensor, classes: int) -> Tensor:
        """(class, its rows, ...): four are a box's numbers, else each is an anchor's."""
        body = tensor[:len(tensor) - background]
        return body.view(classes, per_class, *tensor.shape[1:]) if per_class == 4 else (
            body.view(per_class, classes, *tensor.shape[1:]).transpose(0, 1))

    mine, others = split(result, len(here)), split(theirs, len(there))
    for number, place in known_classes(here, there).items():
        mine[number] = others[place]
    if background:
        result[-1] = theirs[-1]
    return result
