//! Priority: pods get the value and preemption policy of their PriorityClass, and one class at most is everybody's default.
//!
//! The server makes the system's own classes at start, see [`write_system_classes`].

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
/// Of pods without a class, where no class is everybody's default.
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

/// Makes the classes of the system's own pods where they are absent.
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

/// See the module.
pub struct Priority {
    registry: Weak<Registry>,
    /// The last change of the classes, and what they were then.
    known: RwLock<(Revision, Arc<Vec<Class>>)>,
}

impl Priority {
    pub fn new(registry: &Arc<Registry>) -> Self {
        Self { registry: Arc::downgrade(registry), known: RwLock::new((Revision::MAX, Arc::default())) }
    }

    /// The classes as they are now; read anew when one of them changed.
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
        let Some(pod) = object.filter(|_| a.is("", "pods")) else { return Ok(()) };
        match (a.operation, a.old) {
            (Operation::Create, _) => {
                settle(pod, &self.classes()).map_err(|why| ApiError::forbidden("", "pods", a.name, why))
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
        let Some(class) = object.filter(|_| written && a.is(GROUP, CLASSES)) else { return Ok(()) };
        if class["globalDefault"] != true {
            return Ok(());
        }
        let classes = self.classes();
        match everybodys(&classes).filter(|other| a.operation == Operation::Create || other.name != class.name()) {
            Some(Class { name, .. }) => {
                let why = format!("PriorityClass {name} is already marked as default. Only one default can exist");
                Err(ApiError::forbidden(GROUP, CLASSES, a.name, why))
            }
            None => Ok(()),
        }
    }
}

/// The class of pods that name none. Should there be several, the one that matters least.
fn everybodys(classes: &[Class]) -> Option<&Class> {
    classes.iter().filter(|class| class.default).min_by_key(|class| class.value)
}

/// Gives a new pod what its class says, or says why it can't have it.
fn settle(pod: &mut Value, classes: &[Class]) -> Result<(), String> {
    let Some(spec) = pod.get_mut("spec").filter(|spec| spec.is_object()) else { return Ok(()) };
    let (value, preemption) = match spec["priorityClassName"].as_str().filter(|name| !name.is_empty()) {
        Some(name) => match classes.iter().find(|class| class.name == name) {
            Some(class) => (class.value, class.preemption.clone()),
            None => return Err(format!("no PriorityClass with name {name} was found")),
        },
        None => match everybodys(classes) {
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

/// A pod keeps what it got, also when a client that does not know these fields writes it.
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
    fn pods_get_what_their_class_says() {
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
            let settled = settle(&mut pod, classes).map(|()| pod["spec"].take());
            assert_eq!(settled, wanted.map_err(str::to_owned), "{spec}");
        }
    }

    #[test]
    fn what_a_pod_got_stays() {
        let old = json!({"spec": {"priority": 7, "preemptionPolicy": "Never"}});
        for (written, wanted) in [
            (json!({}), json!({"priority": 7, "preemptionPolicy": "Never"})),
            (json!({"priority": null}), json!({"priority": 7, "preemptionPolicy": "Never"})),
            // Validation refuses this.
            (json!({"priority": 8}), json!({"priority": 8, "preemptionPolicy": "Never"})),
        ] {
            let mut pod = json!({"spec": written});
            keep(&mut pod, &old);
            assert_eq!(pod["spec"], wanted);
        }
    }
}
