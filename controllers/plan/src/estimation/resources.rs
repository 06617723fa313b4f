//! Resource amounts in the units of kube-scheduler: CPU in millicores, everything else in whole units.

use std::collections::BTreeMap;

use crowsnest_api::policy::ResourceList;
use crowsnest_apimachinery::quantity::{Format, Quantity};
use serde_json::Value;

use crowsnest_apimachinery::unstructured::at;

/// Resources of a node, pod or cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Resources {
    pub milli_cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
    pub pods: i64,
    /// Extended resources, huge pages and attachable volumes.
    pub scalars: BTreeMap<String, i64>,
}

impl Resources {
    /// The amount of a resource. `None` for a resource that nodes do not report.
    fn slot(&mut self, name: &str) -> Option<&mut i64> {
        Some(match name {
            "cpu" => &mut self.milli_cpu,
            "memory" => &mut self.memory,
            "ephemeral-storage" => &mut self.ephemeral_storage,
            "pods" => &mut self.pods,
            name if is_scalar(name) => self.scalars.entry(name.to_owned()).or_default(),
            _ => return None,
        })
    }

    pub fn get(&self, name: &str) -> i64 {
        match name {
            "cpu" => self.milli_cpu,
            "memory" => self.memory,
            "ephemeral-storage" => self.ephemeral_storage,
            "pods" => self.pods,
            name => self.scalars.get(name).copied().unwrap_or_default(),
        }
    }

    /// Adds one quantity. Resources that nodes do not report are ignored.
    pub fn add_quantity(&mut self, name: &str, quantity: &Quantity) {
        let amount = if name == "cpu" { quantity.milli_value() } else { quantity.value() };
        if let Some(slot) = self.slot(name) {
            *slot = slot.saturating_add(amount);
        }
    }

    pub fn from_list(list: &ResourceList) -> Self {
        let mut resources = Resources::default();
        for (name, quantity) in list {
            if let Ok(quantity) = Quantity::parse(&quantity.0) {
                resources.add_quantity(name, &quantity);
            }
        }
        resources
    }

    /// From the JSON form of a resource list.
    pub fn from_json(list: Option<&Value>) -> Self {
        let mut resources = Resources::default();
        for (name, quantity) in quantities(list) {
            resources.add_quantity(&name, &quantity);
        }
        resources
    }

    pub fn add(&mut self, other: &Resources) {
        self.combine(other, i64::saturating_add);
    }

    pub fn subtract(&mut self, other: &Resources) {
        self.combine(other, i64::saturating_sub);
    }

    fn combine(&mut self, other: &Resources, operation: impl Fn(i64, i64) -> i64) {
        self.milli_cpu = operation(self.milli_cpu, other.milli_cpu);
        self.memory = operation(self.memory, other.memory);
        self.ephemeral_storage = operation(self.ephemeral_storage, other.ephemeral_storage);
        self.pods = operation(self.pods, other.pods);
        for (name, amount) in &other.scalars {
            match self.scalars.get_mut(name) {
                Some(slot) => *slot = operation(*slot, *amount),
                None => {
                    self.scalars.insert(name.clone(), operation(0, *amount));
                }
            }
        }
    }

    /// Raises every amount to at least that of `other`.
    fn raise_to(&mut self, other: &Resources) {
        self.combine(other, i64::max);
    }

    pub fn times(&self, factor: i64) -> Self {
        let scaled = |amount: i64| amount.saturating_mul(factor);
        Resources {
            milli_cpu: scaled(self.milli_cpu),
            memory: scaled(self.memory),
            ephemeral_storage: scaled(self.ephemeral_storage),
            pods: scaled(self.pods),
            scalars: self.scalars.iter().map(|(name, amount)| (name.clone(), scaled(*amount))).collect(),
        }
    }

    fn amounts(&self) -> impl Iterator<Item = (&str, i64)> {
        let fixed = [
            ("cpu", self.milli_cpu),
            ("memory", self.memory),
            ("ephemeral-storage", self.ephemeral_storage),
            ("pods", self.pods),
        ];
        fixed.into_iter().chain(self.scalars.iter().map(|(name, amount)| (name.as_str(), *amount)))
    }

    /// Number of times that `request` fits. `None` if it requests nothing. This runs for every node of the fleet, so
    /// it does not allocate and compares names only for scalar resources.
    pub fn count_fits(&self, request: &Resources) -> Option<i64> {
        let bounds = [
            (self.milli_cpu, request.milli_cpu),
            (self.memory, request.memory),
            (self.ephemeral_storage, request.ephemeral_storage),
            (self.pods, request.pods),
        ];
        let scalar = |name: &str| self.scalars.get(name).copied().unwrap_or_default();
        let scalars = request.scalars.iter().map(|(name, amount)| (scalar(name), *amount));
        bounds
            .into_iter()
            .chain(scalars)
            .filter(|(_, amount)| *amount > 0)
            .map(|(free, amount)| free.max(0) / amount)
            .min()
    }

    /// Subtracts `request` `times` times.
    pub fn subtract_times(&mut self, request: &Resources, times: i64) {
        self.combine(request, |free, amount| free.saturating_sub(amount.saturating_mul(times)));
    }

    /// Adds `request` `times` times.
    pub fn add_times(&mut self, request: &Resources, times: i64) {
        self.combine(request, |free, amount| free.saturating_add(amount.saturating_mul(times)));
    }

    /// The list in Karmada's format: positive amounts; CPU and counts decimal, memory and storage binary.
    pub fn to_list(&self) -> ResourceList {
        self.amounts()
            .filter(|(_, amount)| *amount > 0)
            .map(|(name, amount)| {
                let quantity = match name {
                    "cpu" => Quantity::from_milli(amount, Format::DecimalSI),
                    "memory" | "ephemeral-storage" => Quantity::new(amount, Format::BinarySI),
                    _ => Quantity::new(amount, Format::DecimalSI),
                };
                (name.to_owned(), quantity.into())
            })
            .collect()
    }
}

/// True for an extended resource, that is, one outside of kubernetes.io, such as a GPU.
pub fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

/// True for extended resources, huge pages and attachable volumes.
fn is_scalar(name: &str) -> bool {
    is_extended(name) || name.starts_with("hugepages-") || name.starts_with("attachable-volumes-")
}

fn quantities(list: Option<&Value>) -> impl Iterator<Item = (String, Quantity)> {
    list.and_then(Value::as_object).into_iter().flatten().filter_map(|(name, value)| {
        let quantity = match value {
            Value::String(text) => Quantity::parse(text),
            other => Quantity::parse(&other.to_string()),
        };
        Some((name.clone(), quantity.ok()?))
    })
}

/// Requests of a pod: the sum of its containers, or its largest init container if that is more, plus overhead. With
/// `uses_limits`, a limit replaces a missing request, since templates have not passed an API server's defaulting.
pub fn pod_request(spec: &Value, uses_limits: bool) -> Resources {
    let containers = |field| at(spec, &[field]).and_then(Value::as_array).into_iter().flatten();
    let mut total = Resources::default();
    for container in containers("containers") {
        total.add(&container_request(container, uses_limits));
    }
    for container in containers("initContainers") {
        total.raise_to(&container_request(container, uses_limits));
    }
    total.add(&Resources::from_json(spec.get("overhead")));
    total
}

fn container_request(container: &Value, uses_limits: bool) -> Resources {
    let requests = at(container, &["resources", "requests"]);
    let mut request = Resources::from_json(requests);
    if uses_limits {
        for (name, limit) in quantities(at(container, &["resources", "limits"])) {
            if requests.and_then(|requests| requests.get(&name)).is_none() {
                request.add_quantity(&name, &limit);
            }
        }
    }
    request
}
