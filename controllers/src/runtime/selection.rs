//! Selection of the controllers that run (`--controllers`), by the names of Karmada's controllers. The flag is read
//! once, at start.

use std::collections::BTreeSet;
use std::str::FromStr;

use super::controller::Switch;
use super::registry::Registry;

/// Names of the enabled controllers. `Default` has the controllers that run by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection(BTreeSet<&'static str>);

/// An invalid `--controllers` list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// No controller has this name.
    #[error("unknown controller {name:?}; known controllers: {known} (prefix a name with - to disable it), and *", known = known.join(", "))]
    Unknown { name: String, known: Vec<&'static str> },
    /// The list enables some names of a controller and disables others.
    #[error("{} select the same controller: enable or disable all of them together", .0.join(", "))]
    SplitController(Vec<&'static str>),
}

impl Default for Selection {
    fn default() -> Self {
        Selection::defaults(&Registry::default())
    }
}

impl FromStr for Selection {
    type Err = SelectionError;

    fn from_str(list: &str) -> Result<Self, SelectionError> {
        Selection::parse(&Registry::default(), list)
    }
}

impl Selection {
    /// Controllers of a registry that run by default.
    pub fn defaults(registry: &Registry) -> Self {
        let enabled = registry.switches().filter(|switch| switch.is_on_by_default());
        Selection(enabled.flat_map(Switch::names).copied().collect())
    }

    /// All controllers.
    pub fn all() -> Self {
        Selection(Registry::default().switches().flat_map(Switch::names).copied().collect())
    }

    /// Parses a list for the controllers of a registry: `*` enables the defaults, `name` enables a controller, and
    /// `-name` disables it. The first entry of a name takes effect.
    pub fn parse(registry: &Registry, list: &str) -> Result<Self, SelectionError> {
        let names: BTreeSet<&'static str> = registry.switches().flat_map(Switch::names).copied().collect();
        let entries: Vec<&str> = list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).collect();
        let name_of = |entry: &str| entry.strip_prefix('-').unwrap_or(entry).to_owned();
        let is_known = |entry: &str| entry == "*" || names.contains(name_of(entry).as_str());
        if let Some(unknown) = entries.iter().find(|entry| !is_known(entry)) {
            return Err(SelectionError::Unknown { name: name_of(unknown), known: names.into_iter().collect() });
        }
        let defaults = if entries.contains(&"*") { Selection::defaults(registry).0 } else { BTreeSet::new() };
        let listed = |name: &str| Some(!entries.iter().find(|entry| name_of(entry) == name)?.starts_with('-'));
        let selection = Selection(
            names.into_iter().filter(|name| listed(name).unwrap_or_else(|| defaults.contains(name))).collect(),
        );
        let is_split = |switch: &Switch| {
            let enabled = switch.names().iter().filter(|name| selection.is_enabled(name)).count();
            enabled != 0 && enabled != switch.names().len()
        };
        match registry.switches().find(is_split) {
            None => Ok(selection),
            Some(switch) => Err(SelectionError::SplitController(switch.names().to_vec())),
        }
    }

    /// Returns true if a name is enabled.
    pub fn is_enabled(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// Returns true if the controller of a switch runs.
    pub fn should_run(&self, switch: Switch) -> bool {
        match switch {
            Switch::Always | Switch::Parts(_) => true,
            Switch::OnByDefault(names) | Switch::OffByDefault(names) => names.iter().any(|name| self.is_enabled(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn without(mut selection: Selection, names: &[&str]) -> Selection {
        selection.0.retain(|name| !names.contains(name));
        selection
    }

    const QUOTAS: [&str; 3] =
        ["federatedResourceQuotaSync", "federatedResourceQuotaStatus", "federatedResourceQuotaEnforcement"];

    #[rstest]
    #[case::defaults("*", Selection::default())]
    #[case::all("*,hpaScaleTargetMarker, deploymentReplicasSyncer,descheduler", Selection::all())]
    #[case::one_disabled("*,-namespace", without(Selection::default(), &["namespace"]))]
    #[case::one_enabled("cluster", Selection(["cluster"].into()))]
    #[case::without_defaults("-cluster", Selection(BTreeSet::new()))]
    #[case::first_entry_takes_effect("-cluster,*,cluster", without(Selection::default(), &["cluster"]))]
    #[case::both_names_off("*,-execution,-workStatus", without(Selection::default(), &["execution", "workStatus"]))]
    #[case::all_names_of_quotas_off(
        "*,-federatedResourceQuotaSync,-federatedResourceQuotaStatus,-federatedResourceQuotaEnforcement",
        without(Selection::default(), &QUOTAS)
    )]
    #[case::part_of_a_controller("gracefulEviction", Selection(["gracefulEviction"].into()))]
    fn valid_lists(#[case] list: &str, #[case] expected: Selection) {
        assert_eq!(list.parse(), Ok(expected));
    }

    #[rstest]
    #[case("*,-mcs", "bindingStatus, cluster, clusterStatus")]
    #[case("Cluster", "\"Cluster\"")]
    #[case("*,-workStatus", "execution, workStatus select the same controller")]
    #[case("multiclusterservice", "endpointsliceDispatch, multiclusterservice select the same controller")]
    #[case(
        "*,-federatedResourceQuotaStatus",
        "federatedResourceQuotaEnforcement, federatedResourceQuotaStatus, federatedResourceQuotaSync select the same"
    )]
    fn invalid_lists(#[case] list: &str, #[case] message: &str) {
        let error = list.parse::<Selection>().expect_err("an invalid list").to_string();
        assert!(error.contains(message), "{error}");
    }

    #[test]
    fn always_running_controllers_ignore_the_list() {
        let none = Selection(BTreeSet::new());
        assert!(none.should_run(Switch::Always) && none.should_run(Switch::Parts(&["gracefulEviction"])));
        assert!(!none.should_run(Switch::OnByDefault(&["cluster"])) && !none.is_enabled("gracefulEviction"));
    }
}
