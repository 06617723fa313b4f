//! Feature gates, by Karmada's names and defaults. Read by planners and loops; set once from the command line.

/// Which optional behaviour is on. `Default` is Karmada's, but for `SchedulingOvercommitProtection`, which is on: bursts
/// of decisions do not give the same room to several (docs/karmada.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gates {
    pub failover: bool,
    pub graceful_eviction: bool,
    pub propagate_deps: bool,
    pub customized_cluster_resource_modeling: bool,
    pub propagation_policy_preemption: bool,
    pub multi_cluster_service: bool,
    pub resource_quota_estimate: bool,
    pub stateful_failover_injection: bool,
    pub priority_based_scheduling: bool,
    pub federated_quota_enforcement: bool,
    pub multiple_pod_templates_scheduling: bool,
    pub workload_affinity: bool,
    pub scheduling_overcommit_protection: bool,
}

impl Default for Gates {
    fn default() -> Self {
        Gates {
            failover: false,
            graceful_eviction: true,
            propagate_deps: true,
            customized_cluster_resource_modeling: true,
            propagation_policy_preemption: false,
            multi_cluster_service: false,
            resource_quota_estimate: false,
            stateful_failover_injection: false,
            priority_based_scheduling: true,
            federated_quota_enforcement: false,
            multiple_pod_templates_scheduling: false,
            workload_affinity: false,
            scheduling_overcommit_protection: true,
        }
    }
}

/// A `--feature-gates` entry that is no `Name=true|false`, or names no gate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    #[error("feature gate {0:?} is not of the form Name=true or Name=false")]
    Form(String),
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
}

impl Gates {
    /// Every gate on: `AllAlpha=true,AllBeta=true`.
    pub fn all() -> Self {
        let mut gates = Gates::default();
        gates.set_alpha(true);
        gates.set_beta(true);
        gates
    }

    /// Defaults changed by a comma-separated list such as `Failover=true,AllAlpha=false`. The two `All…` entries
    /// apply first, so that a gate named beside them wins.
    pub fn parse(list: &str) -> Result<Self, GateError> {
        let mut named = Vec::new();
        let mut gates = Gates::default();
        for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (name, value) = entry.split_once('=').ok_or_else(|| GateError::Form(entry.to_owned()))?;
            let on = value.trim().parse().map_err(|_| GateError::Form(entry.to_owned()))?;
            match name.trim() {
                "AllAlpha" => gates.set_alpha(on),
                "AllBeta" => gates.set_beta(on),
                name => named.push((name.to_owned(), on)),
            }
        }
        for (name, on) in named {
            *gates.named(&name).ok_or(GateError::Unknown(name))? = on;
        }
        Ok(gates)
    }

    fn set_alpha(&mut self, on: bool) {
        self.propagation_policy_preemption = on;
        self.multi_cluster_service = on;
        self.resource_quota_estimate = on;
        self.stateful_failover_injection = on;
        self.federated_quota_enforcement = on;
        self.multiple_pod_templates_scheduling = on;
        self.workload_affinity = on;
        self.scheduling_overcommit_protection = on;
    }

    fn set_beta(&mut self, on: bool) {
        self.failover = on;
        self.graceful_eviction = on;
        self.propagate_deps = on;
        self.customized_cluster_resource_modeling = on;
        self.priority_based_scheduling = on;
    }

    fn named(&mut self, name: &str) -> Option<&mut bool> {
        Some(match name {
            "Failover" => &mut self.failover,
            "GracefulEviction" => &mut self.graceful_eviction,
            "PropagateDeps" => &mut self.propagate_deps,
            "CustomizedClusterResourceModeling" => &mut self.customized_cluster_resource_modeling,
            "PropagationPolicyPreemption" => &mut self.propagation_policy_preemption,
            "MultiClusterService" => &mut self.multi_cluster_service,
            "ResourceQuotaEstimate" => &mut self.resource_quota_estimate,
            "StatefulFailoverInjection" => &mut self.stateful_failover_injection,
            "PriorityBasedScheduling" => &mut self.priority_based_scheduling,
            "FederatedQuotaEnforcement" => &mut self.federated_quota_enforcement,
            "MultiplePodTemplatesScheduling" => &mut self.multiple_pod_templates_scheduling,
            "WorkloadAffinity" => &mut self.workload_affinity,
            "SchedulingOvercommitProtection" => &mut self.scheduling_overcommit_protection,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_gate_beats_all() {
        let gates = Gates::parse("Failover=false,AllBeta=true,AllAlpha=true").expect("valid list");
        assert_eq!(gates, Gates { failover: false, ..Gates::all() });
        assert_eq!(Gates::parse("Nope=true"), Err(GateError::Unknown("Nope".to_owned())));
    }
}
