//! Resources that ResourceRegistries select, computed from the registries, the members and the resources that they
//! serve.

use std::collections::{BTreeMap, BTreeSet};

use crowsnest_api::cluster::Cluster;
use crowsnest_api::search::{ResourceRegistry, ResourceSelector};
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_members::{ApiResource, ApiResources};
use crowsnest_store::interest::{Clusters, Interest, InterestReason, Namespaces};

use crowsnest_plan::selector::cluster_matches;

/// A registry and one of its resources.
pub type RegistrationKey = (String, Gvr);

/// A resource that a registry selects, with its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisteredResource {
    pub interest: Interest,
    pub kind: String,
}

/// A member with the properties by which registries select it.
#[derive(Debug, Clone, Copy)]
pub struct Member<'a> {
    pub cluster: &'a Cluster,
    /// `None` if not discovered yet.
    pub served: Option<&'a ApiResources>,
}

impl Member<'_> {
    fn name(&self) -> Option<ClusterName> {
        ClusterName::parse(self.cluster.metadata.name.as_deref()?).ok()
    }

    /// Returns false only if the member is known not to serve the resource. An API group whose discovery fails may
    /// have it.
    fn may_serve(&self, resource: &Gvr) -> bool {
        self.served
            .is_none_or(|served| served.get(resource).is_some() || served.stale.contains(&resource.api_version()))
    }
}

/// One interest per registry and resource. A resource is registered even if no cluster serves it, so that the
/// fleet-wide proxy serves its reads from the cache and does not send its writes to the control plane. A kind that is
/// not served anywhere (yet) resolves to no resource.
pub fn select_resources(
    registries: &BTreeMap<String, ResourceRegistry>,
    members: &[Member<'_>],
    control_plane: Option<&ApiResources>,
) -> BTreeMap<RegistrationKey, RegisteredResource> {
    let mut selected: BTreeMap<RegistrationKey, RegisteredResource> = BTreeMap::new();
    for (name, registry) in registries {
        let affinity = &registry.spec.target_cluster;
        let target_members: Vec<&Member<'_>> =
            members.iter().filter(|member| cluster_matches(member.cluster, affinity)).collect();
        for selector in &registry.spec.resource_selectors {
            let Some(kind) = resolve(selector, &target_members, members, control_plane) else { continue };
            let namespaces = match selector.namespace.as_str() {
                one if kind.namespaced && !one.is_empty() => Namespaces::Names(BTreeSet::from([one.to_owned()])),
                _ => Namespaces::All,
            };
            let resource = &kind.gvr;
            let clusters =
                target_members.iter().filter(|member| member.may_serve(resource)).filter_map(|member| member.name());
            let entry = selected.entry((name.clone(), resource.clone())).or_insert_with(|| RegisteredResource {
                kind: kind.kind.clone(),
                interest: Interest {
                    clusters: Clusters::Names(clusters.collect()),
                    resource: resource.clone(),
                    namespaces: namespaces.clone(),
                    reason: InterestReason::ResourceRegistry(name.clone()),
                },
            });
            let before = std::mem::replace(&mut entry.interest.namespaces, Namespaces::All);
            entry.interest.namespaces = before.union(&namespaces);
        }
    }
    selected
}

/// A kind that is not resolved to a resource: name of the registry that selects it, kind, and selected cluster.
pub type UnresolvedKind = (String, String, ClusterName);

/// Kinds that no cluster is known to serve, with the selected clusters. Some of these may not have been discovered
/// yet.
pub fn find_unresolved_kinds(
    registries: &BTreeMap<String, ResourceRegistry>,
    members: &[Member<'_>],
    control_plane: Option<&ApiResources>,
) -> BTreeSet<UnresolvedKind> {
    let mut unresolved = BTreeSet::new();
    for (name, registry) in registries {
        let affinity = &registry.spec.target_cluster;
        let target_members: Vec<&Member<'_>> =
            members.iter().filter(|member| cluster_matches(member.cluster, affinity)).collect();
        for selector in &registry.spec.resource_selectors {
            if resolve(selector, &target_members, members, control_plane).is_none() {
                let clusters = target_members.iter().filter_map(|member| member.name());
                unresolved.extend(clusters.map(|cluster| (name.clone(), selector.kind.clone(), cluster)));
            }
        }
    }
    unresolved
}

/// The resource of a selector, as served by the target members, the control plane, or another member.
fn resolve<'a>(
    selector: &ResourceSelector,
    target_members: &[&Member<'a>],
    members: &[Member<'a>],
    control_plane: Option<&'a ApiResources>,
) -> Option<&'a ApiResource> {
    let of_targets = target_members.iter().filter_map(|member| member.served);
    let of_all = members.iter().filter_map(|member| member.served);
    of_targets.chain(control_plane).chain(of_all).find_map(|served| find_kind(served, selector))
}

fn find_kind<'a>(served: &'a ApiResources, selector: &ResourceSelector) -> Option<&'a ApiResource> {
    served.resources.iter().find(|r| r.kind == selector.kind && r.gvr.api_version() == selector.api_version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde::Deserialize;
    use serde_json::{Value, json};

    /// Served kinds by name: `Pod` and `Node` of v1, `Widget` of g/v1. `!g/v1` is a group whose discovery fails.
    fn serving(kinds: &str) -> ApiResources {
        let (stale, kinds): (Vec<&str>, Vec<&str>) = kinds.split_whitespace().partition(|word| word.starts_with('!'));
        let resource = |kind: &str| ApiResource {
            gvr: Gvr::new(if kind == "Widget" { "g" } else { "" }, "v1", &format!("{}s", kind.to_lowercase())),
            kind: kind.to_owned(),
            singular: kind.to_lowercase(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: kind != "Node",
            verbs: BTreeSet::new(),
            subresources: BTreeSet::new(),
            preferred: true,
        };
        ApiResources {
            resources: kinds.into_iter().map(resource).collect(),
            stale: stale.into_iter().map(|word| word[1..].to_owned()).collect(),
        }
    }

    fn cluster(name: &str) -> Cluster {
        Cluster::deserialize(json!({"metadata": {"name": name}, "spec": {}})).unwrap()
    }

    const POD: (&str, &str) = ("v1", "Pod");
    const WIDGET: (&str, &str) = ("g/v1", "Widget");

    /// Interests of one registry, for members `m1`, `m2`, `m3` and a control plane that serve these kinds (`None`:
    /// unknown).
    #[rstest]
    #[case::named_clusters(POD, "", &["m1", "m2"], [Some("Pod"), Some("Pod"), Some("Pod")], Some("Pod"),
        json!({"pods": ["m1", "m2"]}))]
    #[case::all_clusters(POD, "", &[], [Some("Pod"), Some("Pod"), Some("Pod")], None, json!({"pods": ["m1", "m2", "m3"]}))]
    #[case::clusters_that_serve_it(WIDGET, "", &[], [Some("Pod"), Some("Widget"), Some("Pod")], None,
        json!({"widgets": ["m2"]}))]
    #[case::undiscovered_clusters_may_serve_it(WIDGET, "", &[], [None, Some("Widget"), Some("!g/v1")], None,
        json!({"widgets": ["m1", "m2", "m3"]}))]
    #[case::resolved_by_the_control_plane(WIDGET, "", &["m1"], [Some("Pod"), None, None], Some("Widget"),
        json!({"widgets": []}))]
    #[case::resolved_by_another_member(WIDGET, "", &["m1"], [Some("Pod"), None, Some("Widget")], Some("Pod"),
        json!({"widgets": []}))]
    #[case::without_members(WIDGET, "", &["deleted"], [None, None, None], Some("Widget"), json!({"widgets": []}))]
    #[case::unknown_kind(WIDGET, "", &[], [Some("Pod"), None, None], Some("Pod"), json!({}))]
    #[case::one_namespace(POD, "a", &["m1"], [Some("Pod"), None, None], None, json!({"pods in a": ["m1"]}))]
    #[case::nodes_have_no_namespace(("v1", "Node"), "a", &["m1"], [Some("Node"), None, None], None,
        json!({"nodes": ["m1"]}))]
    fn registries_select_resources(
        #[case] (api_version, kind): (&str, &str),
        #[case] namespace: &str,
        #[case] names: &[&str],
        #[case] members: [Option<&str>; 3],
        #[case] control_plane: Option<&str>,
        #[case] expected: Value,
    ) {
        let registry = registry(names, json!([{"apiVersion": api_version, "kind": kind, "namespace": namespace}]));
        assert_eq!(interests_json(&registry, members, control_plane), expected);
    }

    #[test]
    fn kinds_without_resource_are_unresolved() {
        let selectors = json!([{"apiVersion": "v1", "kind": "Pod"}, {"apiVersion": "g/v1", "kind": "Widget"}]);
        let registries = BTreeMap::from([("r".to_owned(), registry(&["m1", "m2"], selectors))]);
        let clusters = ["m1", "m2", "m3"].map(cluster);
        let (pods, widgets) = (serving("Pod"), serving("Widget"));
        let members = |third| -> Vec<Member<'_>> {
            clusters
                .iter()
                .zip([Some(&pods), None, third])
                .map(|(cluster, served)| Member { cluster, served })
                .collect()
        };
        let widget = |cluster: &str| ("r".to_owned(), "Widget".to_owned(), ClusterName::parse(cluster).unwrap());
        assert_eq!(
            find_unresolved_kinds(&registries, &members(None), None),
            BTreeSet::from([widget("m1"), widget("m2")])
        );
        assert!(find_unresolved_kinds(&registries, &members(Some(&widgets)), None).is_empty());
    }

    #[test]
    fn selectors_of_one_resource_share_an_interest() {
        let pods = |namespace: &str| json!({"apiVersion": "v1", "kind": "Pod", "namespace": namespace});
        let members = [Some("Pod"), None, None];
        let both = registry(&["m1"], json!([pods("a"), pods("b")]));
        assert_eq!(interests_json(&both, members, None), json!({"pods in a, b": ["m1"]}));
        let all = registry(&["m1"], json!([pods("a"), pods("")]));
        assert_eq!(interests_json(&all, members, None), json!({"pods": ["m1"]}));
    }

    fn registry(names: &[&str], selectors: Value) -> ResourceRegistry {
        let spec = json!({"targetCluster": {"clusterNames": names}, "resourceSelectors": selectors});
        serde_json::from_value(json!({"metadata": {"name": "r"}, "spec": spec})).unwrap()
    }

    /// Resources, with their namespaces unless all are selected, and their clusters.
    fn interests_json(registry: &ResourceRegistry, members: [Option<&str>; 3], control_plane: Option<&str>) -> Value {
        let clusters = ["m1", "m2", "m3"].map(cluster);
        let served = members.map(|kinds| kinds.map(serving));
        let members: Vec<Member<'_>> =
            clusters.iter().zip(&served).map(|(cluster, served)| Member { cluster, served: served.as_ref() }).collect();
        let registries = BTreeMap::from([("r".to_owned(), registry.clone())]);
        let selected = select_resources(&registries, &members, control_plane.map(serving).as_ref());
        let interests = selected.into_values().map(|RegisteredResource { interest, .. }| {
            let Clusters::Names(clusters) = interest.clusters else { panic!("registries name clusters") };
            let namespaces = match interest.namespaces {
                Namespaces::All => String::new(),
                Namespaces::Names(names) => format!(" in {}", names.into_iter().collect::<Vec<_>>().join(", ")),
            };
            (format!("{}{namespaces}", interest.resource.resource), json!(clusters))
        });
        Value::Object(interests.collect())
    }
}
