//! `Priority` admission: sets priority and preemption policy of pods from their PriorityClass, and allows only one
//! default class.
//!
//! The server creates the system classes at start, see [`write_system_classes`].

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::status::{ApiError, ApiResult, Reason};
use crowsnest_registry::Registry;
use crowsnest_registry::admission::{Admission, Mutation, Operation, Validation};
use crowsnest_registry::authz::bootstrap::{loopback, loopback_options};
use crowsnest_registry::object::Object;
use crowsnest_registry::storage::{ResourceKey, Revision};
use parking_lot::RwLock;
use serde_json::{Value, json};

const GROUP: &str = "scheduling.k8s.io";
const CLASSES: &str = "priorityclasses";
/// Priority of pods without a class if there is no default class.
const NO_CLASS: i64 = 0;
const PREEMPTS: &str = "PreemptLowerPriority";

/// Name, value, description.
const SYSTEM: [(&str, i64, &str); 2] = [
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
];

/// Creates the missing system classes.
pub async fn write_system_classes(registry: &Arc<Registry>) -> ApiResult<()> {
    let Some(resource) = registry.catalog.get(&Gvr::new(GROUP, "v1", CLASSES)) else { return Ok(()) };
    let mut warnings = Vec::new();
    for (name, value, description) in SYSTEM {
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "description": description, "preemptionPolicy": PREEMPTS,
        });
        match registry.create(&resource, &loopback(""), class, &loopback_options(), &mut warnings).await {
            Err(error) if !error.is(Reason::AlreadyExists) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Class {
    name: String,
    value: i64,
    preemption: Option<String>,
    default: bool,
}

impl Class {
    fn read(object: &Value) -> Self {
        Self {
            name: object.name().to_owned(),
            value: object["value"].as_i64().unwrap_or(NO_CLASS),
            preemption: object["preemptionPolicy"].as_str().map(str::to_owned),
            default: object["globalDefault"] == true,
        }
    }
}

/// The admission plugin.
pub struct Priority {
    registry: Weak<Registry>,
    /// Revision of the last change of the classes, and the classes.
    known: RwLock<(Revision, Arc<Vec<Class>>)>,
}

impl Priority {
    pub fn new(registry: &Arc<Registry>) -> Self {
        Self { registry: Arc::downgrade(registry), known: RwLock::new((Revision::MAX, Arc::default())) }
    }

    /// The current classes; parsed again when one of them has changed.
    fn classes(&self) -> Arc<Vec<Class>> {
        let Some(registry) = self.registry.upgrade() else { return Arc::default() };
        let table = ResourceKey::new(GROUP, CLASSES);
        let current = registry.store.last_change(&table);
        {
            let known = self.known.read();
            if known.0 == current {
                return known.1.clone();
            }
        }
        let classes = Arc::new(registry.store.objects(&table, "").iter().map(Class::read).collect::<Vec<_>>());
        *self.known.write() = (current, classes.clone());
        classes
    }
}

#[async_trait]
impl Admission for Priority {
    async fn mutate(&self, Mutation { attributes: a, object, .. }: Mutation<'_>) -> ApiResult<()> {
        let Some(pod) = object.filter(|_| a.is_for("", "pods")) else { return Ok(()) };
        match (a.operation, a.old) {
            (Operation::Create, _) => {
                apply_class(pod, &self.classes()).map_err(|why| ApiError::forbidden("", "pods", a.name, why))
            }
            (Operation::Update, Some(old)) => {
                keep(pod, old);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn validate(&self, Validation { attributes: a, object, .. }: Validation<'_>) -> ApiResult<()> {
        let written = matches!(a.operation, Operation::Create | Operation::Update);
        let Some(class) = object.filter(|_| written && a.is_for(GROUP, CLASSES)) else { return Ok(()) };
        if class["globalDefault"] != true {
            return Ok(());
        }
        let classes = self.classes();
        match default_class(&classes).filter(|other| a.operation == Operation::Create || other.name != class.name()) {
            Some(Class { name, .. }) => {
                let why = format!("PriorityClass {name} is already marked as default. Only one default can exist");
                Err(ApiError::forbidden(GROUP, CLASSES, a.name, why))
            }
            None => Ok(()),
        }
    }
}

/// The default class; if there are several, the one with the lowest value.
fn default_class(classes: &[Class]) -> Option<&Class> {
    classes.iter().filter(|class| class.default).min_by_key(|class| class.value)
}

/// Sets the fields of a new pod from its class; fails if the class is missing or conflicts with the pod.
fn apply_class(pod: &mut Value, classes: &[Class]) -> Result<(), String> {
    let Some(spec) = pod.get_mut("spec").filter(|spec| spec.is_object()) else { return Ok(()) };
    let (value, preemption) = match spec["priorityClassName"].as_str().filter(|name| !name.is_empty()) {
        Some(name) => match classes.iter().find(|class| class.name == name) {
            Some(class) => (class.value, class.preemption.clone()),
            None => return Err(format!("no PriorityClass with name {name} was found")),
        },
        None => match default_class(classes) {
            Some(class) => {
                let (value, preemption) = (class.value, class.preemption.clone());
                spec["priorityClassName"] = class.name.clone().into();
                (value, preemption)
            }
            None => (NO_CLASS, Some(PREEMPTS.to_owned())),
        },
    };
    const COMPUTED: &str = "must not be provided in pod spec; priority admission controller computed";
    const FROM: &str = "from the given PriorityClass name";
    if let Some(given) = spec["priority"].as_i64().filter(|given| *given != value) {
        return Err(format!("the integer value of priority ({given}) {COMPUTED} {value} {FROM}"));
    }
    spec["priority"] = value.into();
    if let Some(preemption) = preemption {
        if let Some(given) = spec["preemptionPolicy"].as_str().filter(|given| *given != preemption) {
            return Err(format!("the string value of PreemptionPolicy ({given}) {COMPUTED} {preemption} {FROM}"));
        }
        spec["preemptionPolicy"] = preemption.into();
    }
    Ok(())
}

/// Restores fields that a client which does not know them has omitted.
fn keep(pod: &mut Value, old: &Value) {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    for field in ["priority", "preemptionPolicy"] {
        if spec.get(field).is_none_or(Value::is_null)
            && let Some(value) = old["spec"].get(field).filter(|value| !value.is_null())
        {
            spec.insert(field.into(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, value: i64, preemption: &str, default: bool) -> Class {
        Class { name: name.into(), value, preemption: Some(preemption.into()), default }
    }

    #[test]
    fn pods_get_priority_and_preemption_of_their_class() {
        let plain = vec![class("high", 1000, "Never", false)];
        let with_default =
            [plain.clone(), vec![class("b", 20, PREEMPTS, true), class("a", 10, "Never", true)]].concat();
        let cases = [
            (&plain, json!({}), Ok(json!({"priority": 0, "preemptionPolicy": PREEMPTS}))),
            (
                &plain,
                json!({"priorityClassName": "high"}),
                Ok(json!({"priorityClassName": "high", "priority": 1000, "preemptionPolicy": "Never"})),
            ),
            (
                &with_default,
                json!({}),
                Ok(json!({"priorityClassName": "a", "priority": 10, "preemptionPolicy": "Never"})),
            ),
            (&plain, json!({"priority": 0}), Ok(json!({"priority": 0, "preemptionPolicy": PREEMPTS}))),
            (&plain, json!({"priorityClassName": "none"}), Err("no PriorityClass with name none was found")),
            (
                &plain,
                json!({"priorityClassName": "high", "priority": 5}),
                Err(
                    "the integer value of priority (5) must not be provided in pod spec; priority admission controller computed 1000 from the given PriorityClass name",
                ),
            ),
            (
                &plain,
                json!({"preemptionPolicy": "Never"}),
                Err(
                    "the string value of PreemptionPolicy (Never) must not be provided in pod spec; priority admission controller computed PreemptLowerPriority from the given PriorityClass name",
                ),
            ),
        ];
        for (classes, spec, wanted) in cases {
            let mut pod = json!({"spec": spec.clone()});
            let settled = apply_class(&mut pod, classes).map(|()| pod["spec"].take());
            assert_eq!(settled, wanted.map_err(str::to_owned), "{spec}");
        }
    }

    #[test]
    fn priority_of_existing_pods_is_kept() {
        let old = json!({"spec": {"priority": 7, "preemptionPolicy": "Never"}});
        for (written, wanted) in [
            (json!({}), json!({"priority": 7, "preemptionPolicy": "Never"})),
            (json!({"priority": null}), json!({"priority": 7, "preemptionPolicy": "Never"})),
            // Rejected by validation.
            (json!({"priority": 8}), json!({"priority": 8, "preemptionPolicy": "Never"})),
        ] {
            let mut pod = json!({"spec": written});
            keep(&mut pod, &old);
            assert_eq!(pod["spec"], wanted);
        }
    }
}
