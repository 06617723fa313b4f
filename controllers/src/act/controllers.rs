//! Which loops run, by the names of Karmada's controllers. Read once, when they start.

use std::collections::BTreeSet;
use std::str::FromStr;

/// A loop that can be switched off. The detector, the dependencies distributor and the scheduler always run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    AgentCsrApproving,
    ApplicationFailover,
    Binding,
    BindingStatus,
    Cluster,
    ClusterStatus,
    ClusterTaintPolicy,
    CronFederatedHpa,
    DeploymentReplicasSyncer,
    /// A program of its own in Karmada, which its installations may do without.
    Descheduler,
    EndpointSlice,
    EndpointSliceCollect,
    /// With workStatus, which is one of its own in Karmada.
    Execution,
    FederatedHpa,
    /// Assignments, their status and the count of what bindings use: three controllers of Karmada's.
    FederatedResourceQuota,
    GracefulEviction,
    HpaScaleTargetMarker,
    /// With what is dispatched for it - two controllers of Karmada's - and the status of MultiClusterIngresses.
    MultiClusterService,
    Namespace,
    Remedy,
    ServiceExport,
    ServiceImport,
    UnifiedAuth,
    WorkloadRebalancer,
}

/// Several names of one loop say the same of it.
const NAMES: [(&str, Controller); 28] = [
    ("agentcsrapproving", Controller::AgentCsrApproving),
    ("applicationFailover", Controller::ApplicationFailover),
    ("binding", Controller::Binding),
    ("bindingStatus", Controller::BindingStatus),
    ("cluster", Controller::Cluster),
    ("clusterStatus", Controller::ClusterStatus),
    ("clustertaintpolicy", Controller::ClusterTaintPolicy),
    ("cronFederatedHorizontalPodAutoscaler", Controller::CronFederatedHpa),
    ("deploymentReplicasSyncer", Controller::DeploymentReplicasSyncer),
    ("descheduler", Controller::Descheduler),
    ("endpointSlice", Controller::EndpointSlice),
    ("endpointsliceCollect", Controller::EndpointSliceCollect),
    ("endpointsliceDispatch", Controller::MultiClusterService),
    ("execution", Controller::Execution),
    ("federatedHorizontalPodAutoscaler", Controller::FederatedHpa),
    ("federatedResourceQuotaEnforcement", Controller::FederatedResourceQuota),
    ("federatedResourceQuotaStatus", Controller::FederatedResourceQuota),
    ("federatedResourceQuotaSync", Controller::FederatedResourceQuota),
    ("gracefulEviction", Controller::GracefulEviction),
    ("hpaScaleTargetMarker", Controller::HpaScaleTargetMarker),
    ("multiclusterservice", Controller::MultiClusterService),
    ("namespace", Controller::Namespace),
    ("remedy", Controller::Remedy),
    ("serviceExport", Controller::ServiceExport),
    ("serviceImport", Controller::ServiceImport),
    ("unifiedAuth", Controller::UnifiedAuth),
    ("workStatus", Controller::Execution),
    ("workloadRebalancer", Controller::WorkloadRebalancer),
];

/// Off unless named.
const OFF: [Controller; 3] =
    [Controller::DeploymentReplicasSyncer, Controller::Descheduler, Controller::HpaScaleTargetMarker];

/// The loops that run. `Default` is Karmada's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controllers(BTreeSet<Controller>);

/// A `--controllers` list that cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControllersError {
    #[error("there is no controller {0:?} here; known are {known}, each also with a - before it, and *", known = known())]
    Unknown(String),
    #[error("{} are one loop here: name all of them, with or without a -, or none", names_of(*.0).join(", "))]
    OneLoop(Controller),
}

fn known() -> String {
    NAMES.map(|(name, _)| name).join(", ")
}

fn names_of(controller: Controller) -> Vec<&'static str> {
    NAMES.iter().filter(|(_, one)| *one == controller).map(|(name, _)| *name).collect()
}

impl Default for Controllers {
    fn default() -> Self {
        let standard = NAMES.map(|(_, controller)| controller).into_iter().filter(|one| !OFF.contains(one));
        Controllers(standard.collect())
    }
}

impl FromStr for Controllers {
    type Err = ControllersError;

    /// `*` is what runs by default, `name` one more, `-name` one less; what is said first of a name counts.
    fn from_str(list: &str) -> Result<Self, ControllersError> {
        let entries: Vec<&str> = list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).collect();
        let named = |entry: &str| entry.strip_prefix('-').unwrap_or(entry).to_owned();
        let is_known = |entry: &str| entry == "*" || NAMES.iter().any(|(name, _)| *name == named(entry));
        if let Some(unknown) = entries.iter().find(|entry| !is_known(entry)) {
            return Err(ControllersError::Unknown(named(unknown)));
        }
        let standard = if entries.contains(&"*") { Controllers::default().0 } else { BTreeSet::new() };
        let said = |name: &str| Some(!entries.iter().find(|entry| named(entry) == name)?.starts_with('-'));
        let runs = |(name, controller): &(&str, Controller)| said(name).unwrap_or(standard.contains(controller));
        let (on, off): (Vec<_>, Vec<_>) = NAMES.into_iter().partition(runs);
        let running: BTreeSet<Controller> = on.into_iter().map(|(_, controller)| controller).collect();
        match off.into_iter().find(|(_, controller)| running.contains(controller)) {
            None => Ok(Controllers(running)),
            Some((_, controller)) => Err(ControllersError::OneLoop(controller)),
        }
    }
}

impl Controllers {
    pub fn all() -> Self {
        Controllers(NAMES.map(|(_, controller)| controller).into())
    }

    pub fn runs(&self, controller: Controller) -> bool {
        self.0.contains(&controller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn without(mut controllers: Controllers, less: &[Controller]) -> Controllers {
        controllers.0.retain(|one| !less.contains(one));
        controllers
    }

    #[rstest]
    #[case::standard("*", Controllers::default())]
    #[case::more("*,hpaScaleTargetMarker, deploymentReplicasSyncer,descheduler", Controllers::all())]
    #[case::less("*,-namespace", without(Controllers::default(), &[Controller::Namespace]))]
    #[case::only("cluster", Controllers([Controller::Cluster].into()))]
    #[case::no_star("-cluster", Controllers(BTreeSet::new()))]
    #[case::the_first_counts("-cluster,*,cluster", without(Controllers::default(), &[Controller::Cluster]))]
    #[case::one_loop_off("*,-execution,-workStatus", without(Controllers::default(), &[Controller::Execution]))]
    #[case::all_of_quotas(
        "*,-federatedResourceQuotaSync,-federatedResourceQuotaStatus,-federatedResourceQuotaEnforcement",
        without(Controllers::default(), &[Controller::FederatedResourceQuota])
    )]
    #[case::with_dispatch("multiclusterservice,endpointsliceDispatch", Controllers([Controller::MultiClusterService].into()))]
    fn lists(#[case] list: &str, #[case] expected: Controllers) {
        assert_eq!(list.parse(), Ok(expected));
    }

    #[rstest]
    #[case("*,-mcs", ControllersError::Unknown("mcs".to_owned()))]
    #[case("Cluster", ControllersError::Unknown("Cluster".to_owned()))]
    #[case("*,-workStatus", ControllersError::OneLoop(Controller::Execution))]
    #[case("*,-federatedResourceQuotaStatus", ControllersError::OneLoop(Controller::FederatedResourceQuota))]
    fn what_makes_no_sense(#[case] list: &str, #[case] expected: ControllersError) {
        assert_eq!(list.parse::<Controllers>(), Err(expected.clone()));
        let said = expected.to_string();
        let names = match expected {
            ControllersError::Unknown(_) => "bindingStatus, cluster, clusterStatus".to_owned(),
            ControllersError::OneLoop(controller) => names_of(controller).join(", "),
        };
        assert!(said.contains(&names), "{said}");
    }
}
