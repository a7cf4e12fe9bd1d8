"""DiLoCo whose replicas are nodes: exact inside a node, an outer step on the mean change of the nodes."""

from __future__ import annotations

from .diloco import OuterSteps
from .node_replicas import NodeReplicas


class NodeDiLoCoEngine(OuterSteps, NodeReplicas):
    """The devices of a node average their gradients in every step and make one replica of ``diloco.OuterSteps``.

    Fewer replicas end at a lower loss (arXiv:2503.09799), and inside a node the exchange costs little.
    """
