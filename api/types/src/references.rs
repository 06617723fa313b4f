//! Objects that an object refers to, for Karmada's kinds and all others.

use crowsnest_apimachinery::names::ObjectKey;
use crowsnest_apimachinery::printers::JsonSource;
use crowsnest_apimachinery::references::{EXTENSIONS, GroupKind, KUBERNETES, Reference, Rule, referenced_objects};
use std::collections::BTreeSet;

const SCALERS: &[GroupKind] =
    &[("autoscaling.karmada.io", "CronFederatedHPA"), ("autoscaling.karmada.io", "FederatedHPA")];
const CLUSTER: &[GroupKind] = &[("cluster.karmada.io", "Cluster")];
const SECRET: GroupKind = ("", "Secret");

const KARMADA: &[Rule] = &[
    Rule::typed_reference(SCALERS, "spec.scaleTargetRef"),
    Rule::reference(CLUSTER, "spec.secretRef", SECRET),
    Rule::reference(CLUSTER, "spec.impersonatorSecretRef", SECRET),
];

const TABLES: &[&[Rule]] = &[KUBERNETES, EXTENSIONS, KARMADA];

/// References of an object with their fields; see [`crowsnest_apimachinery::references::find_references`].
pub fn find_references<'a>(group: &str, kind: &str, source: impl JsonSource<'a>) -> BTreeSet<Reference> {
    crowsnest_apimachinery::references::find_references(TABLES, group, kind, source)
}

/// Objects that an object refers to, in order and without duplicates.
pub fn find_referenced_objects<'a>(group: &str, kind: &str, source: impl JsonSource<'a>) -> Vec<ObjectKey> {
    referenced_objects(find_references(group, kind, source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    #[rstest]
    #[case::autoscaler("autoscaling.karmada.io", "FederatedHPA", json!({"metadata": {"namespace": "a"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}}), &["Deployment.apps a/web"])]
    #[case::autoscaler_of_autoscalers("autoscaling.karmada.io", "CronFederatedHPA", json!({"metadata": {"namespace": "a"},
        "spec": {"scaleTargetRef": {"apiVersion": "autoscaling.karmada.io/v1alpha1", "kind": "FederatedHPA", "name": "web"}}}),
        &["FederatedHPA.autoscaling.karmada.io web", "FederatedHPA.autoscaling.karmada.io a/web"])]
    #[case::cluster("cluster.karmada.io", "Cluster", json!({"spec": {"secretRef": {"namespace": "c", "name": "m1"},
        "impersonatorSecretRef": {"namespace": "c", "name": "m1-impersonator"}}}), &["Secret c/m1", "Secret c/m1-impersonator"])]
    #[case::built_in("apps", "StatefulSet", json!({"metadata": {"namespace": "a"}, "spec": {"serviceName": "db"}}), &["Service a/db"])]
    fn references_of_kinds(#[case] group: &str, #[case] kind: &str, #[case] object: Value, #[case] expected: &[&str]) {
        let found: Vec<String> =
            find_referenced_objects(group, kind, &object).iter().map(ToString::to_string).collect();
        assert_eq!(found, expected);
    }
}
