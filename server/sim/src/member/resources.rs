//! Amounts of compute resources, in the units of the scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_apimachinery::quantity::Quantity as Exact;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Amounts of resources: CPU in millicores, other resources in whole units.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    pub cpu_milli: i64,
    pub memory_bytes: i64,
    pub ephemeral_storage_bytes: i64,
    /// Extended resources and huge pages by name.
    pub other: BTreeMap<Arc<str>, i64>,
}

impl Resources {
    /// Parses a resource list without its `pods` entry.
    pub fn from_list(list: &BTreeMap<String, Quantity>) -> Self {
        let mut resources = Self::default();
        for (name, quantity) in list {
            match name.as_str() {
                "cpu" => resources.cpu_milli = milli_value(quantity),
                "memory" => resources.memory_bytes = whole_value(quantity),
                "ephemeral-storage" => resources.ephemeral_storage_bytes = whole_value(quantity),
                "pods" => {}
                other => {
                    resources.other.insert(other.into(), whole_value(quantity));
                }
            }
        }
        resources
    }

    /// Requests of a pod: the sum of its containers and sidecars, at least the largest init container with the sidecars
    /// before it, plus overhead.
    pub fn from_pod_spec(spec: &PodSpec) -> Self {
        let requests = |container: &Container| {
            container
                .resources
                .as_ref()
                .and_then(|resources| resources.requests.as_ref())
                .map(Self::from_list)
                .unwrap_or_default()
        };
        let mut total = Self::default();
        for container in &spec.containers {
            total.add(&requests(container));
        }
        let mut sidecars = Self::default();
        let mut largest = Self::default();
        for container in spec.init_containers.iter().flatten() {
            let container_requests = requests(container);
            if container.restart_policy.as_deref() == Some("Always") {
                sidecars.add(&container_requests);
            } else {
                let mut with_sidecars = sidecars.clone();
                with_sidecars.add(&container_requests);
                largest.raise_to(&with_sidecars);
            }
        }
        total.add(&sidecars);
        total.raise_to(&largest);
        if let Some(pod_requests) = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()) {
            for (name, amount) in Self::from_list(pod_requests).entries() {
                total.set(&name, amount);
            }
        }
        if let Some(overhead) = &spec.overhead {
            total.add(&Self::from_list(overhead));
        }
        total
    }

    pub fn add(&mut self, other: &Self) {
        self.cpu_milli += other.cpu_milli;
        self.memory_bytes += other.memory_bytes;
        self.ephemeral_storage_bytes += other.ephemeral_storage_bytes;
        for (name, amount) in &other.other {
            *self.other.entry(name.clone()).or_default() += amount;
        }
    }

    pub fn subtract(&mut self, other: &Self) {
        self.cpu_milli -= other.cpu_milli;
        self.memory_bytes -= other.memory_bytes;
        self.ephemeral_storage_bytes -= other.ephemeral_storage_bytes;
        for (name, amount) in &other.other {
            *self.other.entry(name.clone()).or_default() -= amount;
        }
    }

    /// Raises each amount to at least that of `minimum`.
    fn raise_to(&mut self, minimum: &Self) {
        self.cpu_milli = self.cpu_milli.max(minimum.cpu_milli);
        self.memory_bytes = self.memory_bytes.max(minimum.memory_bytes);
        self.ephemeral_storage_bytes = self.ephemeral_storage_bytes.max(minimum.ephemeral_storage_bytes);
        for (name, amount) in &minimum.other {
            let current = self.other.entry(name.clone()).or_default();
            *current = (*current).max(*amount);
        }
    }

    fn set(&mut self, name: &str, amount: i64) {
        match name {
            "cpu" => self.cpu_milli = amount,
            "memory" => self.memory_bytes = amount,
            "ephemeral-storage" => self.ephemeral_storage_bytes = amount,
            other => {
                self.other.insert(other.into(), amount);
            }
        }
    }

    /// Non-zero amounts by resource name; CPU in millicores.
    pub fn entries(&self) -> Vec<(Arc<str>, i64)> {
        let fixed = [
            ("cpu", self.cpu_milli),
            ("memory", self.memory_bytes),
            ("ephemeral-storage", self.ephemeral_storage_bytes),
        ];
        let fixed = fixed.into_iter().map(|(name, amount)| (Arc::from(name), amount));
        fixed
            .chain(self.other.iter().map(|(name, amount)| (name.clone(), *amount)))
            .filter(|(_, amount)| *amount != 0)
            .collect()
    }

    /// Names of the resources for which `self` minus `used` is less than `requested`, in the scheduler's order.
    pub fn insufficient_for(&self, used: &Self, requested: &Self) -> Vec<Arc<str>> {
        let is_insufficient = |total: i64, used: i64, requested: i64| requested > 0 && requested > total - used;
        let mut insufficient: Vec<Arc<str>> = Vec::new();
        if is_insufficient(self.cpu_milli, used.cpu_milli, requested.cpu_milli) {
            insufficient.push("cpu".into());
        }
        if is_insufficient(self.memory_bytes, used.memory_bytes, requested.memory_bytes) {
            insufficient.push("memory".into());
        }
        if is_insufficient(
            self.ephemeral_storage_bytes,
            used.ephemeral_storage_bytes,
            requested.ephemeral_storage_bytes,
        ) {
            insufficient.push("ephemeral-storage".into());
        }
        for (name, amount) in &requested.other {
            let total = self.other.get(name).copied().unwrap_or_default();
            if is_insufficient(total, used.other.get(name).copied().unwrap_or_default(), *amount) {
                insufficient.push(name.clone());
            }
        }
        insufficient
    }
}

/// A quantity in thousandths, rounded up; 0 for malformed text, which the API server rejects.
pub fn milli_value(quantity: &Quantity) -> i64 {
    Exact::parse(&quantity.0).map_or(0, |exact| exact.milli_value())
}

/// A quantity in whole units, rounded up.
pub fn whole_value(quantity: &Quantity) -> i64 {
    Exact::parse(&quantity.0).map_or(0, |exact| exact.value())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("100m", 100, 1)]
    #[case("2", 2000, 2)]
    #[case("0.1", 100, 1)]
    #[case("1e3", 1_000_000, 1000)]
    #[case("16Gi", 17_179_869_184_000, 17_179_869_184)]
    #[case("1.5Gi", 1_610_612_736_000, 1_610_612_736)]
    #[case("1n", 1, 1)]
    fn quantities_round_up(#[case] text: &str, #[case] thousandths: i64, #[case] units: i64) {
        let quantity = Quantity(text.into());
        assert_eq!((milli_value(&quantity), whole_value(&quantity)), (thousandths, units));
    }

    #[test]
    fn pod_requests_are_the_sum_of_containers_or_the_largest_init_container() {
        let spec: PodSpec = serde_json::from_value(serde_json::json!({
            "initContainers": [
                {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
                {"name": "init", "resources": {"requests": {"cpu": "1", "memory": "1Mi"}}},
            ],
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "500m"}}}, {"name": "b"}],
            "overhead": {"cpu": "10m"},
        }))
        .unwrap();
        let requests = Resources::from_pod_spec(&spec);
        assert_eq!((requests.cpu_milli, requests.memory_bytes), (1110, 1 << 20));
    }
}
