//! Multi-cluster services by ServiceExport and ServiceImport: collected EndpointSlices, and the Service derived from
//! an import (KEP-1645; Karmada's `service-export-controller`, `endpointslice-controller` and
//! `service-import-controller`).

use std::collections::{BTreeMap, BTreeSet};

use crowsnest_api::constants::{annotation, finalizer, label};
use crowsnest_api::names::{derived_service_name, imported_endpoint_slice_name};
use crowsnest_api::work::ResourceBindingSpec;
use crowsnest_apimachinery::unstructured;
use serde_json::{Value, json};

use super::reference;
use super::work::construct::{self, DesiredWork, WorkOptions};
use super::work::managed::WORK_PERMANENT_ID;

/// Kubernetes' label for the Service of an EndpointSlice.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Kubernetes' label for the manager of an EndpointSlice.
pub const SLICE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Value for ServiceExport in the managed-by label of Works.
pub const SERVICE_EXPORT: &str = "ServiceExport";
/// API group of ServiceExports.
pub const SERVICE_EXPORT_GROUP: &str = "multicluster.x-k8s.io";

/// True for an EndpointSlice that was imported from another cluster. Imported slices are never exported.
pub fn is_imported(slice: &Value) -> bool {
    let import_managers = [label::ENDPOINT_SLICE_CONTROLLER, label::ENDPOINT_SLICE_DISPATCH_CONTROLLER];
    unstructured::label(slice, SLICE_MANAGED_BY).is_some_and(|manager| import_managers.contains(&manager))
}

/// True for an EndpointSlice of the Service that originates in the member.
pub fn belongs_to_service(slice: &Value, service: &str) -> bool {
    unstructured::label(slice, SERVICE_NAME) == Some(service)
        && !is_imported(slice)
        && !unstructured::is_terminating(slice)
}

/// Managers of a Work with an EndpointSlice, from the dot-separated label.
pub fn managers(work: &Value) -> BTreeSet<String> {
    let joined = unstructured::label(work, label::ENDPOINT_SLICE_MANAGED_BY).unwrap_or_default();
    joined.split('.').filter(|manager| !manager.is_empty()).map(str::to_owned).collect()
}

pub(super) fn join_managers(managers: &BTreeSet<String>) -> String {
    managers.iter().map(String::as_str).collect::<Vec<_>>().join(".")
}

/// The Work that stores an exported EndpointSlice of a member in the control plane. `existing` is the stored Work.
pub fn collected_work(cluster: &str, service: &str, slice: &Value, existing: Option<&Value>) -> DesiredWork {
    let labels = BTreeMap::from([
        (label::ENDPOINT_SLICE_NAMESPACE.to_owned(), unstructured::namespace(slice).to_owned()),
        (label::ENDPOINT_SLICE_NAME.to_owned(), service.to_owned()),
    ]);
    managed_work(cluster, slice, existing, SERVICE_EXPORT, labels, finalizer::ENDPOINT_SLICE_CONTROLLER)
}

/// The Work for an EndpointSlice with an additional manager. It is not dispatched.
pub(super) fn managed_work(
    cluster: &str,
    slice: &Value,
    existing: Option<&Value>,
    manager: &str,
    mut labels: BTreeMap<String, String>,
    finalizer: &'static str,
) -> DesiredWork {
    let mut managers = existing.map(managers).unwrap_or_default();
    managers.insert(manager.to_owned());
    labels.insert(label::ENDPOINT_SLICE_MANAGED_BY.to_owned(), join_managers(&managers));
    let options = WorkOptions { suspend_dispatching: Some(true), ..WorkOptions::default() };
    let work = construct::wrap(cluster, slice.clone(), labels, BTreeMap::new(), options);
    DesiredWork { finalizer, ..work }
}

/// Patch that removes ServiceExport from a Work's managers. `None` if no other manager needs the Work, so that it can
/// be deleted.
pub fn release_export(work: &Value) -> Option<Value> {
    let mut managers = managers(work);
    managers.remove(SERVICE_EXPORT);
    let removed = Value::Null;
    (!managers.is_empty()).then(|| {
        json!({"metadata": {"labels": {
            label::ENDPOINT_SLICE_MANAGED_BY: join_managers(&managers),
            label::ENDPOINT_SLICE_NAME: removed,
            label::ENDPOINT_SLICE_NAMESPACE: removed,
        }}})
    })
}

/// The EndpointSlice in the control plane for a collected one, which `work` stores. `service` is the exported Service.
pub fn imported_slice(cluster: &str, work: &Value, slice: &Value, service: &str) -> Value {
    let mut imported = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": unstructured::namespace(slice),
            "name": imported_endpoint_slice_name(unstructured::name(slice), cluster),
            "labels": {
                WORK_PERMANENT_ID: unstructured::label(work, WORK_PERMANENT_ID).unwrap_or_default(),
                SERVICE_NAME: derived_service_name(service),
                SLICE_MANAGED_BY: label::ENDPOINT_SLICE_CONTROLLER,
            },
            "annotations": {
                annotation::WORK_NAMESPACE: unstructured::namespace(work),
                annotation::WORK_NAME: unstructured::name(work),
            },
        },
    });
    copy_endpoints(slice, &mut imported);
    imported
}

/// Copies address type, endpoints and ports.
pub(super) fn copy_endpoints(from: &Value, to: &mut Value) {
    for field in SLICE_FIELDS {
        if let Some(value) = from.get(field) {
            to[field] = value.clone();
        }
    }
}

const SLICE_FIELDS: [&str; 3] = ["addressType", "endpoints", "ports"];

/// True if a slice of the control plane was imported from this Work. Other slices of the same name must not be replaced
/// or deleted: a member chooses the names of its slices.
pub fn is_imported_from(slice: &Value, work: &Value) -> bool {
    unstructured::label(slice, SLICE_MANAGED_BY) == Some(label::ENDPOINT_SLICE_CONTROLLER)
        && unstructured::annotation(slice, annotation::WORK_NAMESPACE) == Some(unstructured::namespace(work))
        && unstructured::annotation(slice, annotation::WORK_NAME) == Some(unstructured::name(work))
}

/// True if a binding propagates the ServiceExport of `service` to a cluster. Without this check, a member that exports
/// Services by itself could write EndpointSlices into any namespace of the control plane.
pub fn is_exported_to(binding_namespace: &str, spec: &ResourceBindingSpec, service: &str, cluster: &str) -> bool {
    let resource = &spec.resource;
    let (group, _) = resource.api_version.split_once('/').unwrap_or_default();
    (group, resource.kind.as_str(), resource.name.as_str()) == (SERVICE_EXPORT_GROUP, SERVICE_EXPORT, service)
        && reference::check(binding_namespace, resource, true).is_ok()
        && construct::targets(spec).iter().any(|target| target.name == cluster)
}

/// True if a slice has the desired contents, labels and annotations. Additional metadata is ignored.
pub fn is_slice_same(existing: &Value, desired: &Value) -> bool {
    let has = |kind: &str| {
        let desired_entries = unstructured::at(desired, &["metadata", kind]).and_then(Value::as_object);
        let live = |key: &String| unstructured::at(existing, &["metadata", kind, key.as_str()]);
        desired_entries
            .is_none_or(|desired_entries| desired_entries.iter().all(|(key, value)| live(key) == Some(value)))
    };
    let field = |slice: &Value, field: &str| slice.get(field).cloned().unwrap_or_default();
    let is_same_field = |name: &str| unstructured::semantically_equal(&field(existing, name), &field(desired, name));
    SLICE_FIELDS.iter().all(|name| is_same_field(name)) && has("labels") && has("annotations")
}

/// True if an import needs a derived Service.
pub fn has_derived_service(import: &Value) -> bool {
    unstructured::text(import, &["spec", "type"]) == "ClusterSetIP" && !unstructured::is_terminating(import)
}

/// The Service derived from an import. An existing one keeps its cluster IP.
pub fn derived_service(import: &Value, existing: Option<&Value>) -> Value {
    let ports = unstructured::at(import, &["spec", "ports"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let ports: Vec<Value> = ports.iter().map(port).collect();
    match existing {
        Some(existing) => {
            let mut service = existing.clone();
            unstructured::set(&mut service, &["spec", "type"], json!("ClusterIP"));
            unstructured::set(&mut service, &["spec", "ports"], json!(ports));
            service
        }
        None => json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "namespace": unstructured::namespace(import),
                "name": derived_service_name(unstructured::name(import)),
            },
            "spec": {"type": "ClusterIP", "ports": ports},
        }),
    }
}

/// The fields of a Service port that an import sets; the API server defaults the others.
fn port(port: &Value) -> Value {
    let fields = ["name", "protocol", "port", "appProtocol"];
    let copied = fields.iter().filter_map(|field| Some(((*field).to_owned(), port.get(field)?.clone())));
    Value::Object(copied.filter(|(_, value)| value != "").collect())
}

/// True if a Service has the desired type and ports.
pub fn is_service_same(existing: &Value, desired: &Value) -> bool {
    let ports = |service: &Value| -> Vec<Value> {
        let ports = unstructured::at(service, &["spec", "ports"]).and_then(Value::as_array);
        ports.into_iter().flatten().map(port).collect()
    };
    unstructured::text(existing, &["spec", "type"]) == "ClusterIP" && ports(existing) == ports(desired)
}

/// IP addresses of an import in the form of a Service's load balancer status.
pub fn ingress(import: &Value) -> Vec<Value> {
    let ips = unstructured::at(import, &["spec", "ips"]).and_then(Value::as_array);
    ips.into_iter().flatten().map(|ip| json!({"ip": ip})).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn slice(labels: Value) -> Value {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"namespace": "shop", "name": "web-x1", "uid": "u", "labels": labels},
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}],
        })
    }

    #[rstest]
    #[case::own_slice(json!({SERVICE_NAME: "web"}), true)]
    #[case::slice_of_another_service(json!({SERVICE_NAME: "db"}), false)]
    #[case::imported(json!({SERVICE_NAME: "web", SLICE_MANAGED_BY: "endpointslice-controller.karmada.io"}), false)]
    #[case::dispatched(json!({SERVICE_NAME: "web", SLICE_MANAGED_BY: "endpointslice-dispatch-controller.karmada.io"}), false)]
    #[case::managed_by_kubernetes(json!({SERVICE_NAME: "web", SLICE_MANAGED_BY: "endpointslice-controller.k8s.io"}), true)]
    fn only_own_slices_are_exported(#[case] labels: Value, #[case] expected: bool) {
        assert_eq!(belongs_to_service(&slice(labels), "web"), expected);
    }

    #[test]
    fn collected_slice_is_stored_for_all_managers() {
        let existing = json!({"metadata": {"labels": {label::ENDPOINT_SLICE_MANAGED_BY: "MultiClusterService"}}});
        let work = collected_work("m1", "web", &slice(json!({SERVICE_NAME: "web"})), Some(&existing));
        assert_eq!(work.namespace, "karmada-es-m1");
        assert_eq!(work.labels[label::ENDPOINT_SLICE_MANAGED_BY], "MultiClusterService.ServiceExport");
        assert_eq!(
            (work.options.suspend_dispatching, work.finalizer),
            (Some(true), "karmada.io/endpointslice-controller")
        );
    }

    #[rstest]
    #[case::only_manager("ServiceExport", None)]
    #[case::other_manager("MultiClusterService.ServiceExport", Some("MultiClusterService"))]
    fn work_without_managers_is_deleted(#[case] managers: &str, #[case] expected: Option<&str>) {
        let work = json!({"metadata": {"labels": {label::ENDPOINT_SLICE_MANAGED_BY: managers}}});
        let patch = release_export(&work);
        let remaining = patch
            .as_ref()
            .map(|patch| unstructured::text(patch, &["metadata", "labels", label::ENDPOINT_SLICE_MANAGED_BY]));
        assert_eq!(remaining, expected);
    }

    #[test]
    fn imported_slice_refers_to_derived_service_and_work() {
        let work = json!({"metadata": {
            "namespace": "karmada-es-m1", "name": "web-x1-abc", "labels": {WORK_PERMANENT_ID: "id"},
        }});
        let imported = imported_slice("m1", &work, &slice(json!({SERVICE_NAME: "web", "other": "label"})), "web");
        let expected = json!({
            "namespace": "shop", "name": "imported-m1-web-x1",
            "labels": {
                WORK_PERMANENT_ID: "id", SERVICE_NAME: "derived-web",
                SLICE_MANAGED_BY: "endpointslice-controller.karmada.io",
            },
            "annotations": {"work.karmada.io/namespace": "karmada-es-m1", "work.karmada.io/name": "web-x1-abc"},
        });
        assert_eq!(imported["metadata"], expected);
        assert!(is_slice_same(&imported, &imported));
        let mut other = imported.clone();
        other["endpoints"] = json!([]);
        assert!(!is_slice_same(&other, &imported));
    }

    #[rstest]
    #[case::same_work(SLICE_MANAGED_BY, label::ENDPOINT_SLICE_CONTROLLER, "karmada-es-m1", "web-x1-abc", true)]
    #[case::work_of_another_cluster(
        SLICE_MANAGED_BY,
        label::ENDPOINT_SLICE_CONTROLLER,
        "karmada-es-m2",
        "web-x1-abc",
        false
    )]
    #[case::other_work(SLICE_MANAGED_BY, label::ENDPOINT_SLICE_CONTROLLER, "karmada-es-m1", "web-x2-abc", false)]
    #[case::slice_of_a_user(SLICE_MANAGED_BY, "shop", "karmada-es-m1", "web-x1-abc", false)]
    fn only_slices_of_the_same_work_are_replaced(
        #[case] key: &str,
        #[case] manager: &str,
        #[case] namespace: &str,
        #[case] name: &str,
        #[case] expected: bool,
    ) {
        let annotations = json!({annotation::WORK_NAMESPACE: namespace, annotation::WORK_NAME: name});
        let slice = json!({"metadata": {"labels": {key: manager}, "annotations": annotations}});
        let work = json!({"metadata": {"namespace": "karmada-es-m1", "name": "web-x1-abc"}});
        assert_eq!(is_imported_from(&slice, &work), expected);
    }

    #[rstest]
    #[case::to_this_cluster("shop", json!({"name": "web"}), "m1", true)]
    #[case::to_another_cluster("shop", json!({"name": "web"}), "m2", false)]
    #[case::another_service("shop", json!({"name": "db"}), "m1", false)]
    #[case::another_kind("shop", json!({"name": "web", "kind": "Service"}), "m1", false)]
    #[case::another_group("shop", json!({"name": "web", "apiVersion": "example.com/v1"}), "m1", false)]
    #[case::another_namespace("shop", json!({"name": "web", "namespace": "bank"}), "m1", false)]
    #[case::reserved("karmada-system", json!({"name": "web", "namespace": "karmada-system"}), "m1", false)]
    fn exports_belong_to_bindings(
        #[case] namespace: &str,
        #[case] fields: Value,
        #[case] cluster: &str,
        #[case] expected: bool,
    ) {
        let mut resource = json!({
            "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceExport", "namespace": "shop", "name": "web",
        });
        resource.as_object_mut().expect("a map").extend(fields.as_object().cloned().unwrap_or_default());
        let spec = json!({"resource": resource, "clusters": [{"name": "m1"}]});
        let spec: ResourceBindingSpec = serde_json::from_value(spec).expect("a spec");
        assert_eq!(is_exported_to(namespace, &spec, "web", cluster), expected);
    }

    #[test]
    fn derived_service_keeps_its_address_and_follows_the_ports_of_the_import() {
        let import = json!({
            "metadata": {"namespace": "shop", "name": "web"},
            "spec": {"type": "ClusterSetIP", "ips": ["10.1.1.1"], "ports": [{"name": "", "port": 80, "protocol": "TCP"}]},
        });
        let created = derived_service(&import, None);
        assert_eq!(created["spec"], json!({"type": "ClusterIP", "ports": [{"port": 80, "protocol": "TCP"}]}));
        let existing = json!({
            "metadata": {"namespace": "shop", "name": "derived-web", "resourceVersion": "5"},
            "spec": {"type": "ClusterIP", "clusterIP": "10.0.0.9", "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]},
        });
        assert!(is_service_same(&existing, &created), "defaults of the API server are ignored");
        let mut changed_import = import.clone();
        changed_import["spec"]["ports"] = json!([{"port": 81}]);
        let changed = derived_service(&changed_import, Some(&existing));
        assert!(!is_service_same(&existing, &changed));
        assert_eq!(
            (&changed["spec"]["clusterIP"], &changed["spec"]["ports"]),
            (&json!("10.0.0.9"), &json!([{"port": 81}]))
        );
        assert_eq!(ingress(&import), [json!({"ip": "10.1.1.1"})]);
    }
}
