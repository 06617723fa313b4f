//! Shapes of nodes, and the Node objects created from them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::Labels;
use super::node::NODE_PROPERTIES_ANNOTATION;
use super::pod_lifecycle::format_time;

/// Address that is used for nodes without an address.
pub const UNKNOWN_ADDRESS: &str = "127.0.0.1";

pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
pub const REGION_LABEL: &str = "topology.kubernetes.io/region";

/// Scheme of the nodes' `providerID`.
const PROVIDER_ID_SCHEME: &str = "sim";

/// Kubernetes version that members and their nodes report by default.
pub use crowsnest_kube_apiserver::discovery::GIT_VERSION as KUBERNETES_VERSION;

/// Number and properties of equal nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeShape {
    pub count: usize,
    /// Capacity and allocatable, a resource list: `cpu`, `memory`, `pods`, `ephemeral-storage`, extended resources.
    pub allocatable: BTreeMap<String, String>,
    /// Value of `node.kubernetes.io/instance-type`; empty means no label.
    #[serde(default)]
    pub instance_type: String,
    /// Value of `topology.kubernetes.io/region`; empty means no label.
    #[serde(default)]
    pub region: String,
    /// Values of `topology.kubernetes.io/zone`, assigned to nodes in turn; empty means no label.
    #[serde(default)]
    pub zones: Vec<String>,
    /// Labels in addition to those of every node.
    #[serde(default)]
    pub labels: Labels,
    #[serde(default)]
    pub taints: Vec<Taint>,
}

impl Default for NodeShape {
    /// Three small nodes.
    fn default() -> Self {
        let mut allocatable = resource_list("4", "16Gi", "110");
        allocatable.insert("ephemeral-storage".into(), "100Gi".into());
        Self {
            count: 3,
            allocatable,
            instance_type: "sim.small".into(),
            region: String::new(),
            zones: Vec::new(),
            labels: Labels::new(),
            taints: Vec::new(),
        }
    }
}

fn resource_list(cpu: &str, memory: &str, pods: &str) -> BTreeMap<String, String> {
    [("cpu", cpu), ("memory", memory), ("pods", pods)].map(|(name, amount)| (name.into(), amount.into())).into()
}

impl NodeShape {
    /// The node pool for a synthetic load of `pods` pods.
    pub fn for_load(pods: usize) -> Self {
        let mut allocatable = resource_list("96", "384Gi", "250");
        allocatable.insert("ephemeral-storage".into(), "1Ti".into());
        Self {
            count: pods.div_ceil(200),
            allocatable,
            instance_type: "sim.large".into(),
            zones: vec!["zone-a".into(), "zone-b".into(), "zone-c".into()],
            ..Self::default()
        }
    }

    /// Nodes of the member `m1`, `m2` or `m3` in the conformance fleet.
    pub fn conformance(member: &str) -> Self {
        let (cpu, memory) = match member {
            "m1" => ("2", "16Gi"),
            "m2" => ("4", "32Gi"),
            _ => ("8", "64Gi"),
        };
        Self { allocatable: resource_list(cpu, memory, "110"), instance_type: String::new(), ..Self::default() }
    }

    /// Labels of the `number`-th node of this shape, counted from 0, except those that every node has.
    fn labels(&self, number: usize) -> Labels {
        let mut labels = self.labels.clone();
        let mut set = |key: &str, value: &str| labels.insert(key.to_owned(), value.to_owned());
        if !self.instance_type.is_empty() {
            set("node.kubernetes.io/instance-type", &self.instance_type);
        }
        if !self.region.is_empty() {
            set(REGION_LABEL, &self.region);
        }
        if !self.zones.is_empty() {
            set(ZONE_LABEL, &self.zones[number % self.zones.len()]);
        }
        labels
    }

    /// Properties of the `number`-th node of this shape, counted from 0.
    pub fn properties(&self, number: usize, version: &str) -> NodeProperties {
        NodeProperties {
            labels: self.labels(number),
            taints: self.taints.clone(),
            allocatable: self.allocatable.clone(),
            version: version.to_owned(),
        }
    }
}

/// Properties that a shape sets on a node. The annotation [`NODE_PROPERTIES_ANNOTATION`] records them, so that a
/// changed shape replaces the properties of the earlier one and keeps everything that users wrote.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeProperties {
    labels: Labels,
    taints: Vec<Taint>,
    allocatable: BTreeMap<String, String>,
    /// Kubernetes version of the kubelet.
    version: String,
}

impl NodeProperties {
    /// Reads the properties from the annotation of a node; empty if an earlier version of Crowsnest wrote the node
    /// without them.
    pub fn from_annotation(node: &Value) -> Self {
        let annotations = node.pointer("/metadata/annotations");
        let text = annotations.and_then(|all| all.get(NODE_PROPERTIES_ANNOTATION)).and_then(Value::as_str);
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    fn to_annotation(&self) -> Value {
        json!(self).to_string().into()
    }

    /// Merge patches of a node and of its status that replace the properties `before` with these. `live` is the current
    /// node.
    pub fn merge_patches_from(&self, before: &Self, live: &Value) -> (Value, Value) {
        let mut labels = nulls_for_removed_keys(&before.labels, &self.labels);
        labels.extend(self.labels.iter().map(|(key, value)| (key.clone(), json!(value))));
        let identity = |taint: &Taint| (taint.key.clone(), taint.effect.clone());
        let shape_taints: Vec<_> = before.taints.iter().chain(&self.taints).map(identity).collect();
        let live_taints = live.pointer("/spec/taints").and_then(Value::as_array).cloned().unwrap_or_default();
        let text = |taint: &Value, field: &str| taint[field].as_str().unwrap_or_default().to_owned();
        let is_user_taint = |taint: &Value| !shape_taints.contains(&(text(taint, "key"), text(taint, "effect")));
        let user_taints = live_taints.into_iter().filter(is_user_taint);
        let taints: Vec<Value> = user_taints.chain(self.taints.iter().map(|taint| json!(taint))).collect();
        let main = json!({
            "metadata": {"labels": labels, "annotations": {NODE_PROPERTIES_ANNOTATION: self.to_annotation()}},
            "spec": {"taints": taints},
        });
        let mut resources = nulls_for_removed_keys(&before.allocatable, &self.allocatable);
        resources.extend(self.allocatable.iter().map(|(name, amount)| (name.clone(), json!(amount))));
        let status = json!({"status": {"capacity": resources, "allocatable": resources, "nodeInfo": {"kubeletVersion": self.version}}});
        (main, status)
    }
}

/// Nulls for the keys that only `before` has.
fn nulls_for_removed_keys<V>(before: &BTreeMap<String, V>, after: &BTreeMap<String, V>) -> Map<String, Value> {
    before.keys().filter(|key| !after.contains_key(*key)).map(|key| (key.clone(), Value::Null)).collect()
}

/// Range of pod addresses of a member's `index`-th node.
pub fn pod_cidr(member: &str, index: usize) -> String {
    let base = Sha256::digest(member.as_bytes());
    let (high, low) = (index / 256, index % 256);
    format!("10.{}.{low}.0/24", usize::from(base[0]) % 200 + high % 50 + 1)
}

/// Creates a Node object of a member. `index` selects its address and its range of pod addresses.
pub fn node(member: &str, name: &str, index: usize, properties: &NodeProperties, now: Timestamp) -> Value {
    let base = Sha256::digest(member.as_bytes());
    let cidr = pod_cidr(member, index);
    let address = format!("172.{}.{}.{}", 16 + base[1] % 16, index / 250, index % 250 + 2);
    let mut labels = json!({
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
    });
    for (key, value) in &properties.labels {
        labels[key] = json!(value);
    }
    let mut spec =
        json!({"podCIDR": cidr, "podCIDRs": [cidr], "providerID": format!("{PROVIDER_ID_SCHEME}://{member}/{name}")});
    if !properties.taints.is_empty() {
        spec["taints"] = json!(properties.taints);
    }
    json!({
        "metadata": {"name": name, "labels": labels, "annotations": {NODE_PROPERTIES_ANNOTATION: properties.to_annotation()}},
        "spec": spec,
        "status": {
            "capacity": properties.allocatable,
            "allocatable": properties.allocatable,
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "conditions": ready_conditions(now),
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "machineID": digest(&format!("{member}/{name}/machine")), "systemUUID": digest(&format!("{member}/{name}/system")),
                "bootID": digest(&format!("{member}/{name}/boot")), "kernelVersion": "6.8.0", "osImage": "Simulated Linux",
                "containerRuntimeVersion": "containerd://2.1.0", "kubeletVersion": properties.version, "kubeProxyVersion": "",
                "operatingSystem": "linux", "architecture": "amd64",
            },
        },
    })
}

/// Conditions of a healthy node.
pub fn ready_conditions(now: Timestamp) -> Value {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": format_time(now), "lastTransitionTime": format_time(now)})
    };
    json!([
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ])
}

/// Conditions of a node whose kubelet does not report.
pub fn unknown_conditions(now: Timestamp) -> Value {
    let condition = |kind: &str| {
        json!({"type": kind, "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status.",
            "lastHeartbeatTime": format_time(now), "lastTransitionTime": format_time(now)})
    };
    json!([condition("MemoryPressure"), condition("DiskPressure"), condition("PIDPressure"), condition("Ready")])
}

fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_address_ranges_do_not_overlap() {
        let cidrs: std::collections::HashSet<_> = (0..600).map(|index| pod_cidr("m1", index)).collect();
        assert_eq!(cidrs.len(), 600);
    }

    #[test]
    fn zones_are_assigned_in_turn() {
        let shape = NodeShape { zones: vec!["a".into(), "b".into()], region: "eu".into(), ..NodeShape::default() };
        let zones: Vec<String> = (0..3).map(|number| shape.labels(number)[ZONE_LABEL].clone()).collect();
        assert_eq!(zones, ["a", "b", "a"]);
        assert_eq!(shape.labels(0)[REGION_LABEL], "eu");
    }

    fn taint(key: &str) -> Taint {
        Taint { key: key.into(), effect: "NoSchedule".into(), ..Taint::default() }
    }

    #[test]
    fn a_changed_shape_keeps_taints_that_users_added() {
        let mut shape = NodeShape { region: "eu".into(), taints: vec![taint("gpu")], ..NodeShape::default() };
        shape.allocatable.insert("nvidia.com/gpu".into(), "4".into());
        let before = shape.properties(0, "v1.35.0");
        let mut live = node("m1", "n", 0, &before, Timestamp::UNIX_EPOCH);
        assert_eq!(NodeProperties::from_annotation(&live), before);
        live["spec"]["taints"] = json!([taint("gpu"), taint("mine")]);
        let after = NodeShape { zones: vec!["z".into()], ..NodeShape::default() }.properties(0, "v1.36.0");
        let (main, status) = after.merge_patches_from(&before, &live);
        let labels = &main["metadata"]["labels"];
        assert_eq!((&labels[REGION_LABEL], &labels[ZONE_LABEL]), (&Value::Null, &json!("z")));
        assert!(labels.as_object().unwrap().contains_key(REGION_LABEL));
        assert_eq!(main["spec"]["taints"], json!([taint("mine")]));
        let allocatable = status["status"]["allocatable"].as_object().unwrap();
        assert_eq!((&allocatable["nvidia.com/gpu"], &allocatable["cpu"]), (&Value::Null, &json!("4")));
        assert_eq!(status["status"]["nodeInfo"]["kubeletVersion"], "v1.36.0");
    }
}
