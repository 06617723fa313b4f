//! Desired state: templates, policies and overrides that change at random, and the expected result.

use std::collections::{BTreeMap, BTreeSet};

use crowsnest_api::names::binding_name;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde_json::{Value, json};

use crate::crash::state::{APPLIED, binding_facts};
use crate::crash::write::Write;

pub const MEMBERS: [&str; 3] = ["m1", "m2", "m3"];
/// Namespace of the templates, their policies and overrides.
pub const NAMESPACE: &str = "crash";
/// Prefix of the number in a template's name.
pub const PREFIX: &str = "crash-";

/// The member whose copies overrides change.
const OVERRIDDEN: &str = "m2";
/// Concurrent writes; those of one object are in one lane.
const LANES: usize = 8;
/// Replicas of Deployments, divided evenly among any of the members.
const REPLICAS: usize = 6;
/// Approximate number of policies or overrides that change per round.
const POLICIES: usize = 4;

/// Templates that one policy selects by a label.
type Flock = usize;

/// Number of flocks of ConfigMaps, each with an override at times; then one of Deployments, each with a ConfigMap as
/// dependency that no policy selects, and one of ClusterRoles.
const CONFIG_MAPS: usize = 4;
const DEPLOYMENTS: Flock = CONFIG_MAPS;
const CLUSTER_ROLES: Flock = CONFIG_MAPS + 1;
const FLOCKS: usize = CONFIG_MAPS + 2;

fn flock_of(number: usize) -> Flock {
    match number % 20 {
        0 => DEPLOYMENTS,
        1 => CLUSTER_ROLES,
        other => other % CONFIG_MAPS,
    }
}

/// apiVersion, kind and plural.
fn kind_of(flock: Flock) -> (&'static str, &'static str, &'static str) {
    match flock {
        DEPLOYMENTS => ("apps/v1", "Deployment", "deployments"),
        CLUSTER_ROLES => ("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles"),
        _ => ("v1", "ConfigMap", "configmaps"),
    }
}

fn name_of(number: usize) -> String {
    format!("{PREFIX}{number}")
}

/// The dependency of a Deployment.
fn dependency_of(number: usize) -> String {
    format!("{PREFIX}{number}-conf")
}

/// The number in a name.
fn number_in(name: &str) -> Option<usize> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

pub struct Model {
    objects: usize,
    /// The current contents of the templates.
    templates: BTreeMap<usize, usize>,
    /// Clusters of each flock's policy.
    placements: Vec<BTreeSet<&'static str>>,
    overrides: [Option<usize>; CONFIG_MAPS],
    /// The next value; values are never reused.
    values: usize,
}

/// The writes of one round.
pub struct Changes {
    lanes: Vec<Vec<Write>>,
    deleted: BTreeSet<usize>,
    moved: BTreeSet<Flock>,
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
        number_in(name).is_none_or(|number| self.deleted.contains(&number) || self.moved.contains(&flock_of(number)))
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
        let (templates, placements) = (BTreeMap::new(), vec![BTreeSet::new(); FLOCKS]);
        Model { objects, templates, placements, overrides: [None; CONFIG_MAPS], values: 0 }
    }

    /// The first round creates all objects, each later one changes some at random.
    pub fn turn(&mut self, rng: &mut StdRng) -> Changes {
        let mut changes = Changes { lanes: vec![Vec::new(); LANES], deleted: BTreeSet::new(), moved: BTreeSet::new() };
        if self.values == 0 {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
            changes.push(0, path("v1", "namespaces", "", NAMESPACE), Some(namespace));
            (0..FLOCKS).for_each(|flock| self.change_placement(flock, rng, &mut changes));
            (0..self.objects).for_each(|number| self.write(number, &mut changes));
            return changes;
        }
        for nth in 0..self.objects {
            if nth % (self.objects / POLICIES).max(1) == 0 {
                match rng.random_bool(0.5) {
                    true => self.change_placement(rng.random_range(0..FLOCKS), rng, &mut changes),
                    false => self.put_override(rng, &mut changes),
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

    fn value(&mut self) -> usize {
        self.values += 1;
        self.values
    }

    fn write(&mut self, number: usize, changes: &mut Changes) {
        let value = self.value();
        let flock = flock_of(number);
        let (api_version, kind, plural) = kind_of(flock);
        let metadata = json!({"name": name_of(number), "labels": {"flock": format!("f{flock}")}});
        let mut template = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata});
        match flock {
            DEPLOYMENTS => {
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
            CLUSTER_ROLES => {
                let names = json!([value.to_string()]);
                template["rules"] =
                    json!([{"apiGroups": [""], "resources": ["pods"], "resourceNames": names, "verbs": ["get"]}]);
            }
            _ => template["data"] = json!({"value": value.to_string()}),
        }
        let namespace = if flock == CLUSTER_ROLES { "" } else { NAMESPACE };
        changes.push(number, path(api_version, plural, namespace, &name_of(number)), Some(template));
        self.templates.insert(number, value);
    }

    fn delete(&mut self, number: usize, changes: &mut Changes) {
        let flock = flock_of(number);
        let (api_version, _, plural) = kind_of(flock);
        let namespace = if flock == CLUSTER_ROLES { "" } else { NAMESPACE };
        changes.push(number, path(api_version, plural, namespace, &name_of(number)), None);
        changes.deleted.insert(number);
        self.templates.remove(&number);
    }

    /// Changes the placement of a flock.
    fn change_placement(&mut self, flock: Flock, rng: &mut StdRng, changes: &mut Changes) {
        let mut members = MEMBERS;
        members.shuffle(rng);
        let chosen: BTreeSet<&str> = members.into_iter().take(rng.random_range(1..=MEMBERS.len())).collect();
        let (kind, plural, namespace) = match flock {
            CLUSTER_ROLES => ("ClusterPropagationPolicy", "clusterpropagationpolicies", ""),
            _ => ("PropagationPolicy", "propagationpolicies", NAMESPACE),
        };
        let mut placement = json!({"clusterAffinity": {"clusterNames": chosen}});
        if flock == DEPLOYMENTS {
            let weights = MEMBERS.map(|name| json!({"targetCluster": {"clusterNames": [name]}, "weight": 1}));
            placement["replicaScheduling"] = json!({"replicaSchedulingType": "Divided",
                "replicaDivisionPreference": "Weighted", "weightPreference": {"staticWeightList": weights}});
        }
        let name = format!("f{flock}");
        let policy = json!({
            "apiVersion": "policy.karmada.io/v1alpha1", "kind": kind, "metadata": {"name": name},
            "spec": {"resourceSelectors": [selector(flock)], "placement": placement,
                "propagateDeps": flock == DEPLOYMENTS},
        });
        changes.push(flock, path("policy.karmada.io/v1alpha1", plural, namespace, &name), Some(policy));
        changes.moved.insert(flock);
        self.placements[flock] = chosen;
    }

    fn put_override(&mut self, rng: &mut StdRng, changes: &mut Changes) {
        let flock = rng.random_range(0..CONFIG_MAPS);
        let value = (self.overrides[flock].is_none() || rng.random_bool(0.5)).then(|| self.value());
        let name = format!("f{flock}");
        let policy = value.map(|value| {
            let overriders =
                json!({"plaintext": [{"path": "/data/where", "operator": "add", "value": value.to_string()}]});
            let rule = json!({"targetCluster": {"clusterNames": [OVERRIDDEN]}, "overriders": overriders});
            json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "OverridePolicy", "metadata": {"name": name},
                "spec": {"resourceSelectors": [selector(flock)], "overrideRules": [rule]}})
        });
        changes.push(flock, path("policy.karmada.io/v1alpha1", "overridepolicies", NAMESPACE, &name), policy);
        self.overrides[flock] = value;
    }

    /// The desired state, in the format of [`crate::crash::look`].
    pub fn desired(&self) -> BTreeMap<String, String> {
        let mut desired = BTreeMap::new();
        for (number, value) in &self.templates {
            let flock = flock_of(*number);
            let members = &self.placements[flock];
            let (_, kind, _) = kind_of(flock);
            expect(&mut desired, (kind, &name_of(*number)), members, flock, |member| match flock {
                DEPLOYMENTS => format!("{} of {value}", REPLICAS / members.len()),
                CLUSTER_ROLES => value.to_string(),
                _ => match self.overrides[flock].filter(|_| member == OVERRIDDEN) {
                    None => json!({"value": value.to_string()}).to_string(),
                    Some(there) => json!({"value": value.to_string(), "where": there.to_string()}).to_string(),
                },
            });
            if flock == DEPLOYMENTS {
                let data = json!({"value": value.to_string()}).to_string();
                expect(&mut desired, ("ConfigMap", &dependency_of(*number)), members, flock, |_| data.clone());
            }
        }
        desired
    }
}

/// Adds a template's binding, Works and copies.
fn expect(
    desired: &mut BTreeMap<String, String>,
    (kind, name): (&str, &str),
    members: &BTreeSet<&'static str>,
    flock: Flock,
    copy: impl Fn(&str) -> String,
) {
    let replicas = if flock == DEPLOYMENTS { REPLICAS / members.len() } else { 0 };
    let binding = match flock {
        CLUSTER_ROLES => format!("/{}", binding_name(kind, name)),
        _ => format!("{NAMESPACE}/{}", binding_name(kind, name)),
    };
    let targets: Vec<String> = members.iter().map(|member| format!("{member}:{replicas}")).collect();
    let reported: Vec<&str> = members.iter().copied().collect();
    for member in members {
        desired.insert(format!("{member} {kind} {name}"), copy(member));
        desired.insert(format!("karmada-es-{member} Work of {binding}"), APPLIED.to_owned());
    }
    desired.insert(format!("binding {binding}"), binding_facts(&targets, true, true, &reported));
}

fn selector(flock: Flock) -> Value {
    let (api_version, kind, _) = kind_of(flock);
    json!({"apiVersion": api_version, "kind": kind, "labelSelector": {"matchLabels": {"flock": format!("f{flock}")}}})
}
