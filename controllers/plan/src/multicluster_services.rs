//! MultiClusterService of type CrossCluster: provider and consumer clusters, claims on the Service and its binding,
//! and Works for collected and dispatched EndpointSlices (Karmada's `multiclusterservice-controller`,
//! `endpointslice-collect-controller` and `endpointslice-dispatch-controller`).

use std::collections::{BTreeMap, BTreeSet};

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::{annotation, condition, event, finalizer, label};
use crowsnest_api::networking::{ClusterSelector, ExposureType, MultiClusterServiceSpec};
use crowsnest_api::permanent_id::POLICY_LABELS;
use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_apimachinery::unstructured;
use serde_json::{Value, json};

use super::conditions;
use super::services::{SERVICE_NAME, SLICE_MANAGED_BY, copy_endpoints, join_managers, managed_work, managers};
use super::work::construct::{self, DesiredWork, WorkOptions};

/// Value that marks Works and Services as managed by MultiClusterService.
pub const MULTI_CLUSTER_SERVICE: &str = "MultiClusterService";
/// API version and kind of EndpointSlices.
const SLICES: (&str, &str) = ("discovery.k8s.io/v1", "EndpointSlice");

/// True for type CrossCluster. Other exposure types are implemented by external providers.
pub fn is_cross_cluster(spec: &MultiClusterServiceSpec) -> bool {
    spec.types.contains(&ExposureType::CrossCluster)
}

/// The selected clusters, or all if none is selected.
pub fn selected_clusters(selectors: &[ClusterSelector], all: &[impl AsRef<str>]) -> BTreeSet<String> {
    match selectors {
        [] => all.iter().map(|name| name.as_ref().to_owned()).collect(),
        selectors => selectors.iter().map(|selector| selector.name.clone()).collect(),
    }
}

/// Role of a cluster in a MultiClusterService.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Provider,
    Consumer,
}

/// Reason and message of the warning event if a cluster cannot be used now.
pub fn unusable_reason(name: &str, cluster: Option<&Cluster>, role: Role) -> Option<(&'static str, String)> {
    let (role_name, kind) = match role {
        Role::Provider => ("Provider", "MultiClusterService"),
        Role::Consumer => ("Consumer", "EndpointSlice"),
    };
    let Some(cluster) = cluster else {
        return Some((event::CLUSTER_NOT_FOUND, format!("{role_name} cluster {name} is not found")));
    };
    if !conditions::is_true(&cluster.status.conditions, condition::READY) {
        let text = format!("{role_name} cluster {name} is not ready, skip to propagate {kind}");
        return Some((event::SYNC_SERVICE_FAILED, text));
    }
    let are_enablements_complete = conditions::is_true(&cluster.status.conditions, condition::COMPLETE_API_ENABLEMENTS);
    let serves = cluster.status.api_enablements.iter().any(|enabled| {
        enabled.group_version == SLICES.0 && enabled.resources.iter().any(|resource| resource.kind == SLICES.1)
    });
    (are_enablements_complete && !serves)
        .then(|| (event::API_INCOMPATIBLE, format!("{role_name} cluster {name} does not support EndpointSlice")))
}

fn permanent_id(mcs: &Value) -> &str {
    unstructured::label(mcs, label::MULTI_CLUSTER_SERVICE_PERMANENT_ID).unwrap_or_default()
}

/// Labels of a Work with the namespace and name of its MultiClusterService.
fn name_labels(namespace: &str, name: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (label::MULTI_CLUSTER_SERVICE_NAMESPACE.to_owned(), namespace.to_owned()),
        (label::MULTI_CLUSTER_SERVICE_NAME.to_owned(), name.to_owned()),
    ])
}

/// The Work in a provider's execution namespace that requests collection of its EndpointSlices. It is not dispatched
/// and has no finalizer.
pub fn provider_work(cluster: &str, mcs: &Value) -> DesiredWork {
    let mut labels = name_labels(unstructured::namespace(mcs), unstructured::name(mcs));
    labels.insert(label::MULTI_CLUSTER_SERVICE_PERMANENT_ID.to_owned(), permanent_id(mcs).to_owned());
    let options = WorkOptions { suspend_dispatching: Some(true), ..WorkOptions::default() };
    let mut work = construct::wrap(cluster, mcs.clone(), labels, BTreeMap::new(), options);
    work.finalizer = "";
    work
}

/// The MultiClusterService that a Work belongs to.
pub fn service_of_work(work: &Value) -> Option<NamespacedName> {
    let namespace = unstructured::label(work, label::MULTI_CLUSTER_SERVICE_NAMESPACE)?;
    let name = unstructured::label(work, label::MULTI_CLUSTER_SERVICE_NAME)?;
    Some(NamespacedName::new(namespace, name))
}

/// True for a Work from [`provider_work`].
pub fn is_provider_work(work: &Value) -> bool {
    unstructured::at(work, &["spec", "workload", "manifests"])
        .and_then(Value::as_array)
        .and_then(|manifests| manifests.first())
        .is_some_and(|manifest| unstructured::kind(manifest) == MULTI_CLUSTER_SERVICE)
}

/// True for a Work that stores a collected EndpointSlice of a provider.
pub fn is_collected_work(work: &Value) -> bool {
    managers(work).contains(MULTI_CLUSTER_SERVICE) && provider_cluster(work).is_none()
}

/// The provider of a dispatched EndpointSlice, from its Work. `None` for other Works.
pub fn provider_cluster(work: &Value) -> Option<&str> {
    unstructured::annotation(work, annotation::ENDPOINT_SLICE_PROVISION_CLUSTER)
}

/// The Work that stores a provider's EndpointSlice in the control plane. `existing` is the stored Work.
pub fn collected_work(cluster: &str, service: &str, slice: &Value, existing: Option<&Value>) -> DesiredWork {
    let labels = name_labels(unstructured::namespace(slice), service);
    let finalizer = finalizer::MCS_ENDPOINT_SLICE_DISPATCH_CONTROLLER;
    managed_work(cluster, slice, existing, MULTI_CLUSTER_SERVICE, labels, finalizer)
}

/// Patch that removes the MultiClusterService from a collected Work. `None` if no other manager needs the Work, so
/// that it can be deleted.
pub fn release_service(work: &Value) -> Option<Value> {
    let mut others = managers(work);
    others.remove(MULTI_CLUSTER_SERVICE);
    let finalizers: Vec<&str> = unstructured::finalizers(work)
        .filter(|finalizer| *finalizer != finalizer::MCS_ENDPOINT_SLICE_DISPATCH_CONTROLLER)
        .collect();
    let removed = Value::Null;
    (!others.is_empty()).then(|| {
        json!({"metadata": {
            "finalizers": finalizers,
            "labels": {
                label::ENDPOINT_SLICE_MANAGED_BY: join_managers(&others),
                label::MULTI_CLUSTER_SERVICE_NAME: removed,
                label::MULTI_CLUSTER_SERVICE_NAMESPACE: removed,
            },
        }})
    })
}

/// The Work that dispatches a collected EndpointSlice to a consumer. It has the name of the collected Work, unless
/// the Work of another provider's slice has it already (`is_name_taken`). `None` if the collected Work is invalid.
pub fn dispatched_work(
    consumer: &str,
    provider: &str,
    collected: &Value,
    is_name_taken: impl Fn(&str) -> bool,
) -> Option<DesiredWork> {
    let NamespacedName { namespace, name } = service_of_work(collected)?;
    let slice = unstructured::at(collected, &["spec", "workload", "manifests"])?.as_array()?.first()?;
    if unstructured::namespace(slice) != namespace {
        return None;
    }
    let mut manifest = json!({
        "apiVersion": SLICES.0,
        "kind": SLICES.1,
        "metadata": {
            "namespace": namespace,
            "name": format!("{provider}-{}", unstructured::name(slice)),
            "labels": {SERVICE_NAME: name, SLICE_MANAGED_BY: label::ENDPOINT_SLICE_DISPATCH_CONTROLLER},
            "annotations": {annotation::ENDPOINT_SLICE_PROVISION_CLUSTER: provider},
        },
    });
    copy_endpoints(slice, &mut manifest);
    let source = annotation::ENDPOINT_SLICE_PROVISION_CLUSTER.to_owned();
    let annotations = BTreeMap::from([(source, provider.to_owned())]);
    let labels = name_labels(&namespace, &name);
    let mut work = construct::wrap(consumer, manifest, labels, annotations, WorkOptions::default());
    if !is_name_taken(unstructured::name(collected)) {
        work.name = unstructured::name(collected).to_owned();
        unstructured::set_annotation(&mut work.manifest, annotation::WORK_NAME, unstructured::name(collected));
    }
    Some(work)
}

const POLICY_ANNOTATIONS: [&str; 3] = [
    annotation::PROPAGATION_POLICY_NAMESPACE,
    annotation::PROPAGATION_POLICY_NAME,
    annotation::CLUSTER_PROPAGATION_POLICY_NAME,
];

/// The Service with the claim of a MultiClusterService instead of a policy's claim. `None` if it has that claim
/// already.
pub fn claim(service: &Value, mcs: &Value) -> Option<Value> {
    let mut claimed = service.clone();
    for key in POLICY_LABELS {
        unstructured::remove(&mut claimed, &["metadata", "labels", key]);
    }
    for key in POLICY_ANNOTATIONS {
        unstructured::remove(&mut claimed, &["metadata", "annotations", key]);
    }
    unstructured::set_label(&mut claimed, label::RESOURCE_TEMPLATE_CLAIMED_BY, MULTI_CLUSTER_SERVICE);
    unstructured::set_label(&mut claimed, label::MULTI_CLUSTER_SERVICE_PERMANENT_ID, permanent_id(mcs));
    annotate_service(&mut claimed, mcs);
    (claimed != *service).then_some(claimed)
}

fn annotate_service(object: &mut Value, mcs: &Value) {
    unstructured::set_annotation(object, annotation::MULTI_CLUSTER_SERVICE_NAMESPACE, unstructured::namespace(mcs));
    unstructured::set_annotation(object, annotation::MULTI_CLUSTER_SERVICE_NAME, unstructured::name(mcs));
}

/// A Service or binding without the metadata of [`claim`] and [`bind`]. `None` if it has none.
pub fn release(object: &Value) -> Option<Value> {
    let mut released = object.clone();
    for key in [annotation::MULTI_CLUSTER_SERVICE_NAMESPACE, annotation::MULTI_CLUSTER_SERVICE_NAME] {
        unstructured::remove(&mut released, &["metadata", "annotations", key]);
    }
    for key in
        [label::MULTI_CLUSTER_SERVICE_PERMANENT_ID, label::RESOURCE_TEMPLATE_CLAIMED_BY, label::BINDING_MANAGED_BY]
    {
        unstructured::remove(&mut released, &["metadata", "labels", key]);
    }
    (released != *object).then_some(released)
}

/// Plan for the Service's binding.
#[derive(Debug, Clone, PartialEq)]
pub enum ServiceBindingPlan {
    Keep,
    Create(Value),
    Update(Value),
    /// The binding belongs to a deleted Service. The garbage collector must delete it first.
    WaitForGarbageCollection,
}

/// The binding that propagates a Service to providers and consumers. `new_name` names a new binding. Labels and
/// annotations of a policy are kept.
pub fn bind(
    mcs: &Value,
    service: &Value,
    clusters: &BTreeSet<String>,
    existing: Option<&Value>,
    new_name: &str,
) -> ServiceBindingPlan {
    let owner = json!({
        "apiVersion": unstructured::api_version(service), "kind": unstructured::kind(service),
        "name": unstructured::name(service), "uid": unstructured::uid(service),
    });
    let mut binding = match existing {
        Some(existing) => {
            let owners = unstructured::at(existing, &["metadata", "ownerReferences"]).and_then(Value::as_array);
            let another = |owner: &Value| unstructured::text(owner, &["uid"]) != unstructured::uid(service);
            if owners.is_some_and(|owners| !owners.is_empty() && owners.iter().all(another)) {
                return ServiceBindingPlan::WaitForGarbageCollection;
            }
            existing.clone()
        }
        None => json!({
            "apiVersion": "work.karmada.io/v1alpha2",
            "kind": "ResourceBinding",
            "metadata": {
                "namespace": unstructured::namespace(service),
                "name": new_name,
                "ownerReferences": [owner],
                "finalizers": [finalizer::BINDING_CONTROLLER],
            },
        }),
    };
    unstructured::set_label(&mut binding, label::BINDING_MANAGED_BY, MULTI_CLUSTER_SERVICE);
    unstructured::set_label(&mut binding, label::MULTI_CLUSTER_SERVICE_PERMANENT_ID, permanent_id(mcs));
    annotate_service(&mut binding, mcs);
    let resource = json!({
        "apiVersion": unstructured::api_version(service), "kind": unstructured::kind(service),
        "namespace": unstructured::namespace(service), "name": unstructured::name(service),
        "uid": unstructured::uid(service), "resourceVersion": unstructured::resource_version(service),
    });
    unstructured::set(&mut binding, &["spec", "conflictResolution"], json!("Overwrite"));
    unstructured::set(&mut binding, &["spec", "placement"], json!({"clusterAffinity": {"clusterNames": clusters}}));
    match existing {
        None => {
            unstructured::set(&mut binding, &["spec", "resource"], resource);
            ServiceBindingPlan::Create(binding)
        }
        // A new resourceVersion of the Service alone is not a change.
        Some(existing) if unstructured::semantically_equal(existing, &binding) => ServiceBindingPlan::Keep,
        Some(_) => {
            unstructured::set(&mut binding, &["spec", "resource"], resource);
            ServiceBindingPlan::Update(binding)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn mcs() -> Value {
        let labels = json!({label::MULTI_CLUSTER_SERVICE_PERMANENT_ID: "id"});
        json!({
            "apiVersion": "networking.karmada.io/v1alpha1", "kind": MULTI_CLUSTER_SERVICE,
            "metadata": {"namespace": "shop", "name": "web", "labels": labels}, "spec": {"types": ["CrossCluster"]},
        })
    }

    fn service() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "namespace": "shop", "name": "web", "uid": "u1", "resourceVersion": "3",
                "labels": {"app": "web", label::PROPAGATION_POLICY_PERMANENT_ID: "p"},
                "annotations": {annotation::PROPAGATION_POLICY_NAME: "p", annotation::PROPAGATION_POLICY_NAMESPACE: "shop"},
            },
        })
    }

    fn cluster(ready: &str, apis: Value) -> Cluster {
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let conditions = [condition("Ready", ready), condition("CompleteAPIEnablements", "True")];
        let status = json!({"conditions": conditions, "apiEnablements": apis});
        let cluster = json!({"metadata": {"name": "m1"}, "spec": {"syncMode": "Push"}, "status": status});
        serde_json::from_value(cluster).expect("a cluster")
    }

    fn slices() -> Value {
        json!([{"groupVersion": "discovery.k8s.io/v1", "resources": [{"name": "endpointslices", "kind": "EndpointSlice"}]}])
    }

    #[rstest]
    #[case::missing_cluster(None, Role::Provider, Some(("ClusterNotFound", "Provider cluster m1 is not found")))]
    #[case::not_ready(
        Some(cluster("False", slices())),
        Role::Provider,
        Some(("SyncServiceFailed", "Provider cluster m1 is not ready, skip to propagate MultiClusterService"))
    )]
    #[case::consumer_not_ready(
        Some(cluster("Unknown", slices())),
        Role::Consumer,
        Some(("SyncServiceFailed", "Consumer cluster m1 is not ready, skip to propagate EndpointSlice"))
    )]
    #[case::without_endpoint_slices(
        Some(cluster("True", json!([]))),
        Role::Consumer,
        Some(("APIIncompatible", "Consumer cluster m1 does not support EndpointSlice"))
    )]
    #[case::usable(Some(cluster("True", slices())), Role::Consumer, None)]
    fn unusable_clusters(#[case] cluster: Option<Cluster>, #[case] role: Role, #[case] expected: Option<(&str, &str)>) {
        let found = unusable_reason("m1", cluster.as_ref(), role);
        assert_eq!(found.as_ref().map(|(reason, text)| (*reason, text.as_str())), expected);
    }

    #[test]
    fn service_is_claimed_from_its_policy_and_released() {
        let claimed = claim(&service(), &mcs()).expect("a change");
        assert_eq!(
            claimed["metadata"]["labels"],
            json!({"app": "web", label::RESOURCE_TEMPLATE_CLAIMED_BY: MULTI_CLUSTER_SERVICE,
                   label::MULTI_CLUSTER_SERVICE_PERMANENT_ID: "id"})
        );
        assert_eq!(claim(&claimed, &mcs()), None);
        let released = release(&claimed).expect("a change");
        assert_eq!(released["metadata"]["labels"], json!({"app": "web"}));
        assert_eq!(super::release(&released), None);
    }

    #[test]
    fn binding_keeps_its_policy_and_targets_the_clusters_of_the_service() {
        let clusters = BTreeSet::from(["m1".to_owned(), "ghost".to_owned()]);
        let ServiceBindingPlan::Create(binding) = bind(&mcs(), &service(), &clusters, None, "web-service") else {
            panic!("a new binding must be created")
        };
        assert_eq!(binding["spec"]["placement"], json!({"clusterAffinity": {"clusterNames": ["ghost", "m1"]}}));
        assert_eq!(bind(&mcs(), &service(), &clusters, Some(&binding), "web-service"), ServiceBindingPlan::Keep);
        let mut by_policy = binding.clone();
        unstructured::set_label(&mut by_policy, label::PROPAGATION_POLICY_PERMANENT_ID, "p");
        by_policy["spec"]["placement"] = json!({"clusterAffinity": {"clusterNames": ["m3"]}});
        by_policy["spec"]["clusters"] = json!([{"name": "m3"}]);
        let ServiceBindingPlan::Update(updated) = bind(&mcs(), &service(), &clusters, Some(&by_policy), "web-service")
        else {
            panic!("a changed placement must be corrected")
        };
        assert_eq!(unstructured::label(&updated, label::PROPAGATION_POLICY_PERMANENT_ID), Some("p"));
        assert_eq!(updated["spec"]["clusters"], json!([{"name": "m3"}]), "only the scheduler changes them");
        let mut other_owner = binding;
        other_owner["metadata"]["ownerReferences"] = json!([{"uid": "older"}]);
        assert_eq!(
            bind(&mcs(), &service(), &clusters, Some(&other_owner), "web-service"),
            ServiceBindingPlan::WaitForGarbageCollection
        );
    }

    fn slice() -> Value {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"namespace": "shop", "name": "web-x1", "uid": "u", "labels": {SERVICE_NAME: "web", "a": "b"}},
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}],
        })
    }

    /// A Work as it is stored.
    fn stored(work: &DesiredWork) -> Value {
        match work.plan(None, "work-id") {
            construct::WorkPlan::Create(work) => work,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn slice_is_collected_with_an_export_and_dispatched() {
        let export = json!({"metadata": {"labels": {label::ENDPOINT_SLICE_MANAGED_BY: "ServiceExport"}}});
        let work = stored(&collected_work("m1", "web", &slice(), Some(&export)));
        assert_eq!(
            unstructured::label(&work, label::ENDPOINT_SLICE_MANAGED_BY),
            Some("MultiClusterService.ServiceExport")
        );
        assert!(is_collected_work(&work) && !is_provider_work(&work));
        let released = release_service(&work).expect("the export stays");
        assert_eq!(released["metadata"]["labels"][label::ENDPOINT_SLICE_MANAGED_BY], "ServiceExport");

        let sent = dispatched_work("m2", "m1", &work, |_| false).expect("a Work");
        assert_eq!((sent.namespace.as_str(), sent.name.as_str()), ("karmada-es-m2", unstructured::name(&work)));
        assert_eq!(unstructured::name(&sent.manifest), "m1-web-x1");
        assert_eq!(unstructured::label(&sent.manifest, SERVICE_NAME), Some("web"));
        assert_eq!(unstructured::label(&sent.manifest, "a"), None);
        assert!(!is_collected_work(&stored(&sent)));
        assert_eq!(provider_cluster(&stored(&sent)), Some("m1"));
        let other = dispatched_work("m2", "m1", &work, |_| true).expect("a Work");
        assert_ne!(other.name, unstructured::name(&work), "the name is taken by another provider's slice");
    }

    #[test]
    fn provider_work_has_no_finalizer() {
        let work = stored(&provider_work("m1", &mcs()));
        assert_eq!(unstructured::finalizers(&work).count(), 0);
        assert_eq!(service_of_work(&work), Some(NamespacedName::new("shop", "web")));
        assert!(is_provider_work(&work));
    }
}
