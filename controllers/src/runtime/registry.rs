//! The registry: one line per controller.

use super::controller::{Controller, Switch};
use super::registered::{Entry, Registered};
use super::setup::Setup;
use crate::act::{
    access, applications, autoscaling, bindings, certificates, clusters, descheduling, distributor, evictions,
    interpreter_configuration, namespaces, quotas, rebalancer, remedies, replicas_syncer, returning,
    scale_target_marker, scheduling, services, statuses, taint_policies, templates, works,
};

/// Controllers in the order in which they are notified of a change.
pub const CONTROLLERS: [Registration; 33] = [
    Registration::of::<templates::ResourceDetector>(),
    Registration::of::<templates::PolicyDetector>(),
    Registration::of::<scheduling::Scheduling>(),
    Registration::of::<bindings::Bindings>(),
    Registration::of::<works::Works>(),
    Registration::of::<statuses::Statuses>(),
    Registration::of::<distributor::Distributor>(),
    Registration::of::<namespaces::Namespaces>(),
    Registration::of::<clusters::ClusterController>(),
    Registration::of::<clusters::ClusterStatusController>(),
    Registration::of::<clusters::ClusterLeaseController>(),
    Registration::of::<descheduling::Descheduling>(),
    Registration::of::<evictions::TaintManager>(),
    Registration::of::<evictions::HaltReporter>(),
    Registration::of::<returning::Returning>(),
    Registration::of::<access::Access>(),
    Registration::of::<rebalancer::Rebalancer>(),
    Registration::of::<quotas::Quotas>(),
    Registration::of::<taint_policies::TaintPolicies>(),
    Registration::of::<remedies::Remedies>(),
    Registration::of::<applications::Applications>(),
    Registration::of::<services::Exports>(),
    Registration::of::<services::Slices>(),
    Registration::of::<services::Imports>(),
    Registration::of::<services::Spanning>(),
    Registration::of::<services::Ingresses>(),
    Registration::of::<services::Collecting>(),
    Registration::of::<autoscaling::Federated>(),
    Registration::of::<autoscaling::Cron>(),
    Registration::of::<scale_target_marker::ScaleTargetMarker>(),
    Registration::of::<replicas_syncer::ReplicasSyncer>(),
    Registration::of::<certificates::Certificates>(),
    Registration::of::<interpreter_configuration::InterpreterConfiguration>(),
];

/// A registered controller.
#[derive(Clone, Copy)]
pub struct Registration {
    pub name: &'static str,
    pub switch: Switch,
    create: fn(&Setup) -> Box<dyn Registered>,
}

impl Registration {
    pub const fn of<C: Controller>() -> Self {
        Registration { name: C::NAME, switch: C::SWITCH, create: Entry::<C>::create }
    }
}

/// Controllers that a process knows. `Default` has all of [`CONTROLLERS`].
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

    pub(crate) fn create(&self, setup: &Setup) -> Vec<Box<dyn Registered>> {
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
        assert_eq!((names.len(), distinct.len()), (29, 28), "the cluster controller and its leases share a name");
    }
}
