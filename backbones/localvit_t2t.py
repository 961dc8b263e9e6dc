"""LocalViT on T2T-ViT (Li et al., 2104.05707; Yuan et al., Tokens-to-Token ViT, 2101.11986).

Instead of cutting the image into patches at once, tokens-to-token does it in three overlapping
splits, and between them the tokens, still many, attend to each other at linear cost (T2T-ViT,
section 3.1, with the attention of Performer, 2009.14794). LocalViT gives every feed-forward
network locality, also those between the splits.
"""
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from .layers import (
    drop_path_rates,
    init_like_vit,
    tokens_to_map,
)
from .localvit import Isotropic, LocalBlock, LocalityFeedForward, adapt_positions

PATCH_SIZE = 16  # the three splits' strides together


def random_features(x: Tensor, w: Tensor) -> Tensor:
    """phi(x) = exp(w x - |x|^2 / 2) / sqrt(m), (..., D) to (..., m) (Performer, equation 7).

    For rows w drawn from N(0, 1) the mean of phi(q) . phi(k) is softmax's kernel exp(q . k).
    """
    return torch.exp(x @ w.T - x.square().sum(-1, keepdim=True) / 2) / len(w)**0.5


def linear_attention(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Attention with the kernel phi(q) . phi(k), without ever writing down its N x N values.

    Args:
        q, k, v: queries, keys, values, (B, N, D) each.
        w: (m, D).

    Returns:
        (B, N, D).
    """
    q, k = random_features(q, w), random_features(k, w)
    total = q @ k.sum(1).unsqueeze(-1)  # (B, N, 1)
    return q @ (k.mT @ v) / (total + 1e-8)


class TokenPerformer(nn.Module):
    """Transformer layer for many tokens: linear attention, then feed-forward with locality.

    The values take the place of the input in the residual, as the widths differ.

    Args:
        dim: channels of the tokens that come.
        token_dim: channels C of those that leave; half as many random features.
        drop: dropout of the attention's projection.
    """

    def __init__(self, dim: int, token_dim: int, drop: float):
        super().__init__()
        # Drawn once and never trained. The release's rows have length sqrt(m), m being half of
        # C: the kernel tends to exp(-|q - k|^2 / 4). Softmax's would take a length of sqrt(C).
        features = token_dim // 2
        self.w = nn.Parameter(nn.init.orthogonal_(torch.empty(features, token_dim))
                              * features**0.5, requires_grad=False)
        self.norm1 = nn.LayerNorm(dim)
        self.kqv = nn.Linear(dim, 3 * token_dim)
        self.proj = nn.Linear(token_dim, token_dim)
        self.drop = nn.Dropout(drop)
        self.norm2 = nn.LayerNorm(token_dim)  # in the released files, but not used
        self.conv = LocalityFeedForward(token_dim, 1., 'hs')

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """(B, H * W, dim) to a map (B, C, H, W), size being H and W."""
        k, q, v = self.kqv(self.norm1(x)).chunk(3, dim=-1)
        # In half precision exp would overflow (it reaches exp(m / 2)) and underflow to 0 / 0.
        # autocast does not know the meta device, on which nothing is computed anyway.
        with torch.autocast('cpu' if x.is_meta else x.device.type, enabled=False):
            y = linear_attention(q.float(), k.float(), v.float(), self.w.float()).to(v.dtype)
        return self.conv(tokens_to_map(v + self.drop(self.proj(y)), *size))


def soft_split(x: Tensor, kernel_size: int, stride: int, padding: int):
    """Make each window of a map one token.

    Args:
        x: (B, C, H, W).

    Returns:
        tokens (B, H' * W', C * kernel_size^2), and (H', W').
    """
    size = tuple((side + 2 * padding - kernel_size) // stride + 1 for side in x.shape[2:])
    return F.unfold(x, kernel_size, stride=stride, padding=padding).transpose(1, 2), size


class TokensToToken(nn.Module):
    """From images to tokens of 16 x 16 pixels in three overlapping splits (T2T-ViT, section 3.1).

    Args:
        embed_dim: channels C of the last tokens.
        token_dim: channels of the tokens in between.
        drop: dropout of the projections of the attention in between.
    """

    def __init__(self, embed_dim: int, token_dim: int, drop: float):
        super().__init__()
        self.attention1 = TokenPerformer(3 * 7 * 7, token_dim, drop)
        self.attention2 = TokenPerformer(token_dim * 3 * 3, token_dim, drop)
        self.project = nn.Linear(token_dim * 3 * 3, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W), H and W multiples of 16, to (B, H / 16 * W / 16, C)."""
        x = self.attention1(*soft_split(x, 7, stride=4, padding=2))
        x = self.attention2(*soft_split(x, 3, stride=2, padding=1))
        x, _ = soft_split(x, 3, stride=2, padding=1)
        return self.project(x)


def sinusoid(length: int, dim: int) -> Tensor:
    """Sines and cosines in turn, of wavelengths from 2 pi to 10000 * 2 pi: (1, length, dim)."""
    channel = torch.arange(dim)
    frequency = 10000. ** -(channel // 2 * 2 / dim)
    angle = torch.arange(length)[:, None] * frequency
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos())[None]


@MODELS.register_module()
class LocalViTT2T(Isotropic):
    """LocalViT on T2T-ViT as a backbone for dense prediction.

    Takes images (B, 3, H, W) of any H and W and returns one map (B, embed_dim, ceil(H / 16),
    ceil(W / 16)) for each block in ``out_indices``. Images are padded with zeros on the right and
    at the bottom to multiples of 16.

    Args:
        img_size: side of the square images that the position embeddings are for, a multiple of
            16; for others they are resampled. They are sinusoids and are not trained.
        embed_dim: channels of the tokens.
        token_dim: channels of the tokens between the splits.
        depth: number of blocks.
        num_heads: attention heads.
        mlp_ratio: hidden width of the blocks' feed-forward networks over their input width.
        qkv_bias: bias of the blocks' query, key and value projections.
        drop_rate: dropout after the position embeddings and the blocks' attention projections.
        attn_drop_rate: dropout of the blocks' attention weights.
        token_drop_rate: dropout of the projections of the attention between the splits.
        drop_path_rate: stochastic depth of the last block; it grows linearly from 0 at the first.
        act: 'relu6', 'hs', 'hs+se', 'hs+eca' or 'hs+ecah' (``LocalityFeedForward``), for the
            blocks; between the splits it is 'hs'.
        reduction: squeeze factor of SE.
        out_indices: blocks whose maps are returned. Blocks behind the last of them are not run
            and get no gradient.
        frozen_stages: -1 freezes nothing, 0 the stem, k the stem and the first k blocks: their
            parameters get no gradient and they stay in eval mode.
        final_norm: the classifier's LayerNorm on the map of the last block.
        norm_eval: keep BatchNorm's statistics as they are.
        use_checkpoint: recompute tokens-to-token and each block in the backward pass instead of
            storing them.
        init_cfg: ``dict(type='Pretrained', checkpoint=FILE_OR_URL)`` starts from published
            weights.

    Raises:
        ValueError: arguments that do not fit together, or weights of another model.
    """

    def __init__(self,
                 img_size: int = 224,
                 embed_dim: int = 256,
                 token_dim: int = 64,
                 depth: int = 7,
                 num_heads: int = 4,
                 mlp_ratio: float = 2.,
                 qkv_bias: bool = False,
                 drop_rate: float = 0.,
                 attn_drop_rate: float = 0.,
                 token_drop_rate: float = 0.1,
                 drop_path_rate: float = 0.,
                 act: str = 'hs+se',
                 reduction: int = 128,
                 out_indices: Sequence[int] = (1, 2, 4, 6),
                 frozen_stages: int = -1,
                 final_norm: bool = True,
                 norm_eval: bool = False,
                 use_checkpoint: bool = False,
                 init_cfg: dict | None = None):
        super().__init__(embed_dim, depth, out_indices, frozen_stages, final_norm, 1e-5,
                         norm_eval, use_checkpoint, init_cfg)
        if img_size < PATCH_SIZE or img_size % PATCH_SIZE:
            raise ValueError(f'img_size must be a multiple of {PATCH_SIZE}, not {img_size}')
        if token_dim < 2:
            raise ValueError(f'token_dim must be at least 2, not {token_dim}')
        self.grid = (img_size // PATCH_SIZE, ) * 2
        self.tokens_to_token = TokensToToken(embed_dim, token_dim, token_drop_rate)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(sinusoid(1 + self.grid[0]**2, embed_dim),
                                      requires_grad=False)
        self.pos_drop = nn.Dropout(drop_rate)
        self.blocks = nn.ModuleList(
            LocalBlock(embed_dim, num_heads, mlp_ratio, qkv_bias, drop_rate, attn_drop_rate, rate,
                       act, reduction) for rate in drop_path_rates(drop_path_rate, depth))
        for block in self.blocks:
            block.norm1.eps = 1e-5  # T2T-ViT's; DeiT's is 1e-6
        init_like_vit(self)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self._finish()

    def _stem_parts(self):
        yield from (self.tokens_to_token, self.cls_token, self.pos_embed, self.pos_drop)

    def _unused(self):
        yield from super()._unused()
        yield self.tokens_to_token.attention1.norm2
        yield self.tokens_to_token.attention2.norm2

    def _stem(self, x):
        x = F.pad(x, (0, -x.shape[3] % PATCH_SIZE, 0, -x.shape[2] % PATCH_SIZE))
        size = (x.shape[2] // PATCH_SIZE, x.shape[3] // PATCH_SIZE)
        x = self._run(self.tokens_to_token, x)
        return self._place(x, self.pos_embed, size), size

    def _adapt_weights(self, state, model):
        return adapt_positions(state, model, 'pos_embed')
