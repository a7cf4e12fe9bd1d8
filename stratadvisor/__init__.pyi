"""Types of the public names; a test holds it against ``__init__.py``."""

from stratadvisor.comparison import compare as compare
from stratadvisor.comparison import read_cluster as read_cluster
from stratadvisor.comparison import variations as variations
from stratadvisor.errors import CheckFailedError as CheckFailedError
from stratadvisor.errors import DriftError as DriftError
from stratadvisor.errors import EmitError as EmitError
from stratadvisor.errors import ModelError as ModelError
from stratadvisor.errors import NoFeasiblePlanError as NoFeasiblePlanError
from stratadvisor.errors import OutsideToleranceError as OutsideToleranceError
from stratadvisor.errors import ProbeError as ProbeError
from stratadvisor.errors import ProfileError as ProfileError
from stratadvisor.errors import RuleError as RuleError
from stratadvisor.errors import StratadvisorError as StratadvisorError
from stratadvisor.errors import UsageError as UsageError
from stratadvisor.errors import ValidationFailedError as ValidationFailedError
from stratadvisor.pipeline import Recommendation as Recommendation
from stratadvisor.pipeline import choose_targets as choose_targets
from stratadvisor.pipeline import load_cluster as load_cluster
from stratadvisor.pipeline import load_plan as load_plan
from stratadvisor.pipeline import make_workload as make_workload
from stratadvisor.pipeline import merge_profiles as merge_profiles
from stratadvisor.pipeline import probe_hosts as probe_hosts
from stratadvisor.pipeline import probe_job as probe_job
from stratadvisor.pipeline import probe_node as probe_node
from stratadvisor.pipeline import recommend as recommend
from stratadvisor.pipeline import resolve_model as resolve_model
from stratadvisor.pipeline import run_config as run_config
from stratadvisor.pipeline import write_bundle as write_bundle
from stratadvisor.pipeline import write_profile as write_profile
from stratadvisor.schema.comparison import ComparedCluster as ComparedCluster
from stratadvisor.schema.comparison import Comparison as Comparison
from stratadvisor.schema.plan import Plan as Plan
from stratadvisor.schema.profile import ClusterProfile as ClusterProfile
from stratadvisor.schema.validation import RunConfigOutcome as RunConfigOutcome
from stratadvisor.schema.workload import ModelShape as ModelShape
from stratadvisor.schema.workload import Workload as Workload
from stratadvisor.usual_model import largest_usual_model as largest_usual_model

__version__: str
