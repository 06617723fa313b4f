//! Shapes of simulated members: their validated settings, completed with defaults.

use std::collections::{BTreeMap, BTreeSet};

use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::format;
use crowsnest_apimachinery::quantity::Quantity;
use crowsnest_apimachinery::taints::{NO_EXECUTE, NO_SCHEDULE};
use crowsnest_sim::member::shape::{KUBERNETES_VERSION, NodeShape, REGION_LABEL, ZONE_LABEL};
use k8s_openapi::api::core::v1::Taint;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::settings::{Labels, MemberSettings, NodeSettings, TaintSettings};

/// `spec.provider` of members whose settings name none; scheme of their nodes' `providerID`.
const DEFAULT_PROVIDER: &str = "sim";
/// Number of default regions. Members whose settings name neither region nor zones are assigned to them in turn.
const DEFAULT_REGION_COUNT: usize = 3;
/// Zones of a region whose settings name none.
const DEFAULT_ZONES: [char; 3] = ['a', 'b', 'c'];
/// Maximum number of nodes of one member.
pub(super) const MAX_NODES: usize = 1_000;
const TAINT_EFFECTS: [&str; 3] = [NO_SCHEDULE, "PreferNoSchedule", NO_EXECUTE];

/// Properties of a simulated member that `up` sets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberShape {
    pub kubernetes_version: String,
    /// `spec.provider` of the Cluster.
    pub provider: String,
    /// `spec.region` of the Cluster.
    pub region: String,
    /// `spec.zones` of the Cluster.
    pub zones: Vec<String>,
    /// Labels of the Cluster.
    pub labels: Labels,
    pub nodes: Vec<NodeShape>,
}

impl MemberShape {
    /// Shape of the `index`-th member of a fleet without settings.
    pub fn default_for_index(index: usize) -> Self {
        let region = default_region(index);
        let zones = default_zones(&region);
        Self {
            kubernetes_version: KUBERNETES_VERSION.to_owned(),
            provider: DEFAULT_PROVIDER.to_owned(),
            nodes: vec![NodeShape { region: region.clone(), zones: zones.clone(), ..NodeShape::default() }],
            region,
            zones,
            labels: Labels::new(),
        }
    }
}

fn default_region(index: usize) -> String {
    format!("region-{}", index % DEFAULT_REGION_COUNT + 1)
}

fn default_zones(region: &str) -> Vec<String> {
    DEFAULT_ZONES.iter().map(|zone| format!("{region}-{zone}")).collect()
}

/// Validates the settings of the `index`-th member and adds defaults. `path` is the path of the member in errors.
pub(super) fn resolve(settings: MemberSettings, index: usize, path: &str) -> Result<MemberShape, Vec<FieldError>> {
    let mut validator = Validator::default();
    let member = settings.name;
    let pools = settings.nodes.unwrap_or_else(|| vec![NodeSettings::default()]);
    validator.zones(&format!("{path}.zones"), &settings.zones);
    let has_zones = !settings.zones.is_empty() || pools.iter().any(|pool| !pool.zones.is_empty());
    let region = settings.region.unwrap_or_else(|| if has_zones { String::new() } else { default_region(index) });
    let member_zones = if has_zones || region.is_empty() { settings.zones } else { default_zones(&region) };
    let provider = settings.provider.unwrap_or_else(|| DEFAULT_PROVIDER.to_owned());
    validator.label_value(&format!("{path}.provider"), &provider);
    validator.label_value(&format!("{path}.region"), &region);
    validator.labels(&format!("{path}.labels"), &settings.labels, &[]);
    let version = settings.kubernetes_version.as_deref().unwrap_or(KUBERNETES_VERSION);
    let kubernetes_version = validator.version(&format!("{path}.kubernetesVersion"), version);

    let mut nodes = Vec::new();
    for (pool_index, pool) in pools.into_iter().enumerate() {
        let path = format!("{path}.nodes[{pool_index}]");
        let count = validator.count(&format!("{path}.count"), pool.count, &member);
        nodes.push(NodeShape { count, ..validator.pool(&path, pool, &member_zones, &region) });
    }
    let count = nodes.iter().map(|shape| shape.count).sum::<usize>();
    if count > MAX_NODES {
        validator.0.push(FieldError::invalid(format!("{path}.nodes"), &count, node_count_message(&member)));
    }
    let mut zones = member_zones;
    for zone in nodes.iter().flat_map(|shape| &shape.zones) {
        if !zones.contains(zone) {
            zones.push(zone.clone());
        }
    }
    if !validator.0.is_empty() {
        return Err(validator.0);
    }
    Ok(MemberShape { kubernetes_version, provider, region, zones, labels: settings.labels, nodes })
}

fn node_count_message(member: &str) -> String {
    format!("member {member} must have from 0 to {MAX_NODES} nodes")
}

/// Validates settings and collects the errors.
#[derive(Default)]
struct Validator(Vec<FieldError>);

impl Validator {
    fn push_all(&mut self, path: &str, value: &str, problems: Vec<String>) {
        self.0.extend(problems.into_iter().map(|problem| FieldError::invalid(path, value, problem)));
    }

    fn label_value(&mut self, path: &str, value: &str) {
        self.push_all(path, value, format::validate_label_value(value));
    }

    fn zones(&mut self, path: &str, zones: &[String]) {
        let mut seen = BTreeSet::new();
        for (index, zone) in zones.iter().enumerate() {
            let path = format!("{path}[{index}]");
            self.label_value(&path, zone);
            if zone.is_empty() {
                self.0.push(FieldError::required(path, "a zone must have a name"));
            } else if !seen.insert(zone) {
                self.0.push(FieldError::duplicate(path, zone));
            }
        }
    }

    /// `derived` contains the labels that other settings determine, with the names of those settings.
    fn labels(&mut self, path: &str, labels: &Labels, derived: &[(&str, &str)]) {
        for (key, value) in labels {
            let path = format!("{path}[{key}]");
            self.push_all(&path, key, format::validate_qualified_name(key));
            self.label_value(&path, value);
            if let Some((_, source)) = derived.iter().find(|(label, _)| label == key) {
                self.0.push(FieldError::forbidden(path, format!("the label is set from {source}")));
            }
        }
    }

    /// Returns the version in its full form, `v1.35.4`.
    fn version(&mut self, path: &str, text: &str) -> String {
        let numbers: Vec<Option<u32>> =
            text.strip_prefix('v').unwrap_or(text).split('.').map(|part| part.parse().ok()).collect();
        match numbers.as_slice() {
            [Some(1), Some(minor)] => format!("v1.{minor}.0"),
            [Some(1), Some(minor), Some(patch)] => format!("v1.{minor}.{patch}"),
            _ => {
                self.0.push(FieldError::invalid(path, text, "must be a Kubernetes version such as v1.35.4 or 1.35"));
                String::new()
            }
        }
    }

    /// Number of nodes of a pool; 0 for an invalid one.
    fn count(&mut self, path: &str, count: Option<i64>, member: &str) -> usize {
        let Some(count) = count else { return NodeShape::default().count };
        let valid_count = usize::try_from(count).ok().filter(|count| *count <= MAX_NODES);
        valid_count.unwrap_or_else(|| {
            self.0.push(FieldError::invalid(path, &count, node_count_message(member)));
            0
        })
    }

    /// Shape of the nodes of a pool. The caller sets their number.
    fn pool(&mut self, path: &str, pool: NodeSettings, zones: &[String], region: &str) -> NodeShape {
        let derived = [
            ("kubernetes.io/hostname", "the name of the node"),
            ("node.kubernetes.io/instance-type", "instanceType"),
            (ZONE_LABEL, "zones"),
            (REGION_LABEL, "region"),
        ];
        let default = NodeShape::default();
        self.labels(&format!("{path}.labels"), &pool.labels, &derived);
        self.zones(&format!("{path}.zones"), &pool.zones);
        let instance_type = pool.instance_type.unwrap_or(default.instance_type);
        self.label_value(&format!("{path}.instanceType"), &instance_type);
        let mut allocatable = default.allocatable;
        allocatable.extend(self.quantities(&format!("{path}.allocatable"), pool.allocatable));
        NodeShape {
            count: default.count,
            allocatable,
            instance_type,
            region: region.to_owned(),
            zones: if pool.zones.is_empty() { zones.to_vec() } else { pool.zones },
            labels: pool.labels,
            taints: self.taints(&format!("{path}.taints"), pool.taints),
        }
    }

    fn taints(&mut self, path: &str, taints: Vec<TaintSettings>) -> Vec<Taint> {
        let mut seen = BTreeSet::new();
        for (index, taint) in taints.iter().enumerate() {
            let path = format!("{path}[{index}]");
            self.push_all(&format!("{path}.key"), &taint.key, format::validate_qualified_name(&taint.key));
            self.label_value(&format!("{path}.value"), &taint.value);
            if !TAINT_EFFECTS.contains(&taint.effect.as_str()) {
                self.0.push(FieldError::not_supported(format!("{path}.effect"), &taint.effect, &TAINT_EFFECTS));
            }
            if !seen.insert((taint.key.clone(), taint.effect.clone())) {
                self.0.push(FieldError::duplicate(path, &format!("{}:{}", taint.key, taint.effect)));
            }
        }
        let taint = |TaintSettings { key, value, effect }| Taint {
            key,
            value: Some(value).filter(|value| !value.is_empty()),
            effect,
            time_added: None,
        };
        taints.into_iter().map(taint).collect()
    }

    /// Returns the valid quantities as text.
    fn quantities(&mut self, path: &str, values: BTreeMap<String, Value>) -> BTreeMap<String, String> {
        let mut quantities = BTreeMap::new();
        for (name, value) in values {
            let path = format!("{path}[{name}]");
            let is_native = ["cpu", "memory", "ephemeral-storage", "pods"].contains(&name.as_str());
            let is_extended = name.contains('/') && format::validate_qualified_name(&name).is_empty();
            if !is_native && !is_extended && !name.starts_with("hugepages-") {
                let expected = "must be cpu, memory, ephemeral-storage, pods, hugepages-SIZE or an extended resource such as nvidia.com/gpu";
                self.0.push(FieldError::invalid(path, &name, expected));
                continue;
            }
            let text = match &value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            // Pods and extended resources are counted in whole units.
            let is_integer = name == "pods" || is_extended;
            let problem = match Quantity::parse(&text) {
                Ok(quantity) if quantity.sign() < 0 => "must not be negative",
                Ok(quantity) if is_integer && quantity.milli_value() % 1_000 != 0 => "must be an integer",
                Ok(_) => {
                    quantities.insert(name, text);
                    continue;
                }
                Err(_) => "must be a quantity such as 8, 500m or 16Gi",
            };
            self.0.push(FieldError::invalid(path, &value, problem));
        }
        quantities
    }
}
