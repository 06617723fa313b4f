//! Table of third-party kinds: one row per kind, one column per operation.
//!
//! The rules are Karmada's. They are used after user-defined interpreters and before [`native`](super::native). A
//! missing required field is a [`RuleError`]; an operation without a rule is `None`.

mod accessors;
mod argo;
mod flink;
mod flux;
mod kruise;
mod kubeflow;
mod kyverno;
mod pods;
mod ray;
mod spark;
mod status;
#[cfg(test)]
mod tests;
mod training;
mod volcano;

use crowsnest_api::config::InterpreterOperation as Operation;
use crowsnest_api::work::{Component, ReplicaRequirements};
use crowsnest_apimachinery::quantity::QuantityError;
use crowsnest_apimachinery::unstructured;
use serde_json::{Map, Value};

use super::dependencies;
use super::status::MemberStatus;
use crowsnest_plan::dependencies::Dependency;
use crowsnest_plan::gates::Gates;

/// Reason why a rule cannot interpret an object.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    #[error("{0} is missing")]
    Missing(String),
    #[error("{0} is not a valid number")]
    Number(String),
    #[error("{0:?} is not a valid amount of memory")]
    Memory(String),
    #[error("{text:?}: {source}")]
    Quantity {
        text: String,
        #[source]
        source: QuantityError,
    },
    #[error("{field}: {source}")]
    Decode {
        field: &'static str,
        #[source]
        source: serde_json::Error,
    },
    #[error("{0}")]
    Dependencies(String),
}

/// Number of replicas, and the requirements of one replica.
type ReplicasAndRequirements = (i32, Option<ReplicaRequirements>);
type Aggregate = fn(&Value, &[MemberStatus<'_>], &str) -> Result<Map<String, Value>, RuleError>;

/// A third-party kind.
#[derive(Debug)]
pub struct ThirdPartyKind {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub replicas: Option<fn(&Value, Gates) -> Result<ReplicasAndRequirements, RuleError>>,
    /// Replicas and requirements of several pod templates.
    pub components: Option<fn(&Value, Gates) -> Result<Vec<Component>, RuleError>>,
    /// Writes the member's replicas into its manifest.
    pub revise: Option<fn(&mut Value, i32)>,
    pub retain: Option<fn(&mut Value, &Value)>,
    pub reflect: Option<fn(&Value) -> Value>,
    pub aggregate: Option<Aggregate>,
    /// Fields that the schema of the status requires, with their empty values.
    pub required_fields: &'static [(&'static str, fn() -> Value)],
    pub health: Option<fn(&Value) -> Result<bool, RuleError>>,
    pub dependencies: Option<fn(&Value) -> Vec<Dependency>>,
}

/// A kind without rules, whose values are the defaults of the rows of the table.
const NO_RULES: ThirdPartyKind = ThirdPartyKind {
    api_version: "",
    kind: "",
    replicas: None,
    components: None,
    revise: None,
    retain: None,
    reflect: None,
    aggregate: None,
    required_fields: &[],
    health: None,
    dependencies: None,
};

static FAMILIES: [&[ThirdPartyKind]; 10] = [
    &kruise::KINDS,
    &flux::KINDS,
    &kubeflow::KINDS,
    &training::KINDS,
    &volcano::KINDS,
    &ray::KINDS,
    &argo::KINDS,
    &flink::KINDS,
    &spark::KINDS,
    &kyverno::KINDS,
];

/// Finds the rules of a kind.
pub fn find(api_version: &str, kind: &str) -> Option<&'static ThirdPartyKind> {
    FAMILIES.into_iter().flatten().find(|row| row.kind == kind && row.api_version == api_version)
}

impl ThirdPartyKind {
    /// True if there is a rule for the operation.
    pub fn has_rule_for(&self, operation: &Operation) -> bool {
        match operation {
            Operation::InterpretReplica => self.replicas.is_some(),
            Operation::InterpretComponent => self.components.is_some(),
            Operation::ReviseReplica => self.revise.is_some(),
            Operation::Retain => self.retain.is_some(),
            Operation::InterpretStatus => self.reflect.is_some(),
            Operation::AggregateStatus => self.aggregate.is_some(),
            Operation::InterpretHealth => self.health.is_some(),
            Operation::InterpretDependency => self.dependencies.is_some(),
            Operation::All | Operation::Prune | Operation::Other(_) => false,
        }
    }

    /// The status to reflect from a member object.
    pub fn reflect_status(&self, member: &Value) -> Option<Value> {
        self.reflect.map(|reflect| accessors::remove_blanks(reflect(member)))
    }

    /// The template's status, aggregated from the members. `now` is the time of new conditions. Empty values that the
    /// template has are kept, since its schema may require them.
    pub fn aggregate_status(
        &self,
        template: &Value,
        members: &[MemberStatus<'_>],
        now: &str,
    ) -> Option<Result<Value, RuleError>> {
        let total = self.aggregate?(template, members, now);
        Some(total.map(|status| {
            let mut status = accessors::remove_new_blanks(Value::Object(status), template.get("status"));
            for (field, empty_value) in self.required_fields {
                if status.get(*field).is_none() {
                    unstructured::set(&mut status, &[*field], empty_value());
                }
            }
            status
        }))
    }

    /// Dependencies of a template, sorted and without duplicates.
    pub fn sorted_dependencies(&self, template: &Value) -> Option<Result<Vec<Dependency>, RuleError>> {
        let dependencies = self.dependencies?(template);
        let verified = dependencies::verify(&dependencies).map_err(RuleError::Dependencies);
        Some(verified.map(|()| dependencies::sort_and_deduplicate(dependencies)))
    }
}
