//! Objects of synthetic workloads as their controllers would leave them: complete, with correct statuses.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::member::interner::Interner;
use crate::member::pod::{ContainerPhase, ContainerView, Phase, PodState};
use crate::member::podlife::{self, Desired, container_id, time};
use crate::member::workload::deployment::set_annotations;

use super::catalog::{State, Workload};

// Placeholders for values that differ between the pods of a workload. The JSON of a pod contains no other percent
// signs.
const NAME: &str = "%name%";
const UID: &str = "%uid%";
const NODE: &str = "%node%";
const HOST: &str = "%host%";
const IP: &str = "%ip%";
const CONTAINER_ID: &str = "%container%";

/// Names, IDs and times of a workload's objects.
pub struct Plan<'a> {
    pub workload: &'a Workload,
    hash: String,
    pub set_name: String,
    pub deployment_uid: String,
    pub set_uid: String,
    created: Timestamp,
    /// Number of environment variables that increase the size of objects.
    pub padding: usize,
}

/// Bytes that each unit of [`Plan::padding`] adds to a pod's JSON.
pub const PADDING: usize = r#"{"name":"SETTING_000","value":""},"#.len() + 64;

impl<'a> Plan<'a> {
    pub fn new(member: &str, workload: &'a Workload, now: Timestamp) -> Self {
        let Workload { namespace, name, .. } = workload;
        let hash = suffix(&[namespace, name, &workload.image]) + &suffix(&[name, &workload.version]);
        let age = Sha256::digest(name.as_bytes());
        let minutes = i64::from(u16::from_le_bytes([age[0], age[1]]));
        Self {
            set_name: format!("{name}-{hash}"),
            deployment_uid: uid(&[member, "deployment", namespace, name]),
            set_uid: uid(&[member, "replicaset", namespace, name]),
            created: now - SignedDuration::from_mins(minutes),
            hash,
            workload,
            padding: 0,
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
        let Workload { app, image, port, cpu_milli, memory_mi, state, .. } = self.workload;
        let annotations = match state {
            State::Healthy => json!({"prometheus.io/port": port.to_string()}),
            State::Crashing => json!({"sim.crowsnest.io/crash": "true", "sim.crowsnest.io/run-for": "20s"}),
            State::PullError => json!({"sim.crowsnest.io/pull-error": format!("{image}: not found")}),
            State::NotReady => json!({"fleet.test/phase": "NotReady"}),
        };
        let mut env =
            vec![json!({"name": "LOG_LEVEL", "value": "info"}), json!({"name": "PORT", "value": port.to_string()})];
        env.extend((0..self.padding).map(|number| {
            let value = hex(&digest(&[&self.set_name, &number.to_string()]));
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

    pub fn healthy(&self) -> usize {
        if self.workload.state == State::Healthy { self.workload.replicas } else { 0 }
    }

    pub fn deployment(&self) -> Value {
        let Workload { namespace, name, replicas, .. } = self.workload;
        let at = time(self.created);
        let available = self.healthy() == *replicas;
        let condition = |kind: &str, holds: bool, reason: &str, message: String| {
            json!({"type": kind, "status": if holds { "True" } else { "False" }, "reason": reason, "message": message,
                "lastUpdateTime": at, "lastTransitionTime": at})
        };
        let (state, text) = if available {
            ("MinimumReplicasAvailable", "Deployment has minimum availability.")
        } else {
            ("MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        };
        let progressed = format!("ReplicaSet \"{}\" has successfully progressed.", self.set_name);
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
        template["metadata"]["labels"]["pod-template-hash"] = json!(self.hash);
        // The default strategy allows 25% more replicas during updates, rounded up.
        let surge = i32::try_from(replicas.div_ceil(4)).unwrap_or_default();
        let wanted = i32::try_from(*replicas).unwrap_or_default();
        let mut status = json!({"replicas": replicas, "fullyLabeledReplicas": replicas, "observedGeneration": 1});
        if self.healthy() > 0 {
            status["readyReplicas"] = json!(replicas);
            status["availableReplicas"] = json!(replicas);
        }
        json!({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {"name": self.set_name, "namespace": namespace, "uid": self.set_uid, "generation": 1,
                "creationTimestamp": time(self.created), "labels": template["metadata"]["labels"],
                "annotations": set_annotations(wanted, surge),
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": self.deployment_uid,
                    "controller": true, "blockOwnerDeletion": true}]},
            "spec": {"replicas": replicas, "template": template, "selector": {"matchLabels": {
                "app.kubernetes.io/instance": name, "pod-template-hash": self.hash}}},
            "status": status,
        })
    }

    /// A pod of the workload with placeholders, before defaults and status.
    pub fn pod(&self, set: &Value) -> Value {
        let template = &set["spec"]["template"];
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": NAME, "generateName": format!("{}-", self.set_name), "namespace": self.workload.namespace,
                "uid": UID, "creationTimestamp": time(self.created), "generation": 1,
                "labels": template["metadata"]["labels"], "annotations": template["metadata"]["annotations"],
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": self.set_name, "uid": self.set_uid,
                    "controller": true, "blockOwnerDeletion": true}]},
            "spec": template["spec"],
        });
        pod["spec"]["nodeName"] = json!(NODE);
        pod
    }

    /// Sets the status that its kubelet would have written, with placeholders; returns the pod as the simulation
    /// stores it.
    pub fn settle(&self, pod: &mut Value, interner: &Interner) -> Result<PodState> {
        let keep = |pod: &Value| {
            let typed: Pod = serde_json::from_value(pod.clone())
                .map_err(|source| Error::Encode { what: "synthetic pod", source })?;
            Ok::<_, Error>(interner.pod(typed))
        };
        let bound = keep(pod)?;
        let at = time(self.created);
        if self.workload.state == State::PullError {
            // Its kubelet simulates the failed pull from the start.
            pod["status"] = json!({"phase": "Pending", "qosClass": bound.spec.qos.as_str(),
                "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at}]});
            return keep(pod);
        }
        let containers = bound.spec.containers.iter().map(|spec| ContainerView {
            name: spec.name.clone(),
            doing: ContainerPhase::Running { since: self.created },
            ready: self.workload.state != State::NotReady,
            restarts: 0,
            last: None,
        });
        let desired = Desired { phase: Phase::Running, containers: containers.collect(), init: Vec::new() };
        let mut status = podlife::status(&bound, &desired, HOST, Some(IP), self.created);
        // Derived from the UID, for which there is a placeholder.
        status["status"]["containerStatuses"][0]["containerID"] = json!(CONTAINER_ID);
        pod["status"] = status["status"].take();
        keep(pod)
    }

    /// The pod's container ID, for its placeholder.
    pub fn container_id(&self, uid: &str) -> String {
        container_id(uid, self.workload.app, 0)
    }

    /// Name and UID of the pod with this number.
    pub fn pod_ids(&self, number: usize) -> (String, String) {
        let name = format!("{}-{}", self.set_name, suffix(&[&self.set_uid, &number.to_string()]));
        let uid = uid(&[&self.set_uid, "pod", &name]);
        (name, uid)
    }

    /// An event of the pod; about one pod in eight has one.
    pub fn event(&self, pod: &str, uid: &str, node: &str, number: usize, now: Timestamp) -> Option<Value> {
        let (reason, kind, message) = match (self.workload.state, number % 8) {
            (State::NotReady, _) => {
                ("Unhealthy", "Warning", "Readiness probe failed: HTTP probe failed with statuscode: 503".to_owned())
            }
            (State::Healthy, 0) => ("Started", "Normal", format!("Started container {}", self.workload.app)),
            _ => return None,
        };
        let now = time(now);
        Some(json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": format!("{pod}.{}", suffix(&[uid, reason])), "namespace": self.workload.namespace,
                "uid": self::uid(&[uid, reason]), "creationTimestamp": now},
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

/// A UID derived from the parts.
pub fn uid(parts: &[&str]) -> String {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest(parts)[..16]);
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}

/// Five characters of the alphabet of Kubernetes' name generator.
fn suffix(parts: &[&str]) -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    digest(parts).iter().take(5).map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect()
}
