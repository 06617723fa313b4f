//! The built-in kinds of Kubernetes: discovery entries, defaults, separation of spec and status, and validation.
//!
//! Implements the strategies of `crowsnest-registry`, which `server/kube-apiserver` serves; its discovery and
//! OpenAPI read the table of kinds. The schemas are in `crowsnest-schema`. Independent of HTTP.

use std::sync::Arc;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_registry::resource::{ResourceInfo, ScalePaths, StorageVersion, Subresource};
use crowsnest_schema::table::Printer;

mod allocate;
mod apparmor;
#[cfg(test)]
mod apply_properties;
mod autoscaler;
mod convert;
mod defaults;
mod families;
mod feature_gates;
mod kinds;
mod object;
mod pod;
mod prepare;
mod selectable_fields;
mod service;
mod strategy;
pub mod validate;
mod warnings;

pub use allocate::{SERVICE_CIDR, ServiceAllocators, cluster_ips};
pub use convert::to_internal;
pub use strategy::BuiltinStrategy;
pub(crate) use validate::selector::selector_errors;

const ALL_VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// All built-in resources, ordered by group, with versions in order of preference.
pub fn resources() -> Vec<ResourceInfo> {
    let mut resources: Vec<ResourceInfo> = Vec::new();
    for (group, version, lines) in kinds::KINDS {
        for line in lines.lines() {
            match line.strip_prefix("  ") {
                Some(line) => {
                    if let Some(parent) = resources.last_mut() {
                        add_subresource(parent, line);
                    }
                }
                None => resources.extend(parse_resource(group, version, line)),
            }
        }
    }
    resources
}

fn parse_list(text: &str) -> Vec<String> {
    if text == "-" { Vec::new() } else { text.split(',').map(str::to_owned).collect() }
}

fn parse_verbs(text: &'static str) -> Vec<&'static str> {
    match text {
        "all" => ALL_VERBS.to_vec(),
        "nodc" => ALL_VERBS.iter().copied().filter(|verb| *verb != "deletecollection").collect(),
        listed => listed.split(',').collect(),
    }
}

fn parse_resource(group: &'static str, version: &'static str, line: &'static str) -> Option<ResourceInfo> {
    let mut words = line.split_whitespace();
    let (plural, kind, scope) = (words.next()?, words.next()?, words.next()?);
    let (short, categories, verb_list) = (words.next()?, words.next()?, words.next()?);
    Some(ResourceInfo {
        gvr: Gvr::new(group, version, plural),
        kind: kind.to_owned(),
        list_kind: format!("{kind}List"),
        singular: kind.to_lowercase(),
        namespaced: scope == "ns",
        short_names: parse_list(short),
        categories: parse_list(categories),
        verbs: parse_verbs(verb_list),
        subresources: Vec::new(),
        scale: None,
        storage: StorageVersion {
            group: if group == "events.k8s.io" { String::new() } else { group.to_owned() },
            version: if group == "autoscaling" { "v2".into() } else { version.to_owned() },
        },
        printer: Printer::built_in(group, kind),
        strategy: Arc::new(BuiltinStrategy::new(group, version, kind)),
    })
}

fn add_subresource(parent: &mut ResourceInfo, line: &'static str) {
    let mut words = line.split_whitespace();
    let (Some(name), Some(kind), Some(verb_list)) = (words.next(), words.next(), words.next()) else { return };
    let (group, version, kind) = match kind.split_once(':') {
        Some((api, kind)) => {
            let (group, version) = api.split_once('/').unwrap_or(("", api));
            (group.to_owned(), version.to_owned(), kind)
        }
        None => (parent.gvr.group.to_string(), parent.gvr.version.to_string(), kind),
    };
    if name == "scale" {
        parent.scale = Some(ScalePaths {
            spec_replicas: ".spec.replicas".into(),
            status_replicas: ".status.replicas".into(),
            selector: Some(".spec.selector".into()),
        });
    }
    parent.subresources.push(Subresource {
        name,
        kind: kind.to_owned(),
        group,
        version,
        verbs: parse_verbs(verb_list),
    });
}
