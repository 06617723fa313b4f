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
const PLURAL: &str = "priorityclasses";
/// Priority of pods without a class if there is no default class.
const DEFAULT_PRIORITY: i64 = 0;
const PREEMPT_LOWER_PRIORITY: &str = "PreemptLowerPriority";

/// Name, value and description of the system classes.
const SYSTEM_CLASSES: [(&str, i64, &str); 2] = [
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
    let Some(resource) = registry.catalog.get(&Gvr::new(GROUP, "v1", PLURAL)) else { return Ok(()) };
    let mut warnings = Vec::new();
    for (name, value, description) in SYSTEM_CLASSES {
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "description": description, "preemptionPolicy": PREEMPT_LOWER_PRIORITY,
        });
        match registry.create(&resource, &loopback(""), class, &loopback_options(), &mut warnings).await {
            Err(error) if !error.is(Reason::AlreadyExists) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PriorityClass {
    name: String,
    value: i64,
    preemption_policy: Option<String>,
    is_default: bool,
}

impl PriorityClass {
    fn parse(object: &Value) -> Self {
        Self {
            name: object.name().to_owned(),
            value: object["value"].as_i64().unwrap_or(DEFAULT_PRIORITY),
            preemption_policy: object["preemptionPolicy"].as_str().map(str::to_owned),
            is_default: object["globalDefault"] == true,
        }
    }
}

/// The admission plugin.
pub struct Priority {
    registry: Weak<Registry>,
    /// The parsed classes, and the revision of their last change.
    cache: RwLock<(Revision, Arc<Vec<PriorityClass>>)>,
}

impl Priority {
    pub fn new(registry: &Arc<Registry>) -> Self {
        Self { registry: Arc::downgrade(registry), cache: RwLock::new((Revision::MAX, Arc::default())) }
    }

    /// The current classes; parsed again when one of them has changed.
    fn classes(&self) -> Arc<Vec<PriorityClass>> {
        let Some(registry) = self.registry.upgrade() else { return Arc::default() };
        let table = ResourceKey::new(GROUP, PLURAL);
        let last_change = registry.store.last_change(&table);
        {
            let cache = self.cache.read();
            if cache.0 == last_change {
                return cache.1.clone();
            }
        }
        let classes = Arc::new(registry.store.objects(&table, "").iter().map(PriorityClass::parse).collect::<Vec<_>>());
        *self.cache.write() = (last_change, classes.clone());
        classes
    }
}

#[async_trait]
impl Admission for Priority {
    async fn mutate(&self, Mutation { attributes: a, object, .. }: Mutation<'_>) -> ApiResult<()> {
        let Some(pod) = object.filter(|_| a.is_for("", "pods")) else { return Ok(()) };
        match (a.operation, a.old) {
            (Operation::Create, _) => {
                apply_class(pod, &self.classes()).map_err(|reason| ApiError::forbidden("", "pods", a.name, reason))
            }
            (Operation::Update, Some(old)) => {
                restore_omitted_fields(pod, old);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn validate(&self, Validation { attributes: a, object, .. }: Validation<'_>) -> ApiResult<()> {
        let is_write = matches!(a.operation, Operation::Create | Operation::Update);
        let Some(class) = object.filter(|_| is_write && a.is_for(GROUP, PLURAL)) else { return Ok(()) };
        if class["globalDefault"] != true {
            return Ok(());
        }
        let classes = self.classes();
        match default_class(&classes).filter(|default| a.operation == Operation::Create || default.name != class.name())
        {
            Some(PriorityClass { name, .. }) => {
                let reason = format!("PriorityClass {name} is already marked as default. Only one default can exist");
                Err(ApiError::forbidden(GROUP, PLURAL, a.name, reason))
            }
            None => Ok(()),
        }
    }
}

/// The default class; if there are several, the one with the lowest value.
fn default_class(classes: &[PriorityClass]) -> Option<&PriorityClass> {
    classes.iter().filter(|class| class.is_default).min_by_key(|class| class.value)
}

/// Sets the fields of a new pod from its class; fails if the class is missing or conflicts with the pod.
fn apply_class(pod: &mut Value, classes: &[PriorityClass]) -> Result<(), String> {
    let Some(spec) = pod.get_mut("spec").filter(|spec| spec.is_object()) else { return Ok(()) };
    let (value, preemption_policy) = match spec["priorityClassName"].as_str().filter(|name| !name.is_empty()) {
        Some(name) => match classes.iter().find(|class| class.name == name) {
            Some(class) => (class.value, class.preemption_policy.clone()),
            None => return Err(format!("no PriorityClass with name {name} was found")),
        },
        None => match default_class(classes) {
            Some(class) => {
                spec["priorityClassName"] = class.name.clone().into();
                (class.value, class.preemption_policy.clone())
            }
            None => (DEFAULT_PRIORITY, Some(PREEMPT_LOWER_PRIORITY.to_owned())),
        },
    };
    const COMPUTED: &str = "must not be provided in pod spec; priority admission controller computed";
    const FROM: &str = "from the given PriorityClass name";
    if let Some(priority) = spec["priority"].as_i64().filter(|priority| *priority != value) {
        return Err(format!("the integer value of priority ({priority}) {COMPUTED} {value} {FROM}"));
    }
    spec["priority"] = value.into();
    if let Some(policy) = preemption_policy {
        if let Some(requested_policy) =
            spec["preemptionPolicy"].as_str().filter(|requested_policy| *requested_policy != policy)
        {
            return Err(format!(
                "the string value of PreemptionPolicy ({requested_policy}) {COMPUTED} {policy} {FROM}"
            ));
        }
        spec["preemptionPolicy"] = policy.into();
    }
    Ok(())
}

/// Restores priority fields that an update omits, since clients that do not know them drop them.
fn restore_omitted_fields(pod: &mut Value, old: &Value) {
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

    fn class(name: &str, value: i64, preemption_policy: &str, is_default: bool) -> PriorityClass {
        PriorityClass { name: name.into(), value, preemption_policy: Some(preemption_policy.into()), is_default }
    }

    #[test]
    fn pods_get_priority_and_preemption_of_their_class() {
        let plain = vec![class("high", 1000, "Never", false)];
        let with_default =
            [plain.clone(), vec![class("b", 20, PREEMPT_LOWER_PRIORITY, true), class("a", 10, "Never", true)]].concat();
        let cases = [
            (&plain, json!({}), Ok(json!({"priority": 0, "preemptionPolicy": PREEMPT_LOWER_PRIORITY}))),
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
            (&plain, json!({"priority": 0}), Ok(json!({"priority": 0, "preemptionPolicy": PREEMPT_LOWER_PRIORITY}))),
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
        for (classes, spec, expected) in cases {
            let mut pod = json!({"spec": spec.clone()});
            let result = apply_class(&mut pod, classes).map(|()| pod["spec"].take());
            assert_eq!(result, expected.map_err(str::to_owned), "{spec}");
        }
    }

    #[test]
    fn updates_restore_omitted_priorities() {
        let old = json!({"spec": {"priority": 7, "preemptionPolicy": "Never"}});
        for (spec, expected) in [
            (json!({}), json!({"priority": 7, "preemptionPolicy": "Never"})),
            (json!({"priority": null}), json!({"priority": 7, "preemptionPolicy": "Never"})),
            // Validation rejects this change.
            (json!({"priority": 8}), json!({"priority": 8, "preemptionPolicy": "Never"})),
        ] {
            let mut pod = json!({"spec": spec});
            restore_omitted_fields(&mut pod, &old);
            assert_eq!(pod["spec"], expected);
        }
    }
}
