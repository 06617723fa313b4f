//! Resources that a cluster is expected to serve, or to stop serving, after a change of a CRD or APIService.
//! Discovery is repeated until it confirms them.

use crowsnest_apimachinery::names::Gvr;
use crowsnest_members::ApiResources;
use crowsnest_store::{Change, ChangeKind};
use parking_lot::Mutex;
use serde::Deserialize;
use std::collections::BTreeMap;
use tokio::sync::Notify;

/// An item of discovery that a definition announces.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum DiscoveryItem {
    Resource(Gvr),
    /// `group/version` of an aggregated API server.
    Version(String),
}

impl DiscoveryItem {
    fn is_served(&self, found: &ApiResources) -> bool {
        match self {
            Self::Resource(gvr) => found.get(gvr).is_some(),
            Self::Version(version) => {
                let mut all = found.resources.iter();
                all.any(|resource| resource.gvr.api_version() == *version) && !found.stale.contains(version)
            }
        }
    }
}

/// Expectations for one cluster's discovery. They wake its discovery task.
#[derive(Default)]
pub(super) struct DiscoveryExpectations {
    /// Unmet expectations: true if the item is expected to be served.
    unmet: Mutex<BTreeMap<DiscoveryItem, bool>>,
    pub wake: Notify,
}

impl DiscoveryExpectations {
    /// Adds the expectations of a changed definition. Wakes the discovery task unless they are already met.
    pub fn add(&self, change: &Change, found: Option<&ApiResources>) {
        let expectations = expectations_of(change, found);
        if expectations.is_empty() {
            return;
        }
        let is_unmet =
            found.is_none_or(|found| expectations.iter().any(|(item, served)| item.is_served(found) != *served));
        // The last change of an item counts, even if it revokes an earlier one.
        self.unmet.lock().extend(expectations);
        if is_unmet {
            self.wake.notify_one();
        }
    }

    /// Removes the expectations that the discovery meets. Returns true if none are left.
    pub fn are_met(&self, found: &ApiResources) -> bool {
        let mut unmet = self.unmet.lock();
        unmet.retain(|item, served| item.is_served(found) != *served);
        unmet.is_empty()
    }

    /// Drops expectations that are never met, for example of an established definition that the member does not
    /// serve.
    pub fn clear(&self) {
        self.unmet.lock().clear();
    }
}

#[derive(Deserialize)]
struct Definition {
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

/// Spec of a CustomResourceDefinition or an APIService.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Spec {
    group: String,
    names: Names,
    versions: Vec<ServedVersion>,
    version: String,
    service: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Names {
    plural: String,
}

#[derive(Deserialize)]
struct ServedVersion {
    name: String,
    #[serde(default)]
    served: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

/// Items that are expected to be served (true) or not (false) after a change of a definition; empty if the definition
/// is not established or available yet, or announces nothing. `found` is the last discovery, from which the versions
/// that a CRD no longer has are derived.
fn expectations_of(change: &Change, found: Option<&ApiResources>) -> Vec<(DiscoveryItem, bool)> {
    let resource = &change.object.record.key.resource().resource;
    let Ok(Definition { spec, status }) = change.object.parse::<Definition>() else { return Vec::new() };
    let is_true =
        |condition: &str| status.conditions.iter().any(|item| item.type_ == condition && item.status == "True");
    let is_deleted = change.kind == ChangeKind::Deleted;
    match &**resource {
        "customresourcedefinitions" if is_deleted || is_true("Established") => {
            let item = |version: &str| DiscoveryItem::Resource(Gvr::new(&spec.group, version, &spec.names.plural));
            let has_version = |version: &str| spec.versions.iter().any(|version_spec| version_spec.name == version);
            let before = found.into_iter().flat_map(|found| &found.resources).map(|resource| &resource.gvr);
            let dropped = before.filter(|gvr| *gvr.group == *spec.group && *gvr.resource == *spec.names.plural);
            let dropped = dropped
                .filter(|gvr| !has_version(&gvr.version))
                .map(|gvr| (DiscoveryItem::Resource(gvr.clone()), false));
            let versions =
                spec.versions.iter().map(|version_spec| (item(&version_spec.name), version_spec.served && !is_deleted));
            versions.chain(dropped).collect()
        }
        // APIServices without a service are local; their definitions are watched instead.
        "apiservices" if spec.service.is_some() && (is_deleted || is_true("Available")) => {
            vec![(DiscoveryItem::Version(format!("{}/{}", spec.group, spec.version)), !is_deleted)]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_store::fixtures::stored;
    use rstest::rstest;
    use serde_json::{Value, json};
    use std::collections::BTreeSet;

    fn definition(established: &str, served: bool) -> Value {
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "names": {"plural": "widgets"},
            "versions": [{"name": "v1", "served": true}, {"name": "v2", "served": served}]},
            "status": {"conditions": [{"type": "Established", "status": established}]}})
    }

    fn api_service(service: Value, available: &str) -> Value {
        json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.example.com"},
            "spec": {"group": "example.com", "version": "v1", "service": service},
            "status": {"conditions": [{"type": "Available", "status": available}]}})
    }

    #[rstest]
    #[case::established(definition("True", true), ChangeKind::Modified, &[("v1/widgets", true), ("v2/widgets", true)])]
    #[case::one_version_ends(definition("True", false), ChangeKind::Modified, &[("v1/widgets", true), ("v2/widgets", false)])]
    #[case::not_established(definition("False", true), ChangeKind::Added, &[])]
    #[case::deleted(definition("True", true), ChangeKind::Deleted, &[("v1/widgets", false), ("v2/widgets", false)])]
    #[case::available(api_service(json!({"name": "s"}), "True"), ChangeKind::Modified, &[("example.com/v1", true)])]
    #[case::unavailable(api_service(json!({"name": "s"}), "False"), ChangeKind::Modified, &[])]
    #[case::local(api_service(Value::Null, "True"), ChangeKind::Modified, &[])]
    fn a_definition_announces_its_served_versions(
        #[case] object: Value,
        #[case] kind: ChangeKind,
        #[case] expected: &[(&str, bool)],
    ) {
        let object = stored("member1", 1, &object);
        let change = Change { seq: object.record.seq, kind, object, previous: None };
        let text = |item: DiscoveryItem| match item {
            DiscoveryItem::Resource(gvr) => format!("{}/{}", gvr.version, gvr.resource),
            DiscoveryItem::Version(version) => version,
        };
        let expectations: Vec<_> =
            expectations_of(&change, None).into_iter().map(|(item, served)| (text(item), served)).collect();
        let expectations: Vec<_> = expectations.iter().map(|(item, served)| (item.as_str(), *served)).collect();
        assert_eq!(expectations, expected);
        // Nothing is served: additions are awaited, removals are already met.
        let (tracker, nothing) = (DiscoveryExpectations::default(), ApiResources::default());
        tracker.add(&change, Some(&nothing));
        assert_eq!(tracker.are_met(&nothing), !expected.iter().any(|(_, served)| *served));
        tracker.clear();
        assert!(tracker.are_met(&nothing));
    }

    #[test]
    fn versions_that_a_definition_no_longer_has_are_not_expected() {
        let resource = |version: &str, plural: &str| crowsnest_members::ApiResource {
            gvr: Gvr::new("example.com", version, plural),
            kind: "Widget".to_owned(),
            singular: String::new(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: true,
            verbs: BTreeSet::new(),
            subresources: BTreeSet::new(),
            preferred: false,
        };
        let with = |resources: Vec<_>| ApiResources { resources, ..ApiResources::default() };
        let object = stored("member1", 1, &definition("True", true));
        let change = Change { seq: object.record.seq, kind: ChangeKind::Modified, object, previous: None };
        let found = with(vec![resource("v0", "widgets"), resource("v0", "others"), resource("v1", "widgets")]);
        let tracker = DiscoveryExpectations::default();
        tracker.add(&change, Some(&found));
        let served = with(vec![resource("v1", "widgets"), resource("v2", "widgets"), resource("v0", "others")]);
        let unmet: Vec<bool> = tracker.unmet.lock().values().copied().collect();
        assert_eq!(unmet, [false, true, true], "v0 is dropped, v1 and v2 are served");
        assert!(tracker.are_met(&served));
    }
}
