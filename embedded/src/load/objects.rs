//! The objects of synthetic workloads, written past the API's per-request cost: defaults of each kind apply, admission does not.

use std::sync::Arc;

use crowsnest_apiserver::registry::Registry;
use crowsnest_apiserver::registry::resource::{Gvr, ResourceRef};
use crowsnest_apiserver::storage::{Body, Expect, ObjectKey, ResourceKey, Write};
use futures::{StreamExt, TryStreamExt};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::member::podlife::{container_id, image_id, image_name, time};
use crate::member::shape;
use crate::member::workload::deployment::set_annotations;
use crate::member::world::World;

use super::catalog::{State, Workload};

/// Pods of one workload written at the same time.
const AT_ONCE: usize = 64;

/// Hands out nodes in turn.
pub struct Placement {
    nodes: usize,
    next: usize,
}

impl Placement {
    pub fn new(nodes: usize) -> Self {
        Self { nodes: nodes.max(1), next: 0 }
    }

    /// Number of the node for the next pod, from 0.
    pub fn next(&mut self) -> usize {
        let node = self.next % self.nodes;
        self.next += 1;
        node
    }
}

/// Writes whole objects into a member's storage.
pub struct Bulk {
    world: Arc<World>,
    registry: Arc<Registry>,
    namespaces: ResourceRef,
    deployments: ResourceRef,
    replica_sets: ResourceRef,
    pods: ResourceRef,
    events: ResourceRef,
}

impl Bulk {
    pub fn new(world: Arc<World>, registry: Arc<Registry>) -> Result<Self> {
        let find = |group: &str, version: &str, resource: &str| {
            registry
                .resource(&Gvr::new(group, version, resource))
                .map_err(|error| Error::Start { cluster: world.name.to_string(), reason: error.to_string() })
        };
        Ok(Self {
            namespaces: find("", "v1", "namespaces")?,
            deployments: find("apps", "v1", "deployments")?,
            replica_sets: find("apps", "v1", "replicasets")?,
            pods: find("", "v1", "pods")?,
            events: find("", "v1", "events")?,
            world,
            registry,
        })
    }

    /// Writes one object; false when it exists already. Returns its version.
    async fn put(&self, resource: &ResourceRef, object: &Value) -> Result<Option<u64>> {
        let failed = |error: crowsnest_apiserver::error::Error| Error::Start {
            cluster: self.world.name.to_string(),
            reason: format!("write synthetic {}: {error}", resource.gvr.resource),
        };
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
        let key = ObjectKey::new(&text("namespace"), &text("name"));
        let table = ResourceKey::new(&resource.storage_group, &resource.gvr.resource);
        let body = Body::encode(object).map_err(failed)?;
        match self
            .registry
            .store
            .write(Write { table: table.clone(), key: key.clone(), expect: Expect::Absent, body: Some(body) })
            .await
        {
            Ok(revision) => Ok(Some(revision)),
            Err(_) if self.registry.store.get(&table, &key).is_some() => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    pub async fn namespace(&self, name: &str) -> Result<()> {
        let team = name.split('-').next().unwrap_or_default();
        let mut namespace = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "uid": uid(&[&self.world.name, "namespace", name]), "creationTimestamp": time(Timestamp::now()),
                "labels": {"kubernetes.io/metadata.name": name, "team": team}},
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        });
        self.namespaces.strategy.default(&mut namespace);
        self.put(&self.namespaces, &namespace).await.map(|_| ())
    }

    /// Writes a Deployment, its ReplicaSet and its pods. Returns the uid of the ReplicaSet.
    pub async fn write(&self, workload: Workload, prefix: &str, nodes: Vec<usize>, now: Timestamp) -> Result<Arc<str>> {
        let plan = Plan::new(&self.world.name, &workload, now);
        let mut deployment = plan.deployment();
        self.deployments.strategy.default(&mut deployment);
        let mut set = plan.replica_set(&deployment);
        self.replica_sets.strategy.default(&mut set);
        let mut template = plan.pod(&set);
        self.pods.strategy.default(&mut template);

        // Until its pods are known, the ReplicaSet's controller leaves it alone.
        let set_uid: Arc<str> = plan.set_uid.as_str().into();
        self.world.hold(&set_uid);
        self.put(&self.deployments, &deployment).await?;
        self.put(&self.replica_sets, &set).await?;
        let written = futures::stream::iter(nodes.into_iter().enumerate())
            .map(|(number, node)| self.write_pod(&plan, &template, number, node, prefix))
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<()>>()
            .await;
        self.world.release(&set_uid);
        written?;
        Ok(set_uid)
    }

    async fn write_pod(
        &self,
        plan: &Plan<'_>,
        template: &Value,
        number: usize,
        node: usize,
        prefix: &str,
    ) -> Result<()> {
        let name = format!("{}-{}", plan.set_name, suffix(&[&plan.set_uid, &number.to_string()]));
        let mut pod = template.clone();
        let node_name = format!("{prefix}-{}", node + 1);
        let uid = uid(&[&plan.set_uid, "pod", &name]);
        pod["metadata"]["name"] = json!(name);
        pod["metadata"]["uid"] = json!(uid);
        pod["spec"]["nodeName"] = json!(node_name);
        let address = self.world.nodes.get(&crate::member::store::Key::new("", &node_name)).map(|node| {
            let cidr = node.spec.as_ref().and_then(|spec| spec.pod_cidr.clone()).unwrap_or_default();
            (crate::member::podlife::host_ip(&node).to_owned(), cidr)
        });
        let (host, ip) = match &address {
            Some((host, cidr)) => (host.as_str(), self.world.ips.take(&uid, cidr)),
            None => (shape::UNKNOWN_ADDRESS, None),
        };
        plan.fill_status(&mut pod, &uid, host, ip.as_deref());
        let Some(revision) = self.put(&self.pods, &pod).await? else { return Ok(()) };
        pod["metadata"]["resourceVersion"] = json!(revision.to_string());
        let event = plan.event(&name, &uid, &node_name, number);
        let typed: Pod =
            serde_json::from_value(pod).map_err(|source| Error::Encode { what: "synthetic pod", source })?;
        self.world.saw_pod(typed);
        if let Some(mut event) = event {
            self.events.strategy.default(&mut event);
            self.put(&self.events, &event).await?;
        }
        Ok(())
    }
}

/// Names, ids and times of one workload's objects.
struct Plan<'a> {
    workload: &'a Workload,
    hash: String,
    set_name: String,
    deployment_uid: String,
    set_uid: String,
    created: Timestamp,
}

impl<'a> Plan<'a> {
    fn new(member: &str, workload: &'a Workload, now: Timestamp) -> Self {
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
        json!({
            "metadata": {"labels": self.labels(), "annotations": annotations},
            "spec": {
                "containers": [{
                    "name": app, "image": image,
                    "ports": [{"name": "http", "containerPort": port}],
                    "env": [{"name": "LOG_LEVEL", "value": "info"}, {"name": "PORT", "value": port.to_string()}],
                    "resources": {
                        "requests": {"cpu": format!("{cpu_milli}m"), "memory": format!("{memory_mi}Mi")},
                        "limits": {"memory": format!("{}Mi", memory_mi * 2)},
                    },
                }],
            },
        })
    }

    fn healthy(&self) -> usize {
        if self.workload.state == State::Healthy { self.workload.replicas } else { 0 }
    }

    fn deployment(&self) -> Value {
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

    fn replica_set(&self, deployment: &Value) -> Value {
        let Workload { namespace, name, replicas, .. } = self.workload;
        let mut template = deployment["spec"]["template"].clone();
        template["metadata"]["labels"]["pod-template-hash"] = json!(self.hash);
        // A quarter more during updates, rounded up: the default strategy.
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

    fn pod(&self, set: &Value) -> Value {
        let template = &set["spec"]["template"];
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"generateName": format!("{}-", self.set_name), "namespace": self.workload.namespace,
                "creationTimestamp": time(self.created), "generation": 1,
                "labels": template["metadata"]["labels"], "annotations": template["metadata"]["annotations"],
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": self.set_name, "uid": self.set_uid,
                    "controller": true, "blockOwnerDeletion": true}]},
            "spec": template["spec"],
        })
    }

    /// The status a kubelet would have written some time ago.
    fn fill_status(&self, pod: &mut Value, uid: &str, host: &str, ip: Option<&str>) {
        let Workload { app, image, state, .. } = self.workload;
        let at = time(self.created);
        if *state == State::PullError {
            // Its kubelet tells the story from the start.
            pod["status"] = json!({"phase": "Pending", "qosClass": "Burstable",
                "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at}]});
            return;
        }
        let ready = *state != State::NotReady;
        let word = if ready { "True" } else { "False" };
        let condition = |kind: &str, status: &str| {
            let mut condition =
                json!({"type": kind, "status": status, "lastProbeTime": null, "lastTransitionTime": at});
            if status == "False" {
                condition["reason"] = json!("ContainersNotReady");
                condition["message"] = json!(format!("containers with unready status: [{app}]"));
            }
            condition
        };
        pod["status"] = json!({
            "phase": "Running",
            "conditions": [condition("PodReadyToStartContainers", "True"), condition("Initialized", "True"),
                condition("Ready", word), condition("ContainersReady", word), condition("PodScheduled", "True")],
            "hostIP": host, "hostIPs": [{"ip": host}], "podIP": ip, "podIPs": ip.map(|ip| json!([{"ip": ip}])),
            "startTime": at, "qosClass": "Burstable", "observedGeneration": 1,
            "containerStatuses": [{
                "name": app, "image": image_name(image), "imageID": image_id(image), "containerID": container_id(uid, app, 0),
                "ready": ready, "started": true, "restartCount": 0, "state": {"running": {"startedAt": at}}, "lastState": {},
            }],
        });
    }

    /// About one pod in eight has an event left.
    fn event(&self, pod: &str, uid: &str, node: &str, number: usize) -> Option<Value> {
        let (reason, kind, message) = match (self.workload.state, number % 8) {
            (State::NotReady, _) => {
                ("Unhealthy", "Warning", "Readiness probe failed: HTTP probe failed with statuscode: 503".to_owned())
            }
            (State::Healthy, 0) => ("Started", "Normal", format!("Started container {}", self.workload.app)),
            _ => return None,
        };
        let now = time(Timestamp::now());
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

/// A uid that is the same for the same parts.
fn uid(parts: &[&str]) -> String {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest(parts)[..16]);
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}

/// Five characters as kube's name generator uses them.
fn suffix(parts: &[&str]) -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    digest(parts).iter().take(5).map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect()
}
