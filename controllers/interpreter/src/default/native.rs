//! Table of built-in kinds: one row per kind, one column per operation.

use crowsnest_api::config::InterpreterOperation as Operation;
use crowsnest_apimachinery::unstructured;
use serde_json::{Value, json};

use super::dependencies;
use super::health;
use super::job_status;
use super::status::{self, Counters, MemberStatus};
use crowsnest_plan::dependencies::Dependency;
use crowsnest_plan::work::retain;

/// How a kind's replicas are read from a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaSource {
    /// `spec.replicas`
    Spec,
    /// The smaller of a Job's parallelism and completions.
    Job,
    /// A Pod is one replica.
    SinglePod,
}

type Reflect = fn(&Value) -> Option<Value>;
type Aggregate = fn(&Value, &[MemberStatus<'_>]) -> Value;

/// How a kind's status is reflected and aggregated.
#[derive(Debug, Clone, Copy)]
pub enum StatusRule {
    Counters(&'static Counters),
    Job,
    Custom { reflect: Reflect, aggregate: Aggregate },
}

/// A built-in kind.
#[derive(Debug)]
pub struct NativeKind {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub replicas: Option<ReplicaSource>,
    /// Name of the field of `spec` into which a member's replicas are written.
    pub replicas_field: Option<&'static str>,
    pub retain: Option<fn(&mut Value, &Value)>,
    pub status: Option<StatusRule>,
    pub health: Option<fn(&Value) -> bool>,
    pub dependencies: Option<fn(&Value) -> Vec<Dependency>>,
}

const NO_RULES: NativeKind = NativeKind {
    api_version: "",
    kind: "",
    replicas: None,
    replicas_field: None,
    retain: None,
    status: None,
    health: None,
    dependencies: None,
};

const fn custom_rule(reflect: Reflect, aggregate: Aggregate) -> Option<StatusRule> {
    Some(StatusRule::Custom { reflect, aggregate })
}

static KINDS: [NativeKind; 16] = [
    NativeKind {
        api_version: "apps/v1",
        kind: "Deployment",
        replicas: Some(ReplicaSource::Spec),
        replicas_field: Some("replicas"),
        retain: Some(retain::workload_replicas),
        status: Some(StatusRule::Counters(&status::DEPLOYMENT)),
        health: Some(health::is_rolled_out),
        dependencies: Some(dependencies::from_pod_template),
    },
    NativeKind {
        api_version: "apps/v1",
        kind: "ReplicaSet",
        replicas: Some(ReplicaSource::Spec),
        replicas_field: Some("replicas"),
        status: Some(StatusRule::Counters(&status::REPLICA_SET)),
        health: Some(health::is_replica_set_healthy),
        dependencies: Some(dependencies::from_pod_template),
        ..NO_RULES
    },
    NativeKind {
        api_version: "apps/v1",
        kind: "StatefulSet",
        replicas: Some(ReplicaSource::Spec),
        replicas_field: Some("replicas"),
        status: Some(StatusRule::Counters(&status::STATEFUL_SET)),
        health: Some(health::is_rolled_out),
        dependencies: Some(dependencies::from_stateful_set),
        ..NO_RULES
    },
    NativeKind {
        api_version: "apps/v1",
        kind: "DaemonSet",
        status: Some(StatusRule::Counters(&status::DAEMON_SET)),
        health: Some(health::is_daemon_set_healthy),
        dependencies: Some(dependencies::from_pod_template),
        ..NO_RULES
    },
    NativeKind {
        api_version: "batch/v1",
        kind: "Job",
        replicas: Some(ReplicaSource::Job),
        replicas_field: Some("parallelism"),
        retain: Some(retain::job),
        status: Some(StatusRule::Job),
        dependencies: Some(dependencies::from_pod_template),
        ..NO_RULES
    },
    NativeKind {
        api_version: "batch/v1",
        kind: "CronJob",
        status: custom_rule(status::reflect_full_status, status::aggregate_cron_job),
        dependencies: Some(dependencies::from_cron_job),
        ..NO_RULES
    },
    NativeKind {
        api_version: "v1",
        kind: "Pod",
        replicas: Some(ReplicaSource::SinglePod),
        retain: Some(retain::pod),
        status: custom_rule(status::reflect_full_status, status::aggregate_pod),
        health: Some(health::is_pod_healthy),
        dependencies: Some(dependencies::from_pod),
        ..NO_RULES
    },
    NativeKind {
        api_version: "v1",
        kind: "Service",
        retain: Some(retain::service),
        status: custom_rule(status::reflect_service, status::aggregate_service),
        health: Some(health::is_service_healthy),
        ..NO_RULES
    },
    NativeKind { api_version: "v1", kind: "ServiceAccount", retain: Some(retain::service_account), ..NO_RULES },
    NativeKind {
        api_version: "v1",
        kind: "PersistentVolumeClaim",
        retain: Some(retain::persistent_volume_claim),
        status: custom_rule(status::reflect_full_status, status::aggregate_persistent_volume_claim),
        health: Some(health::is_persistent_volume_claim_bound),
        ..NO_RULES
    },
    NativeKind {
        api_version: "v1",
        kind: "PersistentVolume",
        retain: Some(retain::persistent_volume),
        status: custom_rule(status::reflect_full_status, status::aggregate_persistent_volume),
        ..NO_RULES
    },
    NativeKind { api_version: "v1", kind: "Secret", retain: Some(retain::secret), ..NO_RULES },
    NativeKind {
        api_version: "networking.k8s.io/v1",
        kind: "Ingress",
        status: custom_rule(status::reflect_full_status, status::aggregate_load_balancer),
        health: Some(health::is_ingress_healthy),
        dependencies: Some(dependencies::from_ingress),
        ..NO_RULES
    },
    NativeKind {
        api_version: "policy/v1",
        kind: "PodDisruptionBudget",
        status: custom_rule(status::reflect_pod_disruption_budget, status::aggregate_pod_disruption_budget),
        health: Some(health::is_pod_disruption_budget_healthy),
        ..NO_RULES
    },
    NativeKind {
        api_version: "autoscaling/v2",
        kind: "HorizontalPodAutoscaler",
        status: custom_rule(status::reflect_horizontal_pod_autoscaler, status::aggregate_horizontal_pod_autoscaler),
        ..NO_RULES
    },
    NativeKind {
        api_version: "multicluster.x-k8s.io/v1alpha1",
        kind: "ServiceImport",
        dependencies: Some(dependencies::from_service_import),
        ..NO_RULES
    },
];

/// The row of a kind.
pub fn find(api_version: &str, kind: &str) -> Option<&'static NativeKind> {
    KINDS.iter().find(|row| row.api_version == api_version && row.kind == kind)
}

impl NativeKind {
    /// True if there is a rule for the operation.
    pub fn has_rule_for(&self, operation: &Operation) -> bool {
        match operation {
            Operation::InterpretReplica => self.replicas.is_some(),
            Operation::ReviseReplica => self.replicas_field.is_some(),
            Operation::Retain => self.retain.is_some(),
            Operation::InterpretStatus | Operation::AggregateStatus => self.status.is_some(),
            Operation::InterpretHealth => self.health.is_some(),
            Operation::InterpretDependency => self.dependencies.is_some(),
            Operation::All | Operation::InterpretComponent | Operation::Prune | Operation::Other(_) => false,
        }
    }

    /// Replicas of the template.
    pub fn read_replicas(&self, template: &Value) -> Option<i32> {
        let spec = |field| unstructured::integer(template, &["spec", field]);
        let replicas = match self.replicas? {
            ReplicaSource::Spec => spec("replicas").unwrap_or_default(),
            ReplicaSource::Job => {
                let parallelism = spec("parallelism").unwrap_or_default();
                parallelism.min(spec("completions").unwrap_or(parallelism))
            }
            ReplicaSource::SinglePod => 1,
        };
        Some(i32::try_from(replicas).unwrap_or(i32::MAX))
    }

    /// Writes the member's replicas into its manifest.
    pub fn revise_replicas(&self, manifest: &mut Value, replicas: i32) {
        if let Some(field) = self.replicas_field {
            unstructured::set(manifest, &["spec", field], json!(replicas));
        }
    }

    /// The status to reflect from a member object. `None` if there is none.
    pub fn reflect(&self, member: &Value) -> Option<Value> {
        match self.status {
            None => status::reflect_full_status(member),
            Some(StatusRule::Counters(counters)) => counters.reflect(member),
            Some(StatusRule::Job) => status::reflect_job(member),
            Some(StatusRule::Custom { reflect, .. }) => reflect(member),
        }
    }

    /// The template's status, aggregated from the members. `None` for kinds whose template status is unchanged.
    pub fn aggregate(&self, template: &Value, members: &[MemberStatus<'_>], now: &str) -> Option<Value> {
        Some(match self.status? {
            StatusRule::Counters(counters) => counters.aggregate(template, members),
            StatusRule::Job => job_status::aggregate(template, members, now),
            StatusRule::Custom { aggregate, .. } => aggregate(template, members),
        })
    }
}
