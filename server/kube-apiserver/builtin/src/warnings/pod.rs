//! Warnings for pods and pod templates.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::super::apparmor;
use super::super::object::{at, fields, is_unset, items, number, text};
use super::{addresses, labels, overlaps, storage};

/// Annotations without effect.
const ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    ("security.alpha.kubernetes.io/unsafe-sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
];
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const SECCOMP_MESSAGE: &str = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
/// Volume sources that kubelets no longer support, with their names in messages.
const VOLUMES: [(&str, &str, &str); 9] = [
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
];
const NO_SELECTOR: &str = "a null labelSelector results in matching no pod";

pub(super) fn pod_warnings(pod: &Value) -> Vec<String> {
    PodWarnings { spec: at(pod, "spec"), annotations: fields(pod, "metadata.annotations"), prefix: "", out: Vec::new() }
        .collect()
}

pub(super) fn template_warnings(template: &Value, path: &str) -> Vec<String> {
    let prefix = format!("{path}.");
    let annotations = fields(template, "metadata.annotations");
    PodWarnings { spec: at(template, "spec"), annotations, prefix: &prefix, out: Vec::new() }.collect()
}

/// Collects the warnings for a pod or pod template.
struct PodWarnings<'a> {
    spec: &'a Value,
    annotations: &'a Map<String, Value>,
    /// Path before `spec` and `metadata`; empty for a pod.
    prefix: &'a str,
    out: Vec<String>,
}

impl<'a> PodWarnings<'a> {
    fn collect(mut self) -> Vec<String> {
        self.check_node_labels();
        self.check_topology_spread();
        for (key, message) in ANNOTATIONS {
            if self.annotations.contains_key(key) {
                self.push_annotation(key, message);
            }
        }
        self.check_volumes();
        self.check_duplicates();
        self.check_fractions("spec.overhead", at(self.spec, "overhead"), &["memory", "ephemeral-storage"]);
        if is_unset(self.spec, "securityContext.seccompProfile") && self.annotations.contains_key(SECCOMP_POD) {
            self.push_annotation(SECCOMP_POD, SECCOMP_MESSAGE);
        }
        let containers = self.containers();
        for (path, container) in &containers {
            self.check_container(path, container);
        }
        self.check_ports(&containers);
        if number(self.spec, "terminationGracePeriodSeconds").is_some_and(|seconds| seconds < 0) {
            let message = "must be >= 0; negative values are invalid and will be treated as 1";
            self.push("spec.terminationGracePeriodSeconds", message);
        }
        self.check_affinities();
        self.check_addresses();
        self.out
    }

    fn push(&mut self, field: &str, message: impl std::fmt::Display) {
        self.out.push(format!("{}{field}: {message}", self.prefix));
    }

    fn push_annotation(&mut self, key: &str, message: &str) {
        self.push(&format!("metadata.annotations[{key}]"), message);
    }

    /// All containers with their paths, in the order in which they start.
    fn containers(&self) -> Vec<(String, &'a Value)> {
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        let spec = self.spec;
        lists
            .iter()
            .flat_map(|list| {
                let containers = items(spec, list).iter().enumerate();
                containers.map(move |(index, container)| (format!("spec.{list}[{index}]"), container))
            })
            .collect()
    }

    fn check_node_labels(&mut self) {
        let prefix = self.prefix;
        self.out.extend(labels::selector_warnings(self.spec, "nodeSelector", |message, key| {
            format!("{prefix}spec.nodeSelector[{key}]: {message}")
        }));
        let affinity = at(self.spec, "affinity.nodeAffinity");
        let required = "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
        for (index, term) in items(affinity, required).iter().enumerate() {
            let path = format!("{prefix}spec.affinity.nodeAffinity.{required}[{index}]");
            self.out.extend(labels::requirement_warnings(term, &path, false));
        }
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        for (index, term) in items(affinity, preferred).iter().enumerate() {
            let path = format!("{prefix}spec.affinity.nodeAffinity.{preferred}[{index}].preference");
            self.out.extend(labels::requirement_warnings(at(term, "preference"), &path, true));
        }
    }

    fn check_topology_spread(&mut self) {
        for (index, constraint) in items(self.spec, "topologySpreadConstraints").iter().enumerate() {
            let (path, key) = (format!("spec.topologySpreadConstraints[{index}]"), text(constraint, "topologyKey"));
            if let Some(message) = labels::deprecation_message(key) {
                self.push(&format!("{path}.topologyKey"), format!("{key} is {message}"));
            }
            if is_unset(constraint, "labelSelector") {
                self.push(&format!("{path}.labelSelector"), NO_SELECTOR);
            }
        }
    }

    fn check_volumes(&mut self) {
        let volumes = items(self.spec, "volumes");
        for (index, volume) in volumes.iter().enumerate() {
            let path = format!("spec.volumes[{index}]");
            for (source, reported_source, message) in VOLUMES {
                if !is_unset(volume, source) {
                    self.push(&format!("{path}.{reported_source}"), message);
                }
            }
            let claim = at(volume, "ephemeral.volumeClaimTemplate.spec");
            let claim_path = format!("{}{path}.ephemeral.volumeClaimTemplate.spec", self.prefix);
            self.out.extend(storage::resource_warnings(claim, &claim_path));
        }
        self.out.extend(volumes.iter().flat_map(overlaps::volume_warnings));
    }

    fn check_duplicates(&mut self) {
        for (list, key) in [("hostAliases", "ip"), ("imagePullSecrets", "name")] {
            let mut seen: Vec<&str> = Vec::new();
            for (index, item) in items(self.spec, list).iter().enumerate() {
                let value = text(item, key);
                if seen.contains(&value) {
                    self.push(&format!("spec.{list}[{index}].{key}"), format!("duplicate {key} \"{value}\""));
                }
                seen.push(value);
            }
        }
        for (index, secret) in items(self.spec, "imagePullSecrets").iter().enumerate() {
            if text(secret, "name").is_empty() {
                self.push(&format!("spec.imagePullSecrets[{index}].name"), "invalid empty name \"\"");
            }
        }
    }

    fn check_fractions(&mut self, path: &str, amounts: &Value, names: &[&str]) {
        let path = format!("{}{path}", self.prefix);
        self.out.extend(names.iter().filter_map(|name| storage::fraction_warning(amounts, name, &path)));
    }

    fn check_container(&mut self, path: &str, container: &Value) {
        let name = text(container, "name");
        let seccomp = format!("{SECCOMP_CONTAINER}{name}");
        if is_unset(container, "securityContext.seccompProfile") && self.annotations.contains_key(&seccomp) {
            self.push_annotation(&seccomp, SECCOMP_MESSAGE);
        }
        let pod_profile = at(self.spec, "securityContext.appArmorProfile");
        if !self.prefix.is_empty()
            && let Some((key, message)) = apparmor::template_warning(self.annotations, container, pod_profile)
        {
            self.push_annotation(&key, message);
        }
        for name in ["memory", "ephemeral-storage"] {
            for kind in ["limits", "requests"] {
                let amounts = at(container, &format!("resources.{kind}"));
                self.check_fractions(&format!("{path}.resources.{kind}"), amounts, &[name]);
            }
        }
        self.check_environment(path, container);
    }

    /// Warnings for variables that hide a previous definition without using it.
    fn check_environment(&mut self, path: &str, container: &Value) {
        let mut names: Vec<&str> = Vec::new();
        for (index, variable) in items(container, "env").iter().enumerate() {
            let (name, value) = (text(variable, "name"), text(variable, "value"));
            let earlier = format!("$({name})");
            if names.contains(&name)
                && (!is_unset(variable, "valueFrom") || value == earlier || !value.contains(&earlier))
            {
                let message = format!("hides previous definition of \"{name}\", which may be dropped when using apply");
                self.push(&format!("{path}.env[{index}]"), message);
            }
            names.push(name);
        }
    }

    fn check_ports(&mut self, containers: &[(String, &'a Value)]) {
        let ports = containers.iter().flat_map(|(path, container)| {
            let ports = items(container, "ports").iter().enumerate();
            ports.map(move |(index, port)| (format!("{path}.ports[{index}]"), port))
        });
        let ports: Vec<(String, &Value)> = ports.collect();
        for (index, (field, port)) in ports.iter().enumerate() {
            if !text(port, "hostIP").is_empty() && host_port(port) == 0 {
                self.push(field, format!("hostIP set without hostPort: {}", format_port(port)));
            }
            for (earlier_field, earlier) in &ports[..index] {
                if let Some(conflict) = port_conflict(port, earlier) {
                    self.push(field, format!("{conflict} port definition with {}{earlier_field}", self.prefix));
                }
            }
        }
        let mut names: BTreeMap<&str, &str> = BTreeMap::new();
        for (field, port) in &ports {
            let name = text(port, "name");
            match names.get(name) {
                _ if name.is_empty() => {}
                Some(first) => {
                    let first = format!("{}{first}", self.prefix);
                    self.push(field, format!("duplicate port name \"{name}\" with {first}, services and probes that select ports by name will use {first}"));
                }
                None => drop(names.insert(name, field)),
            }
        }
    }

    fn check_affinities(&mut self) {
        for kind in ["podAffinity", "podAntiAffinity"] {
            for (list, term) in [
                ("requiredDuringSchedulingIgnoredDuringExecution", ""),
                ("preferredDuringSchedulingIgnoredDuringExecution", "podAffinityTerm."),
            ] {
                for (index, affinity) in items(self.spec, &format!("affinity.{kind}.{list}")).iter().enumerate() {
                    let selector = format!("{term}labelSelector");
                    if is_unset(affinity, &selector) {
                        self.push(&format!("spec.affinity.{kind}.{list}[{index}].{selector}"), NO_SELECTOR);
                    }
                }
            }
        }
    }

    fn check_addresses(&mut self) {
        for (index, server) in items(self.spec, "dnsConfig.nameservers").iter().enumerate() {
            let field = format!("{}spec.dnsConfig.nameservers[{index}]", self.prefix);
            self.out.extend(addresses::address_warning(&field, server.as_str().unwrap_or_default()));
        }
        for (index, alias) in items(self.spec, "hostAliases").iter().enumerate() {
            let field = format!("{}spec.hostAliases[{index}].ip", self.prefix);
            self.out.extend(addresses::address_warning(&field, text(alias, "ip")));
        }
    }
}

fn host_port(port: &Value) -> i64 {
    number(port, "hostPort").unwrap_or(0)
}

/// The kind of conflict between two ports of a pod.
fn port_conflict(port: &Value, earlier: &Value) -> Option<&'static str> {
    if at(port, "containerPort") != at(earlier, "containerPort") || text(port, "protocol") != text(earlier, "protocol")
    {
        return None;
    }
    let (address, earlier_address) = (text(port, "hostIP"), text(earlier, "hostIP"));
    let (number, earlier_number) = (host_port(port), host_port(earlier));
    match () {
        () if address == earlier_address && number == earlier_number => Some("duplicate"),
        () if number == 0 || earlier_number == 0 => Some("overlapping"),
        () if number == earlier_number && (address.is_empty() != earlier_address.is_empty()) => {
            Some("dangerously ambiguous")
        }
        () => None,
    }
}

/// A port as Go prints the struct.
fn format_port(port: &Value) -> String {
    format!(
        "{{Name:{} HostPort:{} ContainerPort:{} Protocol:{} HostIP:{}}}",
        text(port, "name"),
        host_port(port),
        number(port, "containerPort").unwrap_or(0),
        text(port, "protocol"),
        text(port, "hostIP")
    )
}
