//! Computes which objects are exported to which backend, from the registries and their resources.

use std::collections::{BTreeMap, BTreeSet};

use crowsnest_index::CollectionKey;
use crowsnest_index::export::Selection;
use crowsnest_store::interest::{Clusters, Namespaces};

use crate::search::resource_registry::Registrations;
use crowsnest_admission::backend_store::Destination;

/// Registries with the same destination, and all objects that they select.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DesiredExport {
    pub registries: BTreeSet<String>,
    pub selection: Selection,
}

/// All exports by destination. Registries with equal destinations share an export: each document is written once, and
/// deleted when none of them selects it. A registry that is being deleted selects nothing.
pub(super) fn desired_exports(registrations: &Registrations) -> BTreeMap<Destination, DesiredExport> {
    let mut desired: BTreeMap<Destination, DesiredExport> = BTreeMap::new();
    for (name, registry) in &registrations.registries {
        // An invalid annotation is reported in the registry's conditions.
        let Ok(Some(destination)) = Destination::from_registry(registry) else { continue };
        if registry.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let export = desired.entry(destination).or_default();
        export.registries.insert(name.clone());
        let selected = registrations.resources.iter().filter(|((registry, _), _)| registry == name);
        for (_, registered) in selected {
            // Interests of registries always list their clusters.
            let Clusters::Names(clusters) = &registered.interest.clusters else { continue };
            for cluster in clusters {
                let key = CollectionKey::new(cluster.clone(), registered.interest.resource.clone());
                let namespaces = match &registered.interest.namespaces {
                    Namespaces::All => None,
                    Namespaces::Names(names) => Some(names.clone()),
                };
                export.selection.add(key, &registered.kind, namespaces);
            }
        }
        let unresolved = registrations.unresolved.iter().filter(|(registry, ..)| registry == name);
        for (_, kind, cluster) in unresolved {
            export.selection.add_unresolved_kind(kind, cluster.as_str());
        }
    }
    desired
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::resource_registry::RegisteredResource;
    use crowsnest_apimachinery::names::{ClusterName, Gvr};
    use crowsnest_store::interest::{Interest, InterestReason};
    use serde_json::json;

    fn registrations(registries: &[(&str, &str, &[&str], Option<&str>)]) -> Registrations {
        let mut registrations = Registrations::default();
        for (name, address, clusters, namespace) in registries {
            let store = if address.is_empty() {
                json!(null)
            } else {
                json!({"openSearch": {"addresses": [address], "secretRef": {"namespace": "", "name": ""}}})
            };
            let registry = json!({"metadata": {"name": name}, "spec": {"targetCluster": {}, "backendStore": store}});
            registrations.registries.insert((*name).to_owned(), serde_json::from_value(registry).unwrap());
            let resource = Gvr::new("", "v1", "pods");
            let names = clusters.iter().map(|cluster| ClusterName::parse(cluster).unwrap()).collect();
            let interest = Interest {
                clusters: Clusters::Names(names),
                resource: resource.clone(),
                namespaces: namespace.map_or(Namespaces::All, |name| Namespaces::Names([name.to_owned()].into())),
                reason: InterestReason::ResourceRegistry((*name).to_owned()),
            };
            registrations
                .resources
                .insert(((*name).to_owned(), resource), RegisteredResource { interest, kind: "Pod".to_owned() });
        }
        registrations
    }

    fn is_selected(desired: &DesiredExport, cluster: &str, namespace: &str) -> bool {
        let key = CollectionKey::new(ClusterName::parse(cluster).unwrap(), Gvr::new("", "v1", "pods"));
        desired.selection.index_of(&key, namespace).is_some()
    }

    #[test]
    fn registries_of_one_backend_share_an_export() {
        let desired = desired_exports(&registrations(&[
            ("a", "https://one", &["m1"], Some("x")),
            ("b", "https://one/", &["m1", "m2"], Some("y")),
            ("c", "https://two", &["m3"], None),
            ("d", "", &["m4"], None),
        ]));
        assert_eq!(desired.len(), 2);
        let (first, last) = (desired.values().next().unwrap(), desired.values().last().unwrap());
        assert_eq!(first.registries, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        let of_one = [("m1", "x"), ("m1", "y"), ("m1", "z"), ("m2", "y"), ("m3", "x"), ("m4", "x")];
        assert_eq!(
            of_one.map(|(cluster, ns)| is_selected(first, cluster, ns)),
            [true, true, false, true, false, false]
        );
        assert!(is_selected(last, "m3", "x") && !is_selected(last, "m1", "x"));
    }

    #[test]
    fn a_registry_that_is_being_deleted_selects_nothing() {
        let mut all = registrations(&[("a", "https://one", &["m1"], None)]);
        let registry = all.registries.get_mut("a").unwrap();
        let deleted = json!("2026-08-01T10:00:00Z");
        registry.metadata.deletion_timestamp = Some(serde_json::from_value(deleted).unwrap());
        assert!(desired_exports(&all).is_empty());
    }
}
