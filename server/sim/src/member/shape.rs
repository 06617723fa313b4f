//! What nodes look like: sizes as text, and the Node objects made from them.

use std::fmt;
use std::str::FromStr;

use crowsnest_apimachinery::quantity::Quantity;
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::error::Error;

use super::podlife::{PREFIX, time};

/// Address of a node that cannot be found.
pub const UNKNOWN_ADDRESS: &str = "127.0.0.1";

/// Kubernetes version that members and their nodes report.
pub const KUBERNETES_VERSION: &str = "v1.36.2";

/// Size and number of a member's nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeShape {
    pub count: usize,
    /// Quantities as in a resource list.
    pub cpu: String,
    pub memory: String,
    pub pods: u32,
    /// Absent: nodes report no ephemeral-storage.
    pub storage: Option<String>,
    /// Value of `node.kubernetes.io/instance-type`.
    pub instance_type: String,
    /// Zones that nodes are spread over in turn; empty: no topology labels.
    pub zones: Vec<String>,
}

impl Default for NodeShape {
    /// Three small nodes.
    fn default() -> Self {
        Self {
            count: 3,
            cpu: "4".into(),
            memory: "16Gi".into(),
            pods: 110,
            storage: Some("100Gi".into()),
            instance_type: "sim.small".into(),
            zones: Vec::new(),
        }
    }
}

impl NodeShape {
    /// The node pool that carries synthetic load: large enough for `pods`.
    pub fn for_load(pods: usize) -> Self {
        Self {
            count: pods.div_ceil(200),
            cpu: "96".into(),
            memory: "384Gi".into(),
            pods: 250,
            storage: Some("1Ti".into()),
            instance_type: "sim.large".into(),
            zones: vec!["zone-a".into(), "zone-b".into(), "zone-c".into()],
        }
    }

    /// Nodes of the conformance fleet's member `m1`, `m2` or `m3`.
    pub fn conformance(member: &str) -> Self {
        let (cpu, memory) = match member {
            "m1" => ("2", "16Gi"),
            "m2" => ("4", "32Gi"),
            _ => ("8", "64Gi"),
        };
        Self { cpu: cpu.into(), memory: memory.into(), storage: None, instance_type: String::new(), ..Self::default() }
    }
}

/// `3x4cpu,16Gi,110pods`: the text form of flags.
impl FromStr for NodeShape {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::Invalid(format!(
                "node shape {text:?}: expected COUNTxCPUcpu,MEMORY[,PODSpods], as 3x4cpu,16Gi,110pods"
            ))
        };
        let (count, size) = text.split_once('x').ok_or_else(wrong)?;
        let mut shape = Self { count: count.trim().parse().map_err(|_| wrong())?, ..Self::default() };
        for part in size.split(',').map(str::trim) {
            let amount = |text: &str| Quantity::parse(text).map(|_| text.to_owned()).map_err(|_| wrong());
            if let Some(cpu) = part.strip_suffix("cpu") {
                shape.cpu = amount(cpu)?;
            } else if let Some(pods) = part.strip_suffix("pods") {
                shape.pods = pods.parse().map_err(|_| wrong())?;
            } else {
                shape.memory = amount(part)?;
            }
        }
        Ok(shape)
    }
}

impl fmt::Display for NodeShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}cpu,{},{}pods", self.count, self.cpu, self.memory, self.pods)
    }
}

/// The Node object of the `index`-th node of a member (0-based, over all its shapes).
pub fn node(member: &str, name: &str, index: usize, shape: &NodeShape, now: Timestamp) -> Value {
    let base = Sha256::digest(member.as_bytes());
    let (high, low) = (index / 256, index % 256);
    let cidr = format!("10.{}.{low}.0/24", usize::from(base[0]) % 200 + high % 50 + 1);
    let address = format!("172.{}.{}.{}", 16 + base[1] % 16, index / 250, index % 250 + 2);
    let mut labels = json!({
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
    });
    if !shape.instance_type.is_empty() {
        labels["node.kubernetes.io/instance-type"] = json!(shape.instance_type);
    }
    if !shape.zones.is_empty() {
        let zone = &shape.zones[index % shape.zones.len()];
        labels["topology.kubernetes.io/zone"] = json!(zone);
    }
    let mut amounts = json!({"cpu": shape.cpu, "memory": shape.memory, "pods": shape.pods.to_string()});
    if let Some(storage) = &shape.storage {
        amounts["ephemeral-storage"] = json!(storage);
    }
    json!({
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {format!("{PREFIX}node"): shape.to_string()},
        },
        "spec": {"podCIDR": cidr, "podCIDRs": [cidr], "providerID": format!("sim://{member}/{name}")},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "conditions": ready_conditions(now),
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "machineID": digest(&format!("{member}/{name}/machine")), "systemUUID": digest(&format!("{member}/{name}/system")),
                "bootID": digest(&format!("{member}/{name}/boot")), "kernelVersion": "6.8.0", "osImage": "Simulated Linux",
                "containerRuntimeVersion": "containerd://2.1.0", "kubeletVersion": KUBERNETES_VERSION, "kubeProxyVersion": "",
                "operatingSystem": "linux", "architecture": "amd64",
            },
        },
    })
}

/// The conditions of a healthy node.
pub fn ready_conditions(now: Timestamp) -> Value {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": time(now), "lastTransitionTime": time(now)})
    };
    json!([
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ])
}

/// The conditions of a node whose kubelet is silent.
pub fn unknown_conditions(now: Timestamp) -> Value {
    let condition = |kind: &str| {
        json!({"type": kind, "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status.",
            "lastHeartbeatTime": time(now), "lastTransitionTime": time(now)})
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
    fn shapes_are_written_as_flags() {
        let shape: NodeShape = "5x8cpu,64Gi,200pods".parse().unwrap();
        assert_eq!((shape.count, shape.to_string().as_str()), (5, "5x8cpu,64Gi,200pods"));
        assert!("3x4potatoes".parse::<NodeShape>().is_err());
    }

    #[test]
    fn node_ranges_do_not_overlap() {
        let cidrs: std::collections::HashSet<_> = (0..600)
            .map(|index| {
                node("m1", "n", index, &NodeShape::default(), Timestamp::UNIX_EPOCH)["spec"]["podCIDR"].to_string()
            })
            .collect();
        assert_eq!(cidrs.len(), 600);
    }
}
