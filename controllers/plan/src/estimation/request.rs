//! The request of an estimate, prepared once per decision and evaluated for every cluster.

use std::hash::{DefaultHasher, Hash, Hasher};

use crowsnest_api::policy::ResourceList;
use crowsnest_api::work::{Component, NodeClaim, ReplicaRequirements, ResourceBindingSpec};
use crowsnest_apimachinery::quantity::{Format, Quantity};

use super::resources::Resources;

/// Identical pods: their number and the requests of each.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodSet {
    /// Name of the component. Empty for a workload with one pod template.
    pub name: String,
    pub replicas: i32,
    /// Requests of one pod, with 1 in `pods`.
    pub request: Resources,
    pub claim: Option<NodeClaim>,
    pub priority_class: String,
    /// Requests as the template lists them, including resources that nodes do not report.
    pub template_requests: Vec<Amount>,
}

/// A requested resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Amount {
    pub name: String,
    /// CPU in millicores, everything else in whole units.
    pub units: i64,
    /// Value in the scale of its format, see [`scaled_value`].
    pub scaled: i64,
}

/// The value of a quantity in the scale of its format, as Karmada compares component sets: milli-units for decimal,
/// units for binary formats.
pub fn scaled_value(quantity: &Quantity) -> i64 {
    match quantity.format() {
        Format::BinarySI => quantity.value(),
        _ => quantity.milli_value(),
    }
}

/// CPU in millicores, everything else in whole units.
pub fn to_units(name: &str, quantity: &Quantity) -> i64 {
    if name == "cpu" { quantity.milli_value() } else { quantity.value() }
}

/// The valid quantities of a list, with their names.
fn amounts(list: &ResourceList) -> Vec<Amount> {
    let amount = |(name, quantity): (&String, &k8s_openapi::apimachinery::pkg::api::resource::Quantity)| {
        let quantity = Quantity::parse(&quantity.0).ok()?;
        Some(Amount { name: name.clone(), units: to_units(name, &quantity), scaled: scaled_value(&quantity) })
    };
    list.iter().filter_map(amount).collect()
}

impl PodSet {
    fn new(name: &str, replicas: i32, request: &ResourceList, claim: Option<&NodeClaim>, priority_class: &str) -> Self {
        let template_requests = amounts(request);
        let mut request = Resources::from_list(request);
        request.pods = 1;
        PodSet {
            name: name.to_owned(),
            replicas,
            request,
            claim: claim.cloned(),
            priority_class: priority_class.to_owned(),
            template_requests,
        }
    }

    /// One pod of a workload with a single pod template.
    pub fn from_requirements(requirements: Option<&ReplicaRequirements>) -> Self {
        match requirements {
            Some(requirements) => PodSet::new(
                "",
                1,
                &requirements.resource_request,
                requirements.node_claim.as_ref(),
                &requirements.priority_class_name,
            ),
            None => PodSet::new("", 1, &ResourceList::new(), None, ""),
        }
    }

    pub fn from_component(component: &Component) -> Self {
        match &component.replica_requirements {
            Some(requirements) => PodSet::new(
                &component.name,
                component.replicas,
                &requirements.resource_request,
                requirements.node_claim.as_ref(),
                &requirements.priority_class_name,
            ),
            None => PodSet::new(&component.name, component.replicas, &ResourceList::new(), None, ""),
        }
    }

    /// Pods of a binding's workload: one pod set, or one per component.
    pub fn from_workload(spec: &ResourceBindingSpec) -> Vec<Self> {
        match spec.components.as_slice() {
            [] => vec![PodSet::from_requirements(spec.replica_requirements.as_ref())],
            components => components.iter().map(PodSet::from_component).collect(),
        }
    }
}

/// Request for an estimate. Equal requests have equal results as long as a cluster's free capacity does not
/// change.
#[derive(Debug, Clone, PartialEq)]
pub struct EstimateRequest {
    pub(super) pod_sets: Vec<PodSet>,
    pub(super) kind: EstimateKind,
    hash: u64,
}

/// Unit of an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum EstimateKind {
    /// Replicas with requirements.
    Replicas,
    /// Replicas without requirements: only pod slots are counted.
    Pods,
    /// Component sets.
    Sets,
}

impl EstimateRequest {
    pub fn for_replicas(requirements: Option<&ReplicaRequirements>) -> Self {
        let kind = if requirements.is_some() { EstimateKind::Replicas } else { EstimateKind::Pods };
        EstimateRequest::new(vec![PodSet::from_requirements(requirements)], kind)
    }

    pub fn for_component_sets(components: &[Component]) -> Self {
        EstimateRequest::new(components.iter().map(PodSet::from_component).collect(), EstimateKind::Sets)
    }

    fn new(pod_sets: Vec<PodSet>, kind: EstimateKind) -> Self {
        let mut hasher = DefaultHasher::new();
        kind.hash(&mut hasher);
        for pod_set in &pod_sets {
            (pod_set.replicas, &pod_set.request).hash(&mut hasher);
            // Node affinity and tolerations cannot be hashed; equality compares them.
            pod_set.claim.as_ref().map(|claim| &claim.node_selector).hash(&mut hasher);
        }
        let hash = hasher.finish();
        EstimateRequest { pod_sets, kind, hash }
    }
}

/// All fields are strings and integers, so equality is reflexive.
impl Eq for EstimateRequest {}

impl Hash for EstimateRequest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}
