"""A strategy that is not there, and what links its ranks, which are of a CPU that is as quick as evidence says."""

from longca import Device
from longca_advice.devices import evidence_name
from longca_advice.evidence import Run
from longca_advice.network import Link, Network, Rates
from longca_advice.sources import Links

CPU = Device("cpu")
RUN = Run(run="a run", device=evidence_name(CPU), capability=None, memory=None, packages={})

#: A strategy of two axes. It refuses an inner axis of 4, and places tokens by documents nowhere.
STRATEGY = """
import sys, types
from longca import Layout, Step
from longca.errors import UnsupportedError
from longca.manifests.schedule import Move, Phase

@hookimpl
def provide_cp_strategy():
    fields = {{"title": "Crossed", "upstream": "-", "license": "MIT", "implementation": "crossed_strategy:Crossed",
              "layout": "crossed_strategy:layout", "axes": ("outer", "inner"),
              "placements": ("plain", "same", "reversed", "documents")}}
    return StrategyManifest(name="crossed", schedule={schedule!r}, **fields)

def layout(problem, axis_sizes, placement):
    if axis_sizes["inner"] == 4:
        raise UnsupportedError("an inner axis of 4 is too many")
    if placement == "documents":
        raise UnsupportedError("there are no documents")
    ranks = axis_sizes["outer"] * axis_sizes["inner"]
    tokens = problem.mask.seqlen_q
    shards = [((r * tokens // ranks, (r + 1) * tokens // ranks),) for r in range(ranks)]
    shards = tuple(shards[::-1] if placement == "reversed" else shards)
    heads = (0, problem.heads_q), (0, problem.heads_kv)
    return Layout(tuple((Step(shard, ((0, tokens),), *heads),) for shard in shards), shards)

def schedule(problem, layout, nccl):
    hop = Move("p2p", "outer", 10**6, 10**6)
    return (Phase(moves=(hop,), beside=False), Phase(0))

module = sys.modules.setdefault("crossed_strategy", types.ModuleType("crossed_strategy"))
class Crossed: ...
module.Crossed, module.layout, module.schedule = Crossed, layout, schedule
"""


def links(per_host=8, between=None, measured=()):
    """Links over which a megabyte takes 10 µs within a host, and the measured calls over them."""
    return Links(Network({"p2p": {2: Link(1e11)}}, between), Rates(), per_host, dict(measured))
