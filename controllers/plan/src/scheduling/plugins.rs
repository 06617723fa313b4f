//! Scheduler plugins by Karmada's names, and the enabled ones (`--plugins`). Set once from the command line.

use std::str::FromStr;

/// A filter or score that can be disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugin {
    ApiEnablement,
    ClusterAffinity,
    ClusterEviction,
    ClusterLocality,
    SpreadConstraint,
    TaintToleration,
    WorkloadAffinity,
    WorkloadAntiAffinity,
}

const ALL: [Plugin; 8] = [
    Plugin::ApiEnablement,
    Plugin::ClusterAffinity,
    Plugin::ClusterEviction,
    Plugin::ClusterLocality,
    Plugin::SpreadConstraint,
    Plugin::TaintToleration,
    Plugin::WorkloadAffinity,
    Plugin::WorkloadAntiAffinity,
];

impl Plugin {
    pub const fn name(self) -> &'static str {
        match self {
            Plugin::ApiEnablement => "APIEnablement",
            Plugin::ClusterAffinity => "ClusterAffinity",
            Plugin::ClusterEviction => "ClusterEviction",
            Plugin::ClusterLocality => "ClusterLocality",
            Plugin::SpreadConstraint => "SpreadConstraint",
            Plugin::TaintToleration => "TaintToleration",
            Plugin::WorkloadAffinity => "WorkloadAffinity",
            Plugin::WorkloadAntiAffinity => "WorkloadAntiAffinity",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The enabled plugins. As in Karmada, all by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plugins(u8);

impl Default for Plugins {
    fn default() -> Self {
        Plugins(ALL.iter().fold(0, |bits, plugin| bits | plugin.bit()))
    }
}

impl Plugins {
    pub fn has(self, plugin: Plugin) -> bool {
        self.0 & plugin.bit() != 0
    }
}

/// An unknown name in `--plugins`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown scheduler plugin {0:?}; supported are {supported}, * for all, and -NAME to disable one",
    supported = ALL.map(Plugin::name).join(", ")
)]
pub struct UnknownPlugin(String);

impl FromStr for Plugins {
    type Err = UnknownPlugin;

    /// Parses a list: `*` enables all plugins regardless of its position, `name` enables and `-name` disables one;
    /// the last entry for a name wins.
    fn from_str(list: &str) -> Result<Self, UnknownPlugin> {
        let entries: Vec<&str> = list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).collect();
        let mut plugins = if entries.contains(&"*") { Plugins::default() } else { Plugins(0) };
        for entry in entries.into_iter().filter(|entry| *entry != "*") {
            let name = entry.strip_prefix('-').unwrap_or(entry);
            let found = ALL.iter().find(|plugin| plugin.name() == name);
            let plugin = found.ok_or_else(|| UnknownPlugin(name.to_owned()))?;
            match entry.starts_with('-') {
                true => plugins.0 &= !plugin.bit(),
                false => plugins.0 |= plugin.bit(),
            }
        }
        Ok(plugins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn without(plugin: Plugin) -> Vec<Plugin> {
        ALL.into_iter().filter(|candidate| *candidate != plugin).collect()
    }

    #[rstest]
    #[case::all("*", &ALL)]
    #[case::named_plugins("APIEnablement, TaintToleration", &[Plugin::ApiEnablement, Plugin::TaintToleration])]
    #[case::all_but_one("*,-ClusterLocality", &without(Plugin::ClusterLocality))]
    #[case::star_after_other_entries("-ClusterLocality,*", &without(Plugin::ClusterLocality))]
    #[case::last_entry_wins("*,-SpreadConstraint,SpreadConstraint", &ALL)]
    #[case::disabled_only("-SpreadConstraint", &[])]
    #[case::none("", &[])]
    fn plugins_from_lists(#[case] list: &str, #[case] expected: &[Plugin]) {
        let plugins: Plugins = list.parse().expect("known plugins");
        let enabled: Vec<Plugin> = ALL.into_iter().filter(|plugin| plugins.has(*plugin)).collect();
        assert_eq!(enabled, expected);
    }

    #[rstest]
    #[case("*,-Locality", "Locality")]
    #[case("clusteraffinity", "clusteraffinity")]
    fn unknown_plugins_are_errors(#[case] list: &str, #[case] name: &str) {
        let error = list.parse::<Plugins>().expect_err("an unknown plugin");
        assert_eq!(error, UnknownPlugin(name.to_owned()));
        assert!(error.to_string().contains("APIEnablement, ClusterAffinity, "), "{error}");
    }
}
