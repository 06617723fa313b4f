//! Objects of synthetic workloads, complete and with the statuses that their controllers would write.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::member::interner::Interner;
use crate::member::pod::{ContainerPhase, ContainerView, Phase, PodState};
use crate::member::pod_lifecycle::{self, DesiredStatus, container_id, format_time};
use crate::member::workload::deployment::replica_set_annotations;

use super::catalog::{PodHealth, Workload};

// Placeholders for values that differ between the pods of a workload. The JSON of a pod contains no other percent
// signs.
const NAME: &str = "%name%";
const UID: &str = "%uid%";
const NODE: &str = "%node%";
const HOST: &str = "%host%";
const IP: &str = "%ip%";
const CONTAINER_ID: &str = "%container%";

/// Names, IDs and times of a workload's objects.
pub struct WorkloadPlan<'a> {
    pub workload: &'a Workload,
    template_hash: String,
    pub replica_set_name: String,
    pub deployment_uid: String,
    pub replica_set_uid: String,
    created: Timestamp,
    /// Number of environment variables that increase the size of objects.
    pub padding_variables: usize,
}

/// Bytes that each of [`WorkloadPlan::padding_variables`] adds to a pod's JSON.
pub const PADDING_VARIABLE_BYTES: usize = r#"{"name":"SETTING_000","value":""},"#.len() + 64;

impl<'a> WorkloadPlan<'a> {
    pub fn new(member: &str, workload: &'a Workload, now: Timestamp) -> Self {
        let Workload { namespace, name, .. } = workload;
        let template_hash = name_suffix(&[namespace, name, &workload.image]) + &name_suffix(&[name, &workload.version]);
        let name_digest = Sha256::digest(name.as_bytes());
        let minutes = i64::from(u16::from_le_bytes([name_digest[0], name_digest[1]]));
        Self {
            replica_set_name: format!("{name}-{template_hash}"),
            deployment_uid: derive_uid(&[member, "deployment", namespace, name]),
            replica_set_uid: derive_uid(&[member, "replicaset", namespace, name]),
            created: now - SignedDuration::from_mins(minutes),
            template_hash,
            workload,
            padding_variables: 0,
        }
    }

    fn labels(&self) -> Value {
        let Workload { app, team, tier, env, version, name, .. } = self.workload;
        json!({
            "app.kubernetes.io/name": app, "app.kubernetes.io/instance": name, "app.kubernetes.io/version": version,
            "team": team, "tier": tier, "env": env,
        })
    }

    fn template(&self) -> Value {
        let Workload { app, image, port, cpu_milli, memory_mi, health, .. } = self.workload;
        let annotations = match health {
            PodHealth::Healthy => json!({"prometheus.io/port": port.to_string()}),
            PodHealth::Crashing => json!({"sim.crowsnest.io/crash": "true", "sim.crowsnest.io/run-for": "20s"}),
            PodHealth::PullError => json!({"sim.crowsnest.io/pull-error": format!("{image}: not found")}),
            PodHealth::NotReady => json!({"fleet.test/phase": "NotReady"}),
        };
        let mut env =
            vec![json!({"name": "LOG_LEVEL", "value": "info"}), json!({"name": "PORT", "value": port.to_string()})];
        env.extend((0..self.padding_variables).map(|number| {
            let value = hex(&digest(&[&self.replica_set_name, &number.to_string()]));
            json!({"name": format!("SETTING_{number:03}"), "value": value})
        }));
        json!({
            "metadata": {"labels": self.labels(), "annotations": annotations},
            "spec": {
                "containers": [{
                    "name": app, "image": image,
                    "ports": [{"name": "http", "containerPort": port}],
                    "env": env,
                    "resources": {
                        "requests": {"cpu": format!("{cpu_milli}m"), "memory": format!("{memory_mi}Mi")},
                        "limits": {"memory": format!("{}Mi", memory_mi * 2)},
                    },
                }],
            },
        })
    }

    /// Number of replicas that are ready.
    pub fn ready_replicas(&self) -> usize {
        if self.workload.health == PodHealth::Healthy { self.workload.replicas } else { 0 }
    }

    pub fn deployment(&self) -> Value {
        let Workload { namespace, name, replicas, .. } = self.workload;
        let at = format_time(self.created);
        let available = self.ready_replicas() == *replicas;
        let condition = |kind: &str, holds: bool, reason: &str, message: String| {
            json!({"type": kind, "status": if holds { "True" } else { "False" }, "reason": reason, "message": message,
                "lastUpdateTime": at, "lastTransitionTime": at})
        };
        let (state, text) = if available {
            ("MinimumReplicasAvailable", "Deployment has minimum availability.")
        } else {
            ("MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        };
        let progressed = format!("ReplicaSet \"{}\" has successfully progressed.", self.replica_set_name);
        let mut status = json!({
            "replicas": replicas, "updatedReplicas": replicas, "observedGeneration": 1,
            "conditions": [condition("Available", available, state, text.into()),
                condition("Progressing", true, "NewReplicaSetAvailable", progressed)],
        });
        if available {
            status["readyReplicas"] = json!(replicas);
            status["availableReplicas"] = json!(replicas);
        } else {
            status["unavailableReplicas"] = json!(replicas);
        }
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name, "namespace": namespace, "uid": self.deployment_uid, "generation": 1, "creationTimestamp": at,
                "labels": self.labels(), "annotations": {"deployment.kubernetes.io/revision": "1"}},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app.kubernetes.io/instance": name}}, "template": self.template()},
            "status": status,
        })
    }

    pub fn replica_set(&self, deployment: &Value) -> Value {
        let Workload { namespace, name, replicas, .. } = self.workload;
        let mut template = deployment["spec"]["template"].clone();
        template["metadata"]["labels"]["pod-template-hash"] = json!(self.template_hash);
        // The default strategy allows 25% more replicas during updates, rounded up.
        let surge = i32::try_from(replicas.div_ceil(4)).unwrap_or_default();
        let desired = i32::try_from(*replicas).unwrap_or_default();
        let mut status = json!({"replicas": replicas, "fullyLabeledReplicas": replicas, "observedGeneration": 1});
        if self.ready_replicas() > 0 {
            status["readyReplicas"] = json!(replicas);
            status["availableReplicas"] = json!(replicas);
        }
        json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {"name": self.replica_set_name, "namespace": namespace, "uid": self.replica_set_uid, "generation": 1,
                "creationTimestamp": format_time(self.created), "labels": template["metadata"]["labels"],
                "annotations": replica_set_annotations(desired, surge),
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": self.deployment_uid,
                    "controller": true, "blockOwnerDeletion": true}]},
            "spec": {"replicas": replicas, "template": template, "selector": {"matchLabels": {
                "app.kubernetes.io/instance": name, "pod-template-hash": self.template_hash}}},
            "status": status,
        })
    }

    /// A pod of the workload with placeholders, before defaults and status.
    pub fn pod(&self, set: &Value) -> Value {
        let template = &set["spec"]["template"];
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": NAME, "generateName": format!("{}-", self.replica_set_name), "namespace": self.workload.namespace,
                "uid": UID, "creationTimestamp": format_time(self.created), "generation": 1,
                "labels": template["metadata"]["labels"], "annotations": template["metadata"]["annotations"],
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": self.replica_set_name, "uid": self.replica_set_uid,
                    "controller": true, "blockOwnerDeletion": true}]},
            "spec": template["spec"],
        });
        pod["spec"]["nodeName"] = json!(NODE);
        pod
    }

    /// Sets the status that a kubelet would have written, with placeholders. Returns the pod in the simulation's
    /// compact form.
    pub fn set_status(&self, pod: &mut Value, interner: &Interner) -> Result<PodState> {
        let to_pod_state = |pod: &Value| {
            let typed: Pod = serde_json::from_value(pod.clone())
                .map_err(|source| Error::Encode { object: "synthetic pod", source })?;
            Ok::<_, Error>(interner.intern_pod(typed))
        };
        let bound = to_pod_state(pod)?;
        let at = format_time(self.created);
        if self.workload.health == PodHealth::PullError {
            // The simulated kubelet reports the failed pull once the member runs.
            pod["status"] = json!({"phase": "Pending", "qosClass": bound.spec.qos.as_str(),
                "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at}]});
            return to_pod_state(pod);
        }
        let containers = bound.spec.containers.iter().map(|spec| ContainerView {
            name: spec.name.clone(),
            state: ContainerPhase::Running { since: self.created },
            ready: self.workload.health != PodHealth::NotReady,
            restarts: 0,
            last_run: None,
        });
        let desired =
            DesiredStatus { phase: Phase::Running, containers: containers.collect(), init_containers: Vec::new() };
        let mut status = pod_lifecycle::status_patch(&bound, &desired, HOST, Some(IP), self.created);
        // The ID is derived from the UID, which is still a placeholder.
        status["status"]["containerStatuses"][0]["containerID"] = json!(CONTAINER_ID);
        pod["status"] = status["status"].take();
        to_pod_state(pod)
    }

    /// Container ID of a pod, which replaces its placeholder.
    pub fn container_id(&self, uid: &str) -> String {
        container_id(uid, self.workload.app, 0)
    }

    /// Name and UID of the pod with this number.
    pub fn pod_ids(&self, number: usize) -> (String, String) {
        let name = format!("{}-{}", self.replica_set_name, name_suffix(&[&self.replica_set_uid, &number.to_string()]));
        let uid = derive_uid(&[&self.replica_set_uid, "pod", &name]);
        (name, uid)
    }

    /// An event of the pod: for each pod that is not ready, and for one in eight healthy pods.
    pub fn event(&self, pod: &str, uid: &str, node: &str, number: usize, now: Timestamp) -> Option<Value> {
        let (reason, kind, message) = match (self.workload.health, number % 8) {
            (PodHealth::NotReady, _) => {
                ("Unhealthy", "Warning", "Readiness probe failed: HTTP probe failed with statuscode: 503".to_owned())
            }
            (PodHealth::Healthy, 0) => ("Started", "Normal", format!("Started container {}", self.workload.app)),
            _ => return None,
        };
        let now = format_time(now);
        Some(json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": format!("{pod}.{}", name_suffix(&[uid, reason])), "namespace": self.workload.namespace,
                "uid": derive_uid(&[uid, reason]), "creationTimestamp": now},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": self.workload.namespace, "name": pod, "uid": uid,
                "fieldPath": format!("spec.containers{{{}}}", self.workload.app)},
            "type": kind, "reason": reason, "message": message, "count": 1, "firstTimestamp": now, "lastTimestamp": now,
            "source": {"component": "kubelet", "host": node}, "reportingComponent": "kubelet", "reportingInstance": node,
        }))
    }
}

fn digest(parts: &[&str]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.as_bytes());
        hasher.update([0]);
    }
    hasher.finalize().into()
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// Derives a UID from the parts: equal parts yield equal UIDs.
pub fn derive_uid(parts: &[&str]) -> String {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest(parts)[..16]);
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}

/// Derives a suffix of five characters from the parts, in the alphabet of Kubernetes' name generator.
fn name_suffix(parts: &[&str]) -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    digest(parts).iter().take(5).map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect()
}
