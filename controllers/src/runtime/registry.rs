//! The registry: one line per controller.

use super::controller::{Controller, Switch};
use super::registered_controller::{ControllerEntry, RegisteredController};
use super::setup::Setup;
use crate::autoscaling::{deployment_replicas_syncer, hpa_scale_target_marker};
use crate::cluster::{agent_csr_approving, cluster, cluster_status, cluster_taint_policy, remedy, unified_auth};
use crate::failover::{application_failover, failback, taint_manager};
use crate::propagation::{
    binding, binding_status, dependencies_distributor, detector, execution, interpreter_configuration, namespace,
};
use crate::quota::federated_resource_quota;
use crate::scheduling::{descheduler, scheduler, workload_rebalancer};
use crate::{autoscaling, multicluster};

/// Controllers in the order in which they are notified of a change.
pub const CONTROLLERS: [Registration; 33] = [
    Registration::new::<detector::ResourceDetector>(),
    Registration::new::<detector::PolicyDetector>(),
    Registration::new::<scheduler::Scheduler>(),
    Registration::new::<binding::BindingController>(),
    Registration::new::<execution::ExecutionController>(),
    Registration::new::<binding_status::BindingStatusController>(),
    Registration::new::<dependencies_distributor::DependenciesDistributor>(),
    Registration::new::<namespace::NamespaceController>(),
    Registration::new::<cluster::ClusterController>(),
    Registration::new::<cluster_status::ClusterStatusController>(),
    Registration::new::<cluster::ClusterLeaseController>(),
    Registration::new::<descheduler::Descheduler>(),
    Registration::new::<taint_manager::TaintManager>(),
    Registration::new::<taint_manager::HaltReporter>(),
    Registration::new::<failback::FailbackController>(),
    Registration::new::<unified_auth::UnifiedAuthController>(),
    Registration::new::<workload_rebalancer::WorkloadRebalancerController>(),
    Registration::new::<federated_resource_quota::FederatedResourceQuotaController>(),
    Registration::new::<cluster_taint_policy::ClusterTaintPolicyController>(),
    Registration::new::<remedy::RemedyController>(),
    Registration::new::<application_failover::ApplicationFailoverController>(),
    Registration::new::<multicluster::ServiceExportController>(),
    Registration::new::<multicluster::EndpointSliceController>(),
    Registration::new::<multicluster::ServiceImportController>(),
    Registration::new::<multicluster::MultiClusterServiceController>(),
    Registration::new::<multicluster::MultiClusterIngressController>(),
    Registration::new::<multicluster::EndpointSliceCollectController>(),
    Registration::new::<autoscaling::FederatedHpaController>(),
    Registration::new::<autoscaling::CronFederatedHpaController>(),
    Registration::new::<hpa_scale_target_marker::ScaleTargetMarker>(),
    Registration::new::<deployment_replicas_syncer::DeploymentReplicasSyncer>(),
    Registration::new::<agent_csr_approving::AgentCsrApprovingController>(),
    Registration::new::<interpreter_configuration::InterpreterConfiguration>(),
];

/// A registered controller.
#[derive(Clone, Copy)]
pub struct Registration {
    pub name: &'static str,
    pub switch: Switch,
    create: fn(&Setup) -> Box<dyn RegisteredController>,
}

impl Registration {
    pub const fn new<C: Controller>() -> Self {
        Registration { name: C::NAME, switch: C::SWITCH, create: ControllerEntry::<C>::create }
    }
}

/// Registered controllers. `Default` has all of [`CONTROLLERS`].
#[derive(Clone)]
pub struct Registry(Vec<Registration>);

impl Default for Registry {
    fn default() -> Self {
        Registry(CONTROLLERS.to_vec())
    }
}

impl Registry {
    /// Adds a controller.
    #[must_use]
    pub fn with(mut self, registration: Registration) -> Self {
        self.0.push(registration);
        self
    }

    pub fn switches(&self) -> impl Iterator<Item = Switch> + '_ {
        self.0.iter().map(|registration| registration.switch)
    }

    pub(crate) fn create(&self, setup: &Setup) -> Vec<Box<dyn RegisteredController>> {
        self.0.iter().map(|registration| (registration.create)(setup)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<&str> = CONTROLLERS.iter().map(|registration| registration.name).collect();
        assert_eq!(names.len(), CONTROLLERS.len());
    }

    #[test]
    fn names_in_lists_belong_to_one_switch() {
        let mut switches: Vec<Switch> = CONTROLLERS.iter().map(|registration| registration.switch).collect();
        switches.dedup();
        let names: Vec<&str> = switches.iter().flat_map(|switch| switch.names()).copied().collect();
        let distinct: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(
            (names.len(), distinct.len()),
            (29, 28),
            "the cluster controller and its Lease monitor share a name"
        );
    }
}
