//! OverridePolicies: changes to a template for one cluster.
//!
//! Cluster-scoped policies are applied first, then those of the object's namespace. Within a scope, policies are
//! ordered by increasing precision of their selector, then by name, so that the most precise policy wins. Within a
//! rule, the types of overriders have a fixed order. Any failure fails the object for this cluster.

mod command;
mod field;
mod image;
mod json;
mod metadata;
mod patch;
pub mod trace;
pub mod yaml;

use std::error::Error;
use std::fmt;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::policy::{OverrideSpec, Overriders};
use crowsnest_apimachinery::unstructured;
use serde::Serialize;
use serde_json::Value;

pub use crowsnest_apimachinery::yaml::ReadError;
pub use field::PointerError;
pub use patch::{PatchError, StepError};

use super::selector::{Precision, best_precision, cluster_matches};

/// Error of an override, in Karmada's wording where Karmada has it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OverrideError {
    #[error("failed to parse image value({image}), error: {reason}")]
    Image { image: String, reason: &'static str },
    #[error("imagePath should be start with / character")]
    ImagePath,
    #[error("failed to obtain imageValue with predicate path({path}), error: {reason}")]
    Predicate { path: String, reason: String },
    #[error("unsupported image component({0})")]
    Component(String),
    #[error("Get object's value by overrider's path({0}) is not string")]
    NotText(String),
    #[error(transparent)]
    Pointer(#[from] PointerError),
    #[error(transparent)]
    Patch(#[from] PatchError),
    #[error(transparent)]
    Yaml(#[from] ReadError),
    #[error("Object 'Kind' is missing in '{0}'")]
    NoKind(String),
    #[error("an OverridePolicy must not change {0}")]
    Identity(&'static str),
}

/// An OverridePolicy or ClusterOverridePolicy.
#[derive(Debug, Clone, Copy)]
pub struct OverridePolicy<'a> {
    pub name: &'a str,
    pub spec: &'a OverrideSpec,
}

/// An applied rule, as recorded in the Work's annotations.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AppliedRule {
    pub policy_name: String,
    pub overriders: Overriders,
}

/// The applied rules of an object in one cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct AppliedOverrides {
    pub cluster: Vec<AppliedRule>,
    pub namespaced: Vec<AppliedRule>,
}

impl AppliedOverrides {
    /// Values of the annotations `policy.karmada.io/applied-cluster-overrides` and `…/applied-overrides`. `None` if
    /// no rule of that scope was applied.
    pub fn annotations(&self) -> (Option<String>, Option<String>) {
        (annotation(&self.cluster), annotation(&self.namespaced))
    }
}

fn annotation(applied: &[AppliedRule]) -> Option<String> {
    let mut applied: Vec<&AppliedRule> = applied.iter().collect();
    applied.sort_by(|a, b| a.policy_name.cmp(&b.policy_name));
    if applied.is_empty() { None } else { serde_json::to_string(&applied).ok().map(|text| json::escape_html(&text)) }
}

/// A failed override and its policy. Its `Display` shows only the cause.
#[derive(Debug, Clone, PartialEq)]
pub struct FailedOverride {
    pub policy: String,
    pub cluster_scoped: bool,
    pub error: Box<OverrideError>,
}

impl fmt::Display for FailedOverride {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(formatter)
    }
}

impl Error for FailedOverride {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

/// Applies all overrides for an object in a cluster. `namespaced` are the policies of the object's namespace; they do
/// not apply to cluster-scoped objects.
pub fn apply(
    manifest: &mut Value,
    cluster: &Cluster,
    cluster_wide: &[OverridePolicy<'_>],
    namespaced: &[OverridePolicy<'_>],
) -> Result<AppliedOverrides, FailedOverride> {
    let mut report = AppliedOverrides {
        cluster: apply_scope(manifest, cluster, cluster_wide, true)?,
        ..AppliedOverrides::default()
    };
    if !unstructured::namespace(manifest).is_empty() {
        report.namespaced = apply_scope(manifest, cluster, namespaced, false)?;
    }
    Ok(report)
}

fn apply_scope(
    manifest: &mut Value,
    cluster: &Cluster,
    policies: &[OverridePolicy<'_>],
    cluster_scoped: bool,
) -> Result<Vec<AppliedRule>, FailedOverride> {
    let mut applied = Vec::new();
    for (policy, overriders) in matching_rules(manifest, cluster, policies) {
        apply_rule(manifest, policy, overriders, cluster_scoped)?;
        applied.push(AppliedRule { policy_name: policy.to_owned(), overriders: overriders.clone() });
    }
    Ok(applied)
}

/// Applies one rule of a policy. A namespaced policy must not change the identity of the object. Returns a note for
/// each change that no overrider requests, such as the removal of an image digest that no longer applies.
fn apply_rule(
    manifest: &mut Value,
    policy: &str,
    overriders: &Overriders,
    cluster_scoped: bool,
) -> Result<Vec<String>, FailedOverride> {
    let identity = (!cluster_scoped).then(|| Identity::from_manifest(manifest));
    let applied = apply_overriders(manifest, overriders);
    let checked =
        applied.and_then(|notes| identity.map_or(Ok(()), |identity| identity.check(manifest)).map(|()| notes));
    checked.map_err(|error| FailedOverride { policy: policy.to_owned(), cluster_scoped, error: Box::new(error) })
}

/// Identity of an object. Controllers apply manifests with their own permissions, so a namespaced policy must not
/// turn the object into one of another namespace or kind. The version of the kind may differ between clusters.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    group: String,
    kind: String,
    namespace: String,
    name: String,
}

impl Identity {
    fn from_manifest(manifest: &Value) -> Self {
        let group = unstructured::api_version(manifest).split_once('/').map_or("", |(group, _)| group);
        let text = |text: &str| text.to_owned();
        Self {
            group: text(group),
            kind: text(unstructured::kind(manifest)),
            namespace: text(unstructured::namespace(manifest)),
            name: text(unstructured::name(manifest)),
        }
    }

    fn check(&self, changed: &Value) -> Result<(), OverrideError> {
        let current = Self::from_manifest(changed);
        let fields = [
            ("the group of apiVersion", self.group == current.group),
            ("kind", self.kind == current.kind),
            ("metadata.namespace", self.namespace == current.namespace),
            ("metadata.name", self.name == current.name),
        ];
        match fields.into_iter().find(|(_, is_same)| !is_same) {
            Some((field, _)) => Err(OverrideError::Identity(field)),
            None => Ok(()),
        }
    }
}

/// The matching rules in order of application, with the names of their policies. Selectors match the object as it was
/// before any override of this scope.
fn matching_rules<'a>(
    manifest: &Value,
    cluster: &Cluster,
    policies: &[OverridePolicy<'a>],
) -> Vec<(&'a str, &'a Overriders)> {
    let mut selected: Vec<(Precision, OverridePolicy<'a>)> = policies
        .iter()
        .filter_map(|policy| {
            let selectors = &policy.spec.resource_selectors;
            let precision =
                if selectors.is_empty() { Some(Precision::All) } else { best_precision(selectors, manifest) };
            precision.map(|precision| (precision, *policy))
        })
        .collect();
    selected.sort_by(|(a, policy_a), (b, policy_b)| a.cmp(b).then_with(|| policy_a.name.cmp(policy_b.name)));
    selected
        .into_iter()
        .flat_map(|(_, policy)| rules(policy.spec).map(move |(target, overriders)| (policy.name, target, overriders)))
        .filter(|(_, target, _)| target.is_none_or(|affinity| cluster_matches(cluster, affinity)))
        .map(|(name, _, overriders)| (name, overriders))
        .collect()
}

/// Rules of a policy. The deprecated single form counts as one rule.
fn rules(spec: &OverrideSpec) -> impl Iterator<Item = (Option<&crowsnest_api::policy::ClusterAffinity>, &Overriders)> {
    let single = spec.override_rules.is_empty().then_some((spec.target_cluster.as_ref(), &spec.overriders));
    spec.override_rules.iter().map(|rule| (rule.target_cluster.as_ref(), &rule.overriders)).chain(single)
}

fn apply_overriders(manifest: &mut Value, overriders: &Overriders) -> Result<Vec<String>, OverrideError> {
    let mut notes = Vec::new();
    for overrider in &overriders.image_overrider {
        notes.extend(image::apply(manifest, overrider)?);
    }
    for overrider in &overriders.command_overrider {
        command::apply(manifest, "command", overrider);
    }
    for overrider in &overriders.args_overrider {
        command::apply(manifest, "args", overrider);
    }
    for overrider in &overriders.labels_overrider {
        metadata::apply(manifest, "labels", overrider);
    }
    for overrider in &overriders.annotations_overrider {
        metadata::apply(manifest, "annotations", overrider);
    }
    for overrider in &overriders.field_overrider {
        field::apply(manifest, overrider)?;
    }
    patch::apply(
        manifest,
        overriders.plaintext.iter().map(|entry| patch::Operation {
            operator: &entry.operator,
            path: &entry.path,
            value: entry.value.as_ref().map(|value| &value.0),
        }),
    )?;
    if unstructured::kind(manifest).is_empty() { Err(OverrideError::NoKind(manifest.to_string())) } else { Ok(notes) }
}

/// The containers of a workload kind. Overriders of images, commands and arguments support only these kinds.
fn containers<'a>(manifest: &'a mut Value) -> Option<&'a mut Vec<Value>> {
    let path: &[&str] = match unstructured::kind(manifest) {
        "Pod" => &["spec", "containers"],
        "ReplicaSet" | "Deployment" | "DaemonSet" | "StatefulSet" | "Job" => {
            &["spec", "template", "spec", "containers"]
        }
        _ => return None,
    };
    path.iter().try_fold(manifest, |value: &'a mut Value, key| value.get_mut(*key))?.as_array_mut()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    /// Controllers apply the result with their own permissions.
    #[rstest]
    #[case::content("/data/a", json!("x"), None)]
    #[case::version("/apiVersion", json!("example.io/v2"), None)]
    #[case::group("/apiVersion", json!("rbac.authorization.k8s.io/v1"), Some("the group of apiVersion"))]
    #[case::kind("/kind", json!("ClusterRoleBinding"), Some("kind"))]
    #[case::namespace("/metadata/namespace", json!("bank"), Some("metadata.namespace"))]
    #[case::name("/metadata/name", json!("victim"), Some("metadata.name"))]
    #[case::metadata("/metadata", json!({"name": "own"}), Some("metadata.namespace"))]
    #[case::not_a_string("/metadata/name", json!(1), Some("metadata.name"))]
    fn namespaced_policies_cannot_change_the_identity(
        #[case] path: &str,
        #[case] value: Value,
        #[case] refused: Option<&'static str>,
    ) {
        let manifest = json!({"apiVersion": "example.io/v1", "kind": "Thing", "metadata": {"name": "own", "namespace": "shop"},
            "data": {"a": "1"}});
        let rule = json!({"overriders": {"plaintext": [{"path": path, "operator": "replace", "value": value}]}});
        let spec: OverrideSpec = serde_json::from_value(json!({"overrideRules": [rule]})).expect("a spec");
        let (policies, cluster) = ([OverridePolicy { name: "p", spec: &spec }], Cluster::default());
        let applied = apply(&mut manifest.clone(), &cluster, &[], &policies);
        let error = applied.err().map(|failed| *failed.error);
        assert_eq!(error, refused.map(OverrideError::Identity));
        // Only administrators can write cluster-scoped policies.
        assert!(apply(&mut manifest.clone(), &cluster, &policies, &[]).is_ok());
    }
}
