//! Conversion of bindings between v1alpha1 and v1alpha2. v1alpha1 lacks most fields, so a client that writes it
//! removes them; v1alpha1 should only be used for reading.

use crowsnest_api::Kind;
use crowsnest_api::work::{self, v1alpha1};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Reason why an object cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// No conversion between these versions of the kind exists.
    #[error("cannot convert {kind} from {from} to {to}")]
    Unknown { kind: String, from: String, to: String },
    #[error("cannot decode the object")]
    Json(#[from] serde_json::Error),
}

const V1ALPHA1: &str = "work.karmada.io/v1alpha1";
const V1ALPHA2: &str = "work.karmada.io/v1alpha2";

/// Converts the objects of a ConversionReview.
pub fn convert_review(review: &Value) -> Value {
    let request = &review["request"];
    let desired = request["desiredAPIVersion"].as_str().unwrap_or_default();
    let objects = request["objects"].as_array().into_iter().flatten();
    let converted: Result<Vec<Value>, ConvertError> = objects.map(|object| convert(object, desired)).collect();
    let mut response = json!({ "uid": request["uid"] });
    match converted {
        Ok(objects) => {
            response["convertedObjects"] = objects.into();
            response["result"] = json!({ "status": "Success" });
        }
        Err(error) => response["result"] = json!({ "status": "Failure", "message": error.to_string() }),
    }
    json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response })
}

/// Converts a binding to another version.
pub fn convert(object: &Value, desired: &str) -> Result<Value, ConvertError> {
    let from = object["apiVersion"].as_str().unwrap_or_default();
    let kind = object["kind"].as_str().unwrap_or_default();
    if from == desired {
        return Ok(object.clone());
    }
    match (kind, from, desired) {
        ("ResourceBinding", V1ALPHA1, V1ALPHA2) => {
            convert_typed(object, |old: v1alpha1::ResourceBinding| work::ResourceBinding {
                metadata: old.metadata,
                spec: spec_to_v1alpha2(old.spec),
                status: status_to_v1alpha2(old.status),
            })
        }
        ("ResourceBinding", V1ALPHA2, V1ALPHA1) => {
            convert_typed(object, |new: work::ResourceBinding| v1alpha1::ResourceBinding {
                metadata: new.metadata,
                spec: spec_to_v1alpha1(new.spec),
                status: status_to_v1alpha1(new.status),
            })
        }
        ("ClusterResourceBinding", V1ALPHA1, V1ALPHA2) => {
            convert_typed(object, |old: v1alpha1::ClusterResourceBinding| work::ClusterResourceBinding {
                metadata: old.metadata,
                spec: spec_to_v1alpha2(old.spec),
                status: status_to_v1alpha2(old.status),
            })
        }
        ("ClusterResourceBinding", V1ALPHA2, V1ALPHA1) => {
            convert_typed(object, |new: work::ClusterResourceBinding| v1alpha1::ClusterResourceBinding {
                metadata: new.metadata,
                spec: spec_to_v1alpha1(new.spec),
                status: status_to_v1alpha1(new.status),
            })
        }
        _ => Err(ConvertError::Unknown { kind: kind.to_owned(), from: from.to_owned(), to: desired.to_owned() }),
    }
}

fn convert_typed<A: Kind + DeserializeOwned, B: Kind + Serialize>(
    object: &Value,
    convert: impl FnOnce(A) -> B,
) -> Result<Value, ConvertError> {
    Ok(serde_json::to_value(convert(A::deserialize(object)?))?)
}

fn spec_to_v1alpha2(old: v1alpha1::ResourceBindingSpec) -> work::ResourceBindingSpec {
    let request = old.resource.replica_resource_requirements;
    let clusters = old.clusters.into_iter();
    work::ResourceBindingSpec {
        resource: work::ObjectReference {
            api_version: old.resource.api_version,
            kind: old.resource.kind,
            namespace: old.resource.namespace,
            name: old.resource.name,
            resource_version: old.resource.resource_version,
            ..work::ObjectReference::default()
        },
        replica_requirements: (!request.is_empty())
            .then(|| work::ReplicaRequirements { resource_request: request, ..work::ReplicaRequirements::default() }),
        replicas: old.resource.replicas,
        clusters: clusters
            .map(|cluster| work::TargetCluster {
                name: cluster.name,
                replicas: cluster.replicas,
                ..work::TargetCluster::default()
            })
            .collect(),
        ..work::ResourceBindingSpec::default()
    }
}

fn spec_to_v1alpha1(new: work::ResourceBindingSpec) -> v1alpha1::ResourceBindingSpec {
    let clusters = new.clusters.into_iter();
    v1alpha1::ResourceBindingSpec {
        resource: v1alpha1::ObjectReference {
            api_version: new.resource.api_version,
            kind: new.resource.kind,
            namespace: new.resource.namespace,
            name: new.resource.name,
            resource_version: new.resource.resource_version,
            replica_resource_requirements: new
                .replica_requirements
                .map(|requirements| requirements.resource_request)
                .unwrap_or_default(),
            replicas: new.replicas,
        },
        clusters: clusters
            .map(|cluster| v1alpha1::TargetCluster { name: cluster.name, replicas: cluster.replicas })
            .collect(),
    }
}

fn status_to_v1alpha2(old: v1alpha1::ResourceBindingStatus) -> work::ResourceBindingStatus {
    let items = old.aggregated_status.into_iter();
    work::ResourceBindingStatus {
        conditions: old.conditions,
        aggregated_status: items
            .map(|item| work::AggregatedStatusItem {
                cluster_name: item.cluster_name,
                status: item.status,
                applied: item.applied,
                applied_message: item.applied_message,
                ..work::AggregatedStatusItem::default()
            })
            .collect(),
        ..work::ResourceBindingStatus::default()
    }
}

fn status_to_v1alpha1(new: work::ResourceBindingStatus) -> v1alpha1::ResourceBindingStatus {
    let items = new.aggregated_status.into_iter();
    v1alpha1::ResourceBindingStatus {
        conditions: new.conditions,
        aggregated_status: items
            .map(|item| v1alpha1::AggregatedStatusItem {
                cluster_name: item.cluster_name,
                status: item.status,
                applied: item.applied,
                applied_message: item.applied_message,
            })
            .collect(),
    }
}
