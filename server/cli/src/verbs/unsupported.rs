//! karmadactl verbs that install parts of a control plane. Each fails with the command that replaces it here.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;

#[derive(Debug, Args)]
pub struct UnsupportedArgs {
    /// karmadactl's arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// A verb of karmadactl without an implementation here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnsupportedVerb {
    Init,
    Deinit,
    Addons,
}

/// Returns an error that names the replacement; changes nothing.
pub(crate) async fn run(verb: UnsupportedVerb, args: UnsupportedArgs) -> anyhow::Result<ExitCode> {
    let subcommand = args.arguments.first().map(|argument| argument.to_string_lossy()).unwrap_or_default();
    match (verb, subcommand.as_ref()) {
        (UnsupportedVerb::Init, _) => bail!(
            "`init` is not supported; use `crowsnest up` for a local control plane, or the Helm chart for `crowsnest serve` in a cluster; `crowsnest install --kubeconfig FILE` installs the required objects into a control plane"
        ),
        (UnsupportedVerb::Deinit, _) => bail!(
            "`deinit` is not supported; use `crowsnest uninstall --kubeconfig FILE` to remove the APIServices and webhooks from a control plane, and `helm uninstall` for the rest; objects and members are kept"
        ),
        (UnsupportedVerb::Addons, "list") => bail!(
            "there are no addons to list: search, metrics, descheduler and estimators are part of `crowsnest serve`; `crowsnest doctor` checks them"
        ),
        (UnsupportedVerb::Addons, _) => bail!(
            "there are no addons: search, metrics and the descheduler are part of `crowsnest serve` (see --controllers and --metrics-adapter); `crowsnest estimator` runs in a member"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[tokio::test]
    #[case(UnsupportedVerb::Init, &["--crds", "x"], "`crowsnest install --kubeconfig FILE`")]
    #[case(UnsupportedVerb::Deinit, &["-f"], "`crowsnest uninstall --kubeconfig FILE`")]
    #[case(UnsupportedVerb::Addons, &["list", "-n", "karmada-system"], "there are no addons to list")]
    #[case(UnsupportedVerb::Addons, &["enable", "karmada-search"], "there are no addons: ")]
    async fn replacements_are_named(#[case] verb: UnsupportedVerb, #[case] words: &[&str], #[case] expected: &str) {
        let args = UnsupportedArgs { arguments: words.iter().map(OsString::from).collect() };
        let error = run(verb, args).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
