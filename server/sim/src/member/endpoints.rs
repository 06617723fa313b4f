//! Service controllers: EndpointSlices and Endpoints of the selected pods, and addresses of load balancers.

use crate::member::context::{FIELD_MANAGER, create_params};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::selector::Selector;
use k8s_openapi::api::core::v1::{ObjectReference, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use crate::error::{Error, Result};

use super::context::{MemberContext, SharedObject};
use super::pod::PodState;
use super::queue::Queue;
use super::store::{Index, Key, StoreObject};
use super::workload::pods::WorkloadOwner;
use super::workload::{KeyQueue, new_change_queue, spawn_controller};

const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
const MANAGED_BY_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
const SLICE_MANAGER: &str = "endpointslice-controller.k8s.io";
/// Maximum number of endpoints per EndpointSlice.
const MAX_ENDPOINTS_PER_SLICE: usize = 100;
/// Delay after a change of a pod, so that several changes are written together.
const BATCH_DELAY: Duration = Duration::from_millis(100);

pub fn start(context: &Arc<MemberContext>) {
    let keys: KeyQueue = new_change_queue(&context.services);
    let (queue, services) = (keys.clone(), Arc::downgrade(&context.services));
    context.pods.on_change(move |old, new| {
        let Some(services) = services.upgrade() else { return };
        let (Some(pod), relevant_fields) =
            (new.or(old), |pod: &Arc<PodState>| (pod.ip.clone(), pod.is_ready(), pod.is_active(), pod.labels.clone()))
        else {
            return;
        };
        if old.map(relevant_fields) == new.map(relevant_fields) {
            return;
        }
        for service in services.by_index(&Index::Namespace(pod.key.namespace.clone())) {
            let is_selected =
                |pod: &Arc<PodState>| parse_selector(&service).is_some_and(|selector| selector.matches(&pod.labels));
            if old.is_some_and(is_selected) || new.is_some_and(is_selected) {
                queue.add_after(service.key(), BATCH_DELAY);
            }
        }
    });
    let queue: Arc<Queue<Key>> = keys.clone();
    context.slices.on_change(move |old, new| {
        let service_name = |slice: &EndpointSlice| {
            slice.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME_LABEL).cloned())
        };
        // Deletions by other writers are reverted; other changes of slices are not.
        if let (Some(slice), None) = (old, new)
            && let Some(name) = service_name(slice)
        {
            queue.add_after(Key::new(&slice.key().namespace, &name), BATCH_DELAY);
        }
    });
    spawn_controller(context, "endpoints", keys, 4, |context, key| async move { reconcile(&context, &key).await });
}

fn parse_selector(service: &Service) -> Option<Selector> {
    let selector = service.spec.as_ref()?.selector.as_ref().filter(|selector| !selector.is_empty())?;
    Some(Selector::from_labels(selector))
}

/// Resolves the target ports of a Service on a pod. Named ports that the pod does not declare are omitted.
fn resolve_ports(ports: &[ServicePort], pod: &PodState) -> Vec<EndpointPort> {
    let resolve = |port: &ServicePort| {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let number = match &port.target_port {
            None | Some(IntOrString::Int(0)) => port.port,
            Some(IntOrString::Int(number)) => *number,
            Some(IntOrString::String(name)) => {
                let mut declared = pod.spec.containers.iter().flat_map(|container| &container.ports);
                declared
                    .find(|candidate| candidate.name.as_deref() == Some(name) && *candidate.protocol == *protocol)?
                    .port
            }
        };
        Some(EndpointPort {
            name: Some(port.name.clone().unwrap_or_default()),
            port: Some(number),
            protocol: Some(protocol.to_owned()),
            app_protocol: port.app_protocol.clone(),
        })
    };
    ports.iter().filter_map(resolve).collect()
}

fn endpoint(pod: &PodState, zone: Option<String>, publish_unready: bool) -> Option<Endpoint> {
    let terminating = pod.deletion.is_some();
    let serving = pod.is_ready();
    Some(Endpoint {
        addresses: vec![pod.ip.as_ref()?.to_string()],
        conditions: Some(EndpointConditions {
            ready: Some(publish_unready || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        node_name: pod.node.as_ref().map(ToString::to_string),
        zone,
        target_ref: Some(ObjectReference {
            kind: Some("Pod".into()),
            namespace: Some(pod.key.namespace.to_string()),
            name: Some(pod.key.name.to_string()),
            uid: Some(pod.uid.to_string()),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    })
}

/// Ports and endpoints by a text form of the ports.
type EndpointGroups = BTreeMap<String, (Vec<EndpointPort>, Vec<Endpoint>)>;

/// Desired endpoints of a Service, grouped by common ports.
fn desired_endpoints(
    context: &MemberContext,
    service: &Service,
    namespace: &str,
    selector: &Selector,
) -> EndpointGroups {
    let spec = service.spec.clone().unwrap_or_default();
    let ports = spec.ports.unwrap_or_default();
    let publish_unready = spec.publish_not_ready_addresses.unwrap_or_default();
    let nodes = context.nodes_by_name();
    let mut groups = EndpointGroups::new();
    for pod in context.pods.in_namespace(namespace) {
        if pod.phase.is_terminal() || !selector.matches(&pod.labels) {
            continue;
        }
        let labels = pod.node.as_ref().and_then(|node| nodes.get(node)).and_then(|node| node.metadata.labels.as_ref());
        let zone = labels.and_then(|labels| labels.get("topology.kubernetes.io/zone").cloned());
        let Some(endpoint) = endpoint(&pod, zone, publish_unready) else { continue };
        let ports = resolve_ports(&ports, &pod);
        let group: Vec<_> =
            ports.iter().map(|port| format!("{:?}{:?}{:?}", port.name, port.port, port.protocol)).collect();
        groups.entry(group.join(" ")).or_insert_with(|| (ports, Vec::new())).1.push(endpoint);
    }
    groups
}

async fn reconcile(context: &MemberContext, key: &Key) -> Result<Option<Duration>> {
    let Some(service) = context.services.get(key).filter(|service| service.metadata.deletion_timestamp.is_none())
    else {
        return Ok(None);
    };
    assign_address(context, &service).await?;
    let Some(selector) = parse_selector(&service) else { return Ok(None) };
    if service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("ExternalName") {
        return Ok(None);
    }
    let groups = desired_endpoints(context, &service, &key.namespace, &selector);
    write_endpoints(context, &service, &groups).await?;
    write_slices(context, &service, groups).await?;
    Ok(None)
}

async fn write_slices(context: &MemberContext, service: &SharedObject<Service>, groups: EndpointGroups) -> Result<()> {
    let key = service.key();
    let owner = WorkloadOwner::new(service, "endpoint-slice-controller");
    let mut existing: Vec<SharedObject<EndpointSlice>> = context.slices.owned_by(service.uid());
    existing.retain(|slice| {
        slice
            .metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(MANAGED_BY_LABEL))
            .is_some_and(|by| by == SLICE_MANAGER)
    });
    let mut chunks: Vec<(Vec<EndpointPort>, Vec<Endpoint>)> = Vec::new();
    for (ports, endpoints) in groups.into_values() {
        chunks.extend(endpoints.chunks(MAX_ENDPOINTS_PER_SLICE).map(|chunk| (ports.clone(), chunk.to_vec())));
    }
    if chunks.is_empty() {
        chunks.push((Vec::new(), Vec::new()));
    }
    for (ports, endpoints) in chunks {
        let same_ports = existing.iter().position(|slice| slice.ports.clone().unwrap_or_default() == ports);
        match same_ports.or((!existing.is_empty()).then_some(0)).map(|at| existing.remove(at)) {
            Some(slice) => {
                let current = (slice.endpoints.clone().unwrap_or_default(), slice.ports.clone().unwrap_or_default());
                if current != (endpoints.clone(), ports.clone()) {
                    let patch = json!({"endpoints": endpoints, "ports": ports});
                    context.patch(&context.slices, &slice.key(), None, &patch).await?;
                }
            }
            None => {
                let mut labels = service.metadata.labels.clone().unwrap_or_default();
                labels.insert(SERVICE_NAME_LABEL.into(), key.name.to_string());
                labels.insert(MANAGED_BY_LABEL.into(), SLICE_MANAGER.into());
                let slice = EndpointSlice {
                    address_type: "IPv4".into(),
                    endpoints: Some(endpoints),
                    ports: Some(ports),
                    metadata: ObjectMeta {
                        generate_name: Some(format!("{}-", key.name)),
                        namespace: Some(key.namespace.to_string()),
                        labels: Some(labels),
                        owner_references: Some(vec![owner.owner_reference()]),
                        ..ObjectMeta::default()
                    },
                };
                context.create(&context.slices, &slice).await?;
            }
        }
    }
    for slice in existing {
        context.delete(&context.slices, &slice).await?;
    }
    Ok(())
}

/// Writes the deprecated Endpoints, which some clients still read.
async fn write_endpoints(
    context: &MemberContext,
    service: &SharedObject<Service>,
    groups: &EndpointGroups,
) -> Result<()> {
    let subset = |(ports, endpoints): &(Vec<EndpointPort>, Vec<Endpoint>)| {
        let addresses = |ready: bool| -> Vec<Value> {
            let selected = endpoints.iter().filter(|endpoint| {
                endpoint.conditions.as_ref().is_some_and(|conditions| conditions.ready == Some(ready))
            });
            let address = |endpoint: &Endpoint| json!({"ip": endpoint.addresses[0], "nodeName": endpoint.node_name, "targetRef": endpoint.target_ref});
            selected.map(address).collect()
        };
        let mut subset = json!({"ports": ports.iter().map(|port| {
            let mut port = json!({"name": port.name, "port": port.port, "protocol": port.protocol});
            if port["name"] == "" && let Some(fields) = port.as_object_mut() {
                fields.remove("name");
            }
            port
        }).collect::<Vec<_>>()});
        for (name, addresses) in [("addresses", addresses(true)), ("notReadyAddresses", addresses(false))] {
            if !addresses.is_empty() {
                subset[name] = Value::Array(addresses);
            }
        }
        subset
    };
    let subsets: Vec<Value> = groups.values().map(subset).collect();
    let key = service.key();
    let resource = kube::discovery::ApiResource {
        group: String::new(),
        version: "v1".into(),
        api_version: "v1".into(),
        kind: "Endpoints".into(),
        plural: "endpoints".into(),
    };
    let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), &key.namespace, &resource);
    let patch = json!({"subsets": subsets});
    let patched = api.patch_metadata(&key.name, &PatchParams::apply(FIELD_MANAGER), &Patch::Merge(&patch)).await;
    let error = match patched {
        Ok(_) => return Ok(()),
        Err(error) => Error::api(format!("write endpoints {key}"))(error),
    };
    if !error.is_not_found() {
        return Err(error);
    }
    let endpoints = json!({
        "apiVersion": "v1", "kind": "Endpoints", "subsets": subsets,
        "metadata": {"name": &*key.name, "namespace": &*key.namespace, "labels": service.metadata.labels},
    });
    let endpoints: DynamicObject =
        serde_json::from_value(endpoints).map_err(|source| Error::Encode { object: "endpoints", source })?;
    match api.create(&create_params(), &endpoints).await.map_err(Error::api(format!("create endpoints {key}"))) {
        Err(error) if !error.is_conflict() => Err(error),
        _ => Ok(()),
    }
}

/// Assigns an address to a load balancer, like a cloud controller.
async fn assign_address(context: &MemberContext, service: &SharedObject<Service>) -> Result<()> {
    let spec = service.spec.as_ref();
    let is_load_balancer = spec.and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer");
    let ingress = service
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref())
        .and_then(|balancer| balancer.ingress.as_ref());
    if !context.features.load_balancer || !is_load_balancer || ingress.is_some_and(|ingress| !ingress.is_empty()) {
        return Ok(());
    }
    // Derived from the cluster IP, and therefore unique in the cluster.
    let Some(cluster_ip) = spec.and_then(|spec| spec.cluster_ip.as_deref()) else { return Ok(()) };
    let mut bytes = cluster_ip.rsplit('.');
    let (Some(last), Some(third)) = (bytes.next(), bytes.next()) else { return Ok(()) };
    let patch =
        json!({"status": {"loadBalancer": {"ingress": [{"ip": format!("198.18.{third}.{last}"), "ipMode": "VIP"}]}}});
    context.patch(&context.services, &service.key(), Some("status"), &patch).await?;
    Ok(())
}
