//! Which controllers run (`--controllers`), by the names of Karmada's controllers. Read once, at start.

use std::collections::BTreeSet;
use std::str::FromStr;

use super::controller::Switch;
use super::registry::Registry;

/// Enabled names. `Default` is Karmada's selection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection(BTreeSet<&'static str>);

/// An invalid `--controllers` list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    #[error("unknown controller {name:?}; known controllers: {known} (prefix a name with - to disable it), and *", known = known.join(", "))]
    Unknown { name: String, known: Vec<&'static str> },
    #[error("{} select the same controller: enable or disable all of them together", .0.join(", "))]
    OneController(Vec<&'static str>),
}

impl Default for Selection {
    fn default() -> Self {
        Selection::standard(&Registry::default())
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
    pub fn standard(registry: &Registry) -> Self {
        let on = registry.switches().filter(|switch| switch.is_on_by_default());
        Selection(on.flat_map(Switch::names).copied().collect())
    }

    /// All controllers.
    pub fn all() -> Self {
        Selection(Registry::default().switches().flat_map(Switch::names).copied().collect())
    }

    /// Parses a list for the controllers of a registry: `*` enables the defaults, `name` enables a controller, and
    /// `-name` disables it. The first entry of a name takes effect.
    pub fn parse(registry: &Registry, list: &str) -> Result<Self, SelectionError> {
        let all: BTreeSet<&'static str> = registry.switches().flat_map(Switch::names).copied().collect();
        let entries: Vec<&str> = list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).collect();
        let named = |entry: &str| entry.strip_prefix('-').unwrap_or(entry).to_owned();
        let is_known = |entry: &str| entry == "*" || all.contains(named(entry).as_str());
        if let Some(unknown) = entries.iter().find(|entry| !is_known(entry)) {
            return Err(SelectionError::Unknown { name: named(unknown), known: all.into_iter().collect() });
        }
        let standard = if entries.contains(&"*") { Selection::standard(registry).0 } else { BTreeSet::new() };
        let listed = |name: &str| Some(!entries.iter().find(|entry| named(entry) == name)?.starts_with('-'));
        let selection =
            Selection(all.into_iter().filter(|name| listed(name).unwrap_or_else(|| standard.contains(name))).collect());
        let is_split = |switch: &Switch| {
            let enabled = switch.names().iter().filter(|name| selection.is_enabled(name)).count();
            enabled != 0 && enabled != switch.names().len()
        };
        match registry.switches().find(is_split) {
            None => Ok(selection),
            Some(switch) => Err(SelectionError::OneController(switch.names().to_vec())),
        }
    }

    /// Returns true if a name is enabled.
    pub fn is_enabled(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// Returns true if the controller of a switch runs.
    pub fn runs(&self, switch: Switch) -> bool {
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

    fn without(mut selection: Selection, less: &[&str]) -> Selection {
        selection.0.retain(|name| !less.contains(name));
        selection
    }

    const QUOTAS: [&str; 3] =
        ["federatedResourceQuotaSync", "federatedResourceQuotaStatus", "federatedResourceQuotaEnforcement"];

    #[rstest]
    #[case::standard("*", Selection::default())]
    #[case::more("*,hpaScaleTargetMarker, deploymentReplicasSyncer,descheduler", Selection::all())]
    #[case::less("*,-namespace", without(Selection::default(), &["namespace"]))]
    #[case::only("cluster", Selection(["cluster"].into()))]
    #[case::no_star("-cluster", Selection(BTreeSet::new()))]
    #[case::first_entry_counts("-cluster,*,cluster", without(Selection::default(), &["cluster"]))]
    #[case::both_names_off("*,-execution,-workStatus", without(Selection::default(), &["execution", "workStatus"]))]
    #[case::all_names_of_quotas_off(
        "*,-federatedResourceQuotaSync,-federatedResourceQuotaStatus,-federatedResourceQuotaEnforcement",
        without(Selection::default(), &QUOTAS)
    )]
    #[case::part("gracefulEviction", Selection(["gracefulEviction"].into()))]
    fn lists(#[case] list: &str, #[case] expected: Selection) {
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
        let error = list.parse::<Selection>().expect_err("refused").to_string();
        assert!(error.contains(message), "{error}");
    }

    #[test]
    fn always_running_controllers_ignore_the_list() {
        let none = Selection(BTreeSet::new());
        assert!(none.runs(Switch::Always) && none.runs(Switch::Parts(&["gracefulEviction"])));
        assert!(!none.runs(Switch::OnByDefault(&["cluster"])) && !none.is_enabled("gracefulEviction"));
    }
}
