//! Feature gates with Karmada's names and defaults, for planners, controllers and webhooks. Set once from the command
//! line.

/// Maturity of a gate, which `AllAlpha` and `AllBeta` select.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Alpha,
    Beta,
}

/// Accessor of a gate's field.
type Field = fn(&mut Gates) -> &mut bool;

/// Declares [`Gates`] and the table of gates. A row is the name of a gate, its field, its stage, and true if it is
/// enabled by default.
macro_rules! gates {
    ($( $name:literal, $field:ident, $stage:ident, $default:literal; )+) => {
        /// State of the feature gates. The defaults are Karmada's, except for `SchedulingOvercommitProtection`, which
        /// is enabled so that concurrent scheduling decisions do not overcommit a cluster (docs/karmada.md).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Gates {
            $( pub $field: bool, )+
        }

        impl Default for Gates {
            fn default() -> Self {
                Gates { $( $field: $default, )+ }
            }
        }

        const GATES: &[(&str, Stage, Field)] = &[$( ($name, Stage::$stage, |gates| &mut gates.$field), )+];
    };
}

gates! {
    "CustomizedClusterResourceModeling", customized_cluster_resource_modeling, Beta, true;
    "Failover", failover, Beta, false;
    "FederatedQuotaEnforcement", federated_quota_enforcement, Alpha, false;
    "GracefulEviction", graceful_eviction, Beta, true;
    "MultiClusterService", multi_cluster_service, Alpha, false;
    "MultiplePodTemplatesScheduling", multiple_pod_templates_scheduling, Alpha, false;
    "PriorityBasedScheduling", priority_based_scheduling, Beta, true;
    "PropagateDeps", propagate_deps, Beta, true;
    "PropagationPolicyPreemption", propagation_policy_preemption, Alpha, false;
    "ResourceQuotaEstimate", resource_quota_estimate, Alpha, false;
    "SchedulingOvercommitProtection", scheduling_overcommit_protection, Alpha, true;
    "StatefulFailoverInjection", stateful_failover_injection, Alpha, false;
    "WorkloadAffinity", workload_affinity, Alpha, false;
}

/// Gates of Karmada that concern its implementation (work queues, logging). Accepted without effect.
const WITHOUT_EFFECT: [&str; 4] =
    ["ContextualLogging", "ControllerPriorityQueue", "LoggingAlphaOptions", "LoggingBetaOptions"];

const ALL_ALPHA: &str = "AllAlpha";
const ALL_BETA: &str = "AllBeta";

/// An invalid entry of `--feature-gates`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    #[error("invalid feature gate {0:?}: must be Name=true or Name=false")]
    Form(String),
    #[error("unrecognized feature gate: {0} (supported: {supported})", supported = gate_names())]
    Unknown(String),
}

/// All names, for the error message.
fn gate_names() -> String {
    let named = GATES.iter().map(|(name, _, _)| *name).chain(WITHOUT_EFFECT);
    let mut names: Vec<&str> = named.chain([ALL_ALPHA, ALL_BETA]).collect();
    names.sort_unstable();
    names.join(", ")
}

/// Parses a bool like Go's `strconv.ParseBool`.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Names and values of a comma-separated list.
fn parse_entries(list: &str) -> impl Iterator<Item = Result<(&str, bool), GateError>> {
    list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(|entry| {
        let read = entry.split_once('=').and_then(|(name, value)| Some((name.trim(), parse_bool(value.trim())?)));
        read.ok_or_else(|| GateError::Form(entry.to_owned()))
    })
}

impl Gates {
    /// All gates enabled: `AllAlpha=true,AllBeta=true`.
    pub fn all() -> Self {
        let mut gates = Gates::default();
        GATES.iter().for_each(|(_, _, field)| *field(&mut gates) = true);
        gates
    }

    /// Applies a comma-separated list such as `Failover=true,AllAlpha=false`. `AllAlpha` and `AllBeta` are applied
    /// first, so that individual gates override them.
    pub fn with(mut self, list: &str) -> Result<Self, GateError> {
        let mut named: Vec<(Field, bool)> = Vec::new();
        for entry in parse_entries(list) {
            let (name, is_enabled) = entry?;
            match name {
                ALL_ALPHA => self.set(Stage::Alpha, is_enabled),
                ALL_BETA => self.set(Stage::Beta, is_enabled),
                _ if WITHOUT_EFFECT.contains(&name) => {}
                _ => match GATES.iter().find(|(gate, _, _)| *gate == name) {
                    Some((_, _, field)) => named.push((*field, is_enabled)),
                    None => return Err(GateError::Unknown(name.to_owned())),
                },
            }
        }
        named.into_iter().for_each(|(field, is_enabled)| *field(&mut self) = is_enabled);
        Ok(self)
    }

    /// Names of the gates without effect in a list as for [`Gates::with`].
    pub fn without_effect(list: &str) -> Vec<&'static str> {
        let named: Vec<&str> = parse_entries(list).filter_map(|entry| Some(entry.ok()?.0)).collect();
        WITHOUT_EFFECT.into_iter().filter(|gate| named.contains(gate)).collect()
    }

    fn set(&mut self, stage: Stage, is_enabled: bool) {
        GATES
            .iter()
            .filter(|(_, gate_stage, _)| *gate_stage == stage)
            .for_each(|(_, _, field)| *field(self) = is_enabled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::empty("", Gates::default())]
    #[case::one("Failover=true", Gates { failover: true, ..Gates::default() })]
    #[case::values_of_go_bools(" Failover = T , PropagateDeps=0,", Gates {
        failover: true, propagate_deps: false, ..Gates::default()
    })]
    #[case::all_stages("AllAlpha=true,AllBeta=true", Gates::all())]
    #[case::single_gate_overrides_its_stage("Failover=false,AllBeta=true,AllAlpha=1", Gates { failover: false, ..Gates::all() })]
    #[case::last_entry_wins("Failover=true,Failover=false", Gates::default())]
    #[case::gates_without_effect("ControllerPriorityQueue=false,LoggingAlphaOptions=true", Gates::default())]
    fn gates_from_lists(#[case] list: &str, #[case] expected: Gates) {
        assert_eq!(Gates::default().with(list), Ok(expected));
    }

    #[rstest]
    #[case("Nope=true", GateError::Unknown("Nope".to_owned()))]
    #[case("failover=true", GateError::Unknown("failover".to_owned()))]
    #[case("Failover", GateError::Form("Failover".to_owned()))]
    #[case("Failover=yes", GateError::Form("Failover=yes".to_owned()))]
    fn invalid_entries_are_errors(#[case] list: &str, #[case] expected: GateError) {
        assert_eq!(Gates::default().with(list), Err(expected));
    }

    #[test]
    fn error_for_unknown_gate_lists_known_gates() {
        let error = GateError::Unknown("Nope".to_owned()).to_string();
        let names = GATES.iter().map(|(name, _, _)| *name).chain(WITHOUT_EFFECT).chain([ALL_ALPHA, ALL_BETA]);
        names.for_each(|name| assert!(error.contains(name), "{name}: {error}"));
        assert_eq!(Gates::without_effect("Failover=true,ContextualLogging=true"), ["ContextualLogging"]);
    }

    #[test]
    fn a_gate_changes_one_field_only() {
        for (index, (_, _, field)) in GATES.iter().enumerate() {
            let mut gates = Gates::all();
            *field(&mut gates) = false;
            let is_off = |gates: &mut Gates, other: usize| {
                let (_, _, field) = GATES[other];
                !*field(gates)
            };
            let off: Vec<usize> = (0..GATES.len()).filter(|other| is_off(&mut gates, *other)).collect();
            assert_eq!(off, [index]);
        }
    }
}
