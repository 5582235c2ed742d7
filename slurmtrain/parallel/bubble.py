"""The share of a step that a pipeline rank waits for others, by formula. Pure, without torch.

In units of one stage's forward pass of one micro-batch, the backward pass being twice that, half of it for the weights: a rank
works 3 vp m units, and the step lasts longer than that by

| schedule | units | source |
|---|---|---|
| gpipe, 1f1b, interleaved | 3 (p - 1) | Narayanan et al., arXiv 2104.04473, section 2.2: share (p - 1) / (vp m) of the work |
| looped-bfs | 3 (p - 1) | Lamy-Poirier, arXiv 2211.05953: the same share |
| interleaved-zero-bubble | p - 1 | Qi et al., arXiv 2401.10241: (p - 1)(T_F + T_B - T_W) of ZB-H1 |
| zbv | p - 1 | there, section 6: no bubble once work has begun, and ranks that start a step together begin so much apart |
| dualpipev | p - 1 | DeepSeek-AI, arXiv 2412.19437; the number is of torch's order played through, nothing overlapped |

for m >= p micro-batches (zbv: 2 p - 2); with fewer it is longer. Communication costs nothing here and stages cost alike: what is
measured is more.
"""

from __future__ import annotations

from slurmtrain.config.parallel import ZERO_BUBBLE, ScheduleName

PASSES = 3
"""Units of work in the passes of one micro-batch through one stage."""


def expected_bubble(schedule: ScheduleName, pp: int, vp: int, microbatches: int) -> float:
    """Waiting by duration of the step, from 0 to 1.

    >>> expected_bubble("1f1b", 4, 1, 12), expected_bubble("interleaved", 4, 2, 12), expected_bubble("zbv", 4, 2, 12)
    (0.2, 0.1111111111111111, 0.04)
    """
    idle = (1 if schedule in ZERO_BUBBLE else PASSES) * (pp - 1)
    return idle / (PASSES * vp * microbatches + idle)
