"""LocalViT on TNT (Li et al., 2104.05707; Han et al., Transformer in Transformer, 2103.00112).

Each patch is a sentence of pixel tokens. In every block an inner transformer lets the pixels of a
patch attend to each other; what became of them is added to the patch's token; then an outer
transformer lets the patches attend to each other (TNT, section 2.2). LocalViT gives the outer
feed-forward network locality.
"""
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from .layers import (
    DropPath,
    Mlp,
    PatchEmbed,
    check_heads,
    drop_path_rates,
    init_like_vit,
)
from .localvit import Isotropic, LocalityFeedForward, adapt_positions

STRIDE = 4  # image pixels from one pixel token to the next


class Attention(nn.Module):
    """Multi-head self-attention over the tokens of each of any number of groups."""

    def __init__(self, dim: int, num_heads: int, qkv_bias: bool, attn_drop: float,
                 proj_drop: float):
        super().__init__()
        check_heads(dim, num_heads)
        self.num_heads = num_heads
        self.qk = nn.Linear(dim, 2 * dim, bias=qkv_bias)
        self.v = nn.Linear(dim, dim, bias=qkv_bias)
        self.attn_drop = attn_drop
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        """(..., T, C) to (..., T, C)."""
        # Groups stay a dimension of their own. Folded into the batch they would go to CUDA's fused
        # kernels, of which not every release of PyTorch takes more than 65535 (16 images of
        # 1344 x 800 have 67200 patches), and which have little to gain on 16 tokens.
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)
                   for t in (*self.qk(x).chunk(2, dim=-1), self.v(x)))  # (..., M, T, D)
        x = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_drop * self.training)
        return self.proj_drop(self.proj(x.transpose(-3, -2).flatten(-2)))


class TNTBlock(nn.Module):
    """One block on pixel and patch tokens (TNT, equations 2 to 6).

    As in ``LocalBlock``, there is no stochastic depth on the feed-forward network with locality.
    """

    def __init__(self, dim: int, in_dim: int, num_pixels: int, num_heads: int, in_num_heads: int,
                 mlp_ratio: float, qkv_bias: bool, drop: float, attn_drop: float,
                 drop_path: float, act: str, reduction: int):
        super().__init__()
        self.norm_in = nn.LayerNorm(in_dim)
        self.attn_in = Attention(in_dim, in_num_heads, qkv_bias, attn_drop, drop)
        self.norm_mlp_in = nn.LayerNorm(in_dim)
        self.mlp_in = Mlp(in_dim, 4 * in_dim, drop)
        self.norm1_proj = nn.LayerNorm(in_dim)
        self.proj = nn.Linear(num_pixels * in_dim, dim)
        self.norm_out = nn.LayerNorm(dim)
        self.attn_out = Attention(dim, num_heads, qkv_bias, attn_drop, drop)
        self.drop_path = DropPath(drop_path)
        self.conv = LocalityFeedForward(dim, mlp_ratio, act, reduction)

    def forward(self, x: tuple[Tensor, Tensor], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Pixels (B, H * W, P, c) and patches (B, 1 + H * W, C) to the same; size is H and W."""
        pixels, patches = x
        pixels = pixels + self.drop_path(self.attn_in(self.norm_in(pixels)))
        pixels = pixels + self.drop_path(self.mlp_in(self.norm_mlp_in(pixels)))
        update = self.proj(self.norm1_proj(pixels).flatten(2))  # (B, H * W, C)
        patches = patches + F.pad(update, (0, 0, 1, 0))  # the class token has no pixels
        patches = patches + self.drop_path(self.attn_out(self.norm_out(patches)))
        return pixels, self.conv.on_tokens(patches, size)


@MODELS.register_module()
class LocalViTTNT(Isotropic):
    """LocalViT on TNT as a backbone for dense prediction.

    Takes images (B, 3, H, W) of any H and W and returns one map (B, embed_dim, ceil(H / p),
    ceil(W / p)), p = patch_size, for each block in ``out_indices``: the patch tokens. Images are
    padded with zeros on the right and at the bottom to whole patches.

    Args:
        img_size: side of the square images that the patches' position embeddings were learned
            for; for others they are resampled. (The pixels' embeddings are those of one patch.)
        patch_size: side of a patch, a multiple of 4.
        embed_dim: channels of the patch tokens.
        in_dim: channels of the pixel tokens, of which a patch has (patch_size / 4)^2.
        depth: number of blocks.
        num_heads: attention heads among patches.
        in_num_heads: attention heads among the pixels of a patch.
        mlp_ratio: hidden width of the feed-forward network among patches over its input width;
            the inner one's is 4, as released.
        qkv_bias: bias of the query, key and value projections.
        drop_rate: dropout after the position embeddings, the attentions' projections and in the
            inner feed-forward network.
        attn_drop_rate: dropout of attention weights.
        drop_path_rate: stochastic depth of the last block; it grows linearly from 0 at the first.
        act: 'relu6', 'hs', 'hs+se', 'hs+eca' or 'hs+ecah' (``LocalityFeedForward``).
        reduction: squeeze factor of SE.
        out_indices: blocks whose maps are returned. Blocks behind the last of them are not run
            and get no gradient.
        frozen_stages: -1 freezes nothing, 0 the stem, k the stem and the first k blocks: their
            parameters get no gradient and they stay in eval mode.
        final_norm: the classifier's LayerNorm on the map of the last block.
        norm_eval: keep BatchNorm's statistics as they are.
        use_checkpoint: recompute each block in the backward pass instead of storing it.
        init_cfg: ``dict(type='Pretrained', checkpoint=FILE_OR_URL)`` starts from published
            weights.

    Raises:
        ValueError: arguments that do not fit together, or weights of another model.
    """

    def __init__(self,
                 img_size: int = 224,
                 patch_size: int = 16,
                 embed_dim: int = 192,
                 in_dim: int = 12,
                 depth: int = 12,
                 num_heads: int = 3,
                 in_num_heads: int = 3,
                 mlp_ratio: float = 4.,
                 qkv_bias: bool = False,
                 drop_rate: float = 0.,
                 attn_drop_rate: float = 0.,
                 drop_path_rate: float = 0.,
                 act: str = 'hs+se',
                 reduction: int = 192,
                 out_indices: Sequence[int] = (2, 5, 8, 11),
                 frozen_stages: int = -1,
                 final_norm: bool = True,
                 norm_eval: bool = False,
                 use_checkpoint: bool = False,
                 init_cfg: dict | None = None):
        super().__init__(embed_dim, depth, out_indices, frozen_stages, final_norm, 1e-5,
                         norm_eval, use_checkpoint, init_cfg)
        if patch_size < STRIDE or patch_size % STRIDE:
            raise ValueError(f'patch_size must be a multiple of {STRIDE}, the stride of the pixel '
                             f'tokens, not {patch_size}')
        self.patch_size = patch_size
        self.grid = (img_size // patch_size, ) * 2
        side = patch_size // STRIDE
        self.pixel_embed = PatchEmbed(STRIDE, 3, in_dim, kernel_size=7, padding=3, norm=False)
        self.pixel_pos = nn.Parameter(torch.zeros(1, in_dim, side, side))
        self.norm1_proj = nn.LayerNorm(side**2 * in_dim)
        self.proj = nn.Linear(side**2 * in_dim, embed_dim)
        self.norm2_proj = nn.LayerNorm(embed_dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.patch_pos = nn.Parameter(torch.zeros(1, 1 + self.grid[0]**2, embed_dim))
        self.pos_drop = nn.Dropout(drop_rate)
        self.blocks = nn.ModuleList(
            TNTBlock(embed_dim, in_dim, side**2, num_heads, in_num_heads, mlp_ratio, qkv_bias,
                     drop_rate, attn_drop_rate, rate, act, reduction)
            for rate in drop_path_rates(drop_path_rate, depth))
        init_like_vit(self)
        for parameter in (self.cls_token, self.patch_pos, self.pixel_pos):
            nn.init.trunc_normal_(parameter, std=0.02)
        self._finish()

    def _stem_parts(self):
        yield from (self.pixel_embed, self.pixel_pos, self.norm1_proj, self.proj, self.norm2_proj,
                    self.cls_token, self.patch_pos, self.pos_drop)

    def _stem(self, x):
        x = F.pad(x, (0, -x.shape[3] % self.patch_size, 0, -x.shape[2] % self.patch_size))
        pixels, size = self._pixels(self.pixel_embed(x))
        patches = self.norm2_proj(self.proj(self.norm1_proj(pixels.flatten(2))))
        return (pixels, self._place(patches, self.patch_pos, size)), size

    def _pixels(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """(B, s * H, s * W, c) to pixels with positions (B, H * W, s * s, c) and (H, W)."""
        side = self.pixel_pos.shape[-1]
        x = x.unflatten(2, (-1, side)).unflatten(1, (-1, side)).transpose(2, 3)
        size = tuple(x.shape[1:3])  # x is (B, H, W, s, s, c)
        return (x + self.pixel_pos.permute(0, 2, 3, 1)).flatten(3, 4).flatten(1, 2), size

    def _patches(self, x):
        return super()._patches(x[1])

    def _adapt_weights(self, state, model):
        return adapt_positions(state, model, 'patch_pos')
