//! Quantities of compute resources as the scheduler counts them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_apimachinery::quantity::Quantity as Exact;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// cpu in millicores, other resources in whole units.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    pub cpu_milli: i64,
    /// bytes
    pub memory: i64,
    /// bytes of ephemeral-storage
    pub ephemeral: i64,
    /// Extended resources and huge pages by name.
    pub other: BTreeMap<Arc<str>, i64>,
}

impl Resources {
    /// Parses a resource list without its `pods` entry.
    pub fn from_list(list: &BTreeMap<String, Quantity>) -> Self {
        let mut resources = Self::default();
        for (name, quantity) in list {
            match name.as_str() {
                "cpu" => resources.cpu_milli = milli(quantity),
                "memory" => resources.memory = whole(quantity),
                "ephemeral-storage" => resources.ephemeral = whole(quantity),
                "pods" => {}
                other => {
                    resources.other.insert(other.into(), whole(quantity));
                }
            }
        }
        resources
    }

    /// Requests of a pod: the sum of its containers (and restartable init containers), at least its largest init
    /// container, plus overhead.
    pub fn of_pod(spec: &PodSpec) -> Self {
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
            let wants = requests(container);
            if container.restart_policy.as_deref() == Some("Always") {
                sidecars.add(&wants);
            } else {
                let mut with_sidecars = sidecars.clone();
                with_sidecars.add(&wants);
                largest.raise(&with_sidecars);
            }
        }
        total.add(&sidecars);
        total.raise(&largest);
        if let Some(whole_pod) = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()) {
            for (name, amount) in Self::from_list(whole_pod).entries() {
                total.set(&name, amount);
            }
        }
        if let Some(overhead) = &spec.overhead {
            total.add(&Self::from_list(overhead));
        }
        total
    }

    pub fn add(&mut self, more: &Self) {
        self.cpu_milli += more.cpu_milli;
        self.memory += more.memory;
        self.ephemeral += more.ephemeral;
        for (name, amount) in &more.other {
            *self.other.entry(name.clone()).or_default() += amount;
        }
    }

    pub fn subtract(&mut self, less: &Self) {
        self.cpu_milli -= less.cpu_milli;
        self.memory -= less.memory;
        self.ephemeral -= less.ephemeral;
        for (name, amount) in &less.other {
            *self.other.entry(name.clone()).or_default() -= amount;
        }
    }

    fn raise(&mut self, at_least: &Self) {
        self.cpu_milli = self.cpu_milli.max(at_least.cpu_milli);
        self.memory = self.memory.max(at_least.memory);
        self.ephemeral = self.ephemeral.max(at_least.ephemeral);
        for (name, amount) in &at_least.other {
            let mine = self.other.entry(name.clone()).or_default();
            *mine = (*mine).max(*amount);
        }
    }

    fn set(&mut self, name: &str, amount: i64) {
        match name {
            "cpu" => self.cpu_milli = amount,
            "memory" => self.memory = amount,
            "ephemeral-storage" => self.ephemeral = amount,
            other => {
                self.other.insert(other.into(), amount);
            }
        }
    }

    /// Non-zero quantities by resource name; cpu in millicores.
    pub fn entries(&self) -> Vec<(Arc<str>, i64)> {
        let fixed = [("cpu", self.cpu_milli), ("memory", self.memory), ("ephemeral-storage", self.ephemeral)];
        let fixed = fixed.into_iter().map(|(name, amount)| (Arc::from(name), amount));
        fixed
            .chain(self.other.iter().map(|(name, amount)| (name.clone(), *amount)))
            .filter(|(_, amount)| *amount != 0)
            .collect()
    }

    /// Names of the resources of which `self` minus `used` is less than `wanted`, in the scheduler's order.
    pub fn short_of(&self, used: &Self, wanted: &Self) -> Vec<Arc<str>> {
        let lacks = |have: i64, taken: i64, want: i64| want > 0 && want > have - taken;
        let mut short: Vec<Arc<str>> = Vec::new();
        if lacks(self.cpu_milli, used.cpu_milli, wanted.cpu_milli) {
            short.push("cpu".into());
        }
        if lacks(self.memory, used.memory, wanted.memory) {
            short.push("memory".into());
        }
        if lacks(self.ephemeral, used.ephemeral, wanted.ephemeral) {
            short.push("ephemeral-storage".into());
        }
        for (name, want) in &wanted.other {
            let have = self.other.get(name).copied().unwrap_or_default();
            if lacks(have, used.other.get(name).copied().unwrap_or_default(), *want) {
                short.push(name.clone());
            }
        }
        short
    }
}

/// A quantity in thousandths, rounded up; 0 for malformed text, which the API server rejects.
pub fn milli(quantity: &Quantity) -> i64 {
    Exact::parse(&quantity.0).map_or(0, |exact| exact.milli_value())
}

/// A quantity in whole units, rounded up.
pub fn whole(quantity: &Quantity) -> i64 {
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
        assert_eq!((milli(&quantity), whole(&quantity)), (thousandths, units));
    }

    #[test]
    fn pod_requests_are_the_sum_or_the_largest_init_container() {
        let spec: PodSpec = serde_json::from_value(serde_json::json!({
            "initContainers": [
                {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
                {"name": "init", "resources": {"requests": {"cpu": "1", "memory": "1Mi"}}},
            ],
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "500m"}}}, {"name": "b"}],
            "overhead": {"cpu": "10m"},
        }))
        .unwrap();
        let wants = Resources::of_pod(&spec);
        assert_eq!((wants.cpu_milli, wants.memory), (1110, 1 << 20));
    }
}
