//! Conversion of bindings between v1alpha1 and v1alpha2. v1alpha1 lacks most fields, so a client that writes it
//! removes them; v1alpha1 should only be used for reading.

use crowsnest_api::work::{self, v1alpha1};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
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
    let desired_version = request["desiredAPIVersion"].as_str().unwrap_or_default();
    let objects = request["objects"].as_array().into_iter().flatten();
    let converted: Result<Vec<Value>, ConvertError> = objects.map(|object| convert(object, desired_version)).collect();
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
pub fn convert(object: &Value, desired_version: &str) -> Result<Value, ConvertError> {
    let from = object["apiVersion"].as_str().unwrap_or_default();
    let kind = object["kind"].as_str().unwrap_or_default();
    if from == desired_version {
        return Ok(object.clone());
    }
    match (kind, from, desired_version) {
        ("ResourceBinding" | "ClusterResourceBinding", V1ALPHA1, V1ALPHA2) => {
            convert_contents(object, desired_version, spec_to_v1alpha2, status_to_v1alpha2)
        }
        ("ResourceBinding" | "ClusterResourceBinding", V1ALPHA2, V1ALPHA1) => {
            convert_contents(object, desired_version, spec_to_v1alpha1, status_to_v1alpha1)
        }
        _ => {
            Err(ConvertError::Unknown { kind: kind.to_owned(), from: from.to_owned(), to: desired_version.to_owned() })
        }
    }
}

/// Converts the spec and the status of a binding. An empty status is omitted.
fn convert_contents<S, T, U, V>(
    object: &Value,
    desired_version: &str,
    convert_spec: impl FnOnce(S) -> U,
    convert_status: impl FnOnce(T) -> V,
) -> Result<Value, ConvertError>
where
    S: DeserializeOwned + Default,
    T: DeserializeOwned + Default,
    U: Serialize,
    V: Serialize + Default + PartialEq,
{
    let metadata: ObjectMeta = decode_field(object, "metadata")?;
    let mut converted = json!({ "apiVersion": desired_version, "kind": object["kind"] });
    converted["metadata"] = serde_json::to_value(metadata)?;
    converted["spec"] = serde_json::to_value(convert_spec(decode_field(object, "spec")?))?;
    let status = convert_status(decode_field(object, "status")?);
    if status != V::default() {
        converted["status"] = serde_json::to_value(status)?;
    }
    Ok(converted)
}

fn decode_field<T: DeserializeOwned + Default>(object: &Value, name: &str) -> Result<T, serde_json::Error> {
    object.get(name).map_or_else(|| Ok(T::default()), T::deserialize)
}

fn spec_to_v1alpha2(old: v1alpha1::ResourceBindingSpec) -> work::ResourceBindingSpec {
    let v1alpha1::ObjectReference { api_version, kind, namespace, name, resource_version, .. } = old.resource;
    let resource_request = old.resource.replica_resource_requirements;
    let target = |old| {
        let v1alpha1::TargetCluster { name, replicas } = old;
        work::TargetCluster { name, replicas, ..work::TargetCluster::default() }
    };
    work::ResourceBindingSpec {
        resource: work::ObjectReference {
            api_version,
            kind,
            namespace,
            name,
            resource_version,
            ..work::ObjectReference::default()
        },
        replica_requirements: (!resource_request.is_empty())
            .then(|| work::ReplicaRequirements { resource_request, ..work::ReplicaRequirements::default() }),
        replicas: old.resource.replicas,
        clusters: old.clusters.into_iter().map(target).collect(),
        ..work::ResourceBindingSpec::default()
    }
}

fn spec_to_v1alpha1(new: work::ResourceBindingSpec) -> v1alpha1::ResourceBindingSpec {
    let work::ObjectReference { api_version, kind, namespace, name, resource_version, .. } = new.resource;
    let request = new.replica_requirements.map(|requirements| requirements.resource_request);
    let target = |new| {
        let work::TargetCluster { name, replicas, .. } = new;
        v1alpha1::TargetCluster { name, replicas }
    };
    v1alpha1::ResourceBindingSpec {
        resource: v1alpha1::ObjectReference {
            api_version,
            kind,
            namespace,
            name,
            resource_version,
            replica_resource_requirements: request.unwrap_or_default(),
            replicas: new.replicas,
        },
        clusters: new.clusters.into_iter().map(target).collect(),
    }
}

fn status_to_v1alpha2(old: v1alpha1::ResourceBindingStatus) -> work::ResourceBindingStatus {
    let item = |old| {
        let v1alpha1::AggregatedStatusItem { cluster_name, status, applied, applied_message } = old;
        let default = work::AggregatedStatusItem::default();
        work::AggregatedStatusItem { cluster_name, status, applied, applied_message, ..default }
    };
    work::ResourceBindingStatus {
        conditions: old.conditions,
        aggregated_status: old.aggregated_status.into_iter().map(item).collect(),
        ..work::ResourceBindingStatus::default()
    }
}

fn status_to_v1alpha1(new: work::ResourceBindingStatus) -> v1alpha1::ResourceBindingStatus {
    let item = |new| {
        let work::AggregatedStatusItem { cluster_name, status, applied, applied_message, .. } = new;
        v1alpha1::AggregatedStatusItem { cluster_name, status, applied, applied_message }
    };
    v1alpha1::ResourceBindingStatus {
        conditions: new.conditions,
        aggregated_status: new.aggregated_status.into_iter().map(item).collect(),
    }
}
