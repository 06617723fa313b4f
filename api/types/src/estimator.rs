//! Messages of Karmada's scheduler estimator in their wire format, and conversions of requirements. The client is
//! `crowsnest_controllers::estimator::client`, the server is in `crowsnest-agent`.
//!
//! Karmada's messages are proto3. Kubernetes' types (quantities, node selectors, tolerations) are embedded as bytes
//! in the encoding of Kubernetes' Go types, which includes empty strings. Their strings are optional here, so that
//! messages with and without empty strings are accepted.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Amount;
use prost::{DecodeError, Message};

use crate::policy::ResourceList;
use crate::work;
use crowsnest_apimachinery::quantity;

/// The gRPC service.
pub const SERVICE: &str = "github.com.karmada_io.karmada.pkg.estimator.service.Estimator";
pub const MAX_AVAILABLE_REPLICAS: &str =
    "/github.com.karmada_io.karmada.pkg.estimator.service.Estimator/MaxAvailableReplicas";
pub const MAX_AVAILABLE_COMPONENT_SETS: &str =
    "/github.com.karmada_io.karmada.pkg.estimator.service.Estimator/MaxAvailableComponentSets";
pub const GET_UNSCHEDULABLE_REPLICAS: &str =
    "/github.com.karmada_io.karmada.pkg.estimator.service.Estimator/GetUnschedulableReplicas";

/// Request of a method of [`SERVICE`].
pub trait Request: Message + Clone + 'static {
    type Response: Message + Default + 'static;

    const PATH: &'static str;
    /// Name of the method in errors.
    const METHOD: &'static str;
}

impl Request for MaxAvailableReplicasRequest {
    type Response = MaxAvailableReplicasResponse;

    const PATH: &'static str = MAX_AVAILABLE_REPLICAS;
    const METHOD: &'static str = "MaxAvailableReplicas";
}

impl Request for MaxAvailableComponentSetsRequest {
    type Response = MaxAvailableComponentSetsResponse;

    const PATH: &'static str = MAX_AVAILABLE_COMPONENT_SETS;
    const METHOD: &'static str = "MaxAvailableComponentSets";
}

impl Request for UnschedulableReplicasRequest {
    type Response = UnschedulableReplicasResponse;

    const PATH: &'static str = GET_UNSCHEDULABLE_REPLICAS;
    const METHOD: &'static str = "UnschedulableReplicas";
}

/// gRPC metadata key with which the client names the object of a request, for logs.
pub const OBJECT_METADATA_KEY: &str = "object";
/// Default port of an estimator (TCP).
pub const DEFAULT_PORT: u16 = 10352;
/// Default prefix of estimator services.
pub const DEFAULT_SERVICE_PREFIX: &str = "karmada-scheduler-estimator";

#[derive(Clone, PartialEq, Message)]
pub struct MaxAvailableReplicasRequest {
    #[prost(string, tag = "1")]
    pub cluster: String,
    #[prost(message, optional, tag = "2")]
    pub replica_requirements: Option<ReplicaRequirements>,
    #[prost(message, repeated, tag = "3")]
    pub assumed_workloads: Vec<AssumedWorkload>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct MaxAvailableReplicasResponse {
    #[prost(int32, tag = "1")]
    pub max_replicas: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct MaxAvailableComponentSetsRequest {
    #[prost(string, tag = "1")]
    pub cluster: String,
    #[prost(message, repeated, tag = "2")]
    pub components: Vec<Component>,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(message, repeated, tag = "4")]
    pub assumed_workloads: Vec<AssumedWorkload>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct MaxAvailableComponentSetsResponse {
    #[prost(int32, tag = "1")]
    pub max_sets: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct UnschedulableReplicasRequest {
    #[prost(string, tag = "1")]
    pub cluster: String,
    #[prost(message, optional, tag = "2")]
    pub resource: Option<ObjectReference>,
    /// Minimum time for which a pod must be unschedulable, in nanoseconds.
    #[prost(int64, tag = "3")]
    pub unschedulable_threshold: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct UnschedulableReplicasResponse {
    #[prost(int32, tag = "1")]
    pub unschedulable_replicas: i32,
}

/// Requirements of one replica of a workload with a single pod template.
#[derive(Clone, PartialEq, Message)]
pub struct ReplicaRequirements {
    #[prost(message, optional, tag = "1")]
    pub node_claim: Option<NodeClaim>,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(string, tag = "4")]
    pub priority_class_name: String,
    /// Each value is a [`Quantity`].
    #[prost(btree_map = "string, bytes", tag = "5")]
    pub resource_request_bytes: BTreeMap<String, Vec<u8>>,
}

/// Requirements of one replica of a component.
#[derive(Clone, PartialEq, Message)]
pub struct ComponentReplicaRequirements {
    #[prost(message, optional, tag = "1")]
    pub node_claim: Option<NodeClaim>,
    #[prost(string, tag = "3")]
    pub priority_class_name: String,
    /// Each value is a [`Quantity`].
    #[prost(btree_map = "string, bytes", tag = "4")]
    pub resource_request_bytes: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NodeClaim {
    #[prost(btree_map = "string, string", tag = "2")]
    pub node_selector: BTreeMap<String, String>,
    /// A [`NodeSelector`].
    #[prost(bytes = "vec", tag = "4")]
    pub node_affinity_bytes: Vec<u8>,
    /// Each is a [`Toleration`].
    #[prost(bytes = "vec", repeated, tag = "5")]
    pub tolerations_bytes: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Component {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub replica_requirements: Option<ComponentReplicaRequirements>,
    #[prost(int32, tag = "3")]
    pub replicas: i32,
}

/// A workload assigned to a cluster that is not visible there yet.
#[derive(Clone, PartialEq, Message)]
pub struct AssumedWorkload {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(message, repeated, tag = "2")]
    pub components: Vec<Component>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ObjectReference {
    #[prost(string, tag = "1")]
    pub api_version: String,
    #[prost(string, tag = "2")]
    pub kind: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(string, tag = "4")]
    pub name: String,
}

/// `resource.Quantity`. This and the following messages are Kubernetes' types in their protobuf encoding.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Quantity {
    #[prost(string, optional, tag = "1")]
    pub string: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeSelector {
    #[prost(message, repeated, tag = "1")]
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeSelectorTerm {
    #[prost(message, repeated, tag = "1")]
    pub match_expressions: Vec<NodeSelectorRequirement>,
    #[prost(message, repeated, tag = "2")]
    pub match_fields: Vec<NodeSelectorRequirement>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeSelectorRequirement {
    #[prost(string, optional, tag = "1")]
    pub key: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub operator: Option<String>,
    #[prost(string, repeated, tag = "3")]
    pub values: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Toleration {
    #[prost(string, optional, tag = "1")]
    pub key: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub operator: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub value: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub effect: Option<String>,
    #[prost(int64, optional, tag = "5")]
    pub toleration_seconds: Option<i64>,
}

/// Invalid bytes in a message.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("cannot decode {field}")]
    Bytes {
        field: &'static str,
        #[source]
        source: DecodeError,
    },
    #[error("the requested amount of {resource} is not a quantity: {text:?}")]
    Quantity { resource: String, text: String },
}

fn decode_field<M: Message + Default>(field: &'static str, bytes: &[u8]) -> Result<M, WireError> {
    M::decode(bytes).map_err(|source| WireError::Bytes { field, source })
}

fn requests_to_wire(list: &ResourceList) -> BTreeMap<String, Vec<u8>> {
    let entry = |(name, amount): (&String, &Amount)| {
        (name.clone(), Quantity { string: Some(amount.0.clone()) }.encode_to_vec())
    };
    list.iter().map(entry).collect()
}

fn requests_from_wire(wire: &BTreeMap<String, Vec<u8>>) -> Result<ResourceList, WireError> {
    let entry = |(name, bytes): (&String, &Vec<u8>)| {
        let quantity: Quantity = decode_field("resourceRequestBytes", bytes)?;
        let text = quantity.string.filter(|text| !text.is_empty()).unwrap_or_else(|| "0".to_owned());
        match quantity::Quantity::parse(&text) {
            Ok(_) => Ok((name.clone(), Amount(text))),
            Err(_) => Err(WireError::Quantity { resource: name.clone(), text }),
        }
    };
    wire.iter().map(entry).collect()
}

impl From<&core::NodeSelectorRequirement> for NodeSelectorRequirement {
    fn from(requirement: &core::NodeSelectorRequirement) -> Self {
        NodeSelectorRequirement {
            key: Some(requirement.key.clone()),
            operator: Some(requirement.operator.clone()),
            values: requirement.values.clone().unwrap_or_default(),
        }
    }
}

impl From<NodeSelectorRequirement> for core::NodeSelectorRequirement {
    fn from(wire: NodeSelectorRequirement) -> Self {
        core::NodeSelectorRequirement {
            key: wire.key.unwrap_or_default(),
            operator: wire.operator.unwrap_or_default(),
            values: (!wire.values.is_empty()).then_some(wire.values),
        }
    }
}

impl From<&core::NodeSelector> for NodeSelector {
    fn from(selector: &core::NodeSelector) -> Self {
        let requirements = |list: &Option<Vec<core::NodeSelectorRequirement>>| {
            list.iter().flatten().map(NodeSelectorRequirement::from).collect()
        };
        let term = |term: &core::NodeSelectorTerm| NodeSelectorTerm {
            match_expressions: requirements(&term.match_expressions),
            match_fields: requirements(&term.match_fields),
        };
        NodeSelector { node_selector_terms: selector.node_selector_terms.iter().map(term).collect() }
    }
}

impl From<NodeSelector> for core::NodeSelector {
    fn from(wire: NodeSelector) -> Self {
        let requirements = |list: Vec<NodeSelectorRequirement>| {
            (!list.is_empty()).then(|| list.into_iter().map(core::NodeSelectorRequirement::from).collect())
        };
        let term = |term: NodeSelectorTerm| core::NodeSelectorTerm {
            match_expressions: requirements(term.match_expressions),
            match_fields: requirements(term.match_fields),
        };
        core::NodeSelector { node_selector_terms: wire.node_selector_terms.into_iter().map(term).collect() }
    }
}

impl From<&core::Toleration> for Toleration {
    fn from(toleration: &core::Toleration) -> Self {
        let text = |text: &Option<String>| Some(text.clone().unwrap_or_default());
        Toleration {
            key: text(&toleration.key),
            operator: text(&toleration.operator),
            value: text(&toleration.value),
            effect: text(&toleration.effect),
            toleration_seconds: toleration.toleration_seconds,
        }
    }
}

impl From<Toleration> for core::Toleration {
    fn from(wire: Toleration) -> Self {
        let text = |text: Option<String>| text.filter(|text| !text.is_empty());
        core::Toleration {
            key: text(wire.key),
            operator: text(wire.operator),
            value: text(wire.value),
            effect: text(wire.effect),
            toleration_seconds: wire.toleration_seconds,
        }
    }
}

impl From<&work::NodeClaim> for NodeClaim {
    fn from(claim: &work::NodeClaim) -> Self {
        let affinity = claim.hard_node_affinity.as_ref();
        NodeClaim {
            node_selector: claim.node_selector.clone(),
            node_affinity_bytes: affinity.map(|value| NodeSelector::from(value).encode_to_vec()).unwrap_or_default(),
            tolerations_bytes: claim.tolerations.iter().map(|value| Toleration::from(value).encode_to_vec()).collect(),
        }
    }
}

impl TryFrom<&NodeClaim> for work::NodeClaim {
    type Error = WireError;

    fn try_from(wire: &NodeClaim) -> Result<Self, WireError> {
        let affinity = match wire.node_affinity_bytes.as_slice() {
            [] => None,
            bytes => Some(decode_field::<NodeSelector>("nodeAffinityBytes", bytes)?.into()),
        };
        let toleration =
            |bytes: &Vec<u8>| decode_field::<Toleration>("tolerationsBytes", bytes).map(core::Toleration::from);
        Ok(work::NodeClaim {
            hard_node_affinity: affinity,
            node_selector: wire.node_selector.clone(),
            tolerations: wire.tolerations_bytes.iter().map(toleration).collect::<Result<_, _>>()?,
        })
    }
}

impl From<&work::ReplicaRequirements> for ReplicaRequirements {
    fn from(needs: &work::ReplicaRequirements) -> Self {
        ReplicaRequirements {
            node_claim: needs.node_claim.as_ref().map(NodeClaim::from),
            namespace: needs.namespace.clone(),
            priority_class_name: needs.priority_class_name.clone(),
            resource_request_bytes: requests_to_wire(&needs.resource_request),
        }
    }
}

impl TryFrom<&ReplicaRequirements> for work::ReplicaRequirements {
    type Error = WireError;

    fn try_from(wire: &ReplicaRequirements) -> Result<Self, WireError> {
        Ok(work::ReplicaRequirements {
            node_claim: wire.node_claim.as_ref().map(work::NodeClaim::try_from).transpose()?,
            resource_request: requests_from_wire(&wire.resource_request_bytes)?,
            namespace: wire.namespace.clone(),
            priority_class_name: wire.priority_class_name.clone(),
        })
    }
}

impl From<&work::Component> for Component {
    fn from(component: &work::Component) -> Self {
        let needs = |needs: &work::ComponentReplicaRequirements| ComponentReplicaRequirements {
            node_claim: needs.node_claim.as_ref().map(NodeClaim::from),
            priority_class_name: needs.priority_class_name.clone(),
            resource_request_bytes: requests_to_wire(&needs.resource_request),
        };
        Component {
            name: component.name.clone(),
            replica_requirements: component.replica_requirements.as_ref().map(needs),
            replicas: component.replicas,
        }
    }
}

impl TryFrom<&Component> for work::Component {
    type Error = WireError;

    fn try_from(wire: &Component) -> Result<Self, WireError> {
        let needs = |needs: &ComponentReplicaRequirements| {
            Ok::<_, WireError>(work::ComponentReplicaRequirements {
                node_claim: needs.node_claim.as_ref().map(work::NodeClaim::try_from).transpose()?,
                resource_request: requests_from_wire(&needs.resource_request_bytes)?,
                priority_class_name: needs.priority_class_name.clone(),
            })
        };
        Ok(work::Component {
            name: wire.name.clone(),
            replicas: wire.replicas,
            replica_requirements: wire.replica_requirements.as_ref().map(needs).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests;
