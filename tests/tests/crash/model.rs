//! Desired state: templates, policies and overrides that change at random, and the expected result.

use std::collections::{BTreeMap, BTreeSet};

use crowsnest_api::names::binding_name;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde_json::{Value, json};

use crate::crash::state::{APPLIED, describe_binding};
use crate::crash::write::Write;

pub const MEMBERS: [&str; 3] = ["m1", "m2", "m3"];
/// Namespace of the templates, their policies and overrides.
pub const NAMESPACE: &str = "crash";
/// Prefix of the number in a template's name.
pub const PREFIX: &str = "crash-";

/// The member whose copies are changed by the override policies.
const OVERRIDDEN: &str = "m2";
/// Number of concurrent sequences of writes. All writes to one object are in the same lane.
const LANES: usize = 8;
/// Replicas of Deployments, divided evenly among any of the members.
const REPLICAS: usize = 6;
/// Approximate number of policies or overrides that change per round.
const POLICIES: usize = 4;

/// Number of a group of templates, which one policy selects by a label.
type Group = usize;

/// Number of groups of ConfigMaps, some of which have an override policy. They are followed by a group of Deployments,
/// each with a ConfigMap as dependency that no policy selects, and a group of ClusterRoles.
const CONFIG_MAP_GROUPS: usize = 4;
const DEPLOYMENT_GROUP: Group = CONFIG_MAP_GROUPS;
const CLUSTER_ROLE_GROUP: Group = CONFIG_MAP_GROUPS + 1;
const GROUPS: usize = CONFIG_MAP_GROUPS + 2;

fn group_of(number: usize) -> Group {
    match number % 20 {
        0 => DEPLOYMENT_GROUP,
        1 => CLUSTER_ROLE_GROUP,
        other => other % CONFIG_MAP_GROUPS,
    }
}

/// apiVersion, kind and plural.
fn kind_of(group: Group) -> (&'static str, &'static str, &'static str) {
    match group {
        DEPLOYMENT_GROUP => ("apps/v1", "Deployment", "deployments"),
        CLUSTER_ROLE_GROUP => ("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles"),
        _ => ("v1", "ConfigMap", "configmaps"),
    }
}

fn name_of(number: usize) -> String {
    format!("{PREFIX}{number}")
}

/// Name of the ConfigMap on which a Deployment depends.
fn dependency_of(number: usize) -> String {
    format!("{PREFIX}{number}-conf")
}

/// Number of the template whose copy or dependency has this name.
fn parse_number(name: &str) -> Option<usize> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

/// Desired state of the fleet.
pub struct Model {
    /// Number of templates.
    objects: usize,
    /// Current value of each template, by its number. Deleted templates have none.
    templates: BTreeMap<usize, usize>,
    /// Clusters of each group's policy.
    placements: Vec<BTreeSet<&'static str>>,
    /// Value of each group's override policy.
    overrides: [Option<usize>; CONFIG_MAP_GROUPS],
    /// The last value that was used; values are never reused.
    last_value: usize,
}

/// The writes of one round.
pub struct Changes {
    lanes: Vec<Vec<Write>>,
    /// Numbers of the templates that are deleted.
    deleted: BTreeSet<usize>,
    /// Groups whose placement changes.
    moved: BTreeSet<Group>,
}

impl Changes {
    fn push(&mut self, lane: usize, path: String, body: Option<Value>) {
        self.lanes[lane % LANES].push(Write { path, body });
    }

    pub fn count(&self) -> usize {
        self.lanes.iter().map(Vec::len).sum()
    }

    pub fn lanes(&self) -> Vec<Vec<Write>> {
        self.lanes.clone()
    }

    /// True if an object of this name may have been recreated.
    pub fn may_replace(&self, name: &str) -> bool {
        parse_number(name).is_none_or(|number| self.deleted.contains(&number) || self.moved.contains(&group_of(number)))
    }
}

fn path(api_version: &str, plural: &str, namespace: &str, name: &str) -> String {
    let root = if api_version.contains('/') { "apis" } else { "api" };
    match namespace {
        "" => format!("/{root}/{api_version}/{plural}/{name}"),
        namespace => format!("/{root}/{api_version}/namespaces/{namespace}/{plural}/{name}"),
    }
}

impl Model {
    pub fn new(objects: usize) -> Self {
        let (templates, placements) = (BTreeMap::new(), vec![BTreeSet::new(); GROUPS]);
        Model { objects, templates, placements, overrides: [None; CONFIG_MAP_GROUPS], last_value: 0 }
    }

    /// Changes of the next round: the first round creates all objects, each later one changes some at random.
    pub fn next_changes(&mut self, rng: &mut StdRng) -> Changes {
        let mut changes = Changes { lanes: vec![Vec::new(); LANES], deleted: BTreeSet::new(), moved: BTreeSet::new() };
        if self.last_value == 0 {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
            changes.push(0, path("v1", "namespaces", "", NAMESPACE), Some(namespace));
            (0..GROUPS).for_each(|group| self.change_placement(group, rng, &mut changes));
            (0..self.objects).for_each(|number| self.write(number, &mut changes));
            return changes;
        }
        for nth in 0..self.objects {
            if nth % (self.objects / POLICIES).max(1) == 0 {
                match rng.random_bool(0.5) {
                    true => self.change_placement(rng.random_range(0..GROUPS), rng, &mut changes),
                    false => self.change_override(rng, &mut changes),
                }
            }
            let number = rng.random_range(0..self.objects);
            match rng.random_bool(0.7) {
                true => self.write(number, &mut changes),
                false => self.delete(number, &mut changes),
            }
        }
        changes
    }

    fn next_value(&mut self) -> usize {
        self.last_value += 1;
        self.last_value
    }

    fn write(&mut self, number: usize, changes: &mut Changes) {
        let value = self.next_value();
        let group = group_of(number);
        let (api_version, kind, plural) = kind_of(group);
        let metadata = json!({"name": name_of(number), "labels": {"group": format!("f{group}")}});
        let mut template = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata});
        match group {
            DEPLOYMENT_GROUP => {
                let dependency = dependency_of(number);
                let conf = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": dependency},
                    "data": {"value": value.to_string()}});
                changes.push(number, path("v1", "configmaps", NAMESPACE, &dependency), Some(conf));
                let app = json!({"app": name_of(number)});
                let from = json!([{"configMapRef": {"name": dependency}}]);
                let container = json!({"name": "web", "image": "nginx:1.27", "envFrom": from});
                template["metadata"]["annotations"] = json!({"value": value.to_string()});
                template["spec"] = json!({"replicas": REPLICAS, "selector": {"matchLabels": app},
                    "template": {"metadata": {"labels": app}, "spec": {"containers": [container]}}});
            }
            CLUSTER_ROLE_GROUP => {
                let names = json!([value.to_string()]);
                template["rules"] =
                    json!([{"apiGroups": [""], "resources": ["pods"], "resourceNames": names, "verbs": ["get"]}]);
            }
            _ => template["data"] = json!({"value": value.to_string()}),
        }
        let namespace = if group == CLUSTER_ROLE_GROUP { "" } else { NAMESPACE };
        changes.push(number, path(api_version, plural, namespace, &name_of(number)), Some(template));
        self.templates.insert(number, value);
    }

    fn delete(&mut self, number: usize, changes: &mut Changes) {
        let group = group_of(number);
        let (api_version, _, plural) = kind_of(group);
        let namespace = if group == CLUSTER_ROLE_GROUP { "" } else { NAMESPACE };
        changes.push(number, path(api_version, plural, namespace, &name_of(number)), None);
        changes.deleted.insert(number);
        self.templates.remove(&number);
    }

    /// Sets a random placement of a group.
    fn change_placement(&mut self, group: Group, rng: &mut StdRng, changes: &mut Changes) {
        let mut members = MEMBERS;
        members.shuffle(rng);
        let chosen: BTreeSet<&str> = members.into_iter().take(rng.random_range(1..=MEMBERS.len())).collect();
        let (kind, plural, namespace) = match group {
            CLUSTER_ROLE_GROUP => ("ClusterPropagationPolicy", "clusterpropagationpolicies", ""),
            _ => ("PropagationPolicy", "propagationpolicies", NAMESPACE),
        };
        let mut placement = json!({"clusterAffinity": {"clusterNames": chosen}});
        if group == DEPLOYMENT_GROUP {
            let weights = MEMBERS.map(|name| json!({"targetCluster": {"clusterNames": [name]}, "weight": 1}));
            placement["replicaScheduling"] = json!({"replicaSchedulingType": "Divided",
                "replicaDivisionPreference": "Weighted", "weightPreference": {"staticWeightList": weights}});
        }
        let name = format!("f{group}");
        let policy = json!({
            "apiVersion": "policy.karmada.io/v1alpha1", "kind": kind, "metadata": {"name": name},
            "spec": {"resourceSelectors": [selector(group)], "placement": placement,
                "propagateDeps": group == DEPLOYMENT_GROUP},
        });
        changes.push(group, path("policy.karmada.io/v1alpha1", plural, namespace, &name), Some(policy));
        changes.moved.insert(group);
        self.placements[group] = chosen;
    }

    /// Sets or deletes the override policy of a random group.
    fn change_override(&mut self, rng: &mut StdRng, changes: &mut Changes) {
        let group = rng.random_range(0..CONFIG_MAP_GROUPS);
        let value = (self.overrides[group].is_none() || rng.random_bool(0.5)).then(|| self.next_value());
        let name = format!("f{group}");
        let policy = value.map(|value| {
            let overriders =
                json!({"plaintext": [{"path": "/data/where", "operator": "add", "value": value.to_string()}]});
            let rule = json!({"targetCluster": {"clusterNames": [OVERRIDDEN]}, "overriders": overriders});
            json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "OverridePolicy", "metadata": {"name": name},
                "spec": {"resourceSelectors": [selector(group)], "overrideRules": [rule]}})
        });
        changes.push(group, path("policy.karmada.io/v1alpha1", "overridepolicies", NAMESPACE, &name), policy);
        self.overrides[group] = value;
    }

    /// The desired state, in the format of [`crate::crash::state`].
    pub fn desired_state(&self) -> BTreeMap<String, String> {
        let mut desired = BTreeMap::new();
        for (number, value) in &self.templates {
            let group = group_of(*number);
            let members = &self.placements[group];
            let (_, kind, _) = kind_of(group);
            add_expected(&mut desired, (kind, &name_of(*number)), members, group, |member| match group {
                DEPLOYMENT_GROUP => format!("{} of {value}", REPLICAS / members.len()),
                CLUSTER_ROLE_GROUP => value.to_string(),
                _ => match self.overrides[group].filter(|_| member == OVERRIDDEN) {
                    None => json!({"value": value.to_string()}).to_string(),
                    Some(overridden) => {
                        json!({"value": value.to_string(), "where": overridden.to_string()}).to_string()
                    }
                },
            });
            if group == DEPLOYMENT_GROUP {
                let data = json!({"value": value.to_string()}).to_string();
                add_expected(&mut desired, ("ConfigMap", &dependency_of(*number)), members, group, |_| data.clone());
            }
        }
        desired
    }
}

/// Adds the expected binding, Works and copies of a template.
fn add_expected(
    desired: &mut BTreeMap<String, String>,
    (kind, name): (&str, &str),
    members: &BTreeSet<&'static str>,
    group: Group,
    copy: impl Fn(&str) -> String,
) {
    let replicas = if group == DEPLOYMENT_GROUP { REPLICAS / members.len() } else { 0 };
    let binding = match group {
        CLUSTER_ROLE_GROUP => format!("/{}", binding_name(kind, name)),
        _ => format!("{NAMESPACE}/{}", binding_name(kind, name)),
    };
    let targets: Vec<String> = members.iter().map(|member| format!("{member}:{replicas}")).collect();
    let reported: Vec<&str> = members.iter().copied().collect();
    for member in members {
        desired.insert(format!("{member} {kind} {name}"), copy(member));
        desired.insert(format!("karmada-es-{member} Work of {binding}"), APPLIED.to_owned());
    }
    desired.insert(format!("binding {binding}"), describe_binding(&targets, true, true, &reported));
}

fn selector(group: Group) -> Value {
    let (api_version, kind, _) = kind_of(group);
    json!({"apiVersion": api_version, "kind": kind, "labelSelector": {"matchLabels": {"group": format!("f{group}")}}})
}
